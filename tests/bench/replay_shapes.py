"""Shapes of the replay benchmark that bring their own rate: profiles by which others are scored."""

import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from tonnage.engine.chance import Chance
from tonnage.replay.traces import Trace, drawn_from
from tonnage.replay.traffic import SHAPES, MeanTraffic, Shape, Traffic, arrivals, constant_rate
from tonnage.sizing.workload import NORMAL
from tonnage.units import THOUSAND

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
        return f"{self.requests_per_s:g} requests/s of {lengths} tokens, {self.stage_s:g} s each"


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


def _llmd(asked: MeanTraffic) -> Traffic:
    return drawn_from(
        llmd(asked.seed, factor=asked.times),
        duration_s=sum(stage_s for _, stage_s in LLMD_STAGES),
        context_tokens=asked.context_tokens,
    )


def _swap(found: Swap, asked: MeanTraffic) -> Traffic:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRate:
    """A shape that brings a rate of its own."""

    summary: str
    draw: Callable[[MeanTraffic], Traffic]


ALL_SHAPES: Final[Mapping[str, Shape | OwnRate]] = {
    **SHAPES,
    "llmd": OwnRate(summary="llm-d's scored profile", draw=_llmd),
    **{
        name: OwnRate(summary=found.summary, draw=partial(_swap, found))
        for name, found in SWAPS.items()
    },
}
