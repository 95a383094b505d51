"""A plan, a comparison and what would confirm them, in words and figures. Pure."""
