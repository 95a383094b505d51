"""Predictions of rows that the fit had not seen: nor their model, format, GPU, source or time."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fit_speed import fit, predicted_s
from speed_cases import FIRST_TOKENS, STEPS, Case, case_of
from speed_formula import Sample
from speed_row import BEFORE_2025, Row, era_name

from tonnage.catalog.kernels import scaling_of
from tonnage.units import MS_PER_S

Errors = Mapping[str, float]
JUDGED = STEPS | FIRST_TOKENS | {"batch_e2e_ms"}


def source_of(row: Row) -> str:
    """Name a source without the file in it."""
    return row["source"].partition(":")[0]


def time_of(row: Row) -> str:
    """Name the month of a measurement, or the year where no more is told."""
    if era_name(row) in BEFORE_2025:
        return era_name(row)
    told = re.findall(r"20\d\d-\d\d", f"{row['engine_version']} {row['note']}")
    return told[-1] if told else "unknown"


KEYS: Mapping[str, Callable[[Case], str]] = {
    "model": lambda case: case.row["model"],
    "format": lambda case: scaling_of(case.shape.weight_format),
    "GPU": lambda case: case.row["gpu"],
    "source": lambda case: source_of(case.row),
    "time": lambda case: time_of(case.row),
}


def left_out(
    rows: Sequence[Row], samples: Sequence[Sample], models: Mapping[str, Any]
) -> dict[str, Errors]:
    """Return the errors of each row with all that share its model, format ... left out.

    ``samples``: with what simulated clients make of the constants of all rows.
    """
    judged = [case_of(row, models) for row in rows if row["metric"] in JUDGED]
    return {name: held_out(judged, samples, key) for name, key in KEYS.items()}


def held_out(
    judged: Sequence[Case], samples: Sequence[Sample], key: Callable[[Case], str]
) -> dict[str, float]:
    """Return the errors of each group by a fit on the samples of the others."""
    errors: dict[str, float] = {}
    for held in sorted({key(case) for case in judged}):
        values = fit([each for each in samples if key(each.case) != held])
        for case in judged:
            if key(case) == held:
                ms = predicted_s(case, values) * MS_PER_S
                errors[case.row["id"]] = ms / float(case.row["value"]) - 1
    return errors
