"""What an object asks of sizing, and what it gets."""
