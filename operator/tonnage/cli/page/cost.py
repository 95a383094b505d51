"""What a token costs, by GPU class: at full use, and as asked."""

from collections.abc import Mapping, Sequence
from typing import Final

from matplotlib.figure import Figure

from tonnage.cli.page.drawing import SOFT, Picture, blank, picture
from tonnage.cli.page.plain import short
from tonnage.sizing.bill import Bill

ROW_PX: Final = 25
HEAD_PX: Final = 34
LONGEST_BAR: Final = 5.0
"""Times the shortest: a longer one goes to the edge, or the others would look alike."""
LIGHT: Final = 0.4
NOTE: Final = (
    "Full use: every replica at its load line, the least that a token can cost. As asked: the same "
    "replicas with no more tokens than the demand has, which pay for what is idle; the light part "
    "of a bar is that difference. A bar is at most five times as long as the shortest."
)

Priced = tuple[str, Bill]
"""The name of a class, and what it costs."""


def cost_picture(priced: Sequence[Priced], colors: Mapping[str, str], *, name: str) -> Picture:
    """Return a bar for each class: USD per million output tokens.

    ``colors``: of the classes that another picture of the page has, by their names.
    """
    costs = (f"{each} {bill.usd_per_million_tokens:.2f}" for each, bill in priced)
    return picture(
        lambda: cost_figure(priced, colors),
        name=name,
        title=f"{priced[0][1].currency} per million output tokens",
        about=", ".join(costs),
        note=NOTE,
    )


def cost_figure(priced: Sequence[Priced], colors: Mapping[str, str]) -> Figure:
    """Draw the bars from the top down: in full colour at full use, lighter as asked."""
    figure = blank(HEAD_PX + ROW_PX * len(priced))
    axes = figure.add_subplot()
    names = [short(name) for name, _ in priced]
    full = [bill.usd_per_million_tokens for _, bill in priced]
    asked = [bill.usd_per_million_tokens_asked or 0.0 for _, bill in priced]
    longest = [max(both) for both in zip(full, asked, strict=True)]
    shades = [colors.get(name, SOFT) for name, _ in priced]
    levels = range(len(priced))
    axes.barh(levels, longest, color=shades, alpha=LIGHT)
    axes.barh(levels, full, color=shades)
    axes.set_yticks(levels, names)
    axes.set(xlim=(0, min(max(longest), LONGEST_BAR * min(longest))), ylim=(len(priced) - 0.5, -1))
    axes.spines[:].set_visible(False)
    return figure
