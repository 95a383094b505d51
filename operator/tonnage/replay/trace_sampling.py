"""Traffic of a trace: cut to a window, thinned or superposed."""

import math
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import compress
from operator import add, not_
from typing import Final

from tonnage.engine.chance import Chance
from tonnage.replay.traces import Trace
from tonnage.replay.traffic import Traffic
from tonnage.sizing.workload import Lengths, Workload
from tonnage.units import MINUTE_S

COPY_JITTER_S: Final = 20.0
"""To either side, by which the second and further copies of a request come at another time."""
SHAPES_AT_MOST: Final = 48
SHORTEST_SHAPE_S: Final = 600.0
FIRST_SEED: Final = 9_000
"""Beyond those that synthetic traffic is drawn with."""
P99: Final = 0.99


def window_of(trace: Trace, from_s: float = 0.0, until_s: float = math.inf) -> Trace:
    """Return the requests of a time, which is counted from the first request of the trace.

    Raises:
        ValueError: there are none.
    """
    start_s = trace.arrival_s[0] + from_s
    first = bisect_left(trace.arrival_s, start_s)
    last = bisect_left(trace.arrival_s, trace.arrival_s[0] + until_s)
    if first >= last:
        span_s = trace.arrival_s[-1] - trace.arrival_s[0]
        raise ValueError(f"no request comes in it; the trace is {span_s:.0f} s long")
    return replace(
        trace,
        arrival_s=array("d", (at_s - start_s for at_s in trace.arrival_s[first:last])),
        prompt_tokens=trace.prompt_tokens[first:last],
        output_tokens=trace.output_tokens[first:last],
    )


def duration_of(trace: Trace, from_s: float = 0.0, until_s: float = math.inf) -> float:
    """Return how long a window of a trace is: to its end, or to the minute of the last request."""
    span_s = trace.arrival_s[-1] - trace.arrival_s[0]
    whole_s = MINUTE_S * (math.floor(span_s / MINUTE_S) + 1)
    return min(until_s, whole_s) - from_s


def times(trace: Trace, factor: float, *, duration_s: float, seed: int) -> Trace:
    """Return so many times as many requests: a share of them, or copies that come near them."""
    if factor == 1:
        return trace
    chance = Chance(FIRST_SEED + seed)
    whole, share = int(factor), factor - int(factor)
    rows: list[tuple[float, int]] = []
    for number, at_s in enumerate(trace.arrival_s):
        copies = whole + (chance.share() < share)
        for copy in range(copies):
            moved_s = COPY_JITTER_S * (2 * chance.share() - 1) if copy else 0.0
            rows.append((_within(at_s + moved_s, duration_s), number))
    rows.sort()
    return replace(
        trace,
        arrival_s=array("d", (at_s for at_s, _ in rows)),
        prompt_tokens=array("q", (trace.prompt_tokens[number] for _, number in rows)),
        output_tokens=array("q", (trace.output_tokens[number] for _, number in rows)),
    )


def _within(at_s: float, duration_s: float) -> float:
    """Return a time, turned back where it lies beyond an end."""
    turned_s = 2 * duration_s - at_s if at_s >= duration_s else abs(at_s)
    return min(max(0.0, turned_s), duration_s * (1 - 1e-9))


def drawn_from(
    trace: Trace, *, duration_s: float, context_tokens: int, cached_fraction: float = 0.0
) -> Traffic:
    """Return the traffic of a trace that begins at 0; what exceeds the context is left out."""
    lengths = map(add, trace.prompt_tokens, trace.output_tokens)
    fits = [each <= context_tokens for each in lengths]
    prompts = array("q", compress(trace.prompt_tokens, fits))
    outputs = array("q", compress(trace.output_tokens, fits))
    arrival_s = array("d", compress(trace.arrival_s, fits))
    return Traffic(
        arrival_s=arrival_s,
        prompt_tokens=prompts,
        output_tokens=outputs,
        cached_tokens=array("q", (min(p - 1, round(p * cached_fraction)) for p in prompts)),
        shapes=tuple(_shapes(arrival_s, prompts, outputs, duration_s, cached_fraction))
        or ((0.0, _shape([1], [1], cached_fraction)),),
        duration_s=duration_s,
        too_long_s=array("d", compress(trace.arrival_s, map(not_, fits))),
    )


def _shapes(
    arrival_s: Sequence[float],
    prompts: Sequence[int],
    outputs: Sequence[int],
    duration_s: float,
    cached_fraction: float,
) -> Iterator[tuple[float, Workload]]:
    """Yield the mean request of windows; one in which none came is like the one before."""
    each_s = max(SHORTEST_SHAPE_S, duration_s / SHAPES_AT_MOST)
    start_s, is_first = 0.0, True
    while start_s < duration_s:
        low, high = (bisect_left(arrival_s, edge_s) for edge_s in (start_s, start_s + each_s))
        if low < high:
            yield (
                0.0 if is_first else start_s,
                _shape(prompts[low:high], outputs[low:high], cached_fraction),
            )
            is_first = False
        start_s += each_s


def _shape(prompts: Sequence[int], outputs: Sequence[int], cached_fraction: float) -> Workload:
    number = len(prompts)
    return Workload(
        prompt=Lengths(
            mean_tokens=sum(prompts) / number,
            p99_tokens=float(sorted(prompts)[math.ceil(P99 * number) - 1]),
        ),
        output_tokens=sum(outputs) / number,
        cached_fraction=cached_fraction,
        output_second_moment=sum(tokens * tokens for tokens in outputs) / number,
    )
