"""A demand by the hour as text: the month beside a constant fleet, and replicas by hour."""

from collections.abc import Iterator
from itertools import groupby
from typing import Final

from rich.console import RenderableType
from rich.text import Text

from tonnage.cli.console import printable
from tonnage.cli.results.demand_hours import HourlyFleet, Month
from tonnage.cli.text.layout import DIM, grid, indent, section, table
from tonnage.units import HOURS_PER_MONTH, count_of, format_s, significant

COLUMNS: Final = ("requests/s", "replicas", "GPUs", "per hour")
NOTE: Final = (
    f"A month has {HOURS_PER_MONTH:g} h, all like these. Replicas are created {{}} before the step "
    "that needs them and removed at its end. What the operator adds, headroom and the time that "
    "replicas stay, 'tonnage replay' simulates."
)


def hours_report(found: HourlyFleet) -> Iterator[RenderableType]:
    """Yield the answer for a month, and a row for each time with as many replicas."""
    yield from section(
        f"Demand by the hour: {printable(str(found.curve))}", indent(grid(_months(found)))
    )
    if found.num_short:
        steps = count_of(found.num_short, "step needs", "steps need")
        yield indent(Text(f"{steps} more than maxReplicas", style="yellow"))
    yield indent(Text(NOTE.format(format_s(found.start_s)), style=DIM))
    hours = table("from", numbers=COLUMNS, no_wrap=True)
    for _, some in groupby(found.steps(), key=lambda step: step["replicas"]):
        first, *more = some
        usd = first["perHour"]
        hours.add_row(
            first["at"],
            significant(max(each["requestsPerSecond"] for each in (first, *more))),
            str(first["replicas"]),
            str(first["gpus"]),
            "no price" if usd is None else f"{usd:.2f} {found.currency}",
        )
    yield indent(hours, above=1)


def _months(found: HourlyFleet) -> Iterator[tuple[str, str]]:
    curve, varied, constant = found.curve, found.by_hour, found.constant
    peak, mean = map(significant, (curve.peak_requests_per_s, curve.mean_requests_per_s))
    saved, most = constant - varied, count_of(found.planned.replicas, "replica")
    yield "peak", f"{peak} requests/s at {found.peak_at}; mean {mean}"
    yield "by the hour", f"{min(found.replicas)} to {most}: {_month(varied, found.currency)}"
    yield "constant", f"{most}: {_month(constant, found.currency)}"
    share = saved.gpu_hours / constant.gpu_hours
    yield "saves", f"{_month(saved, found.currency)}, {share:.0%} of the GPU-hours"


def _month(month: Month, currency: str) -> str:
    usd = "no price" if month.usd is None else f"{month.usd:,.0f} {currency}"
    return f"{month.gpu_hours:,.0f} GPU-hours, {usd} a month"
