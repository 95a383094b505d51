"""Synthetic traffic by name, where no trace is at hand: what a controller has to survive."""

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from tonnage.replay.drawn import Drawn
from tonnage.replay.traffic import (
    Rate,
    Shapes,
    TrafficSource,
    constant_rate,
    diurnal,
    piecewise,
    traffic,
)
from tonnage.sizing.workload import Workload
from tonnage.units import DAY_S, HOUR_S

LOW, HIGH = 0.5, 1.5
"""Of the mean rate, before and after a step or a ramp: 2 to 6 requests/s where the mean is 4."""
SWING: Final = 0.6
LONGER: Final = 4.0
"""Times the lengths of the start, at the end of a drift."""
DRIFT_PIECES: Final = 12
BURST_S, BURST_EVERY_S = 20.0, 300.0
BURST_TIMES: Final = 5.0
"""The rate of the times between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanTraffic:
    """What traffic is drawn for: the mean request and rate of a spec."""

    workload: Workload
    requests_per_s: float
    context_tokens: int
    times: float = 1.0
    """Of the rate, whichever a shape has."""
    seed: int = 0

    @property
    def mean_requests_per_s(self) -> float:
        return self.times * self.requests_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Synthetic traffic: what it is in a line, and how it is drawn."""

    summary: str
    draw: Callable[[MeanTraffic], Drawn]


def _steady(asked: MeanTraffic) -> Drawn:
    return _of(asked, constant_rate(asked.mean_requests_per_s), duration_s=HOUR_S)


def _step(asked: MeanTraffic) -> Drawn:
    mean = asked.mean_requests_per_s
    return _of(asked, piecewise([(0, LOW * mean), (HOUR_S / 2, HIGH * mean)]), duration_s=HOUR_S)


def _ramp(asked: MeanTraffic) -> Drawn:
    """Rise for an hour, after and before a quarter of one."""
    mean, quiet_s = asked.mean_requests_per_s, HOUR_S / 4

    def rate(at_s: float) -> float:
        risen = min(1.0, max(0.0, (at_s - quiet_s) / HOUR_S))
        return mean * (LOW + (HIGH - LOW) * risen)

    return _of(asked, rate, duration_s=HOUR_S + 2 * quiet_s)


def _day(asked: MeanTraffic) -> Drawn:
    rate = diurnal(asked.mean_requests_per_s, swing=SWING, period_s=DAY_S)
    return _of(asked, rate, duration_s=DAY_S)


def _drift(asked: MeanTraffic) -> Drawn:
    """Let lengths grow for an hour, after and before half of one."""
    shapes = [(0.0, asked.workload)]
    for piece in range(1, DRIFT_PIECES + 1):
        factor = LONGER ** (piece / DRIFT_PIECES)
        shapes.append((HOUR_S / 2 + HOUR_S * piece / DRIFT_PIECES, longer(asked.workload, factor)))
    return _of(
        asked, constant_rate(asked.mean_requests_per_s), duration_s=2 * HOUR_S, shapes=shapes
    )


def longer(workload: Workload, factor: float) -> Workload:
    """Return requests that are so many times as long."""
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


def _bursts(asked: MeanTraffic) -> Drawn:
    """Keep the mean: between bursts the rate is lower, by what they bring."""
    share = BURST_S / BURST_EVERY_S
    between = asked.mean_requests_per_s / (1 + share * (BURST_TIMES - 1))

    def rate(at_s: float) -> float:
        is_burst = at_s % BURST_EVERY_S >= BURST_EVERY_S - BURST_S
        return BURST_TIMES * between if is_burst else between

    return _of(asked, rate, duration_s=HOUR_S)


def _of(
    asked: MeanTraffic, rate: Rate, *, duration_s: float, shapes: Shapes | None = None
) -> Drawn:
    source = TrafficSource(rate=rate, shapes=shapes or ((0.0, asked.workload),))
    return Drawn(
        traffic=traffic(
            source,
            duration_s=duration_s,
            context_tokens=asked.context_tokens,
            seed=asked.seed,
        ),
        duration_s=duration_s,
        too_long_s=array("d"),
    )


SHAPES: Final[Mapping[str, Shape]] = {
    "steady": Shape(summary="the demand of the spec for an hour", draw=_steady),
    "step": Shape(summary="from half to one and a half times it, at once", draw=_step),
    "ramp": Shape(summary="the same within an hour", draw=_ramp),
    "diurnal": Shape(summary="a day that swings by 60 % around it", draw=_day),
    "drift": Shape(summary="requests grow to 4 times their length, at the same rate", draw=_drift),
    "bursts": Shape(summary="5 times the rate for 20 s, every 5 minutes", draw=_bursts),
}
