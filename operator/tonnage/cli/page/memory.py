"""The memory of one GPU as a bar to scale: what fills it, and how sure that is."""

from itertools import cycle
from typing import Final

from matplotlib.figure import Figure

from tonnage.cli.answers.gpu_memory import CACHE, UNUSED, bytes_with_spread, memory_segments
from tonnage.cli.page.drawing import FAINT, INK, PAPER, Picture, add_legend, blank, picture
from tonnage.cli.page.tables import Column, Row, Table, numbers
from tonnage.sizing.memory.ceiling import BudgetPart, MemoryBudget
from tonnage.units import GIB, format_bytes

COLORS: Final = {CACHE: "#2f7d4c", UNUSED: FAINT}
OTHER_COLORS: Final = ("#3a67ad", "#a34b8b", "#b98608", "#2a8599", "#7a6bb5", "#c25b4e", "#6b6b6b")
HEIGHT_PX: Final = 100
COLUMNS: Final = (Column(title="part", kind="name"), *numbers("size", "share"))


def memory_picture(budget: MemoryBudget, *, name: str) -> Picture:
    """Return the bar; ``name`` is unique in the page."""
    parts = (
        f"{part.name} {bytes_with_spread(part.num_bytes, part.spread_bytes)}"
        for part in memory_segments(budget)
    )
    return picture(
        lambda: memory_figure(budget),
        name=name,
        title=f"Memory of one GPU: {format_bytes(budget.total_bytes)}",
        about=f"From the left: {', '.join(parts)}",
    )


def memory_table(budget: MemoryBudget) -> Table:
    """Return the parts, with their colours in the bar."""
    rows = [
        Row(
            cells=(
                part.name,
                bytes_with_spread(part.num_bytes, part.spread_bytes),
                f"{part.num_bytes / budget.total_bytes:.1%}",
            ),
            color=color,
        )
        for part, color in _colored(budget)
    ]
    total = Row(cells=("in all", format_bytes(budget.total_bytes), "100.0%"))
    return Table(columns=COLUMNS, rows=(*rows, total))


def _colored(budget: MemoryBudget) -> list[tuple[BudgetPart, str]]:
    """Return the parts from the left, each with its colour."""
    others = cycle(OTHER_COLORS)
    return [(part, COLORS.get(part.name) or next(others)) for part in memory_segments(budget)]


def memory_figure(budget: MemoryBudget) -> Figure:
    """Draw the parts side by side, and what the engine may use of them."""
    figure = blank(HEIGHT_PX)
    axes = figure.add_subplot()
    shown = budget.total_bytes - min(0.0, budget.unused_bytes)
    axes.set(xlim=(0, shown / GIB), yticks=[], xlabel="GiB")
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    start = 0.0
    for part, color in _colored(budget):
        width = part.num_bytes / GIB
        axes.barh(0, width, left=start, color=color, edgecolor=PAPER, linewidth=0.7)
        start += width
    if budget.given_pool is None:
        usable = f"{format_bytes(budget.usable_bytes)} usable ({budget.utilization_fraction:.3g})"
        line = axes.axvline(budget.usable_bytes / GIB, color=INK, linewidth=1.2, label=usable)
        add_legend(figure, [line])
    return figure
