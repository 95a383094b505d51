"""What one tick takes and remembers, and what is said of an object: values."""
