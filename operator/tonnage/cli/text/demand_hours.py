"""A demand by the hour as text: the month beside a constant fleet, and replicas by hour."""

from collections.abc import Iterator
from itertools import groupby
from typing import Final

from rich.console import RenderableType
from rich.text import Text

from tonnage.cli.console import printable
from tonnage.cli.results.demand_hours import HourlyFleet
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
    curve, most = found.curve, count_of(found.planned.replicas, "replica")
    peak, mean = map(significant, (curve.peak_requests_per_s, curve.mean_requests_per_s))
    varied, constant, saved = found.months().values()
    rows = (
        ("peak", f"{peak} requests/s at {found.peak_at}; mean {mean}"),
        ("by the hour", f"{min(found.replicas)} to {most}: {varied}"),
        ("constant", f"{most}: {constant}"),
        ("saves", f"{saved}, {saved.gpu_hours / constant.gpu_hours:.0%} of the GPU-hours"),
    )
    yield from section(f"Demand by the hour: {printable(str(curve))}", indent(grid(rows)))
    if found.num_short:
        steps = count_of(found.num_short, "step needs", "steps need")
        yield indent(Text(f"{steps} more than maxReplicas", style="yellow"))
    yield indent(Text(NOTE.format(format_s(found.start_s)), style=DIM))
    hours = table("from", numbers=COLUMNS, no_wrap=True)
    for replicas, some in groupby(found.steps(), key=lambda step: step["replicas"]):
        first, *more = some
        rate = max(each["requestsPerSecond"] for each in (first, *more))
        usd = first["perHour"]
        price = "no price" if usd is None else f"{usd:.2f} {first['currency']}"
        hours.add_row(first["at"], significant(rate), str(replicas), str(first["gpus"]), price)
    yield indent(hours, above=1)
