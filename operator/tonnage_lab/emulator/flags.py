"""Flags of ``vllm serve`` that a spec may hold or the operator writes, without effect here.

An unknown flag is an error, as in vLLM. Flags with an effect are in ``arguments.py``.
"""

from typing import Final

BOOLEANS: Final = (
    "async-scheduling", "disable-uvicorn-access-log", "enable-auto-tool-choice",
    "enforce-eager", "trust-remote-code",
)  # fmt: skip
"""Each with a ``--no-`` form."""

VALUED: Final = (
    "chat-template-content-format",
    "generation-config",
    "hf-overrides",
    "kv-cache-memory-bytes",
    "limit-mm-per-prompt",
    "load-format",
    "lora-modules",
    "performance-mode",
    "reasoning-parser",
    "revision",
    "safetensors-load-strategy",
    "seed",
    "tokenizer-mode",
    "tool-call-parser",
)
"""Each with one value or several."""
