"""How many replicas, with which template, and when."""
