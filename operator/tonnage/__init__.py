"""Tonnage: a Kubernetes capacity operator for LLM serving."""
