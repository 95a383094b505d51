"""Status, conditions, Events and what they say."""
