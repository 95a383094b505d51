"""What measurements say about demand and about the constants of the arithmetic. Pure."""
