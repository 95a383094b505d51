"""Fit the constants of the step-time formula on serving measurements, and write them as data.

    python tests/bench/fit_speed.py --data serving_speed.csv --configs model_configs.yaml [--write]

Every constant has a prior from physics or from kernel tables, and a width that says how sure that
is; what the measurements do not decide stays there. Errors are relative, and large ones count
less. ``speed_formula`` is the formula, ``speed_priors`` what holds before any measurement. What a
client of a closed loop sees is simulated with the constants found so far, and the fit repeated.
"""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import click
import numpy as np
import yaml
from scipy.optimize import least_squares
from speed_cases import (
    FIRST_TOKENS,
    STEPS,
    Case,
    case_of,
    predicted,
    running_at_once,
    with_constants,
)
from speed_files import as_toml, eras_of, eras_toml, table_of
from speed_formula import (
    MIDDLES,
    Sample,
    Values,
    columns_of,
    formula,
    is_first_token,
    sample_of,
)
from speed_priors import PRIORS
from speed_row import NOW, Era, arrival_of, era_name

from tonnage.catalog.engine_speed import SPEED_FILE, SpeedTable
from tonnage.catalog.gpu import CatalogError
from tonnage.units import MS_PER_S

ERAS_FILE = Path(__file__).with_name("speed_eras.toml")
LARGE_ERROR = 0.12
FIRST_TOKEN_WEIGHT = 0.5
PRIOR_WEIGHT = 1.0
TOLERANCE = 1e-5
ROUNDS = 3


def fit(samples: Sequence[Sample], *, prior_weight: float = PRIOR_WEIGHT) -> dict[str, float]:
    """Return the constants that these rows and the priors agree on."""
    columns = columns_of(samples)
    names = list(PRIORS)
    middle = np.log([PRIORS[name][0] for name in names])
    width = np.array([PRIORS[name][1] for name in names])
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


@click.command()
@click.option("--data", type=click.Path(exists=True, path_type=Path), required=True)
@click.option("--configs", type=click.Path(exists=True, path_type=Path), required=True)
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
    with data.open(newline="") as lines:
        rows = [row for row in csv.DictReader(lines) if row["engine"] != "vllm" and row["value"]]
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
