"""Predict the KV cache that vLLM printed, from the configuration columns of a table of logs.

    python tests/bench/memory.py --data kv_capacity.csv --configs model_configs.yaml > predicted.csv

Only the columns before ``measured_kv_tokens`` are read for a prediction. Where measured columns are
filled in, ``--report FILE`` writes the errors: overall, by family, version and GPU, of each
component, with the source of each row left out of the fit, and beside other estimators.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from operator import attrgetter
from pathlib import Path
from typing import Any

import click
import yaml
from measured import CONFIGS, DATA, REPORT, print_csv, read_csv, write_page
from memory_cases import Row, case_of, memories_of
from memory_columns import checked_rows, whole_row
from memory_report import report

from tonnage.catalog.engine import MemoryConstants, memory_constants
from tonnage.catalog.gpu import CatalogError
from tonnage.sizing.errors import SizingError
from tonnage.sizing.memory.layout import LoggedFigures
from tonnage.sizing.memory.starts import start_doubts
from tonnage.units import GIB

Document = Mapping[str, Any]
FIELDS = (
    "id", "kv_tokens", "max_concurrency", "weights_gib", "available_kv_gib", "low_kv_tokens",
    "high_kv_tokens", "low_max_concurrency", "high_max_concurrency", "range_from", "refused",
    "doubts",
)  # fmt: skip
UTILIZATIONS = ("", "0.85", "0.95")
"""What it may have been in a row that does not state it: the range covers it."""
OFFLINE_SEQS = "256"
"""``max_num_seqs`` of the class for offline use, where a server takes more."""


def predicted(
    row: Row, configs: Document, memories: Sequence[MemoryConstants] | None = None
) -> dict[str, object]:
    """Return one line of the answer."""
    memories = memory_constants() if memories is None else memories
    try:
        case = case_of(row, configs, memories)
        lowest, highest = printed_range(row, configs, memories)
    except (CatalogError, SizingError, KeyError, ValueError) as error:
        return {"id": row["id"], "refused": str(error)}
    pool_bytes = case.budget.kv_pool_bytes
    printed = case.printed(pool_bytes)
    return {
        "id": row["id"],
        "kv_tokens": printed.kv_tokens,
        "max_concurrency": round(printed.max_concurrency, 3),
        "weights_gib": round(case.budget.bytes_of("weights") / GIB, 3),
        "available_kv_gib": round(pool_bytes / GIB, 3),
        "low_kv_tokens": lowest.kv_tokens,
        "high_kv_tokens": highest.kv_tokens,
        "low_max_concurrency": round(lowest.max_concurrency, 3),
        "high_max_concurrency": round(highest.max_concurrency, 3),
        "range_from": case.budget.widest.cause if case.budget.widest else "",
        "refused": "" if pool_bytes > 0 else f"does not fit: {case.budget}",
        "doubts": "; ".join(
            f"{each.code}: {each.message}" for each in start_doubts(case.start_figures)
        ),
    }


def printed_range(
    row: Row, configs: Document, memories: Sequence[MemoryConstants]
) -> tuple[LoggedFigures, LoggedFigures]:
    """Return the fewest and the most that may be printed: spreads, boards, flags not stated."""
    has_states = any(group.state_blocks for group in case_of(row, configs, memories).layout.groups)
    cases = [
        case_of(variant, configs, memories, memory_bytes=memory_bytes)
        for variant in variants(row, has_states=has_states)
        for memory_bytes in memories_of(whole_row(row))
    ]
    lowest = [each.printed(each.budget.kv_pool_low_bytes) for each in cases]
    highest = [each.printed(each.budget.kv_pool_high_bytes) for each in cases]
    held = attrgetter("max_concurrency")
    return min(lowest, key=held), max(highest, key=held)


def variants(row: Row, *, has_states: bool) -> list[Row]:
    """Return the row with each flag that it does not state at what it may have been.

    With prefix caching, layers with a state keep a second one.
    """
    row = whole_row(row)
    open_flags: dict[str, tuple[str, ...]] = {}
    if not row["gpu_memory_utilization"]:
        open_flags["gpu_memory_utilization"] = UTILIZATIONS
    if not row["max_num_seqs"]:
        open_flags["max_num_seqs"] = ("", OFFLINE_SEQS)
    if has_states and not row["prefix_caching"]:
        open_flags["prefix_caching"] = ("", "True")
    return [
        {**row, **dict(zip(open_flags, values, strict=True))}
        for values in product(*open_flags.values())
    ]


@click.command()
@DATA
@CONFIGS
@REPORT
def main(*, data: Path, configs: Path, report_file: Path | None) -> None:
    """Print a prediction for each row."""
    models: Mapping[str, object] = yaml.safe_load(configs.read_text())
    rows = checked_rows(read_csv(data))
    found = [predicted(row, models) for row in rows]
    print_csv(FIELDS, found)
    if report_file:
        write_page(report_file, report(rows, models, found, predict=predicted))


if __name__ == "__main__":
    main()
