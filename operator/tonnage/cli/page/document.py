"""A page: what the terminal shows, as HTML that needs nothing beside itself, with pictures."""

import io
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import Final, Literal

from matplotlib import style
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from rich.console import Console, RenderableType

from tonnage.cli.console import WIDEST
from tonnage.cli.text.layout import Tiles

LONGEST: Final = 24
"""Of a name in a picture, in characters; its table has all of it."""
_UNWRITABLE: Final = re.compile(
    r"[^\t\n\r\x20-\x7e\xa0-\u200a\u2010-\u2029\u202f-\u2065\u206a-\ud7ff\ue000-\ufffd"
    r"\U00010000-\U0010ffff]"
)
"""What XML does not hold, and what turns the direction of a text around."""


def plain(text: str) -> str:
    r"""Return a text without characters that a page cannot hold, or would obey.

    >>> plain("a\x00b")
    'a�b'
    """
    return _UNWRITABLE.sub("\ufffd", text)


def short(name: str) -> str:
    """Return a name as a picture has room for it.

    >>> short("RTX-PRO-6000"), short("a" * 30)
    ('RTX-PRO-6000', 'aaaaaaaaaaaaaaaaaaaaaaa…')
    """
    name = " ".join(plain(name).split())
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"


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
    axes: Axes, side: Literal["x", "y"], limits: tuple[float, float], write: Callable[[float], str]
) -> None:
    """Make an axis logarithmic, with round ticks."""
    axes.set(**{f"{side}scale": "log", f"{side}lim": limits})
    axis = axes.xaxis if side == "x" else axes.yaxis
    steps = (1.0, 2.0, 5.0) if limits[1] < MANY_TICKS * limits[0] else (1.0,)
    axis.set_major_locator(LogLocator(subs=steps))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: write(value)))


HEAD: Final = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<title>{title}</title>
<style>
body {{ margin: 0 auto; padding: 1.5rem; max-width: 1320px; color: #1c2430; background: #ffffff; }}
body, figcaption, dl, svg text {{ font-family: system-ui, sans-serif !important; }}
pre {{ overflow-x: auto; font: 13px/1.45 ui-monospace, Menlo, Consolas, monospace; }}
figure {{ margin: 1.5rem 0; break-inside: avoid; }}
figcaption {{ color: #566170; font-size: .87rem; line-height: 1.45; max-width: 720px; }}
figcaption::first-letter {{ text-transform: uppercase; }}
dl {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(15rem, 1fr)); gap: .6rem; }}
dl > div {{ border: 1px solid #d9dee5; border-radius: 6px; padding: .5rem .7rem; }}
dt {{ color: #566170; font-size: .8rem; }}
dd {{ margin: .2rem 0 0; }}
@media (max-width: 800px) {{ body {{ padding: .75rem; }} pre {{ font-size: min(13px, 2.5vw); }} }}
@media (min-width: 801px) {{ .narrow {{ display: none; }} }}
svg {{ display: block; max-width: 100%; height: auto; }}
@media (max-width: 800px) {{ .wide {{ display: none; }} figure {{ overflow-x: auto; }}
                            svg {{ min-width: 640px; }} }}
</style>
</head>
<body>
"""

NARROW: Final = 60
"""Columns of a page on a telephone."""
Report = Callable[[Console], Iterable[RenderableType]]
"""Lays an answer out for a console of some width."""


def document(title: str, report: Report, pictures: Iterable[Picture]) -> str:
    """Return the whole page: a report, for wide and for narrow screens, and the pictures below."""
    texts = (
        f'<div class="{name}">\n{"".join(_text(report, width))}</div>\n'
        for name, width in (("wide", WIDEST), ("narrow", NARROW))
    )
    parts = [HEAD.format(title=escape(plain(title))), *texts, *map(_figure, pictures)]
    return "".join([*parts, "</body>\n</html>\n"])


def _text(report: Report, width: int) -> Iterator[str]:
    console = Console(
        record=True, file=io.StringIO(), width=width, color_system="truecolor", no_color=False,
        force_terminal=True, highlight=False, markup=False, emoji=False,
    )  # fmt: skip

    def written() -> str:
        text = console.export_html(inline_styles=True, code_format="{code}")
        return f"<pre>{plain(text)}</pre>\n" if text else ""

    for part in report(console):
        if isinstance(part, Tiles):
            rows = (map(escape, map(plain, row)) for row in part.rows)
            tiles = "".join("<div><dt>{}</dt><dd>{}</dd></div>\n".format(*row) for row in rows)
            yield f"{written()}<dl>\n{tiles}</dl>\n"
        else:
            console.print(part)
    yield written()


def _figure(picture: Picture) -> str:
    title, note = (escape(plain(each)) for each in (picture.title, picture.note))
    below = f"<figcaption>{note}</figcaption>"
    return f"<figure>\n<h3>{title}</h3>\n{picture.drawing}\n{below}\n</figure>\n"
