"""What the pictures of a plan share: boxes, labels that do not overlap, a logarithmic axis.

Lengths are pixels of the picture; y grows downwards.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from tonnage.cli.page.markup import Markup, element

FONT_SIZE: Final = 12
CHARACTER_WIDTH: Final = 0.6 * FONT_SIZE
"""Of the widest usual fonts, in the mean of a label."""
LINE_HEIGHT: Final = 15
ASCENT: Final = 11
Anchor = Literal["start", "middle", "end"]
SHARE_BEFORE: Final = {"start": 0.0, "middle": 0.5, "end": 1.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A point of a picture."""

    x: float
    y: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A rectangle of a picture."""

    left: float
    top: float
    right: float
    bottom: float

    @classmethod
    def around(cls, place: Place, radius: float) -> "Box":
        """Return the square that a circle fills."""
        return cls(
            left=place.x - radius,
            top=place.y - radius,
            right=place.x + radius,
            bottom=place.y + radius,
        )

    def overlaps(self, other: "Box") -> bool:
        beside = self.right <= other.left or other.right <= self.left
        above = self.bottom <= other.top or other.bottom <= self.top
        return not (beside or above)

    def holds(self, other: "Box") -> bool:
        across = self.left <= other.left and other.right <= self.right
        return across and self.top <= other.top and other.bottom <= self.bottom


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A straight line between two points, from left to right or downwards."""

    start: Place
    end: Place

    def crosses(self, box: Box) -> bool:
        """Tell whether any of it lies within a box: what is left after each side has its cut."""
        width, height = self.end.x - self.start.x, self.end.y - self.start.y
        low, high = 0.0, 1.0
        for length, near, far in (
            (width, box.left - self.start.x, box.right - self.start.x),
            (height, box.top - self.start.y, box.bottom - self.start.y),
        ):
            if length == 0:
                if near >= 0 or far <= 0:
                    return False
                continue
            first, last = sorted((near / length, far / length))
            low, high = max(low, first), min(high, last)
        return low < high


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """Lines of text at a point: the baseline of the first."""

    lines: tuple[str, ...]
    at: Place
    anchor: Anchor = "start"
    kind: str = ""

    @property
    def box(self) -> Box:
        width = CHARACTER_WIDTH * max(map(len, self.lines))
        left = self.at.x - SHARE_BEFORE[self.anchor] * width
        top = self.at.y - ASCENT
        bottom = top + LINE_HEIGHT * len(self.lines)
        return Box(left=left, top=top, right=left + width, bottom=bottom)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogAxis:
    """A logarithmic scale: values from low to high at pixels from start to end."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + share * (self.end - self.start)

    def decades(self) -> Iterator[float]:
        """Yield the powers of ten on the axis."""
        first, last = math.ceil(math.log10(self.low)), math.floor(math.log10(self.high))
        return (10.0**power for power in range(first, last + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What a label must keep clear of, and the frame that it must stay in."""

    frame: Box
    boxes: tuple[Box, ...]
    lines: tuple[Line, ...] = ()

    def is_clear(self, box: Box) -> bool:
        return (
            self.frame.holds(box)
            and not any(box.overlaps(other) for other in self.boxes)
            and not any(line.crosses(box) for line in self.lines)
        )

    def first_clear(self, candidates: Iterable[Label]) -> Label | None:
        return next((label for label in candidates if self.is_clear(label.box)), None)


def apart(targets: Sequence[float], *, gap: float, low: float, high: float) -> list[float]:
    """Return positions at least a gap apart, in the order of the targets and near to them.

    Those that crowd are centred on what they stand for; all stay between low and high.

    >>> apart([10.0, 11.0, 50.0], gap=10, low=0, high=100)
    [5.5, 15.5, 50.0]
    """
    groups: list[tuple[float, int]] = []  # the mean of shifted targets, and how many share it
    for number, target in enumerate(targets):
        mean, count = target - number * gap, 1
        while groups and groups[-1][0] > mean:
            other, others = groups.pop()
            mean, count = (mean * count + other * others) / (count + others), count + others
        groups.append((mean, count))
    top = high - (len(targets) - 1) * gap
    shifted = [min(max(mean, low), top) for mean, count in groups for _ in range(count)]
    return [position + number * gap for number, position in enumerate(shifted)]


def picture(*children: Markup, width: float, height: float, name: str, about: str) -> Markup:
    """Return an SVG with a title and a description for those who do not see it.

    ``name``: of the picture in the page, unique; ``about``: title and description in two lines.
    """
    title, _, description = about.partition("\n")
    return element(
        "svg",
        element("title", title, id=f"{name}-title"),
        element("desc", description, id=f"{name}-desc"),
        *children,
        viewBox=f"0 0 {width:g} {height:g}",
        width=width,
        height=height,
        role="img",
        aria_labelledby=f"{name}-title {name}-desc",
    )


def label_drawn(label: Label) -> Markup:
    lines = [
        element("tspan", line, x=label.at.x, y=label.at.y + number * LINE_HEIGHT)
        for number, line in enumerate(label.lines)
    ]
    return element("text", *lines, class_=f"label {label.kind}".strip(), text_anchor=label.anchor)


def line_drawn(line: Line, kind: str) -> Markup:
    start, end = line.start, line.end
    return element("line", x1=start.x, y1=start.y, x2=end.x, y2=end.y, class_=kind)


def box_drawn(box: Box, kind: str, *children: Markup) -> Markup:
    return element(
        "rect",
        *children,
        x=box.left,
        y=box.top,
        width=box.right - box.left,
        height=box.bottom - box.top,
        class_=kind,
    )
