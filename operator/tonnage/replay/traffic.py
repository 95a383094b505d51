"""Requests as they come: at a rate that changes, of shapes that change, fixed by a seed."""

import math
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Final

from tonnage.engine.chance import Chance, lognormal
from tonnage.engine.table import RequestTable
from tonnage.sizing.workload import NORMAL, Workload
from tonnage.units import DAY_S, HOUR_S

Rate = Callable[[float], float]
"""Requests per second by the seconds since the start."""
Shapes = Sequence[tuple[float, Workload]]
"""From when on requests are of which shape; the first from the start."""

DRAWN: Final = 4096
"""Gaps drawn at once."""
GRID_S: Final = 1.0
"""Within which the rate counts as constant."""
FIRST_SEED: Final = 7_000
"""Beyond those that capacity is searched with."""


def diurnal(mean_requests_per_s: float, *, swing: float, period_s: float) -> Rate:
    """Return a rate that rises and falls by a share ``swing`` of its mean, beginning at the mean.

    >>> [round(diurnal(10, swing=0.6, period_s=8)(at_s), 1) for at_s in (0, 2, 4, 6)]
    [10.0, 16.0, 10.0, 4.0]
    """
    return lambda at_s: mean_requests_per_s * (1 + swing * math.sin(math.tau * at_s / period_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficSource:
    """What requests are drawn from."""

    rate: Rate
    shapes: Shapes
    arrival_scv: float = 1.0
    """Squared variation of the gaps between arrivals, gamma distributed, at each rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Requests in order of arrival, and of which shape they are."""

    arrival_s: "array[float]"
    prompt_tokens: "array[int]"
    output_tokens: "array[int]"
    cached_tokens: "array[int]"
    shapes: Shapes
    duration_s: float
    too_long_s: "array[float]" = field(default_factory=lambda: array("d"))
    """When requests came that no engine of this length takes; they are none of the columns."""

    @property
    def num_requests(self) -> int:
        """Those that are too long included."""
        return len(self.arrival_s) + len(self.too_long_s)

    def table(self) -> RequestTable:
        return RequestTable(
            self.prompt_tokens, self.output_tokens, self.cached_tokens, self.arrival_s
        )


def traffic(
    source: TrafficSource, *, duration_s: float, context_tokens: int, seed: int = 0
) -> Traffic:
    """Return the requests of a time, none longer than the engine takes."""
    first, shapes = FIRST_SEED + 4 * seed, source.shapes
    arrival_s = array("d", arrivals(source.rate, duration_s, source.arrival_scv, Chance(first)))
    prompts, outputs, cached = array("q"), array("q"), array("q")
    starts = [start for start, _ in shapes]
    edges = [0, *(bisect_right(arrival_s, start) for start in starts[1:]), len(arrival_s)]
    normals, shares = Chance(first + 1), Chance(first + 2)
    for (low, high), (_, shape) in zip(pairwise(edges), shapes, strict=True):
        drawn = _outputs(shape, context_tokens, shares.shares(high - low))
        outputs.extend(drawn)
        longest = min(shape.prompt.longest_tokens, context_tokens - 1)
        lengths = lognormal(
            _normals(normals.shares(high - low)),
            shape.prompt.mean_tokens,
            shape.prompt.sigma,
            longest,
        )
        fitting = [min(p, context_tokens - out) for p, out in zip(lengths, drawn, strict=True)]
        prompts.extend(fitting)
        cached.extend([min(p - 1, round(p * shape.cached_fraction)) for p in fitting])
    return Traffic(
        arrival_s=arrival_s,
        prompt_tokens=prompts,
        output_tokens=outputs,
        cached_tokens=cached,
        shapes=shapes,
        duration_s=duration_s,
    )


def arrivals(rate: Rate, duration_s: float, arrival_scv: float, chance: Chance) -> Iterator[float]:
    """Yield times at which the expected number of arrivals so far reaches the sum of the gaps."""
    gaps = _gaps(chance, 1 / arrival_scv)
    passed, due, at_s = 0.0, next(gaps), 0.0
    while at_s < duration_s:
        each = rate(at_s)
        step_s = min(GRID_S, duration_s - at_s)
        reached = passed + each * step_s
        while each > 0 and reached >= due:
            yield at_s + (due - passed) / each
            due += next(gaps)
        passed = reached
        at_s += step_s


def _gaps(chance: Chance, shape: float) -> Iterator[float]:
    while True:
        yield from chance.gamma_gaps(DRAWN, shape)


def _normals(shares: Sequence[float]) -> "array[float]":
    inverse = NORMAL.inv_cdf
    return array("d", [inverse(max(share, 1e-12)) for share in shares])


def _outputs(shape: Workload, context_tokens: int, shares: Sequence[float]) -> "array[int]":
    mean, sigma = shape.output_tokens, shape.output_sigma
    longest = max(1, context_tokens - 1)
    if sigma is not None:
        return lognormal(_normals(shares), mean, sigma, longest)
    drawn = [round(-mean * math.log1p(-share)) for share in shares]
    return array("q", [min(longest, max(1, tokens)) for tokens in drawn])


LOW, HIGH = 0.5, 1.5
"""Of the mean rate, before and after a step or a ramp: 2 to 6 requests/s where the mean is 4."""
SWING: Final = 0.6
LONGER: Final = 4.0
"""Times the lengths of the start, at the end of a drift."""
DRIFT_PIECES: Final = 12
BURST_S, BURST_EVERY_S = 20.0, 300.0
BURST_TIMES: Final = 5.0
"""The rate of the times between."""


def _even(mean: float, _at_s: float) -> float:
    return mean


def _step(mean: float, at_s: float) -> float:
    return mean * (LOW if at_s < HOUR_S / 2 else HIGH)


def _ramp(mean: float, at_s: float) -> float:
    """Rise for an hour, after and before a quarter of one."""
    risen = min(1.0, max(0.0, (at_s - HOUR_S / 4) / HOUR_S))
    return mean * (LOW + (HIGH - LOW) * risen)


def _day(mean: float, at_s: float) -> float:
    return diurnal(mean, swing=SWING, period_s=DAY_S)(at_s)


def _bursts(mean: float, at_s: float) -> float:
    """Keep the mean: between bursts the rate is lower, by what they bring."""
    between = mean / (1 + BURST_S / BURST_EVERY_S * (BURST_TIMES - 1))
    is_burst = at_s % BURST_EVERY_S >= BURST_EVERY_S - BURST_S
    return BURST_TIMES * between if is_burst else between


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Synthetic traffic: what it is in a line, its rate, and how lengths change."""

    summary: str
    duration_s: float = HOUR_S
    rate: Callable[[float, float], float] = _even
    """By the mean rate and the time."""
    longer: tuple[tuple[float, float], ...] = ((0.0, 1.0),)
    """From when on requests are so many times as long."""

    def draw(
        self, workload: Workload, requests_per_s: float, *, context_tokens: int, seed: int = 0
    ) -> Traffic:
        shapes = [(from_s, longer(workload, factor)) for from_s, factor in self.longer]
        source = TrafficSource(rate=partial(self.rate, requests_per_s), shapes=shapes)
        return traffic(source, duration_s=self.duration_s, context_tokens=context_tokens, seed=seed)


def longer(workload: Workload, factor: float) -> Workload:
    prompt, second = workload.prompt, workload.output_second_moment
    return replace(
        workload,
        prompt=replace(
            prompt,
            mean_tokens=factor * prompt.mean_tokens,
            p99_tokens=None if prompt.p99_tokens is None else factor * prompt.p99_tokens,
        ),
        output_tokens=factor * workload.output_tokens,
        output_second_moment=None if second is None else factor**2 * second,
    )


DRIFT: Final = tuple(
    (
        (HOUR_S / 2 + HOUR_S * piece / DRIFT_PIECES) if piece else 0.0,
        LONGER ** (piece / DRIFT_PIECES),
    )
    for piece in range(DRIFT_PIECES + 1)
)
"""Lengths grow for an hour, after and before half of one."""
SHAPES: Final[Mapping[str, Shape]] = {
    "steady": Shape(summary="1 x the rate for an hour"),
    "step": Shape(summary="0.5 x, and 1.5 x from the middle of an hour on", rate=_step),
    "ramp": Shape(
        summary="0.5 x, rising to 1.5 x within an hour", duration_s=1.5 * HOUR_S, rate=_ramp
    ),
    "diurnal": Shape(summary="a day between 0.4 x and 1.6 x", duration_s=DAY_S, rate=_day),
    "drift": Shape(
        summary="1 x, with prompts and outputs that grow to 4 times their length",
        duration_s=2 * HOUR_S,
        longer=DRIFT,
    ),
    "bursts": Shape(
        summary="20 s in each 5 minutes at 5 times the rate between them", rate=_bursts
    ),
}
