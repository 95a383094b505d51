"""What is asked beside a plan, as text: a demand by the hour, and what runs today."""

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any, Final

from rich.console import Console, RenderableType
from rich.text import Text

from tonnage.cli.console import printable
from tonnage.cli.results.beside import FLEETS, HOURS
from tonnage.cli.results.planning import Planned
from tonnage.cli.text.layout import DIM, INDENT, fitting_table, grid, indent, section
from tonnage.explain.cost_words import both_written
from tonnage.units import HOURS_PER_MONTH, count_of, format_s, significant

Figures = Mapping[str, Any]
NO_PRICE: Final = "no price"
PER_HOUR: Final = {"per hour": "perHour", "per hour\nwhole": "perHourWhole"}
PAID: Final = {"shared": "costShared", "whole": "costWhole"}
NOTE: Final = (
    f"A month has {HOURS_PER_MONTH:g} h, all like these. Replicas are created {{}} before the step "
    "that needs them and removed at its end. What the operator adds, headroom and the time that "
    "replicas stay, 'tonnage replay' simulates."
)
WITH: Final = {"running": "today", "sameFlags": "the same flags", "otherFlags": "other flags"}


def beside_report(answer: Planned, console: Console) -> Iterator[RenderableType]:
    """Yield what was asked beside a plan, in the order of the question."""
    if fleets := answer.beside.get(FLEETS):
        yield from _today(fleets, answer.replicas, console)
    if hours := answer.beside.get(HOURS):
        yield from _hours(hours, answer.replicas, console)


def _today(
    fleets: Mapping[str, Figures], needed: int, console: Console
) -> Iterator[RenderableType]:
    running = fleets["running"]
    rows = [
        {
            "with": f"{WITH[name]}, {each['parallelism']}",
            "replicas": str(each["replicas"]),
            "GPUs": str(each["gpus"]),
            **{f"per month\n{way}": _usd(each["perMonth"], key) for way, key in PAID.items()},
            **{
                f"saves\n{way}": ""
                if each is running
                else _usd(running["perMonth"], key, each["perMonth"])
                for way, key in PAID.items()
            },
            "sustain": f"{significant(each['sustainedRequestsPerSecond'])}/s",
            "max-num-\nseqs": str(each["maxNumSeqs"]),
        }
        for name, each in fleets.items()
    ]
    shown = fitting_table(rows, names=["with"], console=console, indent=INDENT)
    yield from section("What runs today, and what the demand takes", *map(indent, shown))
    if running["replicas"] < needed:
        short = f"What runs is too little: its flags need {count_of(needed, 'replica')}"
        yield indent(Text(short, style="yellow"))


def _hours(found: Figures, most: int, console: Console) -> Iterator[RenderableType]:
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
        f"{_cost(constant, varied)}",
    }
    title = f"{found['source']}, {count_of(len(steps), 'step')} of {format_s(found['stepSeconds'])}"
    yield from section(f"Demand by the hour: {printable(title)}", indent(grid(rows.items())))
    if short := found["stepsAboveMaxReplicas"]:
        needs = count_of(short, "step needs", "steps need")
        yield indent(Text(f"{needs} more than maxReplicas", style="yellow"))
    if found["schedulesLeftOut"]:
        yield indent(Text("These rows leave scaling.schedules out: they cost more", style="yellow"))
    yield indent(Text(NOTE.format(format_s(found["startUpSeconds"])), style=DIM))
    unit = varied["currency"]
    runs = (list(some) for _, some in groupby(steps, key=lambda step: step["replicas"]))
    times = [
        {
            "from": run[0]["at"],
            "requests/s": significant(max(each["requestsPerSecond"] for each in run)),
            **{name: str(run[0][name.lower()]) for name in ("replicas", "GPUs")},
            **{
                name: NO_PRICE if (usd := run[0][key]) is None else f"{usd:.2f} {unit}"
                for name, key in PER_HOUR.items()
            },
        }
        for run in runs
    ]
    yield Text()
    yield from map(indent, fitting_table(times, names=["from"], console=console, indent=INDENT))


def _month(month: Figures) -> str:
    unit = month["currency"]
    each = unit and f"; {month['perMillionTokens']:.2f} {unit} per million output tokens"
    return f"{month['gpuHours']:,.0f} GPU-hours, {_cost(month)}{each or ''}"


def _net(month: Figures, key: str, other: Figures | None = None) -> str:
    """Write what a month costs; ``other``: by how much less another one does."""
    return f"{month[key] - (other[key] if other else 0):,.0f}"


def _usd(month: Figures, key: str, other: Figures | None = None) -> str:
    return NO_PRICE if month["cost"] is None else f"{_net(month, key, other)} {month['currency']}"


def _cost(month: Figures, other: Figures | None = None) -> str:
    if month["cost"] is None:
        return NO_PRICE
    shared, whole = (_net(month, key, other) for key in PAID.values())
    return both_written(shared, whole, f"{month['currency']} a month")
