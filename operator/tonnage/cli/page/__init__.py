"""Answers laid out as a page with pictures; needs the extra ``html``."""
