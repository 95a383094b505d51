"""How others scale LLM serving, re-implemented to meet the same traffic on the same engines."""
