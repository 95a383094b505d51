"""The memory of one GPU as a bar to scale: what fills it, and how sure that is."""

from itertools import cycle
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from tonnage.cli.answers.gpu_memory import (
    CACHE,
    UNUSED,
    bytes_with_spread,
    memory_segments,
)
from tonnage.cli.page.drawing import (
    FAINT,
    INK,
    PAPER,
    SMALL_PX,
    SOFT,
    Picture,
    Screen,
    picture,
)
from tonnage.cli.page.tables import Column, Row, Table, numbers
from tonnage.sizing.memory.ceiling import BudgetPart, MemoryBudget
from tonnage.units import GIB, format_bytes

COLORS: Final = {
    "weights": "#3a67ad",
    "adapters": "#7a6bb5",
    "activations": "#a34b8b",
    "runtime": "#b98608",
    "CUDA graphs": "#2a8599",
    CACHE: "#2f7d4c",
    UNUSED: FAINT,
}
OTHER_COLORS: Final = ("#c25b4e", "#6b6b6b")
LEAST_RANGE: Final = 0.008
"""Of the bar: the range of an edge that is shorter cannot be seen."""
HEIGHT_PX: Final = 165
BAR: Final = 1.0
"""Its height, with the middle at zero."""
NOTE_LEVEL: Final = 0.85
EDGE_LEVEL: Final = -0.7
EDGE_NOTE_LEVEL: Final = -1.05
"""Of what is written above the bar, drawn below it, and written below that."""
SIDES: Final = ("left", "center", "right")
"""Of a text, that stand where it is about a point in the first, second or last third."""
WORD_PX: Final = 8.0
"""Of a character of a name in the bar, with room to spare."""
COLUMNS: Final = (Column(title="part", kind="name"), *numbers("size", "share"))


def memory_picture(budget: MemoryBudget, *, name: str) -> Picture:
    """Return the bar; the table is its legend. ``name`` is unique in the page."""
    parts = [
        f"{each.name} {bytes_with_spread(each.num_bytes, each.spread_bytes)}"
        for each in memory_segments(budget)
    ]
    return picture(
        lambda screen: memory_figure(budget, screen),
        _table(budget),
        name=name,
        title=f"Memory of one GPU: {format_bytes(budget.total_bytes)}",
        about=f"From the left: {', '.join(parts)}.",
    )


def _table(budget: MemoryBudget) -> Table:
    rows = [
        Row(
            cells=(
                segment.name,
                bytes_with_spread(segment.num_bytes, segment.spread_bytes),
                f"{segment.num_bytes / budget.total_bytes:.1%}",
            ),
            color=color,
        )
        for segment, color in segment_colors(budget)
    ]
    total = Row(cells=("in all", format_bytes(budget.total_bytes), "100.0%"))
    return Table(columns=COLUMNS, rows=(*rows, total))


def segment_colors(budget: MemoryBudget) -> list[tuple[BudgetPart, str]]:
    """Return the parts from the left, each with its colour."""
    others = cycle(OTHER_COLORS)
    return [
        (segment, COLORS.get(segment.name) or next(others)) for segment in memory_segments(budget)
    ]


def edge_range(budget: MemoryBudget) -> tuple[float, float] | None:
    """Return between which bytes the cache begins; None where that is too narrow to be seen."""
    low, high = budget.kv_pool_low_bytes, budget.kv_pool_high_bytes
    if budget.kv_pool_bytes <= 0 or high - low < LEAST_RANGE * budget.total_bytes:
        return None
    return max(0.0, budget.usable_bytes - high), budget.usable_bytes - low


def memory_figure(budget: MemoryBudget, screen: Screen) -> Figure:
    """Draw the parts side by side."""
    figure = screen.figure(HEIGHT_PX)
    axes = figure.add_subplot()
    shown = budget.total_bytes - min(0.0, budget.unused_bytes)
    axes.set(xlim=(0, shown / GIB), ylim=(-1.3, 1.1), yticks=[], xlabel="GiB")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.grid(visible=False)
    axes.spines[["left", "right", "top"]].set_visible(False)
    start = 0.0
    for segment, color in segment_colors(budget):
        width = segment.num_bytes / GIB
        axes.barh(0, width, BAR, left=start, color=color, edgecolor=PAPER, linewidth=0.7)
        if width / (budget.total_bytes / GIB) * screen.width_px > WORD_PX * len(segment.name) + 8:
            ink = SOFT if segment.name == UNUSED else PAPER
            axes.text(start + width / 2, 0, segment.name, ha="center", va="center", color=ink)
        start += width
    if budget.given_pool is None:
        _usable(axes, budget)
    if edge := edge_range(budget):
        _edge(axes, edge)
    return figure


def _usable(axes: Axes, budget: MemoryBudget) -> None:
    usable, written = budget.usable_bytes / GIB, format_bytes(budget.usable_bytes)
    axes.plot([usable, usable], [-BAR / 2, BAR / 2 + 0.15], color=INK, linewidth=1.2)
    text = f"{written} usable ({budget.utilization_fraction:.3g})"
    _note(axes, text, usable, NOTE_LEVEL)


def _edge(axes: Axes, edge: tuple[float, float]) -> None:
    """Draw a range below the bar, and say what it is on the side that has room."""
    low, high = (each / GIB for each in edge)
    middle, half = (low + high) / 2, (high - low) / 2
    axes.errorbar(middle, EDGE_LEVEL, xerr=half, color=INK, capsize=4, linewidth=1.4)
    _note(axes, f"cache begins, ± {format_bytes(half * GIB)}", middle, EDGE_NOTE_LEVEL)


def _note(axes: Axes, text: str, at: float, level: float) -> None:
    """Write above or below what a text is about, within the picture."""
    side = int(len(SIDES) * at / axes.get_xlim()[1])
    axes.text(
        at,
        level,
        text,
        ha=SIDES[min(side, len(SIDES) - 1)],
        va="center",
        color=SOFT,
        fontsize=SMALL_PX,
    )
