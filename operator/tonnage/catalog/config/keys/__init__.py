"""What a ``config.json`` may hold: names, types and bounds of its keys."""
