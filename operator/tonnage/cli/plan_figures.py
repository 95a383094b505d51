"""The figures of a plan for a person: where one GPU's memory goes, and what a batch gives."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile, zip_longest
from typing import Final

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from tonnage.explain.report import bottleneck_of
from tonnage.sizing.memory.ceiling import MemoryBudget
from tonnage.sizing.plan import Sizing
from tonnage.sizing.serving.load_line import limits
from tonnage.sizing.serving.steady import SteadyState, steady_state
from tonnage.units import GIB, KIB, MIB, format_bytes, format_s, significant

BAR_CELLS: Final = 60
LEGEND_WIDTH: Final = 77
"""What an indented legend may take of a screen of 80 columns."""
LEGEND_COLUMNS: Final = (3, 2, 1)
LEGEND_GAP: Final = 3
NARROWEST: Final = 0.05
"""Of a spread in the amount's unit: less would read as nothing."""
EDGE_NOTE: Final = "KV cache begins, 9 times in 10"
MAX_BATCHES: Final = 12
BATCH_NUMBERS: Final = ("decoding", "TPOT", "tokens/s", "KV cache")
BATCH_NOTE: Final = "over: by what the promised percentile of requests meets, as the batch varies"
DIM: Final = "dim"
BOUNDS: Final = {
    "MemoryBandwidth": "memory",
    "Compute": "compute",
    "Prefill": "prefill",
    "Overhead": "overhead",
    "Communication": "links",
}
LIMITS: Final = {
    "TimePerOutputToken": "TPOT",
    "KVCache": "KV cache",
    "BatchedTokens": "token budget",
    "MaxNumSeqs": "max-num-seqs",
}


UNIT_BYTES: Final = {"TiB": KIB * GIB, "GiB": GIB, "MiB": MIB, "KiB": KIB, "B": 1}
MARKS: Final = {
    "weights": ("█", "W", "blue"),
    "activations": ("▓", "A", "magenta"),
    "runtime": ("▒", "R", "yellow"),
    "CUDA graphs": ("░", "G", "cyan"),
    "KV cache": ("▚", "K", "green"),
    "unused": ("·", ".", DIM),
}
OTHER_MARK: Final = ("▞", "O", "red")


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A part of the memory of one GPU; the truth lies within the spread nine times in ten."""

    name: str
    num_bytes: float
    spread_bytes: float = 0.0

    def mark(self, *, is_ascii: bool) -> str:
        return MARKS.get(self.name, OTHER_MARK)[1 if is_ascii else 0]

    @property
    def style(self) -> str:
        return MARKS.get(self.name, OTHER_MARK)[2]


def memory_segments(budget: MemoryBudget) -> list[Segment]:
    """Return the parts of the fullest GPU's memory; those that are empty are left out."""
    parts = [
        Segment(name=part.name, num_bytes=part.num_bytes, spread_bytes=part.spread_bytes)
        for part in budget.parts
    ]
    cache = Segment(
        name="KV cache", num_bytes=budget.kv_pool_bytes, spread_bytes=budget.kv_pool_spread_bytes
    )
    unused = Segment(name="unused", num_bytes=budget.total_bytes - budget.usable_bytes)
    return [segment for segment in (*parts, cache, unused) if segment.num_bytes > 0]


def ranged(num_bytes: float, spread_bytes: float, *, is_ascii: bool = False) -> str:
    """Write an amount of memory and, where it is known, how far it may be off.

    The spread is in the amount's unit, or in its own where that suits it better.

    >>> ranged(41.2 * GIB, 0.6 * GIB), ranged(41.2 * GIB, 5 * MIB), ranged(GIB, 0)
    ('41.2 GiB ± 0.6', '41.2 GiB ± 5.0 MiB', '1.0 GiB')
    """
    amount = format_bytes(num_bytes)
    if spread_bytes <= 0:
        return amount
    in_unit = spread_bytes / UNIT_BYTES[amount.split()[1]]
    reads_well = NARROWEST <= in_unit < KIB
    spread = f"{in_unit:.1f}" if reads_well else format_bytes(spread_bytes)
    return f"{amount} {'+-' if is_ascii else '±'} {spread}"


def cells(amounts: Sequence[float], num_cells: int) -> list[int]:
    """Share cells out in proportion, at least one for each amount; the largest takes the rest.

    >>> cells([70, 1, 29], 10)
    [6, 1, 3]
    """
    total = sum(amounts)
    shared = [max(1, round(amount / total * num_cells)) for amount in amounts]
    shared[shared.index(max(shared))] += num_cells - sum(shared)
    return shared


def memory_bar(sizing: Sizing, *, is_ascii: bool = False) -> Group:
    """Return a bar of one GPU's memory and, below it, what its parts are and how sure that is."""
    segments = memory_segments(sizing.budget)
    shares = cells([segment.num_bytes for segment in segments], BAR_CELLS)
    bar, entries = Text(), []
    for segment, share in zip(segments, shares, strict=True):
        mark = segment.mark(is_ascii=is_ascii)
        bar.append(mark * share, style=segment.style)
        amount = ranged(segment.num_bytes, segment.spread_bytes, is_ascii=is_ascii)
        entries.append(Text.assemble((mark, segment.style), f" {segment.name} {amount}"))
    bar.append(f" {format_bytes(sizing.budget.total_bytes)}")
    edge = edge_line(segments, shares, is_ascii=is_ascii)
    return Group(bar, *([Text(edge, style=DIM)] if edge else []), _legend(entries))


