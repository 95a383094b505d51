"""From ``quantization_config`` to the formats of weights."""
