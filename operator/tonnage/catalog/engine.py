"""What an engine version decides: memory constants, flags, and where its speed constants start."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import TypeAdapter

from tonnage.catalog.gpu import FORBID_EXTRA, Gpu, UnsupportedEngineError
from tonnage.catalog.parameters import WIDE_BYTES
from tonnage.catalog.shape import ModelShape, StateAttention
from tonnage.units import GIB

ENGINES_FOLDER = Path(__file__).parent / "engines"
MEMORY_FILE = ENGINES_FOLDER / "memory.toml"
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A constant, how far from it nine of ten measured values lie, and how many there were."""

    value: float
    spread: float
    num_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryConstants:
    """The memory constants of vLLM from one minor version on.

    ``sizing.memory.budget`` has the formulas.

    Written by ``tests/bench/fit_memory.py``; a comment beside each constant names its rows.
    """

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
def engine_rows(file: str, table: str, kind: type[Value]) -> tuple[Value, ...]:
    """Return the rows of a table of ``engines``, oldest first."""
    rows = tomllib.loads((ENGINES_FOLDER / file).read_text())[table]
    adapter = TypeAdapter(tuple[kind, ...], config=FORBID_EXTRA)  # type: ignore[valid-type]
    return adapter.validate_python(rows)


def memory_constants() -> tuple[MemoryConstants, ...]:
    """Return the constants of all versions, oldest first."""
    return engine_rows(MEMORY_FILE.name, "versions", MemoryConstants)


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondRunner:
    """The second model runner of vLLM from one minor version on: whom it serves, and its sampler.

    Nothing here is fitted: ``engines/runners.toml`` says where it is read.
    """

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


