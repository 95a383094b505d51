"""The roofline of a plan as a picture: what a GPU can do, and the batches under it."""

from collections.abc import Iterable, Iterator
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from tonnage.cli.answers.batches import requests_written
from tonnage.cli.answers.roofline import Roofline
from tonnage.cli.answers.roofline import RooflinePoint as Batch
from tonnage.cli.page.drawing import (
    BAD,
    BLUE,
    GOOD,
    INK,
    PAPER,
    SOFT,
    VIOLET,
    Picture,
    Screen,
    add_legend,
    log_scale,
    picture,
)
from tonnage.cli.page.labels import LabelWriter, PlotPoint
from tonnage.cli.page.tables import Column, Row, Table, numbers, plain_table
from tonnage.units import count_of, format_si, significant

PLOT_PX: Final = 370
DOT_PX: Final = 7.0
LOAD_LINE_PX: Final = 13.0
MARGIN: Final = 2.5
"""Of the scales beyond what they show, as a factor."""
COLORS: Final = {"load line": GOOD, "SLO ceiling": BAD, "memory ceiling": VIOLET}
DASHES: Final = {"load line": "--", "SLO ceiling": "-.", "memory ceiling": (0, (6, 2, 1, 2, 1, 2))}
AT_LOAD_LINE: Final = "the load line, as a batch"
OVER: Final = "batch above a ceiling"
WITHIN: Final = "batch below both ceilings"
MARKERS: Final = (
    (WITHIN, BLUE, BLUE, DOT_PX),
    (OVER, BLUE, PAPER, DOT_PX),
    (AT_LOAD_LINE, GOOD, GOOD, LOAD_LINE_PX),
)
COLUMNS: Final = (
    *numbers("decoding", "TPOT", "tokens/s", "KV cache", "FLOP/byte", "of the roof"),
    Column(title="bound by"),
    Column(title=""),
)
CEILINGS: Final = (Column(title="line", kind="name"), *numbers("requests", "FLOP/byte"))


def roofline_picture(roofline: Roofline, *, name: str) -> Picture:
    """Return the picture with the table by batch; ``name`` is unique in the page."""
    peak, ridge = format_si(roofline.peak_flop_per_s, "FLOP/s"), roofline.ridge_flop_per_byte
    ceilings = ", ".join(
        f"{each.name} {count_of(requests_written(each.num_requests), 'request')} at "
        f"{significant(each.intensity_flop_per_byte)} FLOP per byte"
        for each in roofline.ceilings
    )
    return picture(
        lambda screen: roofline_figure(roofline, screen),
        Table(columns=COLUMNS, rows=tuple(_row(roofline, each) for each in roofline.points)),
        name=name,
        title="Roofline of one GPU and the batches under it",
        about=f"The roof rises with {format_si(roofline.memory_bytes_per_s, 'B/s')} of bandwidth "
        f"to the ridge at {significant(ridge)} FLOP per byte and stays at {peak}. {ceilings}.",
    )


def ceilings_table(roofline: Roofline) -> Table:
    """Return what the vertical lines of the picture stand for."""
    found = [
        (
            each.name,
            requests_written(each.num_requests),
            significant(each.intensity_flop_per_byte),
        )
        for each in roofline.ceilings
    ]
    ridge = ("ridge", "", significant(roofline.ridge_flop_per_byte))
    return plain_table(CEILINGS, (*found, ridge))


def _row(roofline: Roofline, batch: Batch) -> Row:
    *figures, bound = batch.row.cells
    reached = batch.flop_per_s / roofline.roof_flop_per_s(batch.intensity_flop_per_byte)
    more = (significant(batch.intensity_flop_per_byte), f"{reached:.0%}")
    return Row(
        cells=(*figures, *more, bound, batch.row.remark),
        mark="load-line" if batch.row.is_load_line else "",
    )


def roofline_figure(roofline: Roofline, screen: Screen) -> Figure:
    """Draw the roof, the ceilings and the batches; their numbers where there is room."""
    figure = screen.figure(PLOT_PX)
    axes = figure.add_subplot()
    _scales(axes, roofline, screen)
    handles = [*_roof(axes, roofline), *_ceilings(axes, roofline), *_batches(axes, roofline)]
    add_legend(figure, handles, screen, plot_px=PLOT_PX)
    labels = LabelWriter(axes, [_point(batch) for batch in roofline.points])
    for batch in sorted(roofline.points, key=lambda each: not each.row.is_load_line):
        number = requests_written(batch.row.state.num_decoding)
        labels.write(number, _point(batch), color=GOOD if batch.row.is_load_line else None)
    return figure


