"""The roofline of a plan as a picture: what a GPU can do, and the batches under it."""

from collections.abc import Iterator
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from tonnage.cli.answers.batches import requests_written
from tonnage.cli.answers.roofline import Roofline
from tonnage.cli.page.drawing import (
    BAD,
    BLUE,
    GOOD,
    INK,
    PAPER,
    VIOLET,
    Picture,
    add_legend,
    blank,
    log_scale,
    picture,
)
from tonnage.units import count_of, format_si, significant

PLOT_PX: Final = 370
DOT_PX: Final = 7.0
MARGIN: Final = 2.5
"""Of the scales beyond what they show, as a factor."""
LINES: Final = {
    "load line": (GOOD, "--"),
    "SLO ceiling": (BAD, "-."),
    "memory ceiling": (VIOLET, (0, (6, 2, 1, 2, 1, 2))),
}
"""Colour and dashes of each ceiling."""
NOTE: Final = (
    "The line is the most that one GPU can do: left of the ridge its memory bandwidth is the "
    "limit, right of it its arithmetic. The points are batches, from few requests to many. The gap "
    "between a point and the roof is time that goes to prefill, overhead and links."
)


def roofline_picture(roofline: Roofline, *, name: str) -> Picture:
    """Return the picture; ``name`` is unique in the page."""
    peak, ridge = format_si(roofline.peak_flop_per_s, "FLOP/s"), roofline.ridge_flop_per_byte
    ceilings = ", ".join(
        f"{each.name} {count_of(requests_written(each.num_requests), 'request')} at "
        f"{significant(each.intensity_flop_per_byte)} FLOP per byte"
        for each in roofline.ceilings
    )
    return picture(
        lambda: roofline_figure(roofline),
        name=name,
        title="Roofline of one GPU and the batches under it",
        about=f"The roof rises with {format_si(roofline.memory_bytes_per_s, 'B/s')} of bandwidth "
        f"to the ridge at {significant(ridge)} FLOP per byte and stays at {peak}. {ceilings}",
        note=NOTE,
    )


def roofline_figure(roofline: Roofline) -> Figure:
    """Draw the roof, the ceilings and the batches."""
    figure = blank(PLOT_PX)
    axes = figure.add_subplot()
    _scale(axes, roofline)
    add_legend(
        figure, [*_roof(axes, roofline), *_ceilings(axes, roofline), _batches(axes, roofline)]
    )
    return figure


def _scale(axes: Axes, roofline: Roofline) -> None:
    across = [roofline.ridge_flop_per_byte]
    across += [each.intensity_flop_per_byte for each in roofline.points]
    across += [each.intensity_flop_per_byte for each in roofline.ceilings]
    low = min(each.flop_per_s for each in roofline.points)
    log_scale(axes, "x", (min(across) / MARGIN, max(across) * MARGIN), "{:,g}".format)
    log_scale(axes, "y", (low / MARGIN, roofline.peak_flop_per_s * MARGIN), with_si_prefix)
    axes.set(xlabel="FLOP per byte read in a decode step", ylabel="decode FLOP/s of one GPU")


def with_si_prefix(value: float) -> str:
    """Write a round number as an axis does.

    >>> with_si_prefix(1e12), with_si_prefix(2e13), with_si_prefix(500)
    ('1 T', '20 T', '500')
    """
    amount, prefix = format_si(value, "").split(" ")
    return f"{float(amount):g} {prefix}".strip()


def _roof(axes: Axes, roofline: Roofline) -> list[Line2D]:
    ridge, peak = roofline.ridge_flop_per_byte, roofline.peak_flop_per_s
    left, right = axes.get_xlim()
    rate = f"{format_si(roofline.memory_bytes_per_s, 'B/s')}, {format_si(peak, 'FLOP/s')}"
    bends = [roofline.roof_flop_per_s(left), peak, peak]
    return axes.plot([left, ridge, right], bends, color=INK, linewidth=2.2, label=f"roof: {rate}")


def _ceilings(axes: Axes, roofline: Roofline) -> Iterator[Line2D]:
    for each in roofline.ceilings:
        color, dashes = LINES[each.name]
        label = f"{each.name}: {count_of(requests_written(each.num_requests), 'request')}"
        at = each.intensity_flop_per_byte
        yield axes.axvline(at, color=color, linestyle=dashes, linewidth=1.4, label=label)


def _batches(axes: Axes, roofline: Roofline) -> Line2D:
    """Draw the batches: hollow where a limit is broken."""
    points = roofline.points
    xs, ys = [each.intensity_flop_per_byte for each in points], [each.flop_per_s for each in points]
    (line,) = axes.plot(
        xs, ys, color=BLUE, linestyle=":", marker="o", markersize=DOT_PX,
        label="batches, hollow where one breaks a limit",
    )  # fmt: skip
    over = [k for k, each in enumerate(points) if each.row.over]
    axes.plot(xs, ys, "o", color=BLUE, markerfacecolor=PAPER, markersize=DOT_PX, markevery=over)
    return line
