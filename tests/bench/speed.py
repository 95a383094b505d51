"""Predict what engines measured, from the configuration columns of a table of benchmarks.

    python tests/bench/speed.py --data serving_speed.csv --configs model_configs.yaml > out.csv

``--report FILE`` writes the errors where values are filled in: median, 90th percentile and bias by
model, GPU, engine, source, batch and context; in-sample and with each model, format, GPU, source
and time left out of the fit; beside a naive roofline on the same rows; ranges, and what the rows
cannot tell. ``speed.md`` is such a page. Other tools: ``other_tools.md``.
"""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import yaml
from measured import CONFIGS, DATA, REPORT, print_csv, read_csv, write_page
from speed_cases import FIRST_TOKENS, STEPS, Case, case_of, predicted, with_constants
from speed_row import NOW, REQUIRED, Era, Row, check_columns, era_name

from tonnage.catalog.engine_speed import SpeedTable, speed_table
from tonnage.catalog.gpu import CatalogError
from tonnage.catalog.speed_range import first_token_spread, speed_spread, together
from tonnage.sizing.errors import SizingError

FIELDS = ("id", "predicted", "low", "high", "refused")
ERAS_FILE = Path(__file__).with_name("speed_eras.toml")
SPREAD_FACTOR = {"now": 1.0, "2024": 1.0, "2023": 1.5}
"""Other engines are scaled by a few numbers only: their range is twice as wide, and that of their
first tokens three times."""
HOST_BOUND_FACTOR = 3.0
"""Of servers of 2024: their hosts' processors set the pace, and no column says how fast those are.
Of two kinds of host the one took twice as long with the same models."""
OTHER_SPREAD = 0.30
"""Of throughputs and of prefill, which depend on more than steps."""


def eras() -> dict[str, Era]:
    """Return how other engines, and engines of other times, differ."""
    found = tomllib.loads(ERAS_FILE.read_text())
    return {"now": NOW, **{name: Era(name=name, **values) for name, values in found.items()}}


def answer(
    row: Row,
    configs: Mapping[str, Any],
    table: SpeedTable | None = None,
    known_eras: Mapping[str, Era] | None = None,
) -> dict[str, object]:
    """Return one line: the row's own metric and a range that holds eight of ten."""
    table, known_eras = table or speed_table(), known_eras or eras()
    try:
        case = case_of(row, configs)
        era = known_eras.get(era_name(row), NOW)
        value = predicted(with_constants(case, table, era))
    except (CatalogError, SizingError, KeyError) as error:
        return {"id": row["id"], "refused": str(error)}
    spread = spread_of(case, era)
    return {
        "id": row["id"],
        "predicted": f"{value:.6g}",
        "low": f"{value / (1 + spread):.6g}",
        "high": f"{value * (1 + spread):.6g}",
        "refused": "",
    }


def spread_of(case: Case, era: Era) -> float:
    """Return by which fraction the value may be off, either way."""
    subject = (case.gpu, case.shape.weight_format, case.shape)
    is_first = case.metric in FIRST_TOKENS
    spread = speed_spread(*subject)
    if is_first:
        spread = first_token_spread(*subject, minor=case.run.minor)
    if not is_first and case.metric not in STEPS | {"batch_e2e_ms"}:
        spread = together(spread, OTHER_SPREAD)
    if era.name == "2024" and not case.is_static:
        return HOST_BOUND_FACTOR * spread
    other = 3.0 if is_first else 2.0
    return SPREAD_FACTOR.get(era.name, other) * spread


def read_rows(data: Path) -> Sequence[Row]:
    rows = read_csv(data)
    check_columns([*rows[0]] if rows else REQUIRED)
    return rows


@click.command()
@DATA
@CONFIGS
@REPORT
def main(*, data: Path, configs: Path, report_file: Path | None) -> None:
    """Print a prediction for each row."""
    models, rows, known_eras = yaml.safe_load(configs.read_text()), read_rows(data), eras()
    found = [answer(row, models, known_eras=known_eras) for row in rows]
    print_csv(FIELDS, found)
    if report_file:
        from speed_report import report  # noqa: PLC0415  the fit needs scipy, a prediction does not

        write_page(report_file, report(data, configs, rows, found))


if __name__ == "__main__":
    main()
