"""The figures of a plan for a person: where one GPU's memory goes, and what a batch gives."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from typing import Final

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from tonnage.sizing.plan import Sizing
from tonnage.sizing.report import bottleneck
from tonnage.sizing.steady import LoadLine, SteadyState, limits, steady_state
from tonnage.units import format_bytes, format_s, significant

BAR_CELLS: Final = 60
LEGEND_COLUMNS: Final = 3
MAX_BATCHES: Final = 12
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A part of the memory of one GPU, and how it is drawn."""

    name: str
    num_bytes: float
    mark: str
    ascii_mark: str
    style: str


def memory_segments(sizing: Sizing) -> list[Segment]:
    """Return the parts of the fullest GPU's memory; those that are empty are left out."""
    budget = sizing.budget
    unused = budget.total_bytes - budget.usable_bytes
    parts = (
        ("weights", budget.weights_bytes, "█", "W", "blue"),
        ("activations", budget.activation_bytes, "▓", "A", "magenta"),
        ("runtime", budget.non_torch_bytes, "▒", "R", "yellow"),
        ("CUDA graphs", budget.graphs_bytes, "░", "G", "cyan"),
        ("KV cache", budget.kv_pool_bytes, "▚", "K", "green"),
        ("unused", unused, "·", ".", DIM),
    )
    return [
        Segment(name=name, num_bytes=num_bytes, mark=mark, ascii_mark=ascii_mark, style=style)
        for name, num_bytes, mark, ascii_mark, style in parts
        if num_bytes > 0
    ]


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
    """Return a bar of one GPU's memory and, below it, what its parts are."""
    segments = memory_segments(sizing)
    marks = [segment.ascii_mark if is_ascii else segment.mark for segment in segments]
    shares = cells([segment.num_bytes for segment in segments], BAR_CELLS)
    bar, legend = Text(), Table.grid(padding=(0, 3, 0, 0))
    entries = []
    for segment, mark, share in zip(segments, marks, shares, strict=True):
        bar.append(mark * share, style=segment.style)
        amount = format_bytes(segment.num_bytes)
        entries.append(Text.assemble((mark, segment.style), f" {segment.name} {amount}"))
    bar.append(f" {format_bytes(sizing.budget.total_bytes)}")
    rest = iter(entries)
    while row := list(islice(rest, LEGEND_COLUMNS)):
        legend.add_row(*row)
    return Group(bar, legend)


def batches(sizing: Sizing) -> list[float]:
    """Return numbers of decoding requests worth showing: powers of two, and the load line."""
    capacity = sizing.at_capacity.num_decoding
    top = 2 * max(capacity, min(sizing.memory_ceiling_typical, 2 * capacity))
    powers = list(takewhile(lambda batch: batch <= top, (2.0**k for k in range(32))))
    return sorted({*powers[-MAX_BATCHES:], capacity})


def batch_table(sizing: Sizing) -> Table:
    """Return what one replica does at different numbers of decoding requests."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    table.caption_justify, table.caption_style = "left", DIM
    for name in ("decoding", "TPOT", "tokens/s", "KV cache"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("bound by", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.caption = Text("over: judged at the promised percentile of the batch, n + z * sqrt(n)")
    for batch in batches(sizing):
        state = steady_state(sizing.replica, sizing.question.workload, batch)
        is_load_line = batch == sizing.at_capacity.num_decoding
        table.add_row(*_batch_cells(sizing, state), style="bold" if is_load_line else "")
    return table


def _batch_cells(sizing: Sizing, state: SteadyState) -> Iterator[str]:
    there = replace(sizing, line=LoadLine(state=state, limited_by=""))
    is_whole = state.num_decoding == int(state.num_decoding)
    yield f"{state.num_decoding:.0f}" if is_whole else significant(state.num_decoding)
    yield format_s(state.step_s)
    yield significant(state.requests_per_s * sizing.question.workload.output_tokens)
    yield f"{state.num_running / sizing.memory_ceiling_typical:.0%}"
    yield BOUNDS[bottleneck(there)]
    yield _remark(sizing, state)


def _remark(sizing: Sizing, state: SteadyState) -> str:
    if state.num_decoding == sizing.at_capacity.num_decoding:
        return f"load line ({LIMITS.get(sizing.line.limited_by, sizing.line.limited_by)})"
    replica, question = sizing.replica, sizing.question
    over = [
        LIMITS.get(name, name)
        for name, holds in limits(replica, question.workload, question.slo)
        if name != "MaxNumSeqs" and not holds(state.num_decoding)
    ]
    return f"over {', '.join(dict.fromkeys(over))}" if over else ""
