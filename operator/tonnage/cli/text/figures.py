"""The figures of a plan for a terminal: a bar of one GPU's memory, and a table of batches."""

from collections.abc import Sequence
from typing import Final

from rich.columns import Columns
from rich.console import Group
from rich.constrain import Constrain
from rich.text import Text

from tonnage.cli.results.batches import BATCH_NOTE, BATCH_NUMBERS, batch_rows
from tonnage.cli.text.layout import DIM, table
from tonnage.sizing.memory.ceiling import BudgetPart, MemoryBudget
from tonnage.sizing.plan import Sizing
from tonnage.units import GIB, KIB, MIB, format_bytes

BAR_CELLS: Final = 60
NARROWEST: Final = 0.05
"""Of a spread in the amount's unit: less would read as nothing."""
UNIT_BYTES: Final = {"TiB": KIB * GIB, "GiB": GIB, "MiB": MIB, "KiB": KIB, "B": 1}
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


def memory_segments(budget: MemoryBudget) -> list[BudgetPart]:
    """Return the parts of the fullest GPU's memory; those that are empty are left out."""
    cache = BudgetPart(
        name="KV cache", num_bytes=budget.kv_pool_bytes, spread_bytes=budget.kv_pool_spread_bytes
    )
    unused = BudgetPart(name="unused", num_bytes=budget.unused_bytes)
    return [part for part in (*budget.parts, cache, unused) if part.num_bytes > 0]


def bytes_with_spread(num_bytes: float, spread_bytes: float, *, is_ascii: bool = False) -> str:
    """Write an amount of memory and, where it is known, how far it may be off.

    The spread is in the amount's unit, or in its own where that suits it better.

    >>> bytes_with_spread(41.2 * GIB, 0.6 * GIB), bytes_with_spread(41.2 * GIB, 5 * MIB)
    ('41.2 GiB ± 0.6', '41.2 GiB ± 5.0 MiB')
    >>> bytes_with_spread(266 * MIB, 532 * MIB)  # not below zero
    '266.0 MiB, at most 798.0 MiB'
    """
    amount = format_bytes(num_bytes)
    if spread_bytes <= 0:
        return amount
    if spread_bytes >= num_bytes:
        return f"{amount}, at most {format_bytes(num_bytes + spread_bytes)}"
    in_unit = spread_bytes / UNIT_BYTES[amount.split()[1]]
    reads_well = NARROWEST <= in_unit < KIB
    spread = f"{in_unit:.1f}" if reads_well else format_bytes(spread_bytes)
    return f"{amount} {'+-' if is_ascii else '±'} {spread}"
