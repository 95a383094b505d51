"""Predictions of rows that the fit had not seen: nor their model, format, GPU, source or time."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fit_speed import fit
from speed_cases import Case, case_of, predicted, with_constants
from speed_eras import BEFORE_2025, NOW, Row, era_name
from speed_files import eras_of, table_of
from speed_formula import Sample

from tonnage.catalog.engine_speed import scaling_of

Errors = Mapping[str, float]


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
    """Return the errors of each row with all that share its model, format ... left out."""
    cases = [case_of(row, models) for row in rows]
    return {name: held_out(cases, samples, key) for name, key in KEYS.items()}


def held_out(
    cases: Sequence[Case], samples: Sequence[Sample], key: Callable[[Case], str]
) -> dict[str, float]:
    """Return the errors of each group of cases by a fit on the samples of the others."""
    errors: dict[str, float] = {}
    for held in sorted({key(case) for case in cases}):
        values = fit([each for each in samples if key(each.case) != held])
        table, known_eras = table_of(values), eras_of(values)
        for case in cases:
            if key(case) == held:
                era = known_eras.get(era_name(case.row), NOW)
                found = predicted(with_constants(case, table, era))
                errors[case.row["id"]] = found / float(case.row["value"]) - 1
    return errors
