"""What an engine version decides: memory constants, flags, and where its speed constants start."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter

from tonnage.catalog.gpu import Gpu, UnsupportedEngineError
from tonnage.units import GIB

ENGINES_FOLDER = Path(__file__).parent / "engines"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineVersion:
    """The memory constants and the flags of vLLM from one minor version on."""

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    since: str
    gpu_memory_utilization: float
    sampler_peak_factor: float
    non_torch_bytes: int
    non_torch_tensor_bytes: int
    graph_bytes: int
    shutdown_timeout: bool = False
    """``--shutdown-timeout`` exists: requests in flight are finished on SIGTERM."""
    custom_histogram_buckets: bool = False
    """``--custom-histogram-buckets`` exists: attainment can be exact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedConstants:
    """The constants of the step-time formula (``sizing.step``). Priors here, learned later."""

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    bandwidth_efficiency: float
    """Share of the nominal memory bandwidth that the memory part of a step achieves."""
    compute_efficiency: float
    """Share of the dense peak that decode's matrix products achieve."""
    prefill_efficiency: float
    """Share of the dense peak that prefill achieves."""
    per_step_s: float
    per_layer_s: float
    per_moe_layer_s: float
    """Added for a layer with experts: routing, grouping, two more launches."""
    per_sequence_s: float
    per_all_reduce_s: float
    """Latency that one layer's two all-reduces add, per doubling of the group."""
    prefill_exposed_fraction: float = 0.9
    """Share of the prefill work that decode's memory reads do not hide."""


TEXTBOOK_SPEED = SpeedConstants(
    bandwidth_efficiency=1,
    compute_efficiency=1,
    prefill_efficiency=1,
    per_step_s=0,
    per_layer_s=0,
    per_moe_layer_s=0,
    per_sequence_s=0,
    per_all_reduce_s=0,
    prefill_exposed_fraction=1,
)
"""Efficiency 1 and no overhead: what napkin arithmetic assumes."""


@cache
def _vllm() -> Mapping[str, Any]:
    return tomllib.loads((ENGINES_FOLDER / "vllm.toml").read_text())


def parse_version(text: str) -> tuple[int, int]:
    """Return (major, minor) of ``0.33``, ``v0.33.0`` or an image tag like them.

    Raises:
        CatalogError: it is not a version.

    >>> parse_version("v0.33.1")
    (0, 33)
    """
    match = re.match(r"v?(\d{1,4})\.(\d{1,4})(\.|$|[-+])", text)
    if not match:
        raise UnsupportedEngineError(f"engine.version {text!r} is not a version like 0.33")
    return int(match[1]), int(match[2])


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownEngine:
    """A version as asked for, and the constants that stand for it."""

    minor: str
    constants: EngineVersion
    is_guess: bool
    """Newer than any version whose sources were read: treated like the newest of those."""


def find_engine(version: str) -> KnownEngine:
    """Look up the constants of a vLLM version.

    Raises:
        CatalogError: not a version, or older than any that is known.
    """
    asked = parse_version(version)
    versions = TypeAdapter(list[EngineVersion]).validate_python(_vllm()["versions"])
    older = [entry for entry in versions if parse_version(entry.since) <= asked]
    if not older:
        raise UnsupportedEngineError(
            f"engine.version {version}: vLLM before {versions[0].since} is not supported"
        )
    newest = parse_version(_vllm()["newest"]["version"])
    minor = f"{asked[0]}.{asked[1]}"
    return KnownEngine(minor=minor, constants=older[-1], is_guess=asked > newest)


@cache
def prior_speed() -> SpeedConstants:
    """Return the speed constants that hold before anything is learned."""
    figures = {key: value for key, value in _vllm()["speed"].items() if key != "source"}
    return TypeAdapter(SpeedConstants).validate_python(figures)


def default_batched_tokens(gpu: Gpu) -> int:
    """Return what vLLM itself takes for ``--max-num-batched-tokens`` on this GPU when serving.

    Sources:
        [vllm-source] engine/arg_utils.py get_batch_defaults: by device memory, A100 excepted.
    """
    if gpu.memory_bytes >= 160 * GIB:
        return 16384
    if gpu.memory_bytes >= 70 * GIB and "A100" not in gpu.name:
        return 8192
    return 2048
