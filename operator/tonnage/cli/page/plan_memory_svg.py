"""The memory of one GPU as a bar to scale: what fills it, and how sure that is."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tonnage.cli.answers.gpu_memory import Segment, memory_segments, ranged
from tonnage.cli.page.markup import Markup, element
from tonnage.cli.page.plan_svg import (
    LINE_HEIGHT,
    Box,
    Label,
    Line,
    Place,
    apart,
    box_drawn,
    label_drawn,
    line_drawn,
    picture,
)
from tonnage.sizing.memory import MemoryBudget
from tonnage.units import GIB, format_bytes

WIDTH: Final = 380
HEIGHT: Final = 420
BAR: Final = Box(left=62, top=70, right=126, bottom=370)
LABELS_LEFT: Final = 154
LABEL_GAP: Final = LINE_HEIGHT + 5
BASELINE: Final = 4
"""From the middle of a line of text down to what it stands on."""
LEAST_RANGE: Final = 6
"""Pixels below which the range of an edge cannot be seen."""
NUM_TICKS: Final = 6
TICK_STEPS: Final = (1, 2, 5, 10)
KINDS: Final = {
    "weights": "weights",
    "activations": "activations",
    "runtime": "runtime",
    "CUDA graphs": "graphs",
    "KV cache": "cache",
    "unused": "unused",
}
OTHER_KIND: Final = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class BarPart:
    """A part of the bar, its label, and the bent line that joins them."""

    segment: Segment
    box: Box
    label: Label

    @property
    def leader(self) -> tuple[Place, ...]:
        middle = (self.box.top + self.box.bottom) / 2
        beside = self.label.at.y - BASELINE
        near, far = self.box.right, self.label.at.x
        bends = (Place(x=near + 8, y=middle), Place(x=far - 10, y=beside))
        return (Place(x=near, y=middle), *bends, Place(x=far - 4, y=beside))


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLayout:
    """Where everything stands in the picture of one GPU's memory."""

    budget: MemoryBudget
    parts: tuple[BarPart, ...]
    """From the bottom up."""
    ticks: tuple[Label, ...]
    total: Label
    edge: Line | None
    """Where the cache may begin; None where that is too narrow to be seen."""


def memory_layout(budget: MemoryBudget) -> MemoryLayout:
    """Place the parts of a GPU's memory on a bar to scale."""
    segments = memory_segments(budget)
    above = itertools.accumulate((segment.num_bytes for segment in segments), initial=0.0)
    levels = [_level(num_bytes, budget) for num_bytes in above]
    boxes = [
        Box(left=BAR.left, top=top, right=BAR.right, bottom=bottom)
        for bottom, top in itertools.pairwise(levels)
    ]
    total = Label(
        lines=(f"{format_bytes(budget.total_bytes)} in all",),
        at=Place(x=BAR.left, y=BAR.top - LINE_HEIGHT),
    )
    return MemoryLayout(
        budget=budget,
        parts=tuple(_labelled(segments, boxes)),
        ticks=tuple(_tick(amount_bytes, budget) for amount_bytes in tick_bytes(budget.total_bytes)),
        total=total,
        edge=_edge(budget),
    )


def _level(num_bytes: float, budget: MemoryBudget) -> float:
    """Return the height in the picture at which so many bytes end."""
    return BAR.bottom - num_bytes / budget.total_bytes * (BAR.bottom - BAR.top)


def _labelled(segments: Sequence[Segment], boxes: Sequence[Box]) -> list[BarPart]:
    middles = [(box.top + box.bottom) / 2 for box in reversed(boxes)]
    heights = apart(middles, gap=LABEL_GAP, low=BAR.top, high=BAR.bottom)
    return [
        BarPart(
            segment=segment,
            box=box,
            label=Label(
                lines=(f"{segment.name} {ranged(segment.num_bytes, segment.spread_bytes)}",),
                at=Place(x=LABELS_LEFT, y=height + BASELINE),
            ),
        )
        for segment, box, height in zip(segments, boxes, reversed(heights), strict=True)
    ]


