"""Where the constants of the step-time formula start, before any is learned.

They are fitted on public serving measurements, with physics as the prior: ``engines/speed.toml``
says on which, and ``tests/bench/fit_speed.py`` writes it. The formula itself is
``sizing.step_time.step``.
"""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

from tonnage.catalog.cache_types import CACHE_TYPES
from tonnage.catalog.engine import Value, at_version
from tonnage.catalog.engine_limits import (
    WIDE,
    format_of_experts,
    kernels_of_dense,
    kernels_of_experts,
    products_in,
    scaling_of,
    unpacked_share,
)
from tonnage.catalog.gpu import COMPUTE_FALLBACK, FORBID_EXTRA, Gpu
from tonnage.catalog.shape import WeightFormat

SPEED_FILE = Path(__file__).parent / "engines" / "speed.toml"
OWN_LINKS = "nvlink"
GENERATION_MEMORY = {"ampere": "hbm", "hopper": "hbm", "blackwell": "hbm", "ada": "gddr",
                     "blackwell-rtx": "gddr"}  # fmt: skip
"""The kind of memory of the boards of a generation whose kernels were measured."""
CutlassExperts = Literal["none", "whole", "all"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedConstants:
    """The constants of the formula in ``sizing.step_time.step``. Priors here, learned later."""

    bandwidth_efficiency: float
    """Share of the nominal memory bandwidth that the memory part of a step achieves."""
    compute_efficiency: float
    """Share of the dense peak that decode's matrix products achieve."""
    prefill_efficiency: float
    """Share of the dense peak that prefill achieves in quantized matrices."""
    per_step_s: float
    """Scheduling, sampling, copies: once per step."""
    per_kernel_s: float
    """What a kernel of the smallest kind (``sizing.parallelism.kernels``) takes at least."""
    per_scaled_product_s: float
    """The same for finding the scales of a product of quantized matrices."""
    per_sequence_s: float
    per_all_reduce_s: float
    """Latency that one layer's two all-reduces add in a group of two."""
    per_sequence_limit: float | None = None
    """Sequences of a rank beyond which the next takes no longer. None: there is none."""
    per_cached_head_s: float = 0.0
    """What attention takes for each sequence and KV head of a layer, however short its context."""
    cache_bandwidth_factor: float = 1.0
    """Of the bandwidth efficiency, what reading the cache achieves."""
    one_shot_efficiency: float | None = None
    """Share of a link that an all-reduce achieves where every rank reads what all others have.
    None: it is always a ring."""
    bulk_extra_s: float = 0.0
    """Latency that a ring has beyond one shot."""
    prefill_launch_s: float = 0.0
    """What the host takes to launch one kernel of a step with prompts, which has no CUDA graph."""
    all_reduce_growth: float = 0.0
    """That latency grows as this power of the group: 0 not at all, 1 in proportion."""
    per_experts_block_s: float = 0.0
    """What routing and the routed experts of a layer take however little they do."""
    cutlass_block_s: float = 0.0
    """The same in FlashInfer's CUTLASS kernels."""
    cutlass_expert_s: float = 0.0
    """What these take more for each expert that a rank has, whole or a slice of it."""
    cutlass_experts: CutlassExperts = "none"
    """Which experts they multiply: none, those that ranks hold whole, or all."""
    experts_bandwidth_factor: float = 1.0
    """Of the bandwidth efficiency, what reading routed experts achieves: more in large grouped
    products, less where weights have to be unpacked."""
    routing_evenness: float | None = None
    """How alike experts are chosen (``sizing.step.experts_touched``); None: all the same."""
    overlap_power: float | None = None
    """Of a product's reads and its work: 1 is one after the other. None: all that a step reads
    overlaps with all that it computes."""
    link_efficiency: float = 1.0
    """Share of a link's nominal bandwidth that exchanges between GPUs achieve."""
    wide_prefill_factor: float = 1.0
    """Of the rate of prefill, what products in 16 bits achieve."""
    experts_prefill_factor: float = 1.0
    """Of the rate of prefill, what whole and wide experts achieve."""
    experts_half_width: float = 0.0
    """The slice of an expert's inner width at which that rate is halved."""
    prefill_exposed_fraction: float = 0.9
    """Share of the prefill work that decode's memory reads do not hide."""
    per_request_s: float = 0.0
    """Between client and engine, before the first token: parsing, sockets, scheduling."""
    per_running_request_s: float = 0.0
    """The same for each request that streams at that time through the same server."""
    per_prompt_token_s: float = 0.0
    """Of making tokens from a prompt's text."""
    overlaps_stages: bool = True
    """Whether the stages of a pipeline work on several batches at once."""

    @property
    def experts_bandwidth_efficiency(self) -> float:
        """Share of the nominal bandwidth that reading routed experts achieves: 1 at most."""
        return min(1.0, self.bandwidth_efficiency * self.experts_bandwidth_factor)

    @property
    def cache_bandwidth_efficiency(self) -> float:
        """The same of reading the cache."""
        return self.bandwidth_efficiency * self.cache_bandwidth_factor


TEXTBOOK_SPEED = SpeedConstants(
    bandwidth_efficiency=1,
    compute_efficiency=1,
    prefill_efficiency=1,
    per_step_s=0,
    per_kernel_s=0,
    per_scaled_product_s=0,
    per_sequence_s=0,
    per_all_reduce_s=0,
    prefill_exposed_fraction=1,
)
"""Efficiency 1 and no overhead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsPrefill:
    """How fast grouped products of experts of a format multiply many tokens."""

    precision: str
    """In which they multiply: a key of ``Gpu.peak_flop_per_s``."""
    efficiency: float
    """Share of that peak which whole and wide experts achieve in kernel tables, beside the reads of
    their weights."""
    half_width: float
    """The slice of an expert's inner width at which that is halved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedTable:
    """The fitted constants, by what they depend on."""

    __pydantic_config__ = FORBID_EXTRA

    source: str
    per_step_s: Mapping[str, float]
    """By how the host schedules: ``async`` while another step runs, or ``sync``."""
    per_sequence_s: Mapping[str, float]
    """By vLLM's model runner: ``first``, or ``second``, which keeps what it knows of sequences on
    the GPU."""
    constants: Mapping[str, float]
    """Those of ``SpeedConstants`` that depend on nothing; ``overlap_power`` is from kernel tables,
    ``per_sequence_limit`` the largest batch that was measured."""
    by_generation: Mapping[str, Mapping[str, float]]
    """Others of them by generation; ``other`` for those not listed. That of ``per_cached_head_s``
    is from kernel tables."""
    by_interconnect: Mapping[str, Mapping[str, float]]
    """The same by interconnect; ``all_reduce_growth`` is from kernel tables."""
    of_own_links: Mapping[str, Mapping[str, float]]
    """The same by generation, of those that have links of their own; from kernel tables."""
    per_experts_block_s: Mapping[str, Mapping[str, float]]
    """By generation and the format of the experts, ``format.kernels`` in kernels that a recipe
    names; ``other`` for those not listed."""
    cutlass_experts: Mapping[str, Mapping[str, Mapping[str, CutlassExperts]]]
    """By generation, format of the experts, and the engine's first version that it holds for."""
    experts_bandwidth_efficiency: Mapping[str, Mapping[str, float]]
    """By generation and the format of the experts, that of plain products for those not listed;
    from kernel tables."""
    experts_served_share: float
    """Of the rate of experts in kernel tables, what prefill has of it when served."""
    experts_prefill: Mapping[str, Mapping[str, ExpertsPrefill]]
    """By GPU class or generation, and the format of the experts; ``other`` for those not listed;
    from kernel tables."""
    bandwidth_efficiency: Mapping[str, Mapping[str, float]]
    """By generation, or kind of memory where none of the generation with that kind was measured,
    and by weight format, fp8 in blocks apart; ``other`` for those not listed."""
    cache_bandwidth_efficiency: Mapping[str, Mapping[str, float]]
    """By generation and cache format, that of plain products for those not listed; from kernel
    tables."""
    prefill_launch_s: Mapping[str, float]
    """By the first version of the engine that it holds for."""
    per_scaled_product_s: Mapping[str, float]
    """By weight format, ``fp8-block`` apart from fp8; formats not listed need no scales."""
    link_efficiency: Mapping[str, float]
    """By generation, of those that have links of their own, and ``pcie``; from kernel tables."""
    prefill_efficiency: Mapping[str, Mapping[str, float]]
    """By GPU class or generation, and the precision of the products; ``other`` for those not
    listed."""
    measured: Mapping[str, tuple[str, ...]]
    """Generations whose serving was measured, with the formats of weights that it was measured in;
    of the others only kernels, or nothing, was."""
    measured_attention: tuple[str, ...]
    """Kinds of attention that the measured models have."""
    measured_layers: int
    """Of the shallowest of these models."""
    spread_fraction: Mapping[str, float]
    """Of a predicted step, and of a first token, either way: what eight of ten measured ones keep
    whose model the fit had not seen."""
    unmeasured_fraction: Mapping[str, float]
    """What is added to it, as an error of its own, for each kind of thing that was not measured."""


@cache
def speed_table() -> SpeedTable:
    """Return the fitted constants as the data file has them."""
    return TypeAdapter(SpeedTable).validate_python(tomllib.loads(SPEED_FILE.read_text()))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMode:
    """How a model is run, as far as the constants depend on it."""

    kv_format: str = "bf16"
    minor: str = ""
    """Of the engine's version; the newest if empty."""
    schedules_async: bool = True
    has_second_runner: bool = False
    """And no experts: with experts it was not measured."""
    overlaps_stages: bool = True
    experts: str = ""
    """Kernels that a recipe has routed experts multiplied in; those of the version if empty."""


PLAIN_RUN = RunMode()


def prior_speed(
    gpu: Gpu, weights: WeightFormat, run: RunMode = PLAIN_RUN, *, table: SpeedTable | None = None
) -> SpeedConstants:
    """Return the constants for weights of this format on a GPU class; ``table``: not ours."""
    table = table or speed_table()
    generation, scaling = gpu.generation, scaling_of(weights)
    memory = table.bandwidth_efficiency[memory_class(table.bandwidth_efficiency, gpu)]
    bandwidth = _of(memory, scaling)
    compute = products_in(gpu, weights, run.minor)
    wide_flop_per_s = _prefill_flop_per_s(table, gpu, WIDE)
    prefill_flop_per_s = _prefill_flop_per_s(table, gpu, compute) * unpacked_share(
        gpu, kernels_of_dense(gpu, weights, run.minor)
    )
    unpacked = kernels_of_experts(gpu, weights, run.minor)
    experts = experts_prefill(table.experts_prefill, gpu, weights, unpacked)
    floors = table.per_experts_block_s.get(generation, table.per_experts_block_s["other"])
    reads = table.experts_bandwidth_efficiency.get(generation, {})
    known = table.cache_bandwidth_efficiency.get(generation, {})
    stored = CACHE_TYPES[run.kv_format]
    cache = known.get(stored.measured_as or WIDE, bandwidth)
    if not stored.measured_as:  # as long as 16 bits would take
        cache *= stored.element_bytes / CACHE_TYPES[WIDE].element_bytes
    has_links = gpu.interconnect == OWN_LINKS
    return SpeedConstants(
        **table.constants,
        **{name: _of(each, generation) for name, each in table.by_generation.items()},
        **{name: each[gpu.interconnect] for name, each in table.by_interconnect.items()},
        **{name: _of(each, generation) for name, each in table.of_own_links.items() if has_links},
        link_efficiency=_of(table.link_efficiency, generation if has_links else "pcie"),
        bandwidth_efficiency=bandwidth / weights.traffic,
        prefill_efficiency=prefill_flop_per_s / gpu.flop_per_s(compute),
        wide_prefill_factor=wide_flop_per_s / prefill_flop_per_s,
        experts_prefill_factor=table.experts_served_share
        * experts.efficiency
        * gpu.flop_per_s(experts.precision)
        / prefill_flop_per_s,
        experts_half_width=experts.half_width,
        per_step_s=table.per_step_s["async" if run.schedules_async else "sync"],
        per_scaled_product_s=table.per_scaled_product_s.get(scaling, 0.0),
        overlaps_stages=run.overlaps_stages,
        per_sequence_s=table.per_sequence_s["second" if run.has_second_runner else "first"],
        cache_bandwidth_factor=cache / bandwidth * weights.traffic,
        per_experts_block_s=of_experts(floors, weights, run.experts, plain=floors["other"]),
        cutlass_experts=cutlass_experts(table.cutlass_experts, generation, weights, run),
        experts_bandwidth_factor=of_experts(reads, weights, run.experts, plain=bandwidth)
        / bandwidth,
        prefill_launch_s=at_version(table.prefill_launch_s, run.minor),
    )


def _of(by_name: Mapping[str, float], name: str) -> float:
    return by_name.get(name, by_name["other"])


def repriced(gpu: Gpu, weights: WeightFormat, minor: str = "") -> tuple[str, ...]:
    """Name the kernels whose prompts have another rate than their format has.

    What is learned beside one rate says nothing of another.
    """
    dense = kernels_of_dense(gpu, weights, minor)
    experts = kernels_of_experts(gpu, weights, minor)
    by_format = speed_table().experts_prefill
    known = by_format[kernels_class(by_format, gpu)]
    has_own_rate = f"{format_of_experts(weights)}.{experts}" in known
    has_units = dense and weights.compute in gpu.peak_flop_per_s and weights.compute != WIDE
    is_slower = unpacked_share(gpu, dense) < 1
    return (
        *([f"dense {dense}"] if has_units or is_slower else []),
        *([f"experts {experts}"] if has_own_rate else []),
    )


def memory_class(known: Iterable[str], gpu: Gpu) -> str:
    """Name what a GPU's memory efficiency is looked up by.

    A generation stands for the kind of memory that its measured board has; others of it are taken
    as the mean of their kind of memory.
    """
    kind = GENERATION_MEMORY.get(gpu.generation)
    if gpu.generation in known and kind in {None, gpu.memory_kind}:
        return gpu.generation
    return gpu.memory_kind if gpu.memory_kind in known else "other"


def cutlass_experts(
    known: Mapping[str, Mapping[str, Mapping[str, CutlassExperts]]],
    generation: str,
    weights: WeightFormat,
    run: RunMode,
) -> CutlassExperts:
    """Return which experts FlashInfer's CUTLASS kernels multiply: none if a recipe names others."""
    by_version = known.get(generation, {}).get(format_of_experts(weights))
    return "none" if by_version is None or run.experts else at_version(by_version, run.minor)


def of_experts(
    by_format: Mapping[str, Value], weights: WeightFormat, kernels: str, *, plain: Value
) -> Value:
    """Return the figure of the format of experts in these kernels, or in those of the version."""
    name = format_of_experts(weights)
    return by_format.get(f"{name}.{kernels}", by_format.get(name, plain))


def experts_prefill(
    known: Mapping[str, Mapping[str, ExpertsPrefill]],
    gpu: Gpu,
    weights: WeightFormat,
    kernels: str = "",
) -> ExpertsPrefill:
    """Return how fast experts of a format multiply the tokens of prompts.

    ``kernels``: that unpack them. Where these have no rate of their own, or the GPU class no peak
    in the precision of the format, it is that of other formats.
    """
    by_format = known[kernels_class(known, gpu)]
    other = by_format["other"]
    found = of_experts(by_format, weights, kernels, plain=other)
    is_narrow = found.precision != WIDE
    is_unpacked = bool(kernels) or found.precision not in gpu.peak_flop_per_s
    return other if is_narrow and is_unpacked else found


def _prefill_flop_per_s(table: SpeedTable, gpu: Gpu, compute: str) -> float:
    generation, precision = prefill_class(table.prefill_efficiency, gpu, compute)
    return table.prefill_efficiency[generation][precision] * gpu.flop_per_s(compute)


def kernels_class(known: Iterable[str], gpu: Gpu) -> str:
    """Name what a GPU's kernels are looked up by: itself if it has some of its own."""
    return next((name for name in (gpu.name, gpu.generation) if name in known), "other")


def prefill_class(
    known: Mapping[str, Mapping[str, float]], gpu: Gpu, compute: str
) -> tuple[str, str]:
    """Return the class of kernels and the precision in which the GPU really multiplies."""
    generation = kernels_class(known, gpu)
    for precision in COMPUTE_FALLBACK.get(compute, (compute,)):
        if precision in gpu.peak_flop_per_s and precision in known[generation]:
            return generation, precision
    return generation, "bf16"
