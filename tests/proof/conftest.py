"""What of this folder pytest does not look into."""

collect_ignore = ["host_cache_on_cpu.py"]
"""It is imported by an engine, which has PyTorch and vLLM."""
