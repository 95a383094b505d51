"""Where everything stands in the pictures of a comparison: no two labels overlap."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from tonnage.cli.answers.batches import BatchRow, batch_rows, requests_written
from tonnage.cli.answers.comparing import tokens_per_s
from tonnage.cli.page.plan_svg import (
    LINE_HEIGHT,
    Anchor,
    Box,
    Label,
    Line,
    LogAxis,
    Place,
    Taken,
    apart,
)
from tonnage.sizing.selection import Choice
from tonnage.sizing.workload import Promise, Slo
from tonnage.units import format_s, significant

WIDTH: Final = 780
HEIGHT: Final = 460
LEFT: Final = 64
RIGHT: Final = 640
BOTTOM: Final = 404
NAMES_LEFT: Final = 664
"""Where the names of the classes stand, in a column right of the plot."""
RADIUS: Final = 3.5
LOAD_LINE_RADIUS: Final = 6.5
BASELINE: Final = 4
MARGIN: Final = 1.25
"""Of the scales beyond what they show, as a factor."""
HEADER: Final = 16
"""Of the first label above the plot, its baseline; each further one has a row of its own."""
MAX_LINES: Final = 6
"""More lines than that cannot be told apart."""
TICK_STEPS: Final = ((1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0), (1.0, 2.0, 5.0), (1.0, 3.0), (1.0,))
TICK_GAP_ACROSS: Final = 52
TICK_GAP_UP: Final = 24
NUMBER_PLACES: Final[tuple[tuple[float, float, Anchor], ...]] = (
    (0, -10, "middle"),
    (-9, -6, "end"),
    (9, 15, "start"),
    (0, 21, "middle"),
    (10, 4, "start"),
    (-10, 4, "end"),
)
"""Where the number of a load line may stand, seen from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPoint:
    """One batch of one class: how long a step takes, and what each GPU makes of it."""

    row: BatchRow
    tpot_s: float
    tokens_per_s_per_gpu: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """The batches of one class, from small to large; ``series`` decides the colour."""

    name: str
    series: int
    points: tuple[BatchPoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """A batch and its place."""

    point: BatchPoint
    place: Place

    @property
    def is_load_line(self) -> bool:
        return self.point.row.is_load_line

    @property
    def radius(self) -> float:
        return LOAD_LINE_RADIUS if self.is_load_line else RADIUS

    @property
    def box(self) -> Box:
        return Box.around(self.place, self.radius + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class CourseLayout:
    """A class as it is drawn: its batches, its name at the right, a line between both."""

    course: Course
    dots: tuple[Dot, ...]
    name: Label
    leader: Line
    number: Label | None
    """Of the requests that decode at the load line, where there is room for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A promise on TPOT: a vertical line with its label above the plot."""

    line: Line
    label: Label


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputLayout:
    """Where everything stands in the picture of throughput against TPOT."""

    plot: Box
    tpot: LogAxis
    tokens: LogAxis
    courses: tuple[CourseLayout, ...]
    limits: tuple[Limit, ...]
    ticks: tuple[Label, ...]

    @property
    def labels(self) -> tuple[Label, ...]:
        numbers = tuple(course.number for course in self.courses if course.number)
        names = tuple(course.name for course in self.courses)
        return (*names, *numbers, *(limit.label for limit in self.limits), *self.ticks)


def course(choice: Choice, series: int) -> Course:
    """Return the batches of one class as points of the picture."""
    num_gpus = choice.sizing.flags.parallelism.num_gpus
    points = tuple(
        BatchPoint(
            row=row,
            tpot_s=row.state.tpot_s,
            tokens_per_s_per_gpu=tokens_per_s(choice, row) / num_gpus,
        )
        for row in batch_rows(choice.sizing)
    )
    return Course(name=choice.gpu.name, series=series, points=points)


def throughput_layout(courses: Sequence[Course], slo: Slo) -> ThroughputLayout:
    """Place the classes on two logarithmic scales."""
    promises = _strictest(slo)
    top = HEADER + LINE_HEIGHT * len(promises)
    plot = Box(left=LEFT, top=top, right=RIGHT, bottom=BOTTOM)
    tpot, tokens = _scales(courses, plot, [each.limit_s for each in promises])
    limits = tuple(_limits(promises, tpot))
    ends = {each.name: _dots(each, tpot, tokens) for each in courses}
    names = _names(courses, ends, plot)
    return ThroughputLayout(
        plot=plot,
        tpot=tpot,
        tokens=tokens,
        courses=tuple(_placed(courses, ends, names, limits, plot)),
        limits=limits,
        ticks=(*_ticks_across(tpot), *_ticks_up(tokens)),
    )


def _strictest(slo: Slo) -> list[Promise]:
    """Return the promises on TPOT, of those with the same limit only the one that binds."""
    found = {each.limit_s: each for each in sorted(slo.tpot, key=lambda each: each.quantile)}
    return [found[limit_s] for limit_s in sorted(found)]


def _placed(
    courses: Sequence[Course],
    dots: Mapping[str, tuple[Dot, ...]],
    names: Mapping[str, Label],
    limits: Sequence[Limit],
    plot: Box,
) -> Iterator[CourseLayout]:
    """Yield the classes; the number of a load line is written where it is clear."""
    leaders = {
        name: Line(
            start=found[-1].place, end=Place(x=NAMES_LEFT - 4, y=names[name].at.y - BASELINE)
        )
        for name, found in dots.items()
    }
    taken = Taken(
        frame=plot,
        boxes=tuple(dot.box for found in dots.values() for dot in found),
        lines=(*(limit.line for limit in limits), *leaders.values()),
    )
    for each in courses:
        number = taken.first_clear(_number_places(dots[each.name]))
        taken = replace(taken, boxes=(*taken.boxes, *([number.box] if number else [])))
        yield CourseLayout(
            course=each,
            dots=dots[each.name],
            name=names[each.name],
            leader=leaders[each.name],
            number=number,
        )


def _scales(
    courses: Sequence[Course], plot: Box, limits_s: Sequence[float]
) -> tuple[LogAxis, LogAxis]:
    times = [point.tpot_s for each in courses for point in each.points] + list(limits_s)
    rates = [point.tokens_per_s_per_gpu for each in courses for point in each.points]
    across = LogAxis(
        low=min(times) / MARGIN, high=max(times) * MARGIN, start=plot.left, end=plot.right
    )
    up = LogAxis(low=min(rates) / MARGIN, high=max(rates) * MARGIN, start=plot.bottom, end=plot.top)
    return across, up


def _dots(course: Course, tpot: LogAxis, tokens: LogAxis) -> tuple[Dot, ...]:
    return tuple(
        Dot(
            point=point,
            place=Place(x=tpot.at(point.tpot_s), y=tokens.at(point.tokens_per_s_per_gpu)),
        )
        for point in course.points
    )


def _names(
    courses: Sequence[Course], dots: Mapping[str, tuple[Dot, ...]], plot: Box
) -> dict[str, Label]:
    """Give each class a place in the column of names, near the height where its line ends."""
    ordered = sorted(courses, key=lambda each: dots[each.name][-1].place.y)
    heights = apart(
        [dots[each.name][-1].place.y for each in ordered],
        gap=LINE_HEIGHT + 2,
        low=plot.top + LINE_HEIGHT,
        high=plot.bottom,
    )
    return {
        each.name: Label(
            lines=(each.name,),
            at=Place(x=NAMES_LEFT, y=height + BASELINE),
            kind=f"name s{each.series}",
        )
        for each, height in zip(ordered, heights, strict=True)
    }


def _limits(promises: Sequence[Promise], tpot: LogAxis) -> Iterator[Limit]:
    """Yield a line up to its label for each promise; no later line runs through a label."""
    for number, promise in enumerate(promises):
        x, baseline = tpot.at(promise.limit_s), HEADER + number * LINE_HEIGHT
        yield Limit(
            line=Line(start=Place(x=x, y=baseline - BASELINE), end=Place(x=x, y=BOTTOM)),
            label=Label(lines=(f"SLO {promise}",), at=Place(x=x + 5, y=baseline), kind="slo"),
        )


def _number_places(dots: Sequence[Dot]) -> Iterator[Label]:
    for dot in dots:
        if dot.is_load_line:
            text = requests_written(dot.point.row.state.num_decoding)
            for dx, dy, anchor in NUMBER_PLACES:
                at = Place(x=dot.place.x + dx, y=dot.place.y + dy)
                yield Label(lines=(text,), at=at, anchor=anchor, kind="number")


def tick_values(axis: LogAxis, *, gap: float) -> list[float]:
    """Return round values on an axis, as many as stand this many pixels apart."""
    first, last = math.floor(math.log10(axis.low)), math.ceil(math.log10(axis.high))
    values: list[float] = []
    for steps in TICK_STEPS:
        found = (10.0**power * step for power in range(first, last + 1) for step in steps)
        values = [each for each in found if axis.low <= each <= axis.high]
        places = [axis.at(each) for each in values]
        if all(abs(b - a) >= gap for a, b in pairwise(places)):
            break
    return values


def _ticks_across(axis: LogAxis) -> Iterator[Label]:
    for value in tick_values(axis, gap=TICK_GAP_ACROSS):
        at = Place(x=axis.at(value), y=BOTTOM + 21)
        yield Label(lines=(format_s(value),), at=at, anchor="middle", kind="tick")


def _ticks_up(axis: LogAxis) -> Iterator[Label]:
    for value in tick_values(axis, gap=TICK_GAP_UP):
        at = Place(x=LEFT - 8, y=axis.at(value) + BASELINE)
        yield Label(lines=(_round(value),), at=at, anchor="end", kind="tick")


def _round(value: float) -> str:
    """Write a round number without zeros behind it.

    >>> _round(1500.0), _round(0.2)
    ('1500', '0.2')
    """
    return (
        f"{value:.0f}" if value >= 1 and value == int(value) else f"{float(significant(value)):g}"
    )
