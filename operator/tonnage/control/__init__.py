"""What an operator does in one tick, as functions of values: a replay runs the same. Pure."""
