"""How often demand stays below what is planned for it, some minutes ahead, on traces.

    python tests/bench/forecast_coverage.py --traces FOLDER --page PAGE

Once a minute the arrivals of a trace are counted as the operator counts them, noted, and planned
for, at each lead and for promises of each percentile. No engine runs: what is tried is forecast,
headroom and reserve alone, before whole replicas round them up.
"""

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import click
from bench_options import PAGE, TRACES

from tonnage.estimate.burst_factor import FIRST
from tonnage.estimate.demand import MeasuredDemand, measure_demand
from tonnage.estimate.forecast import (
    CHANCE_Z,
    History,
    Note,
    add_note,
    forecast,
    reserve,
    usual,
    without_chance,
)
from tonnage.estimate.headroom import headroom
from tonnage.estimate.metrics import WINDOWS
from tonnage.estimate.samples import ArrivalWindow, EngineSamples
from tonnage.estimate.ways import NOTE_S
from tonnage.replay.traces import read_trace
from tonnage.units import HOUR_S, format_s

LEADS_S: Final = (60.0, 240.0, 600.0)
QUANTILES: Final = (0.5, 0.9, 0.99)
SCRAPE_S: Final = 15.0
BEGINNING_S: Final = HOUR_S
"""Of a trace, with rows of its own: little is known there yet."""
MOST_S: Final = 72 * HOUR_S
"""Of a trace, from its beginning: two of three days have a day before."""
MEANING = """\
# How often demand stays below what is planned for it

Written by `tests/bench/forecast_coverage.py`.

Once a minute the operator's own code counts the arrivals of a trace, notes them and plans: for the
forecast, the headroom of a promise and the reserve for bursts (with the factor that it begins with:
no requests are served here, so none are late in bursts). Held against a plan are the requests
of the minute that begins after the lead, less what chance may have added (two standard deviations
of a Poisson count). Each cell: minutes that stay below the plan, and the mean of the plan over the
mean of what came.

The percentile is that of a promise: as many requests may be late. It is no quantile of demand. A
minute that is a little above its plan makes few late, and whole replicas, which are left out here,
are room too."""


@dataclass(slots=True)
class Coverage:
    """Sums over the plans of one trace at one lead and percentile; rates in requests/s."""

    plans: int = 0
    covered: int = 0
    came_per_s: float = 0.0
    planned_per_s: float = 0.0

    def __str__(self) -> str:
        over = f"{self.planned_per_s / self.came_per_s:.2f}" if self.came_per_s else "-"
        return f"{self.covered / self.plans:.0%}, {over}"


@dataclass(slots=True)
class Counted:
    """The arrivals of a trace."""

    arrival_s: Sequence[float]

    def between(self, from_s: float, until_s: float) -> int:
        first, last = (bisect_left(self.arrival_s, at_s) for at_s in (from_s, until_s))
        return last - first

    def measured(self, at_s: float) -> MeasuredDemand | None:
        """Return what the operator makes of the windows that end here."""
        windows = {
            scrapes: ArrivalWindow(
                completions_per_s=self.between(at_s - seconds, at_s) / seconds,
                backlog_growth_per_s=0.0,
                is_by_track=True,
            )
            for scrapes in WINDOWS
            if (seconds := (scrapes - 1) * SCRAPE_S) <= at_s
        }
        engine = EngineSamples(
            pod="all", engine="0", age_s=0.0, waiting=0.0, running=0.0, arrivals=windows
        )
        return measure_demand([engine], scrape_interval_s=SCRAPE_S, ready_pods=frozenset({"all"}))


Cell = tuple[bool, float, float]
"""(whether the first hour is over, lead, percentile)"""


@dataclass(slots=True)
class Planner:
    """The history of one trace at one lead."""

    lead_s: float
    history: History = field(default_factory=History)

    def plans(self, demand: MeasuredDemand, at_s: float) -> Iterator[tuple[float, float]]:
        """Note a demand; yield (percentile, requests/s planned for)."""
        rate, count = demand.requests_per_s, demand.newest
        note = Note(
            at_s=at_s,
            demand=rate,
            sure=rate - CHANCE_Z * math.sqrt(2) * demand.standard_error_per_s,
            peak=without_chance(count.requests, scv=1.0) / count.seconds if count else 0.0,
            planned=self._expected(rate, at_s),
            lead_s=self.lead_s,
        )
        self.history = add_note(self.history, note)
        expected, usually = self._expected(rate, at_s), usual(self.history) or 0.0
        for quantile in QUANTILES:
            share = headroom(self.history.rises, quantile=quantile)
            burst = reserve(self.history, quantile=quantile)
            bursts = (1 + FIRST * burst) * usually if burst else 0.0
            yield quantile, max((1 + share) * expected, bursts)

    def _expected(self, rate: float, at_s: float) -> float:
        found = forecast(self.history, at_s=at_s, demand=rate, lead_s=self.lead_s)
        return max(rate, found.demand)


def coverage_of(counted: Counted, until_s: float) -> Mapping[Cell, Coverage]:
    """Return how the plans fared that were made each minute."""
    found = defaultdict[Cell, Coverage](Coverage)
    planners = [Planner(lead_s=lead_s) for lead_s in LEADS_S]
    at_s = (WINDOWS[0] - 1) * SCRAPE_S
    while at_s + LEADS_S[-1] + NOTE_S <= until_s:
        demand = counted.measured(at_s)
        for planner in planners if demand else ():
            due_s = at_s + planner.lead_s
            came = counted.between(due_s, due_s + NOTE_S)
            for quantile, planned in planner.plans(demand, at_s):
                cell = found[at_s >= BEGINNING_S, planner.lead_s, quantile]
                cell.plans += 1
                cell.covered += without_chance(came, scv=1.0) / NOTE_S <= planned
                cell.came_per_s += came / NOTE_S
                cell.planned_per_s += planned
        at_s += NOTE_S
    return found


def page_of(found: Mapping[str, Mapping[Cell, Coverage]]) -> str:
    heads = [f"p{100 * quantile:g}" for quantile in QUANTILES]
    rows = [
        f"| trace | plans | lead | {' | '.join(heads)} |",
        f"|---|---|---|{'---|' * len(heads)}",
    ]
    for name, cells in found.items():
        for is_later, lead_s in dict.fromkeys(cell[:2] for cell in sorted(cells)):
            row = [cells[is_later, lead_s, quantile] for quantile in QUANTILES]
            which = "later" if is_later else "first hour"
            rows.append(
                f"| {name} | {row[0].plans}, {which} | {format_s(lead_s)} "
                f"| {' | '.join(map(str, row))} |"
            )
    return "\n\n".join((MEANING, "\n".join(rows))) + "\n"


@click.command()
@TRACES
@PAGE
def main(*, traces: Path, page: Path | None) -> None:
    """Plan for the arrivals of each trace, and say how often fewer came."""
    found = {}
    for path in sorted(traces.glob("*.csv.gz")) + sorted(traces.glob("*.parquet")):
        arrival_s = read_trace(path).arrival_s
        click.echo(f"{path.name}: {len(arrival_s)} requests", err=True)
        found[path.name.partition(".")[0]] = coverage_of(
            Counted(arrival_s), min(arrival_s[-1], MOST_S)
        )
    text = page_of(found)
    if page:
        page.write_text(text)
    click.echo(text)


if __name__ == "__main__":
    main()
