"""What a token costs, by GPU class: at full use, and as asked."""

from collections.abc import Mapping, Sequence
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tonnage.cli.page.drawing import INK, PAPER, SMALL_PX, SOFT, Picture, Screen, picture
from tonnage.cli.page.plain import short
from tonnage.cli.page.tables import Column, Row, Table, numbers
from tonnage.sizing.bill import Bill

OTHERS: Final = "#76808d"
ROW_PX: Final = 25
HEAD_PX: Final = 34
LONGEST_BAR: Final = 5.0
"""Times the shortest: a longer one is cut, or the others would look alike."""
BAR: Final = 0.62
LIGHT: Final = 0.4
UNKNOWN: Final = "-"
COLUMNS: Final = (
    Column(title="class", kind="name"),
    *numbers("at full use", "as asked"),
)

Priced = tuple[str, Bill]
"""The name of a class, and what it costs."""


def cost_picture(priced: Sequence[Priced], colors: Mapping[str, str], *, name: str) -> Picture:
    """Return a bar for each class: USD per million output tokens.

    ``colors``: of the classes that another picture of the page has, by their names.
    """
    unit = priced[0][1].currency if priced else "USD"
    title = f"{unit} per million output tokens"
    rows = tuple(
        Row(cells=(each, *price_texts(bill)), color=colors.get(each, OTHERS))
        for each, bill in priced
    )
    prices = ", ".join(f"{each} {bill.usd_per_million_tokens:.2f}" for each, bill in priced)
    return picture(
        lambda screen: cost_figure(priced, colors, screen),
        Table(columns=COLUMNS, rows=rows),
        name=name,
        title=title,
        about=f"{prices}.",
    )


def price_texts(bill: Bill) -> tuple[str, str]:
    """Return the price of a million tokens at full use, and as asked."""
    asked = bill.usd_per_million_tokens_asked
    return f"{bill.usd_per_million_tokens:.2f}", UNKNOWN if asked is None else f"{asked:.2f}"


def cost_figure(priced: Sequence[Priced], colors: Mapping[str, str], screen: Screen) -> Figure:
    """Draw the bars from the top down."""
    shortest, longest = (each(longer(bill) for _, bill in priced) for each in (min, max))
    top = min(longest, LONGEST_BAR * shortest)
    figure = screen.figure(HEAD_PX + ROW_PX * len(priced))
    axes = figure.add_subplot()
    axes.set(xlim=(0, top), ylim=(len(priced) - 0.5, -1), xticks=[])
    axes.set_yticks(range(len(priced)), [short(name) for name, _ in priced], color=INK)
    axes.tick_params(length=0)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    _beside(axes, -0.8, "full / asked", color=SOFT)
    for level, (name, bill) in enumerate(priced):
        _bar(axes, level, bill, color=colors.get(name, OTHERS), top=top)
    return figure


def longer(bill: Bill) -> float:
    """Return the longer of the two bars."""
    return max(bill.usd_per_million_tokens, bill.usd_per_million_tokens_asked or 0.0)


def _bar(axes: Axes, level: int, bill: Bill, *, color: str, top: float) -> None:
    axes.barh(level, min(top, longer(bill)), BAR, color=color, alpha=LIGHT, linewidth=0)
    axes.barh(level, min(top, bill.usd_per_million_tokens), BAR, color=color, linewidth=0)
    if longer(bill) > top:
        axes.text(0.93 * top, level, "//", color=PAPER, weight="bold", ha="center", va="center")
    _beside(axes, level, " / ".join(price_texts(bill)), color=INK)


def _beside(axes: Axes, level: float, text: str, *, color: str) -> None:
    axes.annotate(
        text,
        (1, level),
        xycoords=axes.get_yaxis_transform(),
        xytext=(6, 0),
        textcoords="offset points",
        va="center",
        color=color,
        fontsize=SMALL_PX,
        annotation_clip=False,
    )
