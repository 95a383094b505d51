"""What the pictures share: how they look, their scales, labels that do not overlap, their SVG."""

import io
import math
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal

from markupsafe import Markup
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from tonnage.cli.page.plain import plain
from tonnage.cli.page.tables import Table

INK: Final = "#1c2430"
SOFT: Final = "#566170"
FAINT: Final = "#d9dee5"
PAPER: Final = "#ffffff"
GOOD: Final = "#17683c"
BAD: Final = "#a4262c"
BLUE: Final = "#3a67ad"
VIOLET: Final = "#6a4bb0"
FONT_PX: Final = 12
SMALL_PX: Final = 11
POINTS_PER_INCH: Final = 72
"""Of an SVG: at this resolution a point of the picture is a pixel of the page."""
LOOK: Final = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": FONT_PX,
    "text.color": INK,
    "text.parse_math": False,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": SOFT,
    "axes.labelsize": SMALL_PX,
    "axes.axisbelow": True,
    "axes.facecolor": "none",
    "axes.grid": True,
    "grid.color": FAINT,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelsize": SMALL_PX,
    "ytick.labelsize": SMALL_PX,
    "figure.facecolor": "none",
    "figure.dpi": POINTS_PER_INCH,
    "legend.frameon": False,
    "legend.fontsize": FONT_PX,
    "legend.borderaxespad": 0.2,
    "svg.fonttype": "none",
    "svg.hashsalt": "tonnage",
}
"""``svg.fonttype``: text stays text. The font is for measuring; it is as wide as any usual one."""
NO_METADATA: Final = dict.fromkeys(("Creator", "Date", "Format", "Type"))
TICK_STEPS: Final = ((1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0), (1.0, 2.0, 5.0), (1.0, 3.0), (1.0,))
HANDLE_PX: Final = 50.0
CHARACTER_PX: Final = 7.4
ENTRY_PX: Final = 19.0
"""Of the legend: what stands before a name, a character of it, and a line."""
Side = Literal["x", "y"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """A width to draw for."""

    name: str
    width_px: float

    @property
    def is_narrow(self) -> bool:
        return self.name == "narrow"

    def figure(self, height_px: float) -> Figure:
        """Return an empty figure as wide as the screen allows."""
        size = (self.width_px / POINTS_PER_INCH, height_px / POINTS_PER_INCH)
        return Figure(figsize=size, layout="constrained")


SCREENS: Final = (Screen(name="wide", width_px=660), Screen(name="narrow", width_px=344))


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A picture for each width of screen, and its numbers."""

    title: str
    drawings: dict[str, Markup]
    """By the name of the screen; a page shows the one that fits."""
    table: Table


@contextmanager
def look() -> Iterator[None]:
    """Draw as pages look, whatever the user's own matplotlib is set to."""
    with style.context(["default", LOOK]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def picture(
    draw: Callable[[Screen], Figure], table: Table, *, name: str, title: str, about: str
) -> Picture:
    """Return a picture for every width of screen, as elements of a page.

    ``name``: of the picture, unique in the page; ``about``: for those who do not see it.
    """
    with look():
        drawings = {
            screen.name: _inline(draw(screen), f"{name}-{screen.name}", (title, about))
            for screen in SCREENS
        }
    return Picture(title=title, drawings=drawings, table=table)


def _inline(figure: Figure, name: str, about: tuple[str, str]) -> Markup:
    """Return a figure as an SVG element, its ids unique in the page."""
    written = io.StringIO()
    figure.savefig(written, format="svg", metadata=NO_METADATA)
    root = ET.fromstring(written.getvalue())  # noqa: S314  (matplotlib's own output)
    for element in list(root.iter()):
        for child in list(element):
            if child.tag.rpartition("}")[2] in {"metadata", "style"}:
                element.remove(child)
        element.tag = element.tag.rpartition("}")[2]
        element.attrib = {
            key.rpartition("}")[2]: _with_prefix(key, value, name)
            for key, value in element.attrib.items()
        }
    described = [ET.Element(tag, id=f"{name}-{tag}") for tag in ("title", "desc")]
    described[0].text, described[1].text = map(plain, about)
    root[:0] = described
    left, top, width, height = (float(part) for part in root.attrib["viewBox"].split())
    root.attrib = {
        "viewBox": f"{left:g} {top:g} {width:g} {height:g}",
        "width": f"{width:g}",
        "height": f"{height:g}",
        "role": "img",
        "aria-labelledby": f"{name}-title {name}-desc",
        "stroke-linejoin": "round",  # what the style that was taken out said of all elements
        "stroke-linecap": "butt",
    }
    return Markup(ET.tostring(root, encoding="unicode"))  # noqa: S704  (escaped by ElementTree)


def _with_prefix(key: str, value: str, name: str) -> str:
    if key == "id":
        return f"{name}-{value}"
    if key.endswith("href"):
        return value.replace("#", f"#{name}-", 1)
    return value.replace("url(#", f"url(#{name}-")


def add_legend(
    figure: Figure, handles: Sequence[Line2D], screen: Screen, *, plot_px: float
) -> None:
    """Say below the plot what the lines are, in as many columns as fit, and make room for that."""
    longest = max(len(str(handle.get_label())) for handle in handles)
    columns = max(1, int(screen.width_px / (HANDLE_PX + CHARACTER_PX * longest)))
    rows = -(-len(handles) // columns)
    figure.set_figheight((plot_px + ENTRY_PX * rows) / POINTS_PER_INCH)
    figure.legend(handles=handles, loc="outside lower left", ncols=columns)


def log_scale(
    axes: Axes, side: Side, limits: tuple[float, float], *, room: int, write: Callable[[float], str]
) -> None:
    """Make an axis logarithmic, with as many round ticks as there is room for.

    ``room``: how many labels of the usual length stand side by side.
    """
    axes.set(**{f"{side}scale": "log", f"{side}lim": limits})
    axis = axes.xaxis if side == "x" else axes.yaxis
    axis.set_major_locator(FixedLocator(tick_values(*limits, room=room)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: write(value)))


def tick_values(low: float, high: float, *, room: int) -> list[float]:
    """Return round values between two others, as many as a logarithmic axis has room for.

    >>> tick_values(8, 120, room=10), tick_values(1, 1e4, room=5)
    ([10.0, 20.0, 50.0, 100.0], [1.0, 10.0, 100.0, 1000.0, 10000.0])
    """
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    gap = math.log(high / low) / room
    values: list[float] = []
    for steps in TICK_STEPS:
        found = (10.0**power * step for power in range(first, last + 1) for step in steps)
        values = [each for each in found if low <= each <= high]
        if all(math.log(b / a) >= gap for a, b in pairwise(values)):
            break
    return values