def _point(batch: Batch) -> PlotPoint:
    size = LOAD_LINE_PX if batch.row.is_load_line else DOT_PX
    return PlotPoint(x=batch.intensity_flop_per_byte, y=batch.flop_per_s, radius_px=size / 2)


def _scales(axes: Axes, roofline: Roofline, screen: Screen) -> None:
    across = [each.intensity_flop_per_byte for each in roofline.points]
    across += [each.intensity_flop_per_byte for each in roofline.ceilings]
    low = min(each.flop_per_s for each in roofline.points) / MARGIN
    high = roofline.peak_flop_per_s * MARGIN
    across.append(roofline.ridge_flop_per_byte)
    left, right = min(across) / MARGIN, max(across) * MARGIN
    room = 4 if screen.is_narrow else 7
    log_scale(axes, "x", (left, right), room=room, write="{:,g}".format)
    log_scale(axes, "y", (low, high), room=8, write=with_si_prefix)
    axes.set(xlabel="FLOP per byte read in a decode step", ylabel="decode FLOP/s of one GPU")
    if not screen.is_narrow:
        tokens = axes.twinx()
        tokens.grid(visible=False)
        limits = (low / roofline.flop_per_token, high / roofline.flop_per_token)
        log_scale(tokens, "y", limits, room=8, write=with_si_prefix)
        tokens.set_ylabel("output tokens/s of a replica")


def with_si_prefix(value: float) -> str:
    """Write a round number as an axis does.

    >>> with_si_prefix(1e12), with_si_prefix(2e13), with_si_prefix(500)
    ('1 T', '20 T', '500')
    """
    amount, prefix = format_si(value, "").split(" ")
    return f"{float(amount):g} {prefix}".strip()


def _roof(axes: Axes, roofline: Roofline) -> Iterator[Line2D]:
    ridge, peak = roofline.ridge_flop_per_byte, roofline.peak_flop_per_s
    left, right = axes.get_xlim()
    label = f"roof: {format_si(roofline.memory_bytes_per_s, 'B/s')}, {format_si(peak, 'FLOP/s')}"
    bends = [roofline.roof_flop_per_s(left), peak, peak]
    yield from axes.plot([left, ridge, right], bends, color=INK, linewidth=2.2, label=label)
    yield from axes.plot(
        [ridge, ridge],
        [peak, axes.get_ylim()[0]],
        color=SOFT,
        linestyle=":",
        linewidth=1,
        marker="D",
        markersize=5,
        markevery=[0],
        label=f"ridge: {significant(ridge)} FLOP per byte",
    )


def _ceilings(axes: Axes, roofline: Roofline) -> Iterator[Line2D]:
    for each in roofline.ceilings:
        yield axes.axvline(
            each.intensity_flop_per_byte,
            color=COLORS[each.name],
            linestyle=DASHES[each.name],
            linewidth=1.4,
            label=f"{each.name}: {count_of(requests_written(each.num_requests), 'request')}",
        )


def _batches(axes: Axes, roofline: Roofline) -> Iterator[Line2D]:
    """Draw the batches, and yield what their markers mean."""
    axes.plot(*_of(roofline.points), color=SOFT, linestyle=":", linewidth=1)
    for label, color, face, size in MARKERS:
        found = [each for each in roofline.points if _meaning(each) == label]
        if found:
            yield from axes.plot(
                *_of(found),
                label=label,
                color=color,
                markerfacecolor=face,
                markeredgewidth=1.6,
                linestyle="",
                marker="o",
                markersize=size,
            )


def _of(batches: Iterable[Batch]) -> tuple[list[float], list[float]]:
    points = [_point(batch) for batch in batches]
    return [point.x for point in points], [point.y for point in points]


def _meaning(batch: Batch) -> str:
    return AT_LOAD_LINE if batch.row.is_load_line else OVER if batch.row.over else WITHIN
