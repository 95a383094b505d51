"""The front line of a page of figures: the commit that they were taken at, and what they are of."""

import csv
import resource
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Final

import click

from tonnage.units import MIB

ROOT: Final = Path(__file__).resolve().parents[2]
DECIDES: Final = "control,engine,estimate,policy,replay,sizing"
RUNS: Final = "cluster,control,estimate,fleet,manifests,policy"
FOLDERS: Final = {
    "capacity.md": "engine,sizing",
    "causes.md": DECIDES,
    "fleet_real.md": RUNS,
    "memory.md": "catalog,sizing",
    "other_tools.md": "catalog,engine,sizing",
    "mutation.md": "engine,estimate,policy,sizing",
    "replay.md": DECIDES,
    "replay_unseen.md": DECIDES,
    "replay_views.md": DECIDES,
    "soak.md": RUNS,
    "soak_real.md": RUNS,
    "speed.md": "catalog,engine,sizing",
}
"""Folders of ``operator/tonnage`` that a page measures."""


def rss_mib(process: int | str = "self") -> float:
    """Return what a process holds of the memory, as the kernel counts it."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / MIB


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as lines:
        return list(csv.DictReader(lines))


def print_csv(columns: Sequence[str], rows: Iterable[Mapping[str, object]]) -> None:
    out = csv.DictWriter(sys.stdout, columns)
    out.writeheader()
    out.writerows(rows)


def write_page(page: Path, text: str) -> None:
    """Write a page with its front line; one that is none of the repository has none."""
    folders = FOLDERS.get(page.name)
    if folders is None:
        page.write_text(text)
        return
    asked = ["git", "-C", str(ROOT), "rev-parse", "--short=8", "HEAD"]
    found = subprocess.run(asked, check=True, capture_output=True, text=True)  # noqa: S603
    commit = found.stdout.strip()
    page.write_text(f"<!-- measured at {commit}; of operator/tonnage/{{{folders}}} -->\n{text}")


def table(header: Sequence[str], rows: Iterable[Sequence[str]], rule: str = "---") -> str:
    """Return a table in Markdown; ``rule``: how columns are aligned."""
    lines = [f"| {' | '.join(header)} |", f"|{f'{rule}|' * len(header)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


SPREAD_HEADER: Final = "| | rows | median | p90 | bias |\n|---|---|---|---|---|"


def spread(errors: Iterable[float | None]) -> str:
    """Return number, median and 90th percentile of the size, and median error, as table cells."""
    known = [error for error in errors if error is not None]
    if not known:
        return "0 | - | - | -"
    size = [abs(error) for error in known]
    ninth = quantiles(size, n=10, method="inclusive")[-1] if len(size) > 1 else size[0]
    return f"{len(known)} | {median(size):.1%} | {ninth:.1%} | {median(known):+.1%}"


TRACES: Final = click.option(
    "--traces",
    "traces",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    required=True,
    help="Folder with the traces of the replay benchmark.",
)
OUT: Final = click.option(
    "--out", "folder", type=click.Path(path_type=Path, file_okay=False), required=True
)
PAGE: Final = click.option(
    "--page", type=click.Path(path_type=Path), help="Markdown to write at the end."
)
DATA, CONFIGS = (
    click.option(name, type=click.Path(exists=True, path_type=Path), required=True)
    for name in ("--data", "--configs")
)
REPORT: Final = click.option(
    "--report", "report_file", type=click.Path(path_type=Path), help="Markdown, errors."
)
PROCESSES: Final = click.option(
    "--processes", type=click.IntRange(min=1), default=2, show_default=True
)
