"""From a Hugging Face ``config.json`` to the shape of a model, one family of rules per module."""
