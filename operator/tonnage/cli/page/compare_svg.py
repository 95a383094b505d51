"""The pictures of a comparison: throughput against TPOT by batch, and what a token costs."""

from collections.abc import Iterator, Sequence
from typing import Final

from tonnage.cli.page.compare_layout import (
    BASELINE,
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    WIDTH,
    CourseLayout,
    Dot,
    ThroughputLayout,
)
from tonnage.cli.page.markup import Markup, element
from tonnage.cli.page.plan_svg import (
    Anchor,
    Box,
    Label,
    Line,
    Place,
    box_drawn,
    label_drawn,
    line_drawn,
    picture,
)
from tonnage.sizing.bill import Bill
from tonnage.sizing.selection import Choice
from tonnage.units import format_s, significant

BAR_LEFT: Final = 150
BAR_RIGHT: Final = 590
BAR_HEAD: Final = 26
BAR_ROW: Final = 26
BAR_HEIGHT: Final = 16
FULL_USE_RIGHT: Final = 674
ASKED_RIGHT: Final = 774
LONGEST_BAR: Final = 5.0
"""Times the shortest: a longer one is cut, or the others could not be told apart."""


def throughput_picture(layout: ThroughputLayout, *, name: str) -> Markup:
    """Return the picture of tokens per second of a GPU; ``name`` is unique in the page."""
    names = ", ".join(each.course.name for each in layout.courses)
    return picture(
        box_drawn(layout.plot, "plot"),
        *_beyond(layout),
        *_grid(layout),
        *(line_drawn(limit.line, "ceiling slo") for limit in layout.limits),
        *(part for each in layout.courses for part in _course_drawn(each)),
        *map(label_drawn, layout.labels),
        *_axis_names(layout),
        width=WIDTH,
        height=HEIGHT,
        name=name,
        about=f"Output tokens per second of one GPU against TPOT\n{names}, by batch",
    )


def _beyond(layout: ThroughputLayout) -> Iterator[Markup]:
    """Yield the part of the plot in which the first promise on TPOT is broken."""
    if layout.limits:
        plot, x = layout.plot, layout.limits[0].line.start.x
        yield box_drawn(Box(left=x, top=plot.top, right=plot.right, bottom=plot.bottom), "beyond")


def _grid(layout: ThroughputLayout) -> Iterator[Markup]:
    plot = layout.plot
    for tick in layout.ticks:
        if tick.anchor == "middle":
            ends = (tick.at.x, plot.top), (tick.at.x, plot.bottom)
        else:
            y = tick.at.y - BASELINE
            ends = (plot.left, y), (plot.right, y)
        start, end = (Place(x=x, y=y) for x, y in ends)
        yield line_drawn(Line(start=start, end=end), "grid")


def _course_drawn(found: CourseLayout) -> Iterator[Markup]:
    kind = f"s{found.course.series}"
    points = " ".join(f"{dot.place.x:.1f},{dot.place.y:.1f}" for dot in found.dots)
    yield line_drawn(found.leader, f"leader {kind}")
    yield element("polyline", points=points, class_=f"class {kind}")
    yield from (_dot_drawn(found.course.name, dot, kind) for dot in found.dots)


def _dot_drawn(name: str, dot: Dot, kind: str) -> Markup:
    row, point = dot.point.row, dot.point
    remark = f", {row.remark}" if row.remark else ""
    told = (
        f"{name}: {row.cells[0]} decoding, TPOT {format_s(point.tpot_s)}, "
        f"{significant(point.tokens_per_s_per_gpu)} tokens/s per GPU, bound by {row.cells[-1]}"
        f"{remark}"
    )
    state = "load-line" if dot.is_load_line else "over" if row.over else "within"
    return element(
        "circle",
        element("title", told),
        cx=dot.place.x,
        cy=dot.place.y,
        r=dot.radius,
        class_=f"batch {state} {kind}",
    )


def _axis_names(layout: ThroughputLayout) -> Iterator[Markup]:
    across = Place(x=(LEFT + RIGHT) / 2, y=HEIGHT - 10)
    yield label_drawn(
        Label(lines=("TPOT: time per output token",), at=across, anchor="middle", kind="axis")
    )
    middle = (layout.plot.top + BOTTOM) / 2
    yield element(
        "text",
        "output tokens/s of one GPU",
        class_="label axis",
        text_anchor="middle",
        transform=f"translate(14 {middle:g}) rotate(-90)",
    )


def cost_picture(
    choices: Sequence[tuple[Choice, Bill]], series: dict[str, int], *, name: str
) -> Markup:
    """Return a bar for each class: USD per million output tokens, at full use and as asked.

    ``series``: the colours of the classes that the other picture has, by their names.
    """
    dearest = LONGEST_BAR * min(_longest(found) for _, found in choices)
    top = min(dearest, max(_longest(found) for _, found in choices))
    height = BAR_HEAD + BAR_ROW * len(choices) + 4
    rows = (
        part
        for number, (choice, found) in enumerate(choices)
        for part in _bar(number, choice, found, top=top, kind=f"s{series.get(choice.gpu.name, 0)}")
    )
    return picture(
        *_bar_head(),
        *rows,
        width=WIDTH,
        height=height,
        name=name,
        about="USD per million output tokens\n"
        + ", ".join(
            f"{choice.gpu.name} {found.usd_per_million_tokens:.2f}" for choice, found in choices
        ),
    )


def _longest(found: Bill) -> float:
    return found.usd_per_million_tokens_asked or found.usd_per_million_tokens


def _bar_head() -> Iterator[Markup]:
    for text, x in (("at full use", FULL_USE_RIGHT), ("as asked", ASKED_RIGHT)):
        yield _text(text, x, 14, anchor="end", kind="tick")


def _bar(number: int, choice: Choice, found: Bill, *, top: float, kind: str) -> Iterator[Markup]:
    y = BAR_HEAD + number * BAR_ROW
    baseline = y + BAR_HEIGHT - 3
    yield _text(choice.gpu.name, BAR_LEFT - 10, baseline, anchor="end", kind="bar-name")
    for usd, part in ((_longest(found), "asked"), (found.usd_per_million_tokens, "full")):
        right = BAR_LEFT + (BAR_RIGHT - BAR_LEFT) * min(1.0, usd / top)
        box = Box(left=BAR_LEFT, top=y, right=right, bottom=y + BAR_HEIGHT)
        yield box_drawn(box, f"bar {part} {kind}")
    if _longest(found) > top:
        yield from _cut(y)
    yield _text(f"{found.usd_per_million_tokens:.2f}", FULL_USE_RIGHT, baseline, anchor="end")
    asked = found.usd_per_million_tokens_asked
    yield _text("-" if asked is None else f"{asked:.2f}", ASKED_RIGHT, baseline, anchor="end")


def _cut(y: float) -> Iterator[Markup]:
    """Yield the marks of a bar that is longer than there is room."""
    for x in (BAR_RIGHT - 26, BAR_RIGHT - 20):
        start, end = Place(x=x, y=y + BAR_HEIGHT + 2), Place(x=x + 6, y=y - 2)
        yield line_drawn(Line(start=start, end=end), "cut")


def _text(text: str, x: float, y: float, *, anchor: Anchor, kind: str = "bar-value") -> Markup:
    return label_drawn(Label(lines=(text,), at=Place(x=x, y=y), anchor=anchor, kind=kind))
