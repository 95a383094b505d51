"""Synthetic traffic by name, where no trace is at hand: what a controller has to survive."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from tonnage.replay.traffic import Traffic, TrafficSource, diurnal, traffic
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

    def draw(self, asked: MeanTraffic) -> Traffic:
        shapes = [(from_s, longer(asked.workload, factor)) for from_s, factor in self.longer]
        rate = partial(self.rate, asked.times * asked.requests_per_s)
        return traffic(
            TrafficSource(rate=rate, shapes=shapes),
            duration_s=self.duration_s,
            context_tokens=asked.context_tokens,
            seed=asked.seed,
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
