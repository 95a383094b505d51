"""Figures looked up, never guessed: GPU classes, model shapes, engine versions, each with a source."""
