"""What an engine holds of a GPU beside weights and cache: constants fitted on start-up logs."""

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, TypeAdapter

MEMORY_FILE = Path(__file__).parent / "engines" / "memory.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A constant, how far from it nine of ten measured values lie, and how many there were."""

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    value: float
    spread: float
    num_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryConstants:
    """The memory constants of vLLM from one minor version on.

    ``sizing.memory.budget`` has the formulas.

    Written by ``tests/bench/fit_memory.py``; which rows each constant comes from stands beside it.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    since: str
    sampler_factor: Fitted
    """Copies of the logits that the sampler's dummy run keeps at its peak."""
    least_sampler_copies: float
    """That it keeps where it sorts in place, or where top-k and top-p are left out of it."""
    forward_factor: Fitted
    """Of the peak that the widths of a forward pass add up to."""
    expert_workspace: Literal["none", "in pass", "kept"]
    """The buffers of fused experts: too small to tell, within the forward pass, or kept beside
    whatever runs."""
    runtime_bytes: Fitted
    """Contexts, kernels and communication, on one GPU."""
    runtime_nvlink_bytes: Fitted
    """The same on each of two GPUs that share a model over NVLink."""
    runtime_nvlink_many_bytes: Fitted
    """On each of more than two."""
    runtime_pcie_bytes: Fitted
    graphs_bytes: Fitted
    """CUDA graphs that the engine subtracts from the pool."""


@cache
def memory_constants() -> tuple[MemoryConstants, ...]:
    """Return the constants of all versions, oldest first."""
    entries = tomllib.loads(MEMORY_FILE.read_text())["versions"]
    return tuple(TypeAdapter(list[MemoryConstants]).validate_python(entries))
