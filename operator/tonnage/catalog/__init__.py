"""Figures looked up, never guessed: GPU classes, model shapes, engine versions, with sources."""
