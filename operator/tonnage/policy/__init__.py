"""From figures to a decision with its reasons. Pure."""
