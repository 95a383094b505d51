"""What one replica does with different numbers of decoding requests."""

from dataclasses import dataclass
from itertools import takewhile
from typing import Final

from tonnage.explain.report import bottleneck_of
from tonnage.sizing.plan import Sizing
from tonnage.sizing.serving.load_line import limits
from tonnage.sizing.serving.replica import SteadyState, steady_state
from tonnage.units import format_s, significant

MAX_BATCHES: Final = 12
BATCH_NUMBERS: Final = ("decoding", "TPOT", "tokens/s", "KV cache")
BATCH_NOTE: Final = (
    "over: by means at a steady batch; the load line is where percentiles meet their targets"
)
BOUNDS: Final = {
    "MemoryBandwidth": "memory",
    "Compute": "compute",
    "Prefill": "prefill",
    "Overhead": "overhead",
    "Communication": "links",
}
LIMITS: Final = {
    "TimePerOutputToken": "TPOT",
    "TimeToFirstToken": "TTFT",
    "KVCache": "KV cache",
    "BatchedTokens": "token budget",
    "MaxNumSeqs": "max-num-seqs",
}


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
    tokens_per_s: float
    """Of output, of a replica."""
    cells: tuple[str, ...]
    is_load_line: bool
    over: tuple[str, ...]
    """Limits that this batch breaks, at the percentile of the SLO target."""
    remark: str


def batch_rows(sizing: Sizing) -> list[BatchRow]:
    """Return what one replica does at different numbers of decoding requests."""
    return [_batch_row(sizing, num_decoding) for num_decoding in batches(sizing)]


def _batch_row(sizing: Sizing, num_decoding: float) -> BatchRow:
    state = steady_state(sizing.replica, sizing.request.workload, num_decoding)
    is_load_line = num_decoding == sizing.at_capacity.num_decoding
    over = () if is_load_line else _over(sizing, num_decoding)
    limit = LIMITS.get(sizing.limited_by, sizing.limited_by)
    tokens_per_s = state.requests_per_s * sizing.request.workload.output_tokens
    remark = f"load line ({limit})" if is_load_line else f"over {', '.join(over)}" if over else ""
    return BatchRow(
        state=state,
        tokens_per_s=tokens_per_s,
        cells=(
            requests_written(state.num_decoding),
            format_s(state.tpot_s),
            significant(tokens_per_s),
            f"{state.num_running / sizing.memory_ceiling_typical:.0%}",
            BOUNDS[bottleneck_of(state.step)],
        ),
        is_load_line=is_load_line,
        over=over,
        remark=remark,
    )


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
