mod upgrade;
