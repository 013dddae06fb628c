mod refused;
mod upgrade;
mod work;
