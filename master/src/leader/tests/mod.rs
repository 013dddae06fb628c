mod holds;
mod upgrade;
