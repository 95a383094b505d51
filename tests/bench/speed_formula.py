"""The formula of a step and of a closed loop over columns of numbers, for a fit.

It is that of ``sizing.step_time.step`` and ``sizing.serving.closed_loop``: a test
holds both together.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import betaln
from speed_cases import (
    FIRST_TOKENS,
    STEPS,
    Case,
    decode_step,
    loop_step,
    num_chunks,
    with_speed,
)
from speed_columns import Columns, Labels
from speed_eras import era_name
from speed_priors import (
    ALL_REDUCE_GROWTH,
    EXPERTS_BANDWIDTH,
    EXPERTS_FLOOR_S,
    KERNEL_EFFICIENCY,
    LAUNCH_SCALE,
    LIKE_UNKNOWN,
    OLD_EXCHANGE_GROWTH,
    OVERLAP_POWER,
    PRIORS,
    SERVED_SHARE,
    SMALLEST_KERNEL_S,
)

from tonnage.catalog.engine_speed import (
    TEXTBOOK_SPEED,
    experts_bandwidth,
    experts_block,
    prefill_class,
    scaling_of,
)
from tonnage.sizing.serving.closed_loop import num_at_once
from tonnage.sizing.serving.replica import Replica
from tonnage.sizing.step_time.step import Step
from tonnage.units import MS_PER_S

Values = Mapping[str, Any]
MIDDLES: Values = {name: middle for name, (middle, _) in PRIORS.items()}


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
        "experts_s": stages * resident / nominal.speeds.memory_bytes_per_s / _bandwidth(case),
        "num_experts": share.num_experts if share else 1,
        "experts_per_token": share.experts_per_token if share else 1,
        "tokens": max(1.0, step.num_sequences / stages),
        "chunk": chunk,
        "chunk_share": prefill / chunk if chunk else 0.0,
        "cache_s": unit.memory_s - empty.memory_s,
        "product_s": empty.compute_s,
        "pair_s": unit.compute_s - empty.compute_s,
        "prefill_s": unit.prefill_s,
        "moved_s": unit.communication_s,
        "sequences": max(1.0, step.num_sequences) / data,
    }


def _bandwidth(case: Case) -> float:
    return experts_bandwidth(
        EXPERTS_BANDWIDTH, generation=case.gpu.generation, weights=case.shape.weight_format
    )


def _nominal(replica: Replica) -> Replica:
    link = replica.model.constants.link_efficiency
    exposed = replica.model.constants.prefill_exposed_fraction
    constants = replace(TEXTBOOK_SPEED, link_efficiency=link, prefill_exposed_fraction=exposed)
    return with_speed(replica, constants)


def _kernel_numbers(case: Case) -> dict[str, float]:
    shard = case.replica.model.shard
    stages, tensor = shard.parallelism.pipeline, shard.parallelism.tensor
    floor_s = experts_block(
        EXPERTS_FLOOR_S, generation=case.gpu.generation, weights=case.shape.weight_format
    )
    scale = LAUNCH_SCALE.get(case.gpu.generation, LAUNCH_SCALE["other"])
    power = ALL_REDUCE_GROWTH[case.gpu.interconnect]
    if era_name(case.row) == "2023":
        power += OLD_EXCHANGE_GROWTH
    growth = (tensor / 2) ** power
    return {
        "kernels": stages * scale * shard.num_kernels,
        "experts_kernels": stages * shard.num_moe_layers * floor_s / SMALLEST_KERNEL_S,
        "scaled_products": stages * shard.num_scaled_products,
        "exchanges": stages * shard.num_layers * growth * (tensor > 1),
    }


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
    running = num_at_once(case.replica, workload, case.concurrency)
    prompts = case.batch if case.is_static else 1.0
    return {
        "prompt_s": prompts * busy.prefill_s,
        "prompt_moved_s": prompts * (busy.communication_s - idle.communication_s),
        "running": running / nominal.shard.parallelism.data,
        "waiting": max(0.0, case.concurrency - running) / running,
        "prompt": prompt,
        "output": workload.output_tokens,
        "chunks": num_chunks(case) if case.is_static else 1.0,
        "waves": math.ceil(case.concurrency / case.batch) if case.is_static else 1.0,
        "measured_s": float(case.row["value"]) / MS_PER_S,
    }


def _groups(case: Case) -> dict[str, str]:
    weights = case.shape.weight_format
    known = prefill_class(prefill_values(MIDDLES), case.gpu, weights.compute)
    return {
        "era": era_name(case.row),
        "metric": case.metric,
        "format": weights.name,
        "scaling": scaling_of(weights),
        "prefill": ".".join(known),
        "interconnect": case.gpu.interconnect,
        "experts": str(case.shape.has_experts),
    }


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
    prefill = _prefill_efficiency(values, columns)
    step_s = decode_s + columns["prefill_s"] / prefill + columns["moved_s"]
    work_s = columns["prompt_s"] / prefill + columns["prompt_moved_s"]
    own_s = columns["chunks"] * decode_s + work_s
    metric = columns.labels["metric"]
    first_s = _first_token_s(values, columns, step_s=step_s, own_s=own_s, work_s=work_s)
    whole_s = columns["waves"] * (own_s + columns["output"] * step_s)
    found = np.where(metric.among(STEPS), step_s, first_s)
    found = np.where(metric.among(["batch_e2e_ms"]), whole_s, found)
    return np.where(metric.among(["prefill_ms"]), own_s, found)


def _decode_s(values: Values, columns: Columns) -> Any:
    """Return a step without prefill and without what the links move."""
    era = columns.labels["era"]
    factor = _of_era(values, era, "overhead")
    kernels = columns["kernels"] + columns["experts_kernels"]
    each_s = chosen(values, "per_all_reduce_s", columns.labels["interconnect"])
    each_s = each_s * _of_era(values, era, "exchange")
    overhead_s = factor * (values["per_step_s"] + values["per_kernel_s"] * kernels)
    overhead_s = overhead_s + each_s * columns["exchanges"]
    scaled_s = chosen(values, "per_scaled_product_s", columns.labels["scaling"])
    sequence_s = values["per_sequence_s"] * _of_era(values, era, "sequence")
    other = values["bandwidth_efficiency.other"]
    efficiency = chosen(values, "bandwidth_efficiency", columns.labels["format"], other)
    weights_s = (columns["dense_s"] + columns["experts_s"] * _touched(values, columns)) / efficiency
    work = values["compute_efficiency"]
    power = OVERLAP_POWER
    product_s = (weights_s**power + (columns["product_s"] / work) ** power) ** (1 / power)
    attention_s = np.maximum(columns["cache_s"] / efficiency, columns["pair_s"] / work)
    return (
        overhead_s
        + scaled_s * columns["scaled_products"]
        + sequence_s * columns["sequences"]
        + product_s
        + attention_s
    )


def _of_era(values: Values, era: Labels, what: str) -> Any:
    return era.chosen({name: values.get(f"era.{name}.{what}", 1.0) for name in era.names})


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


def _prefill_efficiency(values: Values, columns: Columns) -> Any:
    label = columns.labels["prefill"]
    found = label.chosen(dict(zip(label.names, _efficiencies(values, label.names), strict=True)))
    factor = {"True": values["experts_prefill_factor"], "False": 1.0}
    return found * columns.labels["experts"].chosen(factor)


def _efficiencies(values: Values, names: Sequence[str]) -> list[float]:
    by_generation = prefill_values(values)
    pairs = [name.split(".") for name in names]
    return [by_generation[generation][precision] for generation, precision in pairs]


def prefill_values(values: Values) -> dict[str, dict[str, float]]:
    """Return all efficiencies of prefill, by generation and precision: fitted, or from kernels."""
    found: dict[str, dict[str, float]] = {}
    for name, value in values.items():
        prefix, _, rest = name.partition(".")
        if prefix == "prefill_efficiency":
            generation, _, precision = rest.partition(".")
            found.setdefault(generation, {})[precision] = value
    for generation, kernels in KERNEL_EFFICIENCY.items():
        found[generation] = {key: SERVED_SHARE * value for key, value in kernels.items()}
    return {**found, "other": found[LIKE_UNKNOWN]}


def _first_token_s(
    values: Values, columns: Columns, *, step_s: Any, own_s: Any, work_s: Any
) -> Any:
    cycle_s = columns["output"] * step_s + own_s
    load = np.minimum(1.0, columns["running"] * work_s / cycle_s)
    others = np.maximum(0.0, columns["running"] - 1)
    queue_s = values["bunching_fraction"] * others * work_s * np.sqrt(load)
    serving_s = (
        values["per_request_s"]
        + values["per_running_request_s"] * columns["running"]
        + values["per_prompt_token_s"] * columns["prompt"]
    )
    return serving_s + own_s + queue_s + columns["waiting"] * (cycle_s + queue_s)


def is_first_token(columns: Columns) -> Any:
    return columns.labels["metric"].among(FIRST_TOKENS)
