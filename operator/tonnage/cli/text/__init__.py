"""Answers laid out for a terminal."""
