"""The formula of a step and of a closed loop over columns of numbers, for a fit.

That of a step is ``sizing.step_time.step``: a test holds both together. What a client sees of a
closed loop is simulated; the formula says how it changes with the constants (``fit_speed``).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import speed_priors as priors
from scipy.special import betaln
from speed_cases import (
    FIRST_TOKENS,
    STEPS,
    Case,
    decode_step,
    loop_step,
    num_chunks,
    running_at_once,
    with_speed,
)
from speed_row import BEFORE_2025, era_name

from tonnage.catalog.engine import at_version
from tonnage.catalog.engine_limits import (
    kernels_of_dense,
    kernels_of_experts,
    products_in,
    scaling_of,
    unpacked_share,
)
from tonnage.catalog.engine_speed import (
    TEXTBOOK_SPEED,
    SpeedConstants,
    cutlass_experts,
    experts_prefill,
    memory_class,
    of_experts,
    prefill_class,
)
from tonnage.catalog.gpu import built_in_gpus
from tonnage.sizing.serving.replica import Replica
from tonnage.sizing.step_time.step import Step, experts_block_s
from tonnage.units import MS_PER_S

Values = Mapping[str, Any]
BUNCHED_FRACTION = 0.12
"""Of the other users' prompts, those before one's own where the engine does nothing but prefill: a
first guess, which the client that is simulated corrects."""
MIDDLES: Values = {name: middle for name, (middle, _) in priors.PRIORS.items()}


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One row as numbers, and the names of the constants that it depends on."""

    case: Case
    numbers: Mapping[str, float]
    groups: Mapping[str, str]


def sample_of(case: Case) -> Sample:
    """Return what the formula needs of a case."""
    step = decode_step(case) if case.is_static else loop_step(case)
    if case.metric == "prefill_ms":
        step = Step(num_sequences=1, context_tokens=0)
    return Sample(
        case=case,
        numbers=_step_numbers(case, step) | _kernel_numbers(case) | _request_numbers(case),
        groups=_groups(case),
    )


def _step_numbers(case: Case, step: Step) -> dict[str, float]:
    """Return the seconds of a step at nominal speeds, by what moves or computes."""
    nominal = _nominal(case.replica).model
    shard = nominal.shard
    unit = nominal.step(step)
    empty = nominal.step(replace(step, context_tokens=0))
    dense = replace(nominal, shard=replace(shard, experts=())).step(replace(step, context_tokens=0))
    resident = sum(share.resident_bytes for share in shard.experts)
    stages, data = shard.parallelism.pipeline, shard.parallelism.data
    share = shard.experts[0] if shard.experts else None
    prefill = step.prefill_tokens / stages
    chunk = max(step.prefill_chunk_tokens or 0.0, prefill)
    return {
        "dense_s": dense.memory_s,
        "experts_s": stages * resident / nominal.speeds.memory_bytes_per_s,
        "num_experts": share.num_experts if share else 1,
        "experts_per_token": share.experts_per_token if share else 1,
        "tokens": max(1.0, step.num_sequences / stages),
        "chunk": chunk,
        "chunk_share": prefill / chunk if chunk else 0.0,
        "cache_s": unit.memory_s - empty.memory_s,
        "product_s": empty.compute_s,
        "pair_s": unit.compute_s - empty.compute_s,
        **_prefill_numbers(case, step, "prefill"),
        "moved_s": unit.communication_s,
        "sequences": min(priors.SEQUENCES_MEASURED, max(1.0, step.num_sequences) / data),
        "heads": stages * shard.num_cached_heads * max(1.0, step.num_sequences / stages / data),
        **_efficiencies_of(case),
    }


