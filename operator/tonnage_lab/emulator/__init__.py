"""The engine emulator: vLLM's arguments, endpoints and metrics, driven by the engine model.

How fast it is, and how many KV tokens it has, comes from a file that the operator never sees
(``truth.py``); everything else it says is what vLLM 0.33 would say.
"""

from typing import Final

VLLM_VERSION: Final = "0.33.0"
