"""Fit the constants of the step-time formula on serving measurements, and write them as data.

    python tests/bench/fit_speed.py --data serving_speed.csv --configs model_configs.yaml [--write]

Every constant has a prior from physics or from kernel tables, and a width that says how sure that
is; what the measurements do not decide stays there. Errors are relative, and large ones count
less. ``speed_formula`` is the formula, ``speed_priors`` what holds before any measurement. What a
client of a closed loop sees is simulated with the constants found so far, and the fit repeated.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

import click
import numpy as np
import speed_priors as priors
import yaml
from measured import CONFIGS, DATA
from scipy.optimize import least_squares
from speed import read_rows
from speed_cases import (
    FIRST_TOKENS,
    STEPS,
    Case,
    case_of,
    predicted,
    running_at_once,
    with_constants,
)
from speed_formula import (
    MIDDLES,
    Sample,
    Values,
    bandwidth_value,
    columns_of,
    formula,
    is_first_token,
    launch_s_of,
    prefill_values,
    sample_of,
)
from speed_row import NOW, Era, arrival_of, era_name

from tonnage.catalog.engine_speed import SPEED_FILE, SpeedTable
from tonnage.catalog.gpu import CatalogError
from tonnage.units import MS_PER_S

FLAT = frozenset(
    {
        "compute_efficiency",
        "per_prompt_token_s",
        "per_request_s",
        "per_running_request_s",
        "routing_evenness",
    }
)
"""Constants that are fitted and depend on nothing."""
HEADER = """# Where the constants of the step-time formula start, before any is learned.
# Written by tests/bench/fit_speed.py on {num_rows} public measurements of vLLM, with physics as
# the prior. Do not edit by hand. Seconds, and shares of the nominal figures.
"""


def table_of(values: Values) -> SpeedTable:
    """Return the constants as the catalogue keeps them."""

    def group(prefix: str) -> dict[str, float]:
        start = f"{prefix}."
        return {k.removeprefix(start): v for k, v in values.items() if k.startswith(start)}

    scaled = group("per_scaled_product_s")
    per_kernel_s = values["per_kernel_s"]
    slower = per_kernel_s / priors.SMALLEST_KERNEL_S
    return SpeedTable(
        source="serving-measurements",
        constants={
            "per_sequence_limit": priors.SEQUENCES_MEASURED,
            "prefill_exposed_fraction": priors.EXPOSED,
            "overlap_power": priors.OVERLAP_POWER,
            "cutlass_block_s": slower * priors.CUTLASS_BLOCK_S,
            "cutlass_expert_s": slower * priors.CUTLASS_EXPERT_S,
            **{name: value for name, value in values.items() if name in FLAT},
        },
        by_generation={
            "per_kernel_s": {
                name: per_kernel_s * each for name, each in priors.LAUNCH_SCALE.items()
            },
            "per_cached_head_s": priors.CACHED_HEAD_S,
        },
        by_interconnect={
            "per_all_reduce_s": group("per_all_reduce_s"),
            "all_reduce_growth": priors.ALL_REDUCE_GROWTH,
        },
        of_own_links={"one_shot_efficiency": priors.ONE_SHOT, "bulk_extra_s": priors.BULK_EXTRA_S},
        experts_served_share=values["experts_served_share"],
        per_experts_block_s={
            generation: {name: slower * floor_s for name, floor_s in by_format.items()}
            for generation, by_format in priors.EXPERTS_FLOOR_S.items()
        },
        cutlass_experts=priors.CUTLASS_EXPERTS,
        experts_bandwidth_efficiency=priors.EXPERTS_BANDWIDTH,
        experts_prefill=priors.EXPERTS_PREFILL,
        bandwidth_efficiency={
            generation: {
                name: bandwidth_value(values, f"{generation}.{name}") for name in by_format
            }
            for generation, by_format in priors.BANDWIDTH.items()
        },
        cache_bandwidth_efficiency=priors.CACHE_BANDWIDTH,
        per_step_s=group("per_step_s"),
        per_sequence_s={**group("per_sequence_s"), "second": priors.SECOND_RUNNER_SEQUENCE_S},
        prefill_launch_s={since: launch_s_of(values, since) for since in priors.LAUNCHES_SINCE},
        per_scaled_product_s={**scaled, "int8": scaled["fp8"]},
        link_efficiency=priors.LINK_EFFICIENCY,
        prefill_efficiency=prefill_values(values),
        measured=priors.MEASURED,
        measured_attention=priors.MEASURED_ATTENTION,
        measured_layers=priors.MEASURED_LAYERS,
        spread_fraction=priors.SPREADS,
        unmeasured_fraction=priors.UNMEASURED,
    )


def eras_of(values: Values) -> dict[str, Era]:
    return {
        "now": NOW,
        "2023": Era(
            name="2023",
            step_s=values["era.2023.step"],
            exchange_factor=values["era.2023.exchange"],
            exchange_growth=priors.OLD_EXCHANGE_GROWTH,
        ),
        "2024": Era(
            name="2024",
            step_s=values["era.2024.step"],
            sequence_factor=values["era.2024.sequence"],
            streaming_s=values["era.2024.streaming"],
        ),
    }


def as_toml(table: SpeedTable, values: Values, num_rows: int) -> str:
    """Return the file that the catalogue reads."""
    lines = [HEADER.format(num_rows=num_rows), f'source = "{table.source}"']
    nested: list[str] = []
    for name, value in asdict(table).items():
        if isinstance(value, tuple):
            lines.append(f"{name} = {json.dumps(value)}")
        elif isinstance(value, int):
            lines.append(f"{name} = {value}")
        elif isinstance(value, float):
            lines.append(f"{name} = {value:.4g}")
        elif isinstance(value, dict):
            nested += _table_lines(name, value)
    return "\n".join([*lines, *nested]) + "\n"


def _table_lines(name: str, value: Mapping[str, Any]) -> list[str]:
    inner = {key: each for key, each in value.items() if isinstance(each, dict)}
    if inner:
        return [
            line
            for key, each in inner.items()
            for line in _table_lines(f"{name}.{_key(key)}", each)
        ]
    return ["", f"[{name}]", *(f"{_key(key)} = {_written(each)}" for key, each in value.items())]


def _written(value: float | str | tuple[str, ...]) -> str:
    return json.dumps(value) if isinstance(value, str | tuple) else f"{value:.4g}"


def _key(name: str) -> str:
    return json.dumps(name) if "." in name else name


def eras_toml(eras_by_name: Mapping[str, Era]) -> str:
    return "\n".join(_era_lines(era) for era in eras_by_name.values() if era is not NOW)


def _era_lines(era: Era) -> str:
    figures = {field.name: getattr(era, field.name) for field in fields(era)}
    del figures["name"]
    lines = [f"{name} = {value:.4g}" for name, value in figures.items() if value is not None]
    return "\n".join([f"[{json.dumps(era.name)}]", *lines]) + "\n"


ERAS_FILE = Path(__file__).with_name("speed_eras.toml")
LARGE_ERROR = 0.12
FIRST_TOKEN_WEIGHT = 0.5
PRIOR_WEIGHT = 1.0
TOLERANCE = 1e-5
ROUNDS = 3


def fit(samples: Sequence[Sample], *, prior_weight: float = PRIOR_WEIGHT) -> dict[str, float]:
    """Return the constants that these rows and the priors agree on."""
    columns = columns_of(samples)
    names = list(priors.PRIORS)
    middle = np.log([priors.PRIORS[name][0] for name in names])
    width = np.array([priors.PRIORS[name][1] for name in names])
    weight = np.where(is_first_token(columns), FIRST_TOKEN_WEIGHT, 1.0)
    measured = np.log(columns["measured_s"])

    def residuals(logs: Any) -> Any:
        values = dict(zip(names, np.exp(logs), strict=True))
        errors = weight * (np.log(formula(values, columns)) - measured)
        return np.concatenate([errors, prior_weight * (logs - middle) / width])

    found = least_squares(
        residuals, middle, loss="soft_l1", f_scale=LARGE_ERROR, xtol=TOLERANCE, ftol=TOLERANCE
    )
    return dict(zip(names, map(float, np.exp(found.x)), strict=True))


def fit_with_client(samples: Sequence[Sample]) -> tuple[dict[str, float], list[Sample]]:
    """Return the constants, and the samples with what simulated clients make of them."""
    values, seen = dict(MIDDLES), list(samples)
    for _ in range(ROUNDS):
        seen = [with_client(each, values) for each in seen]
        values = fit(seen)
    return values, seen


def with_client(sample: Sample, values: Values) -> Sample:
    """Return the sample with the ratio of what a simulated client sees to the formula."""
    case = sample.case
    if case.is_static:
        return sample
    by_formula_s = float(formula(values, columns_of([sample]))[0])
    ratio = sample.numbers["client"] * predicted_s(case, values) / by_formula_s
    return replace(sample, numbers={**sample.numbers, "client": ratio})


def predicted_s(case: Case, values: Values) -> float:
    """Return the seconds of a row by these constants, without the formula over columns."""
    era = eras_of(values).get(era_name(case.row), NOW)
    return predicted(with_constants(case, table_of(values), era)) / MS_PER_S


FITTED_METRICS = STEPS | FIRST_TOKENS | {"batch_e2e_ms", "prefill_ms"}
WITHOUT_FIRST_TOKENS = ("dennislee22", "GitHub readme")
"""Sources whose clients send all prompts at once, or do not say how."""


def is_fitted_on(row: Mapping[str, str]) -> bool:
    """Tell whether a row says something about the constants: of vLLM, with known lengths."""
    if row["engine"] != "vllm" or row["metric"] not in FITTED_METRICS or not row["value"]:
        return False
    is_odd = row["metric"] in FIRST_TOKENS and row["source"].startswith(WITHOUT_FIRST_TOKENS)
    has_lengths = bool(row["isl"] and row["osl"]) or row["metric"] in STEPS
    return has_lengths and not is_odd and arrival_of(row) != "open"


def read_samples(data: Path, configs: Path) -> list[Sample]:
    models, samples = yaml.safe_load(configs.read_text()), []
    for row in filter(is_fitted_on, read_rows(data)):
        with suppress(CatalogError, KeyError):
            samples.append(sample_of(case_of(row, models)))
    return samples


@click.command()
@DATA
@CONFIGS
@click.option("--write", is_flag=True, help="Write the file of the catalogue.")
def main(*, data: Path, configs: Path, write: bool) -> None:
    """Fit, and show or write the constants."""
    values, samples = fit_with_client(read_samples(data, configs))
    text = as_toml(table_of(values), values, len(samples))
    if write:
        SPEED_FILE.write_text(text)
        table = table_of(values)
        others = other_engines(data, configs, table)
        ERAS_FILE.write_text(eras_toml({**eras_of(values), **others}))
    click.echo(text)
    columns = columns_of(samples)
    errors = formula(values, columns) / columns["measured_s"] - 1
    metrics = columns.labels["metric"]
    for metric in metrics.names:
        size = np.abs(errors[metrics.among([metric])])
        click.echo(
            f"{metric}: {len(size)} rows, median {np.median(size):.1%}, "
            f"p90 {np.quantile(size, 0.9):.1%}"
        )


def other_engines(data: Path, configs: Path, table: SpeedTable) -> dict[str, Era]:
    """Return four figures for each other engine: its overheads, and what a first token adds."""
    models = yaml.safe_load(configs.read_text())
    rows = [row for row in read_rows(data) if row["engine"] != "vllm" and row["value"]]
    engines = sorted({row["engine"] for row in rows})
    return {
        engine: era_of_engine(
            engine, [case_of(row, models) for row in rows if row["engine"] == engine], table
        )
        for engine in engines
    }


def era_of_engine(engine: str, cases: Sequence[Case], table: SpeedTable) -> Era:
    steps = [case for case in cases if case.metric in STEPS]
    eras = [
        Era(name=engine, overhead_factor=overhead, sequence_factor=sequence)
        for overhead, sequence in product(ENGINE_FACTORS, SEQUENCE_FACTORS)
    ]
    best = min(eras, key=lambda era: _median_error(steps, table, era))
    return _with_first_token([c for c in cases if c.metric in FIRST_TOKENS], table, best)


def _with_first_token(cases: Sequence[Case], table: SpeedTable, era: Era) -> Era:
    """Return the era with what a first token takes beside what vLLM's would."""
    found_s = np.array([predicted(with_constants(c, table, era)) for c in cases]) / MS_PER_S
    running = np.array([running_at_once(case) for case in cases])
    measured_s = np.array([float(case.row["value"]) for case in cases]) / MS_PER_S

    def median_error(added_s: tuple[float, float]) -> float:
        ratio = (found_s + added_s[0] + added_s[1] * running) / measured_s
        return float(np.median(np.abs(np.log(ratio))))

    first_s, running_s = min(product(FIRST_TOKEN_S, FIRST_TOKEN_RUNNING_S), key=median_error)
    return replace(era, first_token_s=first_s, first_token_running_s=running_s)


def _median_error(cases: Sequence[Case], table: SpeedTable, era: Era) -> float:
    ratios = [
        predicted(with_constants(case, table, era)) / float(case.row["value"]) for case in cases
    ]
    return float(np.median([abs(ratio - 1) for ratio in ratios]))


ENGINE_FACTORS = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2)
SEQUENCE_FACTORS = (0.25, 0.5, 1.0, 1.5)
FIRST_TOKEN_S = (0.0, 0.025, 0.05, 0.1, 0.15, 0.2)
FIRST_TOKEN_RUNNING_S = (0.0, 1e-3, 2e-3, 4e-3, 8e-3, 16e-3)


if __name__ == "__main__":
    main()