def _efficiencies_of(case: Case) -> dict[str, float]:
    """Return what kernel tables say of reading experts and cache; 0: as plain products."""
    generation, run = case.gpu.generation, case.run
    weights = case.shape.weight_format
    return {
        "experts_efficiency": of_experts(
            priors.EXPERTS_BANDWIDTH.get(generation, {}), weights, run.experts, plain=0
        ),
        "cache_efficiency": priors.CACHE_BANDWIDTH.get(generation, {}).get(run.kv_format, 0),
        "per_head_s": priors.CACHED_HEAD_S.get(generation, priors.CACHED_HEAD_S["other"]),
    }


def _prefill_numbers(case: Case, step: Step, name: str, *, times: float = 1.0) -> dict[str, float]:
    """Return the seconds of prompts in quantized matrices, in 16 bits, and in experts' tables."""
    nominal, gpu = _nominal(case.replica).model, case.gpu
    weights = case.shape.weight_format
    minor = case.run.minor
    kernels = kernels_of_experts(gpu, weights, minor)
    known = experts_prefill(priors.EXPERTS_PREFILL, gpu, weights, kernels)
    dense = kernels_of_dense(gpu, weights, minor)
    unpacked = unpacked_share(gpu, dense)
    peak = nominal.speeds.peak_flop_per_s
    wide = gpu.flop_per_s("bf16") / peak
    experts = known.efficiency * gpu.flop_per_s(known.precision) / peak

    def prefill_s(wide_factor: float, experts_factor: float) -> float:
        constants = replace(
            nominal.constants,
            wide_prefill_factor=wide_factor,
            experts_prefill_factor=experts_factor,
            experts_half_width=known.half_width,
            routing_evenness=MIDDLES["routing_evenness"],
        )
        return times * replace(nominal, constants=constants).step(step).prefill_s

    narrow_s = prefill_s(math.inf, math.inf)
    return {
        f"{name}_narrow_s": narrow_s / unpacked,
        f"{name}_wide_s": prefill_s(wide, math.inf) - narrow_s,
        f"{name}_experts_s": prefill_s(math.inf, experts) - narrow_s,
    }


def _nominal(replica: Replica) -> Replica:
    """Return the replica at its nominal speeds, but for what the links move."""
    known = replica.model.constants
    kept = ("link_efficiency", "one_shot_efficiency", "bulk_extra_s", "prefill_exposed_fraction")
    constants = replace(TEXTBOOK_SPEED, **{name: getattr(known, name) for name in kept})
    return with_speed(replica, constants)


def _kernel_numbers(case: Case) -> dict[str, float]:
    shard = case.replica.model.shard
    stages, tensor = shard.parallelism.pipeline, shard.parallelism.tensor
    floor_s = experts_block_s(shard, _experts_floors(case))
    scale = priors.LAUNCH_SCALE.get(case.gpu.generation, priors.LAUNCH_SCALE["other"])
    power = priors.ALL_REDUCE_GROWTH[case.gpu.interconnect]
    if era_name(case.row) == "2023":
        power += priors.OLD_EXCHANGE_GROWTH
    growth = (tensor / 2) ** power
    return {
        "kernels": stages * scale * shard.num_kernels,
        "experts_kernels": stages * shard.num_moe_layers * floor_s / priors.SMALLEST_KERNEL_S,
        "scaled_products": stages * shard.num_scaled_products,
        "exchanges": stages
        * (shard.num_layers + shard.num_split_norms / 2)
        * growth
        * (tensor > 1),
        "launched": stages * shard.num_launches,
    }


def _experts_floors(case: Case) -> SpeedConstants:
    """Return what kernel tables say of a block of experts, and nothing else."""
    generation, weights, run = case.gpu.generation, case.shape.weight_format, case.run
    floors = priors.EXPERTS_FLOOR_S.get(generation, priors.EXPERTS_FLOOR_S["other"])
    return replace(
        TEXTBOOK_SPEED,
        per_experts_block_s=of_experts(floors, weights, run.experts, plain=floors["other"]),
        cutlass_block_s=priors.CUTLASS_BLOCK_S,
        cutlass_expert_s=priors.CUTLASS_EXPERT_S,
        cutlass_experts=cutlass_experts(priors.CUTLASS_EXPERTS, generation, weights, run),
    )


