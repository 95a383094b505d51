"""GPU classes by batch: what one GPU gives, and how long a token takes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from tonnage.cli.answers.batches import LIMITS, BatchRow, batch_rows, requests_written
from tonnage.cli.answers.comparing import tokens_per_s
from tonnage.cli.page.drawing import (
    BAD,
    PAPER,
    Picture,
    Screen,
    add_legend,
    log_scale,
    picture,
)
from tonnage.cli.page.labels import LabelWriter, PlotPoint
from tonnage.cli.page.plain import short
from tonnage.cli.page.tables import Column, Row, Table, numbers
from tonnage.sizing.compare import Choice
from tonnage.sizing.workload import Slo, Target
from tonnage.units import format_s, significant

SERIES: Final = (
    ("#2368b8", "o"), ("#c46200", "s"), ("#23804f", "^"), ("#8446ad", "D"), ("#7d6335", "v"),
    ("#0b8494", "P"),
)  # fmt: skip
"""Colour and marker of each line; more lines than that look alike."""
PLOT_PX: Final = 340
DOT_PX: Final = 5.5
LOAD_LINE_PX: Final = 12.0
MARGIN: Final = 1.25
"""Of the scales beyond what they show, as a factor."""
FIGURES: Final = (
    Column(title="class", kind="name"),
    *numbers("decoding", "TPOT", "tokens/s\nGPU"),
    Column(title="bound by"),
)
BATCHES: Final = (*FIGURES, Column(title=""))
LOAD_LINES: Final = (*FIGURES, Column(title="limit"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One batch of one class: how long a step takes, and what each GPU makes of it."""

    row: BatchRow
    tpot_s: float
    tokens_per_s_per_gpu: float

    @property
    def point(self) -> PlotPoint:
        size = LOAD_LINE_PX if self.row.is_load_line else DOT_PX
        return PlotPoint(x=self.tpot_s, y=self.tokens_per_s_per_gpu, radius_px=size / 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputCurve:
    """The batches of one class, from small to large."""

    name: str
    batches: tuple[Batch, ...]
    limited_by: str
    """What the load line stops at."""


def course(choice: Choice) -> ThroughputCurve:
    """Return the batches of one class."""
    num_gpus = choice.sizing.flags.parallelism.num_gpus
    limited_by = choice.sizing.limited_by
    return ThroughputCurve(
        name=choice.gpu.name,
        batches=tuple(
            Batch(
                row=row,
                tpot_s=row.state.tpot_s,
                tokens_per_s_per_gpu=tokens_per_s(choice, row) / num_gpus,
            )
            for row in batch_rows(choice.sizing)
        ),
        limited_by=LIMITS.get(limited_by, limited_by),
    )


def throughput_picture(courses: Sequence[ThroughputCurve], slo: Slo, *, name: str) -> Picture:
    """Return the picture of tokens per second of a GPU; ``name`` is unique in the page."""
    return picture(
        lambda screen: throughput_figure(courses, slo, screen),
        _table(BATCHES, courses),
        name=name,
        title="Output tokens per second of one GPU against TPOT",
        about=f"{', '.join(each.name for each in courses)}, by batch.",
    )


def load_lines(courses: Sequence[ThroughputCurve]) -> Table:
    """Return what each class does at its load line."""
    at_best = [
        replace(each, batches=tuple(batch for batch in each.batches if batch.row.is_load_line))
        for each in courses
    ]
    return _table(LOAD_LINES, at_best)


def _table(columns: tuple[Column, ...], courses: Sequence[ThroughputCurve]) -> Table:
    has_limits = columns == LOAD_LINES
    rows = (
        Row(
            cells=(*_cells(each, batch), each.limited_by if has_limits else batch.row.remark),
            mark="load-line" if batch.row.is_load_line and not has_limits else "",
            color=color,
        )
        for each, (color, _) in zip(courses, SERIES, strict=False)
        for batch in each.batches
    )
    return Table(columns=columns, rows=tuple(rows))


def _cells(course: ThroughputCurve, batch: Batch) -> Iterator[str]:
    yield course.name
    yield requests_written(batch.row.state.num_decoding)
    yield format_s(batch.tpot_s)
    yield significant(batch.tokens_per_s_per_gpu)
    yield batch.row.cells[-1]


def throughput_figure(courses: Sequence[ThroughputCurve], slo: Slo, screen: Screen) -> Figure:
    """Draw a line for each class; the number of requests at its load line where there is room."""
    targets = strictest(slo)
    figure = screen.figure(PLOT_PX)
    axes = figure.add_subplot()
    _scales(axes, courses, targets, screen)
    handles = [
        axes.axvline(
            each.limit_s, color=BAD, linestyle="--", linewidth=1.4, label=f"SLO: TPOT {each}"
        )
        for each in targets
    ]
    if targets:
        axes.axvspan(targets[0].limit_s, axes.get_xlim()[1], color=BAD, alpha=0.06, linewidth=0)
    classes = [_line(axes, *each) for each in zip(courses, SERIES, strict=False)]
    add_legend(figure, [*classes, *handles], screen, plot_px=PLOT_PX)
    batches = [
        (batch, color)
        for each, (color, _) in zip(courses, SERIES, strict=False)
        for batch in each.batches
    ]
    labels = LabelWriter(axes, [batch.point for batch, _ in batches])
    for batch, color in batches:
        if batch.row.is_load_line:
            number = requests_written(batch.row.state.num_decoding)
            labels.write(number, batch.point, color=color)
    return figure


def strictest(slo: Slo) -> list[Target]:
    """Return the targets on TPOT, of those with the same limit only the one that binds."""
    found = {each.limit_s: each for each in sorted(slo.tpot, key=lambda each: each.quantile)}
    return [found[limit_s] for limit_s in sorted(found)]


def _scales(
    axes: Axes, courses: Sequence[ThroughputCurve], targets: Sequence[Target], screen: Screen
) -> None:
    batches = [batch for each in courses for batch in each.batches]
    times = [batch.tpot_s for batch in batches] + [each.limit_s for each in targets]
    rates = [batch.tokens_per_s_per_gpu for batch in batches]
    across = (min(times) / MARGIN, max(times) * MARGIN)
    up = (min(rates) / MARGIN, max(rates) * MARGIN)
    log_scale(axes, "x", across, room=5 if screen.is_narrow else 9, write=format_s)
    log_scale(axes, "y", up, room=12, write="{:,g}".format)
    axes.set(xlabel="TPOT: time per output token", ylabel="output tokens/s of one GPU")


def _line(axes: Axes, course: ThroughputCurve, series: tuple[str, str]) -> Line2D:
    """Draw a class: hollow where a limit is broken, large at the load line."""
    color, marker = series
    points = [batch.point for batch in course.batches]
    xs, ys = [point.x for point in points], [point.y for point in points]
    (line,) = axes.plot(
        xs, ys, color=color, marker=marker, markersize=DOT_PX, label=short(course.name)
    )
    over = [k for k, batch in enumerate(course.batches) if batch.row.over]
    best = [k for k, batch in enumerate(course.batches) if batch.row.is_load_line]
    for chosen, face, size in ((over, PAPER, DOT_PX), (best, color, LOAD_LINE_PX)):
        axes.plot(
            [xs[k] for k in chosen],
            [ys[k] for k in chosen],
            color=color,
            marker=marker,
            markersize=size,
            markerfacecolor=face,
            linestyle="",
        )
    return line
