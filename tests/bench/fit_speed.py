"""Fit the constants of the step-time formula on serving measurements, and write them as data.

    python tests/bench/fit_speed.py --data serving_speed.csv --configs model_configs.yaml [--write]

Every constant has a prior from physics or from kernel tables, and a width that says how sure that
is; what the measurements do not decide stays there. Errors are relative, and large ones count
less. The same formula as ``sizing.step`` and ``sizing.closed_loop``, over columns of numbers: a
test holds both together.
"""

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import yaml
from scipy.optimize import least_squares
from speed_cases import (
    FIRST_TOKENS,
    NOW,
    STEPS,
    Case,
    Era,
    case_of,
    decode_step,
    era_name,
    loop_step,
    num_chunks,
    predicted,
    with_constants,
)

from tonnage.catalog.engine_speed import SPEED_FILE, SpeedTable, speed_table
from tonnage.catalog.gpu import CatalogError
from tonnage.sizing.closed_loop import num_at_once
from tonnage.sizing.step import Step
from tonnage.units import MS_PER_S

Columns = Mapping[str, Any]
Values = Mapping[str, Any]

PRIORS: Mapping[str, tuple[float, float]] = {
    "per_step_s": (1.5e-3, 0.6),
    "per_kernel_s": (2.6e-6, 0.4),
    "per_sequence_s": (25e-6, 0.6),
    "compute_efficiency": (0.6, 0.25),
    "experts_prefill_factor": (0.5, 0.3),
    "bandwidth_efficiency.other": (0.82, 0.07),
    "bandwidth_efficiency.nvfp4": (0.75, 0.1),
    "per_scaled_product_s.fp8": (2e-6, 0.6),
    "per_scaled_product_s.nvfp4": (2e-6, 0.6),
    "per_all_reduce_s.nvlink": (8e-6, 0.5),
    "per_all_reduce_s.pcie": (40e-6, 0.1),
    "prefill_efficiency.ampere.bf16": (0.55, 0.15),
    "prefill_efficiency.hopper.bf16": (0.50, 0.15),
    "prefill_efficiency.hopper.fp8": (0.44, 0.15),
    "prefill_efficiency.blackwell.bf16": (0.45, 0.2),
    "prefill_efficiency.blackwell.fp8": (0.36, 0.15),
    "prefill_efficiency.blackwell.fp4": (0.27, 0.15),
    "per_request_s": (0.05, 0.5),
    "per_running_request_s": (1.3e-3, 0.5),
    "per_prompt_token_s": (5e-6, 0.8),
    "bunching_fraction": (0.2, 0.7),
    "era.2023.overhead": (3.0, 0.7),
    "era.2024.overhead": (1.4, 0.5),
    "era.2024.sequence": (2.0, 0.7),
}
"""Middle, and the width of its logarithm. Bandwidth, launches and products: kernel tables;
all-reduce and prefill: earlier fits by others; the rest: what servers in Python take."""
LAUNCH_SCALE = {"ampere": 1.38, "hopper": 0.97, "blackwell": 0.97, "ada": 0.6,
                "blackwell-rtx": 0.7, "other": 1.0}  # fmt: skip
