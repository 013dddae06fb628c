mod holds;
mod refused;
mod upgrade;
