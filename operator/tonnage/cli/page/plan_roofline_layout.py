"""Where everything stands in the picture of a roofline: no two labels overlap."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tonnage.cli.answers.batches import requests_written
from tonnage.cli.answers.roofline import Ceiling, Point, Roofline
from tonnage.cli.page.plan_svg import (
    LINE_HEIGHT,
    Anchor,
    Box,
    Label,
    Line,
    LogAxis,
    Place,
    Taken,
)
from tonnage.units import format_si, significant

WIDTH: Final = 660
HEIGHT: Final = 420
PLOT: Final = Box(left=66, top=70, right=588, bottom=370)
HEADER_TOP: Final = 14
RADIUS: Final = 4
LOAD_LINE_RADIUS: Final = 7
BASELINE: Final = 4
MARGIN_LEFT: Final = 2
"""Of the scales beyond what they show, as a factor."""
MARGIN_RIGHT: Final = 6
MARGIN_BELOW: Final = 3
MARGIN_ABOVE: Final = 3
SLOPE_LABELS: Final = 12
SIDES: Final[tuple[Anchor, ...]] = ("start", "end")
KINDS: Final = {"load line": "load", "SLO ceiling": "slo", "memory ceiling": "memory"}
POINT_LABELS: Final[tuple[tuple[float, float, Anchor], ...]] = (
    (7, 15, "start"),
    (0, 20, "middle"),
    (10, 4, "start"),
    (-9, -7, "end"),
    (0, -11, "middle"),
    (-10, 4, "end"),
)
"""Where the number of a point may stand, seen from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """A point, its place, and its number where there is room for it."""

    point: Point
    place: Place
    label: Label | None = None

    @property
    def radius(self) -> float:
        return LOAD_LINE_RADIUS if self.point.row.is_load_line else RADIUS

    @property
    def box(self) -> Box:
        return Box.around(self.place, self.radius + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A ceiling: a vertical line up to its label above the plot."""

    ceiling: Ceiling
    line: Line
    label: Label


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflineLayout:
    """Where everything stands in the picture of a roofline."""

    intensity: LogAxis
    work: LogAxis
    """FLOP/s of one GPU, from the bottom up."""
    roof: tuple[Place, ...]
    """From the left: where memory bounds, the ridge, where arithmetic bounds."""
    dots: tuple[Dot, ...]
    marks: tuple[Mark, ...]
    names: tuple[Label, ...]
    """Of the two roofs and the ridge."""

    @property
    def labels(self) -> tuple[Label, ...]:
        numbers = tuple(dot.label for dot in self.dots if dot.label)
        return (*(mark.label for mark in self.marks), *self.names, *numbers)


def roofline_layout(roofline: Roofline) -> RooflineLayout:
    """Place a roofline on two logarithmic scales."""
    intensity, work = _scales(roofline)
    ends = (intensity.low, roofline.ridge_flop_per_byte, intensity.high)
    roof = tuple(
        Place(x=intensity.at(each), y=work.at(roofline.roof_flop_per_s(each))) for each in ends
    )
    marks = _marks(
        [(each, intensity.at(each.intensity_flop_per_byte)) for each in roofline.ceilings]
    )
    dots = [
        Dot(
            point=point,
            place=Place(x=intensity.at(point.intensity_flop_per_byte), y=work.at(point.flop_per_s)),
        )
        for point in roofline.points
    ]
    lines = (*(Line(start=a, end=b) for a, b in itertools.pairwise(roof)), *(m.line for m in marks))
    taken = Taken(frame=PLOT, boxes=tuple(dot.box for dot in dots), lines=lines)
    names = _names(roofline, roof, taken)
    taken = replace(taken, boxes=(*taken.boxes, *(name.box for name in names)))
    return RooflineLayout(
        intensity=intensity,
        work=work,
        roof=roof,
        dots=tuple(_numbered(dots, taken)),
        marks=tuple(marks),
        names=tuple(names),
    )


def _scales(roofline: Roofline) -> tuple[LogAxis, LogAxis]:
    intensities = [point.intensity_flop_per_byte for point in roofline.points]
    intensities += [ceiling.intensity_flop_per_byte for ceiling in roofline.ceilings]
    across = LogAxis(
        low=min(intensities) / MARGIN_LEFT,
        high=max(*intensities, roofline.ridge_flop_per_byte) * MARGIN_RIGHT,
        start=PLOT.left,
        end=PLOT.right,
    )
    up = LogAxis(
        low=min(point.flop_per_s for point in roofline.points) / MARGIN_BELOW,
        high=roofline.peak_flop_per_s * MARGIN_ABOVE,
        start=PLOT.bottom,
        end=PLOT.top,
    )
    return across, up


def _marks(ceilings: Sequence[tuple[Ceiling, float]]) -> list[Mark]:
    """Give each ceiling a row above the plot in which no other's line runs through its label."""
    found = sorted(ceilings, key=lambda each: each[1])
    rows = range(len(found))
    layouts = [
        [
            _mark(ceiling, x, row, side)
            for (ceiling, x), row, side in zip(found, order, at, strict=True)
        ]
        for at in itertools.product(SIDES, repeat=len(found))
        for order in itertools.permutations(rows)
    ]
    return min(layouts, key=_flaws)


def _mark(ceiling: Ceiling, x: float, row: int, anchor: Anchor) -> Mark:
    baseline = HEADER_TOP + row * (LINE_HEIGHT + 2)
    at = Place(x=x + (5 if anchor == "start" else -5), y=baseline)
    text = f"{ceiling.name}: {requests_written(ceiling.num_requests)} requests"
    kind = KINDS[ceiling.name]
    return Mark(
        ceiling=ceiling,
        line=Line(start=Place(x=x, y=baseline - BASELINE), end=Place(x=x, y=PLOT.bottom)),
        label=Label(lines=(text,), at=at, anchor=anchor, kind=kind),
    )


def _flaws(marks: Sequence[Mark]) -> int:
    """Count the labels that leave the picture, and the lines through a label."""
    frame = Box(left=0, top=0, right=WIDTH, bottom=HEIGHT)
    outside = sum(not frame.holds(mark.label.box) for mark in marks)
    crossed = sum(
        mark.line.crosses(other.label.box) for mark, other in itertools.permutations(marks, 2)
    )
    return outside + crossed


def _names(roofline: Roofline, roof: Sequence[Place], taken: Taken) -> list[Label]:
    """Name both roofs and the ridge, each clear of the rest where there is such a place."""
    names: list[Label] = []
    for candidates in _name_candidates(roofline, roof):
        clear = replace(taken, boxes=(*taken.boxes, *(name.box for name in names)))
        without_lines = replace(clear, lines=())
        found = clear.first_clear(candidates) or without_lines.first_clear(candidates)
        names += [found] if found else []
    return names


def _name_candidates(roofline: Roofline, roof: Sequence[Place]) -> Iterator[list[Label]]:
    start, ridge, end = roof
    compute = ("compute roof", format_si(roofline.peak_flop_per_s, "FLOP/s"))
    above, below = ridge.y - LINE_HEIGHT - 7, ridge.y + LINE_HEIGHT + 3
    yield [
        Label(lines=compute, at=Place(x=end.x - 6, y=y), anchor="end", kind="roof-name")
        for y in (above, below)
    ]
    corner = ("ridge", f"{significant(roofline.ridge_flop_per_byte)} FLOP/byte")
    yield [
        Label(
            lines=corner, at=Place(x=ridge.x + dx, y=ridge.y + dy), anchor=anchor, kind="ridge-name"
        )
        for dx, dy, anchor in _corners(ridge)
    ]
    bandwidth = ("bandwidth roof", format_si(roofline.memory_bytes_per_s, "B/s"))
    yield [
        Label(
            lines=bandwidth,
            at=Place(
                x=_between(start.x, ridge.x, share) - 22, y=_between(start.y, ridge.y, share) - 8
            ),
            anchor="end",
            kind="roof-name",
        )
        for share in (number / SLOPE_LABELS for number in range(1, SLOPE_LABELS))
    ]


def _corners(ridge: Place) -> Iterator[tuple[float, float, Anchor]]:
    yield from ((8, 18 + down, "start") for down in range(0, math.floor(PLOT.bottom - ridge.y), 20))
    yield -10, -LINE_HEIGHT - 7, "end"


def _between(start: float, end: float, share: float) -> float:
    return start + share * (end - start)


def _numbered(dots: Sequence[Dot], taken: Taken) -> list[Dot]:
    """Write the number of each point where it is clear; the load line's comes first."""
    labels: dict[int, Label] = {}
    for index in sorted(range(len(dots)), key=lambda k: not dots[k].point.row.is_load_line):
        clear = replace(taken, boxes=(*taken.boxes, *(label.box for label in labels.values())))
        found = clear.first_clear(_number_candidates(dots[index]))
        if found:
            labels[index] = found
    return [replace(dot, label=labels.get(index)) for index, dot in enumerate(dots)]


def _number_candidates(dot: Dot) -> Iterator[Label]:
    row, place = dot.point.row, dot.place
    extra = dot.radius - RADIUS
    for dx, dy, anchor in POINT_LABELS:
        at = Place(
            x=place.x + dx + math.copysign(extra, dx), y=place.y + dy + math.copysign(extra, dy)
        )
        text = requests_written(row.state.num_decoding)
        yield Label(lines=(text,), at=at, anchor=anchor, kind="number")