"""Of the floor of a small product in kernel tables, against the mean of all classes."""
LINK_EFFICIENCY = {"nvlink": 0.7, "pcie": 0.3}
"""Of exchanges of a megabyte and more in kernel tables: NVLink 0.6 to 0.9; PCIe 0.06 to 0.6, less
the more GPUs and where they do not reach each other's memory."""
MEASURED = ("ampere", "hopper", "blackwell")
SERVED_SHARE = 0.62
"""Of the efficiency of large products in kernel tables, what prefill has of it when served: the
mean over A100, H100, H200 and B200. It stands in where only kernels were measured."""
KERNEL_EFFICIENCY = {
    "ada": {"bf16": 0.66, "fp8": 0.52, "int8": 0.52},
    "blackwell-rtx": {"bf16": 0.92, "fp8": 0.87, "int8": 0.87, "fp4": 0.72},
}
LARGE_ERROR = 0.12
FIRST_TOKEN_WEIGHT = 0.5
PRIOR_WEIGHT = 0.5


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
    replica, workload = case.replica, case.workload
    unit = replica.step(step)
    prompt = workload.prompt.mean_tokens
    alone = replica.step(Step(num_sequences=1, context_tokens=0))
    beside = replica.step(
        Step(
            num_sequences=1,
            context_tokens=0,
            prefill_tokens=prompt * replica.num_queues,
            prefill_context_tokens=prompt / 2,
        )
    )
    running = num_at_once(replica, workload, case.concurrency)
    split = replica.shard.parallelism
    latency_s = _doublings(case) * replica.constants.per_all_reduce_s
    prompts = case.batch if case.is_static else 1.0
    return Sample(
        case=case,
        numbers={
            "decode_s": split.pipeline * unit.decode_bytes / replica.speeds.memory_bytes_per_s,
            "product_s": split.pipeline * unit.decode_flop / replica.speeds.peak_flop_per_s,
            "prefill_s": unit.prefill_s * replica.constants.prefill_efficiency,
            "prompt_s": prompts * beside.prefill_s * replica.constants.prefill_efficiency,
            "moved_s": unit.communication_s - latency_s,
            "prompt_moved_s": prompts * (beside.communication_s - alone.communication_s),
            "kernels": split.pipeline * replica.shard.num_kernels,
            "products": split.pipeline * replica.shard.num_products,
            "doublings": _doublings(case),
            "sequences": max(1.0, step.num_sequences) / split.data,
            "running": running / split.data,
            "waiting": max(0.0, case.concurrency - running) / running,
            "prompt": prompt,
            "output": workload.output_tokens,
            "chunks": num_chunks(case) if case.is_static else 1.0,
            "waves": math.ceil(case.concurrency / case.batch) if case.is_static else 1.0,
            "measured_s": float(case.row["value"]) / MS_PER_S,
        },
        groups={
            "era": era_name(case.row),
            "metric": case.metric,
            "generation": case.gpu.generation,
            "format": case.shape.weight_format.name,
            "compute": _compute(case),
            "interconnect": case.gpu.interconnect,
            "experts": str(case.shape.has_experts),
        },
    )


def _doublings(case: Case) -> float:
    split = case.replica.shard.parallelism
    return split.pipeline * case.replica.shard.num_layers * math.log2(split.tensor)


def _compute(case: Case) -> str:
    """Return the precision in which prefill really multiplies."""
    compute = case.shape.weight_format.compute
    return compute if compute in case.gpu.peak_flop_per_s else "bf16"


def columns_of(samples: Sequence[Sample]) -> Columns:
    names = samples[0].numbers
    numbers = {name: np.array([each.numbers[name] for each in samples]) for name in names}
    groups = {name: np.array([each.groups[name] for each in samples]) for name in samples[0].groups}
    return {**numbers, **groups}


def chosen(values: Values, prefix: str, keys: Any, default: str | None = None) -> Any:
    """Return the constant for each row: ``prefix.key``, else ``prefix.default``, else 0."""
    fallback = values.get(f"{prefix}.{default}", 0.0) if default else 0.0
    return np.array([values.get(f"{prefix}.{key}", fallback) for key in keys])


def formula(values: Values, columns: Columns) -> Any:
    """Return the predicted seconds of each row."""
    era = np.where(
        columns["era"] == "2023",
        values["era.2023.overhead"],
        np.where(columns["era"] == "2024", values["era.2024.overhead"], 1.0),
    )
    era_sequence = np.where(columns["era"] == "2024", values["era.2024.sequence"], 1.0)
    launch = np.array([LAUNCH_SCALE.get(each, 1.0) for each in columns["generation"]])
    overhead_s = (
        era * (values["per_step_s"] + values["per_kernel_s"] * launch * columns["kernels"])
        + chosen(values, "per_scaled_product_s", columns["format"]) * columns["products"]
        + chosen(values, "per_all_reduce_s", columns["interconnect"]) * columns["doublings"]
    )
    efficiency = chosen(values, "bandwidth_efficiency", columns["format"], "other")
    decode_s = (
        overhead_s
        + values["per_sequence_s"] * era_sequence * columns["sequences"]
        + np.maximum(
            columns["decode_s"] / efficiency, columns["product_s"] / values["compute_efficiency"]
        )
    )
    prefill = _prefill_efficiency(values, columns)
    step_s = decode_s + columns["prefill_s"] / prefill + columns["moved_s"]
    work_s = columns["prompt_s"] / prefill + columns["prompt_moved_s"]
    own_s = columns["chunks"] * decode_s + work_s
    metric = columns["metric"]
    first_s = _first_token_s(values, columns, step_s=step_s, own_s=own_s, work_s=work_s)
    whole_s = columns["waves"] * (own_s + columns["output"] * step_s)
    found = np.where(np.isin(metric, list(STEPS)), step_s, first_s)
    found = np.where(metric == "batch_e2e_ms", whole_s, found)
    return np.where(metric == "prefill_ms", own_s, found)


