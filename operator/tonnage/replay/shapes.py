"""Synthetic traffic by name, where no trace is at hand: what a controller has to survive."""

import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from tonnage.engine.chance import Chance
from tonnage.replay.drawn import Drawn, drawn_from
from tonnage.replay.traces import Trace
from tonnage.replay.traffic import (
    Rate,
    Shapes,
    TrafficSource,
    arrivals,
    constant_rate,
    diurnal,
    piecewise,
    traffic,
)
from tonnage.sizing.workload import NORMAL, Workload
from tonnage.units import DAY_S, HOUR_S, MINUTE_S, THOUSAND

LOW, HIGH = 0.5, 1.5
"""Of the mean rate, before and after a step or a ramp: 2 to 6 requests/s where the mean is 4."""
SWING: Final = 0.6
LONGER: Final = 4.0
"""Times the lengths of the start, at the end of a drift."""
DRIFT_PIECES: Final = 12
BURST_S, BURST_EVERY_S = 20.0, 300.0
BURST_TIMES: Final = 5.0
"""The rate of the times between."""
LLMD_STAGES: Final = (
    (2, 330), (4, 360), (6, 360), (8, 360), (10, 360), (4, 360), (1, 300),
)  # fmt: skip
"""Requests/s and seconds: the profile by which llm-d scores autoscalers, as in scored-config.yml of
its guides on workload autoscaling."""
LLMD_PROMPT: Final = (300, 3500, 4500)
"""Deviation, least and most tokens; the mean lies midway."""
LLMD_OUTPUT: Final = (80, 900, 1100)
FIRST_SEED: Final = 11_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """Requests at one rate, all of one length in each stage: prompt and answer."""

    requests_per_s: float
    stage_s: float
    thousands: tuple[tuple[int, int], ...]
    """Of tokens."""

    @property
    def duration_s(self) -> float:
        return self.stage_s * len(self.thousands)

    @property
    def stages(self) -> list[tuple[int, int]]:
        """Tokens of prompt and answer."""
        return [(THOUSAND * prompt, THOUSAND * output) for prompt, output in self.thousands]

    @property
    def summary(self) -> str:
        lengths = " then ".join(f"{prompt}/{output}" for prompt, output in self.stages)
        return (
            f"{self.requests_per_s:g} requests/s of {lengths} tokens, {self.stage_s:g} s each; "
            "the demand of the spec is not used"
        )


LONG_PROMPTS, LONG_ANSWERS = (6, 1), (1, 4)
SWAPS: Final[Mapping[str, Swap]] = {
    "swap": Swap(requests_per_s=6, stage_s=1100, thousands=(LONG_PROMPTS, LONG_ANSWERS)),
    "swap-back": Swap(requests_per_s=6, stage_s=1100, thousands=(LONG_ANSWERS, LONG_PROMPTS)),
    "swap-long": Swap(requests_per_s=6, stage_s=1100, thousands=((1, 6), (8, 1))),
    "swap-short": Swap(requests_per_s=4, stage_s=720, thousands=(LONG_PROMPTS, LONG_ANSWERS)),
    "swap-slow": Swap(requests_per_s=2, stage_s=720, thousands=((4, 1), LONG_ANSWERS)),
}
"""Those by which llm-scaling-manager is measured, of the same rates, lengths and times: in
ev-shindin/llm-scaler test/benchmark/scenarios, shape_6k1000_1k4000_rps6_20m.params.yaml (61065e90),
shape_1k4000_6k1000_rps6_20m (b03747cf), shape_1k6000_8k1000_rps6_20m (ad81f35d),
shape_6k1000_1k4000_rps4_12m and shape_4k1000_1k4000_rps2_12m (aa8f5798)."""


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
    has_own_rate: bool = False
    """The demand of a spec is not used."""


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


def llmd(seed: int = 0, *, factor: float = 1.0) -> Trace:
    """Return the scored profile: requests evenly apart in each stage, normal lengths cut off.

    ``factor``: of the rates.
    """
    arrival_s, begun_s = array("d"), 0.0
    for requests_per_s, stage_s in LLMD_STAGES:
        rate = factor * requests_per_s
        arrival_s.extend(begun_s + k / rate for k in range(math.ceil(rate * stage_s)))
        begun_s += stage_s
    first, number = FIRST_SEED + 2 * seed, len(arrival_s)
    return Trace(
        arrival_s=arrival_s,
        prompt_tokens=_clip(LLMD_PROMPT, Chance(first).shares(number)),
        output_tokens=_clip(LLMD_OUTPUT, Chance(first + 1).shares(number)),
    )


def _clip(lengths: tuple[int, int, int], shares: Sequence[float]) -> "array[int]":
    deviation, least, most = lengths
    mean = (least + most) / 2
    normals = (NORMAL.inv_cdf(max(share, 1e-12)) for share in shares)
    return array("q", (min(most, max(least, round(mean + deviation * z))) for z in normals))


def _llmd(asked: MeanTraffic) -> Drawn:
    return drawn_from(
        llmd(asked.seed, factor=asked.times),
        duration_s=sum(stage_s for _, stage_s in LLMD_STAGES),
        context_tokens=asked.context_tokens,
    )


def _swap(found: Swap, asked: MeanTraffic) -> Drawn:
    rate = constant_rate(asked.times * found.requests_per_s)
    chance = Chance(FIRST_SEED + 2 * asked.seed)
    arrival_s = array("d", arrivals(rate, found.duration_s, 1.0, chance))
    stages = found.stages
    rows = [stages[int(at_s / found.stage_s)] for at_s in arrival_s]
    trace = Trace(
        arrival_s=arrival_s,
        prompt_tokens=array("q", (prompt for prompt, _ in rows)),
        output_tokens=array("q", (output for _, output in rows)),
    )
    return drawn_from(trace, duration_s=found.duration_s, context_tokens=asked.context_tokens)


SHAPES: Final[Mapping[str, Shape]] = {
    "steady": Shape(summary="the demand of the spec for an hour", draw=_steady),
    "step": Shape(summary="from half to one and a half times it, at once", draw=_step),
    "ramp": Shape(summary="the same within an hour", draw=_ramp),
    "diurnal": Shape(summary="a day that swings by 60 % around it", draw=_day),
    "drift": Shape(summary="requests grow to 4 times their length, at the same rate", draw=_drift),
    "bursts": Shape(summary="5 times the rate for 20 s, every 5 minutes", draw=_bursts),
    "llmd": Shape(
        summary="llm-d's scored profile: 1 to 10 requests/s in stages of "
        f"{360 // MINUTE_S} minutes, 4000/1000 tokens; the demand of the spec is not used",
        draw=_llmd,
        has_own_rate=True,
    ),
    **{
        name: Shape(summary=found.summary, draw=partial(_swap, found), has_own_rate=True)
        for name, found in SWAPS.items()
    },
}
