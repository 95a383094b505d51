"""The figures of a plan for a terminal: a bar of one GPU's memory, and a table of batches."""

from collections.abc import Sequence
from typing import Final

from rich.columns import Columns
from rich.console import Group
from rich.constrain import Constrain
from rich.text import Text

from tonnage.cli.answers.batches import BATCH_NOTE, BATCH_NUMBERS, batch_rows
from tonnage.cli.answers.gpu_memory import bytes_with_spread, memory_segments
from tonnage.cli.text.layout import DIM, table
from tonnage.sizing.plan import Sizing
from tonnage.units import format_bytes

BAR_CELLS: Final = 60
LEGEND_WIDTH: Final = 77
"""What an indented legend may take of a screen of 80 columns."""
LEGEND_GAP: Final = 3
MARKS: Final = {
    "weights": ("█", "W", "blue"),
    "adapters": ("▧", "L", "bright_blue"),
    "activations": ("▓", "A", "magenta"),
    "runtime": ("▒", "R", "yellow"),
    "CUDA graphs": ("░", "G", "cyan"),
    "KV cache": ("▚", "K", "green"),
    "unused": ("·", ".", DIM),
}
OTHER_MARK: Final = ("▞", "O", "red")


def cells(amounts: Sequence[float], num_cells: int) -> list[int]:
    """Share cells out in proportion, at least one for each amount; the largest takes the rest.

    >>> cells([70, 1, 29], 10)
    [6, 1, 3]
    """
    total = sum(amounts)
    shared = [max(1, round(amount / total * num_cells)) for amount in amounts]
    shared[shared.index(max(shared))] += num_cells - sum(shared)
    return shared


def memory_bar(sizing: Sizing, *, is_ascii: bool = False, width: int = LEGEND_WIDTH) -> Group:
    """Return a bar of one GPU's memory and, below it, what its parts are and how sure that is."""
    segments = memory_segments(sizing.budget)
    total = f" {format_bytes(sizing.budget.total_bytes)}"
    num_cells = min(BAR_CELLS, width - len(total))
    shares = cells([segment.num_bytes for segment in segments], num_cells)
    bar, entries = Text(), []
    for segment, share in zip(segments, shares, strict=True):
        *marks, style = MARKS.get(segment.name, OTHER_MARK)
        mark = marks[1 if is_ascii else 0]
        bar.append(mark * share, style=style)
        amount = bytes_with_spread(segment.num_bytes, segment.spread_bytes, is_ascii=is_ascii)
        entries.append(Text.assemble((mark, style), f" {segment.name} {amount}"))
    bar.append(total)
    legend = Columns(entries, padding=(0, LEGEND_GAP))
    return Group(bar, Constrain(legend, min(width, LEGEND_WIDTH)))


def batch_table(sizing: Sizing) -> Group:
    """Return the batches as a table, and below it what is to be said of some of them."""
    found = table(numbers=BATCH_NUMBERS)
    found.add_column("bound by", no_wrap=True)
    rows = batch_rows(sizing)
    for row in rows:
        found.add_row(*row.cells, style="bold" if row.is_load_line else "")
    remarks = [f"{row.cells[0]} decoding: {row.remark}" for row in rows if row.remark]
    return Group(found, *(Text(each, style=DIM) for each in (*remarks, BATCH_NOTE)))
