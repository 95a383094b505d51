"""What an engine version decides: memory constants, flags, and where its speed constants start."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import ConfigDict, TypeAdapter

from tonnage.catalog.engine_memory import MemoryConstants, memory_constants
from tonnage.catalog.gpu import Gpu, UnsupportedEngineError
from tonnage.units import GIB

ENGINES_FOLDER = Path(__file__).parent / "engines"
StateCacheKind = Literal[
    "gated_delta_net", "kimi_delta", "kimi_k3", "lightning", "mamba1", "mamba2", "short_conv"
]
"""Kinds of layers with a state that an engine caches differently."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRules:
    """How a version cuts the cache into blocks."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    manages_windows: bool = True
    """Layers with a window keep only what it can see. False: they keep every token."""
    manages_chunks: bool = True
    """So do layers with chunks. False: in a model that has any, every layer keeps every token."""
    packs_blocks: bool = True
    """Layers of compressed attention, with pages of many sizes, fill a block without gaps. False:
    the version lays them out in another way, or does not have them."""
    state_blocks: int = 2
    """Blocks per sequence of a layer with a state: a second one with prefix caching, which is the
    default for such models where this is 2."""
    checkpointed_states: tuple[StateCacheKind, ...] = ("mamba2", "kimi_k3", "gated_delta_net")
    """With prefix caching these keep one block more, for the state within a prompt. The prefill
    kernels are those of Hopper and Blackwell."""
    delta_net_alignment: int = 64
    """Tokens to whose multiples blocks grow beside gated delta nets, with prefix caching."""
    counts_batches_in_flight: bool = True
    """Windows keep the tokens of all batches in flight, not of one."""
    schedules_async: bool = True
    """One batch is prepared while another runs."""
    tokens_from_concurrency: bool = True
    """The logged tokens are concurrency times length, not blocks times their size."""
    reports_tokens: bool = True
    """The metrics have the label ``kv_cache_size_tokens``."""
    latent_state_alignment: int = 128
    """Tokens to whose multiples blocks of latent attention grow beside layers with a state."""
    latent_elements: int | None = None
    """What a token of latent attention was padded to. None: not padded."""
    latent_head_elements: int | None = None
    """Keys and values of one head, of versions that cached latent attention unfolded."""
    merges_latent_projections: bool = False
    """Decoding had matrices of its own, each the product of two of the checkpoint's."""


CURRENT_CACHE_RULES = CacheRules()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineVersion:
    """The defaults, the cache rules and the flags of vLLM from one minor version on."""

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    since: str
    gpu_memory_utilization: float
    cache: CacheRules
    shutdown_timeout: bool = False
    """``--shutdown-timeout`` exists: requests in flight are finished on SIGTERM."""
    custom_histogram_buckets: bool = False
    """``--custom-histogram-buckets`` exists: attainment can be exact."""


@cache
def _vllm() -> Mapping[str, Any]:
    return tomllib.loads((ENGINES_FOLDER / "vllm.toml").read_text())


@cache
def _versions() -> tuple[EngineVersion, ...]:
    """Return what is known of each version, oldest first."""
    return tuple(TypeAdapter(list[EngineVersion]).validate_python(_vllm()["versions"]))


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
    memory: MemoryConstants
    is_guess: bool
    """Newer than any version whose sources were read: treated like the newest of those."""


def find_engine(version: str) -> KnownEngine:
    """Look up the constants of a vLLM version that can be run.

    Raises:
        CatalogError: not a version, or older than any that is supported.
    """
    oldest = oldest_version()
    if parse_version(version) < parse_version(oldest):
        raise UnsupportedEngineError(
            f"engine.version {version}: vLLM before {oldest} is not supported"
        )
    return known_engine(version)


def oldest_version() -> str:
    """Return the oldest version that can be run."""
    return str(_vllm()["oldest"]["version"])


def newest_version() -> str:
    """Return the newest version whose sources were read."""
    return str(_vllm()["newest"]["version"])


@lru_cache(maxsize=64)
def known_engine(version: str) -> KnownEngine:
    """Look up the constants of any vLLM version, also of those too old to be run.

    Raises:
        CatalogError: not a version, or older than any whose memory is known.
    """
    asked = parse_version(version)
    newest = parse_version(newest_version())
    return KnownEngine(
        minor=f"{asked[0]}.{asked[1]}",
        constants=_latest(_versions(), asked),
        memory=_latest(memory_constants(), asked),
        is_guess=asked > newest,
    )


_Dated = TypeVar("_Dated", EngineVersion, MemoryConstants)


def _latest(entries: Sequence[_Dated], asked: tuple[int, int]) -> _Dated:
    older = [entry for entry in entries if parse_version(entry.since) <= asked]
    if not older:
        raise UnsupportedEngineError(
            f"vLLM {asked[0]}.{asked[1]} is older than {entries[0].since}: nothing is known of it"
        )
    return older[-1]


def default_batched_tokens(gpu: Gpu) -> int:
    """Return what vLLM itself takes for ``--max-num-batched-tokens`` on this GPU when serving.

    Sources:
        [vllm-source] engine/arg_utils.py get_batch_defaults: by device memory; A100 and GB10, which
        has the memory of a large GPU and not its compute, excepted.
    """
    if gpu.memory_bytes >= 160 * GIB:
        return 16384
    is_slow = any(name in gpu.name for name in ("A100", "GB10"))
    if gpu.memory_bytes >= 70 * GIB and not is_slow:
        return 8192
    return 2048
