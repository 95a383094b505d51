"""The memory of one GPU as a bar to scale: what fills it, and how sure that is."""

from itertools import cycle
from typing import Final

from matplotlib.artist import Artist
from matplotlib.figure import Figure

from tonnage.cli.answers.gpu_memory import CACHE, UNUSED, bytes_with_spread, memory_segments
from tonnage.cli.page.drawing import FAINT, INK, PAPER, Picture, add_legend, blank, picture
from tonnage.sizing.memory.ceiling import BudgetPart, MemoryBudget
from tonnage.units import GIB, format_bytes

COLORS: Final = {CACHE: "#2f7d4c", UNUSED: FAINT}
OTHER_COLORS: Final = ("#3a67ad", "#a34b8b", "#b98608", "#2a8599", "#7a6bb5", "#c25b4e", "#6b6b6b")
HEIGHT_PX: Final = 100
LEFT: Final = (
    "To scale. The engine may use what is left of the line (gpu-memory-utilization); what the "
    "other parts leave of that is the KV cache."
)
GIVEN: Final = "To scale. The KV cache is given ({}), whatever gpu-memory-utilization says."


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
        note=GIVEN.format(pool.flag) if (pool := budget.given_pool) else LEFT,
    )


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
    start, handles = 0.0, list[Artist]()
    for part, color in _colored(budget):
        width = part.num_bytes / GIB
        (bar,) = axes.barh(
            0, width, left=start, color=color, edgecolor=PAPER, linewidth=0.7, label=part.name
        )
        handles.append(bar)
        start += width
    if budget.given_pool is None:
        usable = f"{format_bytes(budget.usable_bytes)} usable ({budget.utilization_fraction:.3g})"
        line = axes.axvline(budget.usable_bytes / GIB, color=INK, linewidth=1.2, label=usable)
        handles.append(line)
    add_legend(figure, handles)
    return figure