def _request_numbers(case: Case) -> dict[str, float]:
    nominal, workload = _nominal(case.replica).model, case.workload
    prompt = workload.prompt.mean_tokens
    alone = Step(num_sequences=1, context_tokens=0)
    beside = replace(
        alone,
        prefill_tokens=prompt * nominal.dp_size,
        prefill_context_tokens=prompt / 2,
    )
    idle, busy = nominal.step(alone), nominal.step(beside)
    running = running_at_once(case)
    prompts = case.batch if case.is_static else 1.0
    return {
        **_prefill_numbers(case, beside, "prompt", times=prompts),
        "prompt_moved_s": prompts * (busy.communication_s - idle.communication_s),
        "running": running / nominal.shard.parallelism.data,
        "waiting": max(0.0, case.concurrency - running) / running,
        "prompt": prompt,
        "output": workload.output_tokens,
        "chunks": num_chunks(case) if case.is_static else 1.0,
        "own_chunk": prompt / math.ceil(prompt / case.replica.max_batched_tokens),
        "own_steps": math.ceil(prompt / case.replica.max_batched_tokens),
        "is_online": float(not case.is_static),
        "waves": math.ceil(case.concurrency / case.batch) if case.is_static else 1.0,
        "measured_s": float(case.row["value"]) / MS_PER_S,
        "client": 1.0,
    }


def _groups(case: Case) -> dict[str, str]:
    weights = case.shape.weight_format
    known = prefill_values(MIDDLES)
    return {
        "era": era_name(case.row),
        "metric": case.metric,
        "memory": f"{memory_class(priors.BANDWIDTH, case.gpu)}.{scaling_of(weights)}",
        "schedule": "async" if case.run.schedules_async else "sync",
        "launches": _launches(case),
        "scaling": scaling_of(weights),
        "prefill": ".".join(
            prefill_class(known, case.gpu, products_in(case.gpu, weights, case.run.minor))
        ),
        "wide": ".".join(prefill_class(known, case.gpu, "bf16")),
        "interconnect": case.gpu.interconnect,
    }


def _launches(case: Case) -> str:
    """Name the version whose launches of prompts a case has; those before 2025 have none apart."""
    if era_name(case.row) in BEFORE_2025:
        return "none"
    return at_version({since: since for since in priors.LAUNCHES_SINCE}, case.run.minor)


@dataclass(frozen=True)
class Labels:
    """A column of names."""

    names: tuple[str, ...]
    codes: Any

    def chosen(self, value_of: Mapping[str, Any]) -> Any:
        return np.array([value_of[name] for name in self.names])[self.codes]

    def among(self, names: Sequence[str] | frozenset[str]) -> Any:
        return np.array([name in names for name in self.names])[self.codes]


@dataclass(frozen=True, kw_only=True)
class Columns:
    numbers: Mapping[str, Any]
    labels: Mapping[str, Labels]

    def __getitem__(self, name: str) -> Any:
        return self.numbers[name]


def columns_of(samples: Sequence[Sample]) -> Columns:
    numbers = {
        name: np.array([each.numbers[name] for each in samples], float)
        for name in samples[0].numbers
    }
    labels = {}
    for name in samples[0].groups:
        names, codes = np.unique([each.groups[name] for each in samples], return_inverse=True)
        labels[name] = Labels(tuple(map(str, names)), codes)
    return Columns(numbers=numbers, labels=labels)


def chosen(values: Values, prefix: str, labels: Labels, default: float = 0.0) -> Any:
    """Return the constant for each row: ``prefix.label``, or the default."""
    return labels.chosen({n: values.get(f"{prefix}.{n}", default) for n in labels.names})