def tick_bytes(total_bytes: float) -> list[float]:
    """Return whole numbers of GiB, evenly spaced from zero to the total.

    >>> [tick / GIB for tick in tick_bytes(24 * GIB)]
    [0.0, 5.0, 10.0, 15.0, 20.0]
    """
    total = total_bytes / GIB
    power = 10.0 ** math.floor(math.log10(total / NUM_TICKS))
    step = next(step * power for step in TICK_STEPS if step * power >= total / NUM_TICKS)
    return [number * step * GIB for number in range(math.floor(total / step) + 1)]


def _tick(amount_bytes: float, budget: MemoryBudget) -> Label:
    at = Place(x=BAR.left - 10, y=_level(amount_bytes, budget) + BASELINE)
    return Label(lines=(f"{amount_bytes / GIB:g}",), at=at, anchor="end", kind="tick")


def _edge(budget: MemoryBudget) -> Line | None:
    if budget.kv_pool_bytes <= 0:
        return None
    used, spread = budget.usable_bytes - budget.kv_pool_bytes, budget.kv_pool_spread_bytes
    top, bottom = _level(used + spread, budget), _level(max(0.0, used - spread), budget)
    if bottom - top < LEAST_RANGE:
        return None
    middle = (BAR.left + BAR.right) / 2
    return Line(start=Place(x=middle, y=max(BAR.top, top)), end=Place(x=middle, y=bottom))


def has_edge(budget: MemoryBudget) -> bool:
    """Tell whether the range of the cache's edge can be seen on the bar."""
    return _edge(budget) is not None


def memory_picture(budget: MemoryBudget, *, name: str) -> Markup:
    """Return the bar; ``name`` is unique in the page."""
    layout = memory_layout(budget)
    amounts = ", ".join(part.label.lines[0] for part in layout.parts)
    return picture(
        *(_part_drawn(part) for part in layout.parts),
        *_axis_drawn(layout),
        *([_edge_drawn(layout.edge)] if layout.edge else []),
        width=WIDTH,
        height=HEIGHT,
        name=name,
        about=f"Memory of one GPU, {format_bytes(budget.total_bytes)}\nFrom the bottom: {amounts}.",
    )


def _part_drawn(part: BarPart) -> Markup:
    kind = KINDS.get(part.segment.name, OTHER_KIND)
    points = " ".join(f"{place.x:.1f},{place.y:.1f}" for place in part.leader)
    return element(
        "g",
        box_drawn(part.box, f"part {kind}", element("title", part.label.lines[0])),
        element("polyline", points=points, class_="leader"),
        label_drawn(part.label),
    )


def _axis_drawn(layout: MemoryLayout) -> list[Markup]:
    axis = Line(start=Place(x=BAR.left, y=BAR.top), end=Place(x=BAR.left, y=BAR.bottom))
    marks = [
        Line(
            start=Place(x=BAR.left - 6, y=tick.at.y - BASELINE),
            end=Place(x=BAR.left, y=tick.at.y - BASELINE),
        )
        for tick in layout.ticks
    ]
    middle = (BAR.top + BAR.bottom) / 2
    unit = element(
        "text",
        "GiB",
        class_="label axis",
        text_anchor="middle",
        transform=f"translate(18 {middle:g}) rotate(-90)",
    )
    lines = [line_drawn(line, "axis") for line in (axis, *marks)]
    return [*lines, *map(label_drawn, layout.ticks), label_drawn(layout.total), unit]


def _edge_drawn(edge: Line) -> Markup:
    """Return the range as an I, in a light one to stand out from every colour."""
    ends = [
        Line(start=Place(x=end.x - 9, y=end.y), end=Place(x=end.x + 9, y=end.y))
        for end in (edge.start, edge.end)
    ]
    strokes = [line_drawn(line, kind) for kind in ("halo", "range") for line in (edge, *ends)]
    return element("g", element("title", "Where the KV cache begins, 9 times in 10"), *strokes)
