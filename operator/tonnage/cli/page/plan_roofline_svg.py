"""The roofline of a plan as a picture."""

from collections.abc import Iterator, Sequence
from typing import Final

from tonnage.cli.answers.batches import requests_written
from tonnage.cli.answers.roofline import Roofline
from tonnage.cli.page.markup import Markup, element
from tonnage.cli.page.plan_roofline_layout import (
    BASELINE,
    HEIGHT,
    PLOT,
    WIDTH,
    Dot,
    RooflineLayout,
    roofline_layout,
)
from tonnage.cli.page.plan_svg import (
    Anchor,
    Label,
    Line,
    LogAxis,
    Place,
    box_drawn,
    label_drawn,
    line_drawn,
    picture,
)
from tonnage.units import format_si, significant

TICK: Final = 5
RIDGE_RADIUS: Final = 3.5


def roofline_picture(roofline: Roofline, *, name: str) -> Markup:
    """Return the picture; ``name`` is unique in the page."""
    layout = roofline_layout(roofline)
    return picture(
        box_drawn(PLOT, "plot"),
        *_axes_drawn(layout, roofline),
        *(line_drawn(mark.line, f"ceiling {mark.label.kind}") for mark in layout.marks),
        *_roof_drawn(layout),
        _path([dot.place for dot in layout.dots], "course"),
        *map(_dot_drawn, layout.dots),
        *map(label_drawn, layout.labels),
        width=WIDTH,
        height=HEIGHT,
        name=name,
        about=_about(roofline),
    )


def _about(roofline: Roofline) -> str:
    peak, ridge = format_si(roofline.peak_flop_per_s, "FLOP/s"), roofline.ridge_flop_per_byte
    ceilings = ", ".join(
        f"{each.name} {requests_written(each.num_requests)} requests at "
        f"{significant(each.intensity_flop_per_byte)} FLOP per byte"
        for each in roofline.ceilings
    )
    return (
        "Roofline of one GPU and the batches under it\n"
        f"The roof rises with {format_si(roofline.memory_bytes_per_s, 'B/s')} of bandwidth to the "
        f"ridge at {significant(ridge)} FLOP per byte and stays at {peak}. {ceilings}."
    )


def _roof_drawn(layout: RooflineLayout) -> Iterator[Markup]:
    """Yield the roof, and the ridge with a line down to its intensity."""
    ridge = layout.roof[1]
    yield line_drawn(Line(start=ridge, end=Place(x=ridge.x, y=PLOT.bottom)), "drop")
    yield _path(layout.roof, "roof")
    yield element("circle", cx=ridge.x, cy=ridge.y, r=RIDGE_RADIUS, class_="ridge")


def _path(places: Sequence[Place], kind: str) -> Markup:
    points = " ".join(f"{place.x:.1f},{place.y:.1f}" for place in places)
    return element("polyline", points=points, class_=kind)


def _dot_drawn(dot: Dot) -> Markup:
    row = dot.point.row
    number, step, tokens, *_ = row.cells
    told = f"{number} decoding: TPOT {step}, {tokens} tokens/s"
    kind = "load-line" if row.is_load_line else "over" if row.over else "within"
    return element(
        "circle",
        element("title", f"{told}, {row.remark}" if row.remark else told),
        cx=dot.place.x,
        cy=dot.place.y,
        r=dot.radius,
        class_=f"dot {kind}",
    )


def _axes_drawn(layout: RooflineLayout, roofline: Roofline) -> Iterator[Markup]:
    """Yield grid lines, ticks and names; the right scale is the left one in output tokens."""
    work = layout.work
    tokens = LogAxis(
        low=work.low / roofline.flop_per_token,
        high=work.high / roofline.flop_per_token,
        start=work.start,
        end=work.end,
    )
    yield from _grid(layout)
    for value in layout.intensity.decades():
        x = layout.intensity.at(value)
        yield _tick(f"{value:,g}", Place(x=x, y=PLOT.bottom + 18), "middle")
    for value in work.decades():
        yield _tick(_prefixed(value), Place(x=PLOT.left - 8, y=work.at(value) + BASELINE), "end")
    for value in tokens.decades():
        y = tokens.at(value)
        mark = Line(start=Place(x=PLOT.right, y=y), end=Place(x=PLOT.right + TICK, y=y))
        yield line_drawn(mark, "axis")
        yield _tick(_prefixed(value), Place(x=PLOT.right + 9, y=y + BASELINE), "start")
    middle = (PLOT.top + PLOT.bottom) / 2
    yield _named("FLOP per byte read in a decode step", (PLOT.left + PLOT.right) / 2, HEIGHT - 10)
    yield _named("decode FLOP/s of one GPU", 16, middle, turned=-90)
    yield _named("output tokens/s of a replica", WIDTH - 12, middle, turned=90)


def _grid(layout: RooflineLayout) -> Iterator[Markup]:
    for value in layout.intensity.decades():
        x = layout.intensity.at(value)
        yield line_drawn(Line(start=Place(x=x, y=PLOT.top), end=Place(x=x, y=PLOT.bottom)), "grid")
    for value in layout.work.decades():
        y = layout.work.at(value)
        yield line_drawn(Line(start=Place(x=PLOT.left, y=y), end=Place(x=PLOT.right, y=y)), "grid")


def _prefixed(value: float) -> str:
    """Write a power of ten as an axis does.

    >>> _prefixed(1e12), _prefixed(1e13)
    ('1 T', '10 T')
    """
    amount, prefix = format_si(value, "").split(" ")
    return f"{float(amount):g} {prefix}".strip()


def _tick(text: str, at: Place, anchor: Anchor) -> Markup:
    return label_drawn(Label(lines=(text,), at=at, anchor=anchor, kind="tick"))


def _named(text: str, x: float, y: float, *, turned: float = 0) -> Markup:
    place = f"translate({x:g} {y:g}) rotate({turned:g})"
    return element("text", text, class_="label axis", text_anchor="middle", transform=place)
