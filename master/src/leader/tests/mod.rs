mod refused;
mod upgrade;
