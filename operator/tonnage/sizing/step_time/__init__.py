"""How long one engine step takes."""
