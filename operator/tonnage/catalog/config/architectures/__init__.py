"""The kinds of model that are understood, and how each is read."""
