"""What the services of this package share."""
