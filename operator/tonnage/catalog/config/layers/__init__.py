"""From keys to the layers of a model."""