def formula(values: Values, columns: Columns) -> Any:
    """Return the predicted seconds of each row."""
    decode_s = _decode_s(values, columns)
    prefill_s = _prefill_s(values, columns, "prefill")
    step_s = decode_s + prefill_s + columns["moved_s"]
    step_s = step_s + _waiting_s(values, columns, decode_s + columns["moved_s"], prefill_s)
    work_s = _prefill_s(values, columns, "prompt") + columns["prompt_moved_s"]
    own_s = columns["chunks"] * _decode_s(values, columns, is_own=True) + work_s
    launched_s = np.maximum(own_s, columns["own_steps"] * _launching_s(values, columns))
    metric = columns.labels["metric"]
    first_s = _first_token_s(values, columns, step_s=step_s, own_s=launched_s, work_s=work_s)
    whole_s = columns["waves"] * (own_s + columns["output"] * step_s)
    found = np.where(metric.among(STEPS), step_s, first_s)
    found = np.where(metric.among(["batch_e2e_ms"]), whole_s, found)
    return columns["client"] * np.where(metric.among(["prefill_ms"]), own_s, found)


def _launching_s(values: Values, columns: Columns) -> Any:
    """Return what the host takes to launch one step with prompts."""
    label = columns.labels["launches"]
    known = {name: launch_s_of(values, name) for name in label.names}
    return columns["launched"] * label.chosen(known)


def launch_s_of(values: Values, since: str) -> float:
    """Return what the host takes to launch one kernel, from this version on."""
    fixed = priors.LAUNCHES_SINCE.get(since, 0.0)
    return values[f"prefill_launch_s.{since}"] if fixed is None else fixed


def _waiting_s(values: Values, columns: Columns, beside_s: Any, prefill_s: Any) -> Any:
    """Return what a mean step waits for the host: a share of the steps holds all prompts."""
    share = columns["chunk_share"]
    busy_s = beside_s + prefill_s / np.maximum(share, 1e-9)
    return share * np.maximum(0.0, _launching_s(values, columns) - busy_s)


def _decode_s(values: Values, columns: Columns, *, is_own: bool = False) -> Any:
    """Return a step without the work of prefill and without what the links move.

    ``is_own``: the step that a prompt is in itself, which reads the experts that its tokens touch.
    """
    era = columns.labels["era"]
    kernels = columns["kernels"] + columns["experts_kernels"]
    each_s = chosen(values, "per_all_reduce_s", columns.labels["interconnect"])
    each_s = each_s * _of_era(values, era, "exchange")
    overhead_s = _host_s(values, columns) + values["per_kernel_s"] * kernels
    overhead_s = overhead_s + each_s * columns["exchanges"]
    overhead_s = overhead_s + columns["per_head_s"] * columns["heads"]
    scaled_s = chosen(values, "per_scaled_product_s", columns.labels["scaling"])
    sequence_s = values["per_sequence_s.first"] * _of_era(values, era, "sequence")
    sequence_s = sequence_s + columns["is_online"] * _of_era(values, era, "streaming", 0.0)
    efficiency = _bandwidth(values, columns)
    experts = np.where(columns["experts_efficiency"], columns["experts_efficiency"], efficiency)
    weights_s = columns["dense_s"] / efficiency
    own = columns["tokens"] + columns["own_chunk"]
    touched = _touched_by(values, columns, own) if is_own else _touched(values, columns)
    weights_s = weights_s + columns["experts_s"] * touched / experts
    work = values["compute_efficiency"]
    power = priors.OVERLAP_POWER
    product_s = (weights_s**power + (columns["product_s"] / work) ** power) ** (1 / power)
    cache = np.where(columns["cache_efficiency"], columns["cache_efficiency"], efficiency)
    attention_s = np.maximum(columns["cache_s"] / cache, columns["pair_s"] / work)
    return (
        overhead_s
        + scaled_s * columns["scaled_products"]
        + sequence_s * columns["sequences"]
        + product_s
        + attention_s
    )


def _host_s(values: Values, columns: Columns) -> Any:
    """Return what the host takes of each step: by its time, or by how it schedules now."""
    now_s = chosen(values, "per_step_s", columns.labels["schedule"])
    own_s = _of_era(values, columns.labels["era"], "step", 0.0)
    return np.where(own_s, own_s, now_s)


