"""From an assessment to writes, and what became of them."""
