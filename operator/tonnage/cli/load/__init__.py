"""Load on a live endpoint: what asks it, sends requests, and times the answers."""