def _bandwidth(values: Values, columns: Columns) -> Any:
    label = columns.labels["memory"]
    return label.chosen({name: bandwidth_value(values, name) for name in label.names})


def bandwidth_value(values: Values, name: str) -> float:
    """Return the efficiency of ``generation.format``: fitted, or from kernels."""
    generation, _, scaling = name.partition(".")
    table = priors.BANDWIDTH[generation]
    found = scaling if scaling in table else "other"
    fallback = values.get(f"bandwidth_efficiency.{generation}.bf16", table["other"])
    known = fallback if found == "other" else table[found]
    value: float = values.get(f"bandwidth_efficiency.{generation}.{found}", known)
    return value


def _of_era(values: Values, era: Labels, what: str, default: float = 1.0) -> Any:
    return era.chosen({name: values.get(f"era.{name}.{what}", default) for name in era.names})


def _touched(values: Values, columns: Columns) -> Any:
    """Return the share of the experts that a mean step reads."""
    share = columns["chunk_share"]
    without = _touched_by(values, columns, columns["tokens"])
    within = _touched_by(values, columns, columns["tokens"] + columns["chunk"])
    return (1 - share) * without + share * within


def _touched_by(values: Values, columns: Columns, tokens: Any) -> Any:
    a = values["routing_evenness"]
    b = a * (columns["num_experts"] / columns["experts_per_token"] - 1)
    b = np.maximum(b, 1e-9)  # all experts are chosen
    return 1 - np.exp(betaln(a, b + tokens) - betaln(a, b))


def _prefill_s(values: Values, columns: Columns, name: str) -> Any:
    narrow, wide = (_prefill_efficiency(values, columns.labels[of]) for of in ("prefill", "wide"))
    return (
        columns[f"{name}_narrow_s"] / narrow
        + columns[f"{name}_wide_s"] / wide
        + columns[f"{name}_experts_s"] / values["experts_served_share"]
    )


def _prefill_efficiency(values: Values, label: Labels) -> Any:
    known = prefill_values(values)
    pairs = {name: name.split(".") for name in label.names}
    return label.chosen({name: known[pair[0]][pair[1]] for name, pair in pairs.items()})


def prefill_values(values: Values) -> dict[str, dict[str, float]]:
    """Return all efficiencies of prefill, by generation and precision: fitted, or from kernels."""
    found: dict[str, dict[str, float]] = {}
    for name, value in values.items():
        prefix, _, rest = name.partition(".")
        if prefix == "prefill_efficiency":
            generation, _, precision = rest.partition(".")
            found.setdefault(generation, {})[precision] = value
    for generation, kernels in priors.KERNEL_EFFICIENCY.items():
        found[generation] = {key: priors.SERVED_SHARE * value for key, value in kernels.items()}
    for name, factors in priors.OF_GENERATION.items():
        generation = built_in_gpus()[name].generation
        found[name] = {key: factors[key] * value for key, value in found[generation].items()}
    return {**found, "other": found[priors.LIKE_UNKNOWN]}


def _first_token_s(
    values: Values, columns: Columns, *, step_s: Any, own_s: Any, work_s: Any
) -> Any:
    cycle_s = columns["output"] * step_s + own_s
    load = np.minimum(1.0, columns["running"] * work_s / cycle_s)
    others = np.maximum(0.0, columns["running"] - 1)
    queue_s = BUNCHED_FRACTION * others * work_s * np.sqrt(load)
    serving_s = (
        values["per_request_s"]
        + values["per_running_request_s"] * columns["running"]
        + values["per_prompt_token_s"] * columns["prompt"]
    )
    return serving_s + own_s + queue_s + columns["waiting"] * (cycle_s + queue_s)


def is_first_token(columns: Columns) -> Any:
    return columns.labels["metric"].among(FIRST_TOKENS)
