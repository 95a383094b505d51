"""What is asked beside a plan, as text: a demand by the hour, and what runs today."""

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any, Final

from rich.console import RenderableType
from rich.text import Text

from tonnage.cli.console import printable
from tonnage.cli.results.beside import FLEETS, HOURS
from tonnage.cli.results.planning import Planned
from tonnage.cli.text.layout import DIM, grid, indent, section, table
from tonnage.units import HOURS_PER_MONTH, count_of, format_s, significant

Figures = Mapping[str, Any]
HOUR_COLUMNS: Final = ("requests/s", "replicas", "GPUs", "per hour")
NOTE: Final = (
    f"A month has {HOURS_PER_MONTH:g} h, all like these. Replicas are created {{}} before the step "
    "that needs them and removed at its end. What the operator adds, headroom and the time that "
    "replicas stay, 'tonnage replay' simulates."
)
FLEET_COLUMNS: Final = ("replicas", "GPUs", "max-num-seqs", "sustain", "per month", "saves")
WITH: Final = {"running": "today", "sameFlags": "the same flags", "otherFlags": "other flags"}


def beside_report(answer: Planned) -> Iterator[RenderableType]:
    """Yield what was asked beside a plan, in the order of the question."""
    if fleets := answer.beside.get(FLEETS):
        yield from _today(fleets, answer.replicas)
    if hours := answer.beside.get(HOURS):
        yield from _hours(hours, answer.replicas)


def _today(fleets: Mapping[str, Figures], needed: int) -> Iterator[RenderableType]:
    running = fleets["running"]
    rows = table("with", numbers=FLEET_COLUMNS)
    for name, each in fleets.items():
        saved = _cost(running["perMonth"], each["perMonth"]) if name != "running" else ""
        rows.add_row(
            f"{WITH[name]}, {each['parallelism']}",
            *(str(each[key]) for key in ("replicas", "gpus", "maxNumSeqs")),
            f"{significant(each['sustainedRequestsPerSecond'])}/s",
            _cost(each["perMonth"]),
            saved,
        )
    yield from section("What runs today, and what the demand takes", indent(rows))
    if running["replicas"] < needed:
        short = f"What runs is too little: its flags need {count_of(needed, 'replica')}"
        yield indent(Text(short, style="yellow"))


def _hours(found: Figures, most: int) -> Iterator[RenderableType]:
    steps, peak = found["steps"], found["peak"]
    varied, constant = (found["perMonth"][name] for name in ("byHour", "constant"))
    saved = constant["gpuHours"] - varied["gpuHours"]
    replicas = count_of(most, "replica")
    rows = {
        "peak": f"{significant(peak['requestsPerSecond'])} requests/s at {peak['at']}; mean "
        f"{significant(found['meanRequestsPerSecond'])}",
        "by the hour": f"{min(each['replicas'] for each in steps)} to {replicas}: {_month(varied)}",
        "constant": f"{replicas}: {_month(constant)}",
        "saves": f"{saved:,.0f} GPU-hours, {saved / constant['gpuHours']:.0%} of them, "
        f"{_cost(constant, varied)} a month",
    }
    title = f"{found['source']}, {count_of(len(steps), 'step')} of {format_s(found['stepSeconds'])}"
    yield from section(f"Demand by the hour: {printable(title)}", indent(grid(rows.items())))
    if short := found["stepsAboveMaxReplicas"]:
        needs = count_of(short, "step needs", "steps need")
        yield indent(Text(f"{needs} more than maxReplicas", style="yellow"))
    if found["schedulesLeftOut"]:
        yield indent(Text("These rows leave scaling.schedules out: they cost more", style="yellow"))
    yield indent(Text(NOTE.format(format_s(found["startUpSeconds"])), style=DIM))
    times = table("from", numbers=HOUR_COLUMNS, no_wrap=True)
    for _, some in groupby(steps, key=lambda step: step["replicas"]):
        first, *more = some
        rate = max(each["requestsPerSecond"] for each in (first, *more))
        usd = first["perHour"]
        price = "no price" if usd is None else f"{usd:.2f} {varied['currency']}"
        times.add_row(
            first["at"], significant(rate), str(first["replicas"]), str(first["gpus"]), price
        )
    yield indent(times, above=1)


def _month(month: Figures) -> str:
    return f"{month['gpuHours']:,.0f} GPU-hours, {_cost(month)} a month"


def _cost(month: Figures, other: Figures | None = None) -> str:
    """Write what a month costs; ``other``: how much less that one does."""
    if month["cost"] is None:
        return "no price"
    return f"{month['cost'] - (other['cost'] if other else 0):,.0f} {month['currency']}"
