"""Where the memory of one GPU goes, part by part, and how sure that is."""

from typing import Final

from tonnage.sizing.memory.ceiling import BudgetPart, MemoryBudget
from tonnage.units import GIB, KIB, MIB, format_bytes

CACHE: Final = "KV cache"
UNUSED: Final = "unused"
NARROWEST: Final = 0.05
"""Of a spread in the amount's unit: less would read as nothing."""
UNIT_BYTES: Final = {"TiB": KIB * GIB, "GiB": GIB, "MiB": MIB, "KiB": KIB, "B": 1}


def memory_segments(budget: MemoryBudget) -> list[BudgetPart]:
    """Return the parts of the fullest GPU's memory; those that are empty are left out."""
    cache = BudgetPart(
        name=CACHE, num_bytes=budget.kv_pool_bytes, spread_bytes=budget.kv_pool_spread_bytes
    )
    unused = BudgetPart(name=UNUSED, num_bytes=budget.unused_bytes)
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
