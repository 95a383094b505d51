"""Predict the KV cache that vLLM printed, from the configuration columns of a table of logs.

    python tests/bench/memory.py --data kv_capacity.csv --configs model_configs.yaml > predicted.csv

Only the columns before ``measured_kv_tokens`` are read for a prediction. Where measured columns are
filled in, ``--report FILE`` writes the errors: overall, by family, version and GPU, of each
component, with the source of each row left out of the fit, and beside other estimators.
"""

import csv
import sys
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import click
import yaml
from memory_cases import Case, Row, case_of
from memory_report import report

from tonnage.catalog.engine_memory import MemoryConstants, memory_constants
from tonnage.catalog.gpu import CatalogError
from tonnage.sizing.errors import SizingError
from tonnage.units import GIB

Document = Mapping[str, Any]
FIELDS = (
    "id", "kv_tokens", "max_concurrency", "weights_gib", "available_kv_gib", "low_kv_tokens",
    "high_kv_tokens", "refused",
)  # fmt: skip
UNSTATED = {
    "gpu_memory_utilization": ("", "0.85", "0.95"),
    "max_num_seqs": ("", "256", "1024"),
}
"""What else a flag may have been that a row does not state: the range covers it."""


def predicted(
    row: Row, configs: Document, memories: Sequence[MemoryConstants] | None = None
) -> dict[str, object]:
    """Return one line of the answer."""
    memories = memory_constants() if memories is None else memories
    try:
        case = case_of(row, configs, memories)
        lowest, highest = tokens_range(row, configs, memories)
    except (CatalogError, SizingError, KeyError) as error:
        return {"id": row["id"], "refused": str(error)}
    pool_bytes = case.budget.kv_pool_bytes
    printed = case.printed(pool_bytes)
    return {
        "id": row["id"],
        "kv_tokens": printed.kv_tokens,
        "max_concurrency": round(printed.max_concurrency, 3),
        "weights_gib": round(case.budget.bytes_of("weights") / GIB, 3),
        "available_kv_gib": round(pool_bytes / GIB, 3),
        "low_kv_tokens": lowest,
        "high_kv_tokens": highest,
        "refused": "" if pool_bytes > 0 else f"does not fit: {case.budget}",
    }


def tokens_range(
    row: Row, configs: Document, memories: Sequence[MemoryConstants]
) -> tuple[int, int]:
    """Return the fewest and the most tokens, over the spreads and the flags not stated."""
    cases = [case_of(variant, configs, memories) for variant in variants(row)]
    ends = [end for case in cases for end in _ends(case)]
    return min(ends), max(ends)


def _ends(case: Case) -> tuple[int, int]:
    pool, spread = case.budget.kv_pool_bytes, case.budget.kv_pool_spread_bytes
    return case.printed(pool - spread).kv_tokens, case.printed(pool + spread).kv_tokens


def variants(row: Row) -> list[Row]:
    """Return the row with each flag that it does not state at what it may have been."""
    open_flags = {name: values for name, values in UNSTATED.items() if not row[name]}
    return [
        {**row, **dict(zip(open_flags, values, strict=True))}
        for values in product(*open_flags.values())
    ]


@click.command()
@click.option("--data", type=click.Path(exists=True, path_type=Path), required=True)
@click.option("--configs", type=click.Path(exists=True, path_type=Path), required=True)
@click.option("--report", "report_file", type=click.Path(path_type=Path), help="Markdown, errors.")
@click.option("--rivals", is_flag=True, help="Run other estimators too, for the report.")
def main(*, data: Path, configs: Path, report_file: Path | None, rivals: bool) -> None:
    """Print a prediction for each row."""
    models: Mapping[str, object] = yaml.safe_load(configs.read_text())
    with data.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    found = [predicted(row, models) for row in rows]
    out = csv.DictWriter(sys.stdout, FIELDS)
    out.writeheader()
    out.writerows(found)
    if report_file:
        text = report(rows, models, found, predict=predicted, with_rivals=rivals)
        report_file.write_text(text)


if __name__ == "__main__":
    main()