def _prefill_efficiency(values: Values, columns: Columns) -> Any:
    keys = [f"{g}.{c}" for g, c in zip(columns["generation"], columns["compute"], strict=True)]
    found = chosen(values, "prefill_efficiency", keys, "hopper.bf16")
    return found * np.where(columns["experts"] == "True", values["experts_prefill_factor"], 1.0)


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


def fit(samples: Sequence[Sample]) -> dict[str, float]:
    """Return the constants that these rows and the priors agree on."""
    columns = columns_of(samples)
    names = list(PRIORS)
    middle = np.log([PRIORS[name][0] for name in names])
    width = np.array([PRIORS[name][1] for name in names])
    is_first = np.isin(columns["metric"], list(FIRST_TOKENS))
    weight = np.where(is_first, FIRST_TOKEN_WEIGHT, 1.0)

    def residuals(logs: Any) -> Any:
        values = dict(zip(names, np.exp(logs), strict=True))
        errors = weight * np.log(formula(values, columns) / columns["measured_s"])
        return np.concatenate([errors, PRIOR_WEIGHT * (logs - middle) / width])

    found = least_squares(residuals, middle, loss="soft_l1", f_scale=LARGE_ERROR)
    return dict(zip(names, map(float, np.exp(found.x)), strict=True))


FITTED_METRICS = STEPS | FIRST_TOKENS | {"batch_e2e_ms", "prefill_ms"}
WITHOUT_FIRST_TOKENS = ("dennislee22", "GitHub readme")
"""Sources whose clients send all prompts at once, or do not say how."""


def is_fitted_on(row: Mapping[str, str]) -> bool:
    """Tell whether a row says something about the constants: of vLLM, with known lengths."""
    if row["engine"] != "vllm" or row["metric"] not in FITTED_METRICS or not row["value"]:
        return False
    is_odd = row["metric"] in FIRST_TOKENS and row["source"].startswith(WITHOUT_FIRST_TOKENS)
    has_lengths = bool(row["isl"] and row["osl"]) or row["metric"] == "decode_step_ms"
    return has_lengths and not is_odd


def read_samples(data: Path, configs: Path) -> list[Sample]:
    models = yaml.safe_load(configs.read_text())
    samples = []
    with data.open(newline="") as lines:
        for row in csv.DictReader(lines):
            if is_fitted_on(row):
                try:
                    samples.append(sample_of(case_of(row, models)))
                except (CatalogError, KeyError):
                    continue
    return samples


def table_of(values: Values, spread: Mapping[str, float]) -> SpeedTable:
    """Return the constants as the catalogue keeps them."""

    def group(prefix: str) -> dict[str, float]:
        start = f"{prefix}."
        return {k.removeprefix(start): v for k, v in values.items() if k.startswith(start)}

    prefill: dict[str, dict[str, float]] = {}
    for key, value in group("prefill_efficiency").items():
        generation, _, precision = key.partition(".")
        prefill.setdefault(generation, {})[precision] = value
    scaled = group("per_scaled_product_s")
    return SpeedTable(
        source="serving-measurements",
        **{
            name: value
            for name, value in values.items()
            if "." not in name and name != "per_kernel_s"
        },
        prefill_exposed_fraction=speed_table().prefill_exposed_fraction,
        per_kernel_s={k: values["per_kernel_s"] * scale for k, scale in LAUNCH_SCALE.items()},
        bandwidth_efficiency=group("bandwidth_efficiency"),
        per_scaled_product_s={**scaled, "int8": scaled["fp8"]},
        per_all_reduce_s=group("per_all_reduce_s"),
        link_efficiency=LINK_EFFICIENCY,
        prefill_efficiency={
            **prefill,
            **{
                generation: {key: SERVED_SHARE * value for key, value in kernels.items()}
                for generation, kernels in KERNEL_EFFICIENCY.items()
            },
            "other": prefill["hopper"],
        },
        measured=MEASURED,
        spread_fraction=spread,
    )


def eras_of(values: Values) -> dict[str, Era]:
    return {
        "now": NOW,
        "2023": Era(name="2023", overhead_factor=values["era.2023.overhead"]),
        "2024": Era(
            name="2024",
            overhead_factor=values["era.2024.overhead"],
            sequence_factor=values["era.2024.sequence"],
        ),
    }