StateCacheKind = Literal[
    "gated_delta_net", "kimi_delta", "kimi_k3", "lightning", "mamba1", "mamba2", "short_conv"
]
"""Kinds of layers with a state that an engine caches differently."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRules:
    """How a version cuts the cache into blocks."""

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
    state_draft_tokens: int = 0
    """Tokens that a step may draft: the tail of a convolution keeps them too."""
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

    since: str
    gpu_memory_utilization: float
    cache: CacheRules
    largest_graph: int = 512
    """Tokens of the largest CUDA graph of a decode step."""
    largest_graph_blackwell: int | None = None
    """On data centre boards of that generation, where it is another."""
    counts_host_files: bool = False
    """Where the host shares the memory, files that it has read count as used."""
    widens_flashinfer: bool = False
    """What FlashInfer works in grows with the token budget and the heads."""
    benchmarks_kernels: bool = True
    """While it compiles a model it times kernels, on copies of what they read."""
    shutdown_timeout: bool = False
    """``--shutdown-timeout`` exists: requests in flight are finished on SIGTERM."""
    custom_histogram_buckets: bool = False
    """``--custom-histogram-buckets`` exists: attainment can be exact."""


@cache
def _vllm() -> Mapping[str, Any]:
    return tomllib.loads((ENGINES_FOLDER / "vllm.toml").read_text())


def parse_version(text: str) -> tuple[int, int]:
    """Return (major, minor) of ``0.33``, ``v0.33.0``, an image tag like them, or a dated build.

    ``latest`` is the newest release of that day; any other build holds what the next one released.

    Raises:
        CatalogError: it is not a version.

    Sources:
        [vllm-source] dates of the files in the source packages.

    >>> [parse_version(text) for text in ("v0.33.1", "latest@2026-08-28", "nightly-20260828")]
    [(0, 33), (0, 28), (0, 29)]
    """
    match = re.match(r"v?(\d{1,4})\.(\d{1,4})(\.|$|[-+])", text)
    if match:
        return int(match[1]), int(match[2])
    found = _dated_version(text)
    if found is None:
        raise UnsupportedEngineError(
            f"engine.version {text!r} is not a version like 0.33, nor dated like latest@2026-08-28"
        )
    return found


def at_version(by_version: Mapping[str, Value], minor: str) -> Value:
    """Return what holds for a version: the entry of the last version that is not newer."""
    known = sorted(by_version, key=parse_version)
    matching = [
        since for since in known if not minor or parse_version(since) <= parse_version(minor)
    ]
    return by_version[matching[-1]]


def _dated_version(text: str) -> tuple[int, int] | None:
    """Return the version of a build that a date names; None: no date, or before any release."""
    match = re.search(r"(?<!\d)(20\d\d)(-?)(\d\d)\2(\d\d)(?!\d)", text)
    try:
        day = date(int(match[1]), int(match[3]), int(match[4])) if match else date.min
    except ValueError:
        return None
    releases: Mapping[str, date] = _vllm()["released"]
    older = [parse_version(minor) for minor, released in releases.items() if released <= day]
    if not older:
        return None
    major, minor = max(older)
    return (major, minor) if text.startswith("latest") else (major, minor + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownEngine:
    """A version as asked for, and the constants that stand for it."""

    minor: str
    constants: EngineVersion
    memory: MemoryConstants
    second_runner: SecondRunner | None
    """None: no model runs on it by default."""
    is_guess: bool
    """Newer than any version whose sources were read: treated like the newest of those."""

    def runner_of(self, shape: ModelShape, *, by_ngram: bool = False) -> SecondRunner | None:
        """Return the second runner where it serves a model; None: the first one does.

        ``by_ngram``: with drafts by n-gram.
        """
        runner = self.second_runner
        if runner is None or not runner.serves(shape):
            return None
        return None if by_ngram and not runner.drafts_by_ngram else runner

    def overlaps_stages(self, *, schedules_async: bool, has_second_runner: bool) -> bool:
        """Tell whether the stages of a pipeline work on several batches at once.

        Sources:
            [vllm-source] v1/worker/gpu_model_runner.py
            _pp_receive_prev_sampled_token_ids_to_input_batch; v1/worker/gpu/pp_utils.py.
        """
        gated: str = at_version(_vllm()["gated_pipelines"], self.minor)
        if gated == "none" or not schedules_async:
            return True
        return gated == "first" and has_second_runner


def find_engine(version: str) -> KnownEngine:
    """Look up the constants of a vLLM version that can be run.

    The one after the newest whose sources were read is taken to be like that.

    Raises:
        CatalogError: not a version, older than any that is supported, or newer than that one.
    """
    oldest, asked = oldest_version(), parse_version(version)
    if asked < parse_version(oldest):
        raise UnsupportedEngineError(
            f"engine.version {version}: vLLM before {oldest} is not supported"
        )
    major, minor = parse_version(newest_version())
    if asked > (major, minor + 1):
        raise UnsupportedEngineError(
            f"engine.version {version}: Tonnage knows vLLM up to {newest_version()}, and takes "
            f"{major}.{minor + 1} to be like it; take a newer Tonnage, or if this is of the tag of "
            "an image of somebody else, set engine.version or scaleTarget.engineVersion to that of "
            "the vLLM in it"
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
    runners = engine_rows("runners.toml", "second", SecondRunner)
    return KnownEngine(
        minor=f"{asked[0]}.{asked[1]}",
        constants=_latest(engine_rows("vllm.toml", "versions", EngineVersion), asked),
        memory=_latest(memory_constants(), asked),
        second_runner=next(
            (each for each in reversed(runners) if parse_version(each.since) <= asked), None
        ),
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


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDefaults:
    """What a server takes for the two flags that size a step, where it is told neither."""

    since: str
    least_memory_gib: int
    """Of the boards that it holds for."""
    max_num_seqs: int
    max_num_batched_tokens: int
    excepted_since: Mapping[str, str] = field(default_factory=dict)
    """Boards that have the memory and not the compute, and the version that says so."""

    def hold_for(self, gpu: Gpu, asked: tuple[int, int]) -> bool:
        is_excepted = any(
            name in gpu.name and parse_version(since) <= asked
            for name, since in self.excepted_since.items()
        )
        is_large = gpu.memory_bytes >= self.least_memory_gib * GIB
        return is_large and not is_excepted and parse_version(self.since) <= asked


STRETCHED_UNTIL = (0, 30)
LONGROPE_SHORT_SINCE = (0, 12)


def positions_of(shape: ModelShape, minor: str) -> tuple[int | None, int | None]:
    """Return the longest context that a version derives, and the one that it takes by itself.

    Sources:
        [vllm-source] config/model.py _get_and_verify_max_len.
    """
    asked, longest = parse_version(minor), shape.max_position_tokens
    if asked < STRETCHED_UNTIL:
        longest = shape.stretched_position_tokens or longest
    usual = shape.usual_position_tokens if asked >= LONGROPE_SHORT_SINCE else None
    return longest, usual or longest


def batch_defaults(gpu: Gpu, minor: str = "") -> BatchDefaults:
    """Return what vLLM itself takes on this GPU when serving; ``minor``: absent, the newest.

    Sources:
        [vllm-source] engine/arg_utils.py get_batch_defaults: by device memory, and by name.
    """
    asked = parse_version(minor or newest_version())
    rows: tuple[BatchDefaults, ...] = engine_rows("vllm.toml", "batches", BatchDefaults)
    return next(each for each in rows if each.hold_for(gpu, asked))


def image_version(image: str) -> str | None:
    """Return the version of vLLM that the tag of a container image is; None: it is not known.

    Tags of other publishers are versions of something else, or dates; so it is with a digest.

    Sources:
        [vllm-source] .buildkite/release-pipeline.yaml and docs/deployment/docker.md: the tags that
        the project pushes, with suffixes for platforms and versions of CUDA.

    >>> [image_version(f"{name}:v0.31.0-cu129") for name in ("vllm/vllm-openai", "llm-d-cuda")]
    ['0.31', None]
    """
    return _product_and_version(image)[1] if is_vllm_image(image) else None


def likely_version(image: str) -> str | None:
    """Return the version that the tag of an image may be whose name says vLLM; None: it is not.

    Somebody built or mirrored it, and tags of other products are not of this form.

    >>> [likely_version(f"{name}:v0.33.0") for name in ("my.registry/team/vllm", "llm-d-cuda")]
    ['0.33', None]
    """
    product, version = _product_and_version(image)
    return version if re.fullmatch(r"vllm(-[a-z0-9-]+)?", product) else None


def is_vllm_image(image: str) -> bool:
    """Tell whether an image is one that vLLM publishes, or a mirror of it."""
    return _product_and_version(image)[0] in _vllm()["images"]["known"]


def _product_and_version(image: str) -> tuple[str, str | None]:
    """Return the last part of an image's name and the version in its tag.

    The first is empty where another publisher has an image of the same name; a registry
    may have a port.
    """
    path, _, name = image.partition("@")[0].rpartition("/")
    product, _, tag = name.partition(":")
    others = tuple(f"/{other}" for other in _vllm()["images"]["others"])
    version = re.match(r"v?(0\.\d{1,4})(?=[.+-]|$)", tag)
    is_other = f"/{path}/{product}".endswith(others)
    return "" if is_other else product, version[1] if version else None
