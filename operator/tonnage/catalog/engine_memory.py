"""What an engine holds of a GPU beside weights and cache: constants fitted on start-up logs."""

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, TypeAdapter

from tonnage.catalog.parameters import WIDE_BYTES
from tonnage.catalog.shape import ModelShape, StateAttention

MEMORY_FILE = Path(__file__).parent / "engines" / "memory.toml"
RUNNERS_FILE = MEMORY_FILE.with_name("runners.toml")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondRunner:
    """The second model runner of vLLM from one minor version on: whom it serves, and its sampler.

    Nothing here is fitted: ``engines/runners.toml`` says where it is read.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    since: str
    kinds: tuple[str, ...]
    others: Literal["none", "dense", "all"]
    quantized: bool = True
    sampler_copies: float
    least_sampler_copies: float
    estimates_graphs: bool
    """Whether it sets memory aside for CUDA graphs."""
    counts_buffers: bool
    """Whether the pool is less by what the runner allocates between weights and profile run."""
    drafts_by_ngram: bool = False

    def serves(self, shape: ModelShape) -> bool:
        """Tell whether a model runs on it where nobody asks for the first one."""
        if self.others == "all":
            return True
        is_listed = shape.model_type in self.kinds
        if is_listed and not self.quantized:
            return shape.weight_format.bytes_per_parameter == WIDE_BYTES
        is_dense = not shape.has_experts and not shape.has_kind(StateAttention)
        return is_listed or (self.others == "dense" and is_dense)


@cache
def second_runners() -> tuple[SecondRunner, ...]:
    """Return what is known of the second runner in each version that has it, oldest first."""
    entries = tomllib.loads(RUNNERS_FILE.read_text())["second"]
    return tuple(TypeAdapter(list[SecondRunner]).validate_python(entries))