def edge_line(segments: Sequence[Segment], shares: Sequence[int], *, is_ascii: bool) -> str | None:
    """Return a line that marks where the cache may begin; None where that is within one cell."""
    begins = next((k for k, each in enumerate(segments) if each.name == "KV cache"), None)
    if begins is None:
        return None
    total_bytes = sum(segment.num_bytes for segment in segments)
    half = segments[begins].spread_bytes / total_bytes * BAR_CELLS
    if 2 * half < 1:
        return None
    edge = sum(shares[:begins])
    start, end = max(0, round(edge - half)), min(BAR_CELLS, round(edge + half))
    left, line, right, only = "|-||" if is_ascii else "├─┤│"
    drawn = f"{left}{line * (end - start - 2)}{right}" if end - start > 1 else only
    if start > len(EDGE_NOTE):
        return f"{EDGE_NOTE} {drawn}".rjust(start + len(drawn))
    return f"{' ' * start}{drawn} {EDGE_NOTE}"


def _legend(entries: Sequence[Text]) -> Table:
    """Return the entries in as many columns as a narrow screen holds."""
    rows = next(
        rows
        for num_columns in LEGEND_COLUMNS
        if _width(rows := list(_rows(entries, num_columns))) <= LEGEND_WIDTH or num_columns == 1
    )
    legend = Table.grid(padding=(0, LEGEND_GAP, 0, 0))
    for row in rows:
        legend.add_row(*row)
    return legend


def _rows(entries: Sequence[Text], num_columns: int) -> Iterator[Sequence[Text]]:
    return (entries[k : k + num_columns] for k in range(0, len(entries), num_columns))


def _width(rows: Sequence[Sequence[Text]]) -> int:
    columns = zip_longest(*rows, fillvalue=Text())
    return sum(max(map(len, column)) + LEGEND_GAP for column in columns)


def batches(sizing: Sizing) -> list[float]:
    """Return numbers of decoding requests worth showing: powers of two, and the load line."""
    capacity = sizing.at_capacity.num_decoding
    top = 2 * max(capacity, min(sizing.memory_ceiling_typical, 2 * capacity))
    powers = list(takewhile(lambda batch: batch <= top, (2.0**k for k in range(32))))
    return sorted({*powers[-MAX_BATCHES:], capacity})


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRow:
    """What one replica does with so many decoding requests, as numbers and as written."""

    state: SteadyState
    cells: tuple[str, ...]
    is_load_line: bool
    over: tuple[str, ...]
    """Limits that this batch breaks, judged at the promised percentile."""
    remark: str


def batch_rows(sizing: Sizing) -> list[BatchRow]:
    """Return what one replica does at different numbers of decoding requests."""
    return [_batch_row(sizing, num_decoding) for num_decoding in batches(sizing)]


def _batch_row(sizing: Sizing, num_decoding: float) -> BatchRow:
    state = steady_state(sizing.replica, sizing.request.workload, num_decoding)
    is_load_line = num_decoding == sizing.at_capacity.num_decoding
    over = () if is_load_line else _over(sizing, num_decoding)
    limit = LIMITS.get(sizing.limited_by, sizing.limited_by)
    remark = f"load line ({limit})" if is_load_line else f"over {', '.join(over)}" if over else ""
    return BatchRow(
        state=state,
        cells=tuple(_batch_cells(sizing, state)),
        is_load_line=is_load_line,
        over=over,
        remark=remark,
    )


def batch_table(sizing: Sizing) -> Table:
    """Return the batches as a table."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    table.caption_justify, table.caption_style = "left", DIM
    for name in BATCH_NUMBERS:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("bound by", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.caption = Text(BATCH_NOTE)
    for row in batch_rows(sizing):
        table.add_row(*row.cells, row.remark, style="bold" if row.is_load_line else "")
    return table


def _batch_cells(sizing: Sizing, state: SteadyState) -> Iterator[str]:
    yield requests_written(state.num_decoding)
    yield format_s(state.tpot_s)
    yield significant(state.requests_per_s * sizing.request.workload.output_tokens)
    yield f"{state.num_running / sizing.memory_ceiling_typical:.0%}"
    yield BOUNDS[bottleneck_of(state.step)]


def requests_written(number: float) -> str:
    """Write a number of requests; only a mean has decimals.

    >>> requests_written(64.0), requests_written(52.97)
    ('64', '53.0')
    """
    return f"{number:.0f}" if number == int(number) else significant(number)


def _over(sizing: Sizing, num_decoding: float) -> tuple[str, ...]:
    replica, request = sizing.replica, sizing.request
    over = [
        LIMITS.get(name, name)
        for name, holds in limits(replica, request.workload, request.slo)
        if name != "MaxNumSeqs" and not holds(num_decoding)
    ]
    return tuple(dict.fromkeys(over))