def as_toml(table: SpeedTable, values: Values, num_rows: int) -> str:
    """Return the file that the catalogue reads."""
    lines = [HEADER.format(num_rows=num_rows), f'source = "{table.source}"']
    nested: list[str] = []
    for name in SpeedTable.__dataclass_fields__:
        value = getattr(table, name)
        if isinstance(value, tuple):
            lines.append(f"{name} = {json.dumps(value)}")
        elif isinstance(value, float):
            lines.append(f"{name} = {value:.4g}")
        elif isinstance(value, dict):
            nested += _table_lines(name, value)
    return "\n".join([*lines, *nested]) + "\n"


def _table_lines(name: str, value: Mapping[str, Any]) -> list[str]:
    inner = {key: each for key, each in value.items() if isinstance(each, dict)}
    if inner:
        return [line for key, each in inner.items() for line in _table_lines(f"{name}.{key}", each)]
    return ["", f"[{name}]", *(f"{key} = {each:.4g}" for key, each in value.items())]


HEADER = """# Where the constants of the step-time formula start, before any is learned.
# Written by tests/bench/fit_speed.py on {num_rows} public measurements of vLLM, with physics as
# the prior. Do not edit by hand. Seconds, and shares of the nominal figures.
"""
ERAS_FILE = Path(__file__).with_name("speed_eras.toml")


@click.command()
@click.option("--data", type=click.Path(exists=True, path_type=Path), required=True)
@click.option("--configs", type=click.Path(exists=True, path_type=Path), required=True)
@click.option("--write", is_flag=True, help="Write the file of the catalogue.")
def main(*, data: Path, configs: Path, write: bool) -> None:
    """Fit, and show or write the constants."""
    samples = read_samples(data, configs)
    values = fit(samples)
    text = as_toml(table_of(values, SPREADS), values, len(samples))
    if write:
        SPEED_FILE.write_text(text)
        table = table_of(values, SPREADS)
        others = other_engines(data, configs, table)
        ERAS_FILE.write_text(eras_toml({**eras_of(values), **others}))
    click.echo(text)
    columns = columns_of(samples)
    errors = formula(values, columns) / columns["measured_s"] - 1
    for metric in sorted(set(columns["metric"])):
        size = np.abs(errors[columns["metric"] == metric])
        click.echo(
            f"{metric}: {len(size)} rows, median {np.median(size):.1%}, "
            f"p90 {np.quantile(size, 0.9):.1%}"
        )


SPREADS = {"measured": 0.2, "other": 0.3}
"""What eight of ten models keep that the constants were not fitted on."""


def other_engines(data: Path, configs: Path, table: SpeedTable) -> dict[str, Era]:
    """Return two factors for each other engine: on all overheads, and on the first token."""
    models = yaml.safe_load(configs.read_text())
    found = {}
    with data.open(newline="") as lines:
        rows = [row for row in csv.DictReader(lines) if row["engine"] != "vllm" and row["value"]]
    for engine in sorted({row["engine"] for row in rows}):
        cases = [case_of(row, models) for row in rows if row["engine"] == engine]
        steps = [case for case in cases if case.metric in STEPS]
        eras = [Era(name=engine, overhead_factor=factor) for factor in ENGINE_FACTORS]
        best = min(eras, key=lambda era: _median_error(steps, table, era))
        first = [1 / _ratio(c, table, best) for c in cases if c.metric in FIRST_TOKENS]
        found[engine] = replace(best, first_token_factor=float(np.median(first)))
    return found


def _ratio(case: Case, table: SpeedTable, era: Era) -> float:
    return predicted(with_constants(case, table, era)) / float(case.row["value"])


def _median_error(cases: Sequence[Case], table: SpeedTable, era: Era) -> float:
    return float(np.median([abs(_ratio(case, table, era) - 1) for case in cases]))


ENGINE_FACTORS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.4)


def eras_toml(eras_by_name: Mapping[str, Era]) -> str:
    eras = [era for era in eras_by_name.values() if era is not NOW]
    return (
        "".join(
            f"[{json.dumps(era.name)}]\noverhead_factor = {era.overhead_factor:.4g}\n"
            f"sequence_factor = {era.sequence_factor:.4g}\n"
            f"first_token_factor = {era.first_token_factor:.4g}\n\n"
            for era in eras
        ).rstrip()
        + "\n"
    )


if __name__ == "__main__":
    main()
