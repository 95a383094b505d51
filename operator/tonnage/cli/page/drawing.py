"""What the pictures share: how they look, their scales and legends, their SVG."""

import io
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import Final, Literal

from matplotlib import style
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from tonnage.cli.page.plain import plain

INK: Final = "#1c2430"
SOFT: Final = "#566170"
FAINT: Final = "#d9dee5"
PAPER: Final = "#ffffff"
GOOD: Final = "#17683c"
BAD: Final = "#a4262c"
VIOLET: Final = "#6a4bb0"
SERIES: Final = (
    ("#2368b8", "o"), ("#c46200", "s"), ("#23804f", "^"), ("#8446ad", "D"), ("#7d6335", "v"),
    ("#0b8494", "P"),
)  # fmt: skip
"""Colour and marker of each line; more lines than that look alike."""
WIDTH_PX: Final = 560
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
LEGEND_PX: Final = 19
"""A line of the legend."""
LEGEND_CHARACTERS: Final = 32
"""Of the longest name of a legend with two columns."""
MANY_TICKS: Final = 100.0
"""Factor between the ends of a scale, from which on only powers of ten are marked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A picture as an element of a page, and what it shows."""

    title: str
    drawing: str
    """As SVG."""
    note: str
    """How to read it."""


@contextmanager
def look() -> Iterator[None]:
    """Draw as pages look, whatever the user's own matplotlib is set to."""
    with style.context(["default", LOOK]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def picture(draw: Callable[[], Figure], *, name: str, title: str, about: str, note: str) -> Picture:
    """Return a drawing; ``name``: unique in the page; ``about``: for those who do not see it."""
    with look():
        written = io.StringIO()
        draw().savefig(written, format="svg", metadata=NO_METADATA)
    _, _, content = written.getvalue().partition("<svg")
    content = re.sub(r'( id="|href="#|url\(#)', rf"\1{name}-", content.partition(">")[2])
    size = re.search(r'viewBox="[^"]*"', written.getvalue())
    label = escape(plain(f"{title}. {about}"))
    head = f'<svg id="{name}" role="img" aria-label="{label}" {size[0] if size else ""}>'
    drawing = f"{head}{content}".replace("xlink:href", "href")
    return Picture(title=title, drawing=drawing, note=note)


def blank(height_px: float, width_px: float = WIDTH_PX) -> Figure:
    """Return an empty figure; of the usual width it fits beside another."""
    size = (width_px / POINTS_PER_INCH, height_px / POINTS_PER_INCH)
    return Figure(figsize=size, layout="constrained")


def add_legend(figure: Figure, handles: Sequence[Artist]) -> None:
    """Say below the plot what the lines are, and make room for that."""
    longest = max(len(str(handle.get_label())) for handle in handles)
    columns = 2 if longest <= LEGEND_CHARACTERS else 1
    rows = -(-len(handles) // columns)
    figure.set_figheight(figure.get_figheight() + LEGEND_PX * rows / POINTS_PER_INCH)
    figure.legend(handles=handles, loc="outside lower left", ncols=columns)


def log_scale(
    axes: Axes,
    side: Literal["x", "y"],
    limits: tuple[float, float],
    write: Callable[[float], str],
) -> None:
    """Make an axis logarithmic, with round ticks."""
    axes.set(**{f"{side}scale": "log", f"{side}lim": limits})
    axis = axes.xaxis if side == "x" else axes.yaxis
    steps = (1.0, 2.0, 5.0) if limits[1] < MANY_TICKS * limits[0] else (1.0,)
    axis.set_major_locator(LogLocator(subs=steps))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: write(value)))
