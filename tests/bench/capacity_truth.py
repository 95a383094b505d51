"""The goodput of a fleet of reference engines: the rate at which as many requests miss as may."""

import math
from dataclasses import dataclass, field, replace
from statistics import linear_regression

from fleet import Fleet, Load, Outcome, outcome

from tonnage.sizing.workload import Slo

USUAL_SLOPE = 8.0
"""Of the logarithm of misses over that of the rate, before any is known."""
LEAST_SLOPE = 0.5
NEAR = 0.8
"""Logarithms of misses up to which they lie about on one line."""
LONGEST_STEP = 0.5
"""Of the logarithm of the rate, towards a side of which nothing is known."""
OVERSHOOT = 1.3
TOLERANCE = 0.01
"""Of the logarithm of the rate: nearer the search does not come."""
COARSER = 4
"""A search has so many times fewer requests than what ends it."""
FAR = 0.03
"""Of the logarithm of the rate: corrections beyond are looked at again, the first no longer."""
MOST_WHOLE = 6
"""Runs of all requests: each correction may be twice as long as the one before."""
MOST_EVALUATIONS = 14
GOAL, MOST_BLOCKS = 0.01, 4
"""Standard error of a rate that is good enough, and so many times the requests at most for it."""
LEAST_RATE = 1 / 200
"""Of the first guess: a goodput below is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """The highest rate that keeps every target, in simulation."""

    requests_per_s: float
    error: float
    """Standard error, as a share of it; infinite where too few missed."""
    evaluations: int
    nearest: Outcome
    """At the rate tried that was nearest."""


@dataclass(slots=True, kw_only=True)
class _Search:
    fleet: Fleet
    load: Load
    slo: Slo
    goal: float
    is_whole: bool = False
    tried: list[tuple[float, Outcome]] = field(default_factory=list)
    """By the logarithms of rates."""

    def add(self, at: float) -> Outcome:
        found = outcome(self.fleet, self.load, math.exp(at), self.slo, is_whole=self.is_whole)
        self.tried.append((at, found))
        return found

    @property
    def below(self) -> tuple[float, float] | None:
        """The highest rate at which the targets are kept, with the logarithm of misses there."""
        found = [(at, each.excess) for at, each in self.tried if each.excess <= 0]
        return max(found, default=None)

    @property
    def above(self) -> tuple[float, float] | None:
        floor = self.below[0] if self.below else -math.inf
        found = [(at, each.excess) for at, each in self.tried if each.excess > 0 and at > floor]
        return min(found, default=None)

    @property
    def slope(self) -> float:
        """Return how steeply misses grow: a line through the rates near the goodput."""
        near = [(at, each.excess) for at, each in self.tried if abs(each.excess) < NEAR]
        if len(near) < 2:
            near = [each for each in (self.below, self.above) if each]
        if len({at for at, _ in near}) < 2:
            return USUAL_SLOPE
        line = linear_regression(*zip(*near, strict=True))
        return max(LEAST_SLOPE, line.slope)

    @property
    def secant(self) -> float | None:
        """Return how steeply misses grow between both ends; None where one is missing."""
        low, high = self.below, self.above
        return (high[1] - low[1]) / (high[0] - low[0]) if low and high else None

    def next(self) -> float:
        """Return the rate to try: where a line meets zero, not too near to either end."""
        low, high = self.below, self.above
        if low is None or high is None:
            at, excess = high or low or (0.0, 0.0)
            # The further the longer: the line is a poor one far out.
            step = OVERSHOOT * abs(excess) / USUAL_SLOPE + 0.01 * len(self.tried) ** 2
            return at - math.copysign(min(LONGEST_STEP, step), excess)
        width = high[0] - low[0]
        share = low[1] / (low[1] - high[1])
        margin = 0.2 if len(self.tried) > 4 else 0.1
        return low[0] + width * min(1 - margin, max(margin, share))

    def meets(self) -> float:
        """Return where the line between both ends meets zero, or continues to."""
        low, high = self.below, self.above
        if low is None or high is None:
            at, excess = high or low or (0.0, 0.0)
            return at - excess / USUAL_SLOPE
        return low[0] + (high[0] - low[0]) * low[1] / (low[1] - high[1])

    @property
    def is_done(self) -> bool:
        if self.below is None or self.above is None:
            return False
        ends = (self.below, self.above)
        narrow = self.above[0] - self.below[0] <= TOLERANCE
        return narrow or min(abs(excess) for _, excess in ends) <= TOLERANCE * self.slope

    def truth(self, load: Load) -> Truth:
        """Return where as many miss as may, by all requests there: more if they leave it open.

        Where these correct it by much, once more: until they lie on both sides of it, or near. A
        line through what few requests said is a poor one where another target takes over.
        """
        at, slope = self.meets(), self.slope
        nearest = min(self.tried, key=lambda each: abs(each[0] - at))[1]
        error = nearest.error / slope / math.sqrt(COARSER)
        more = min(MOST_BLOCKS, math.ceil((error / self.goal) ** 2)) if math.isfinite(error) else 1
        whole_load = Load(
            traffic=load.traffic,
            num_requests=max(1, more) * load.num_requests,
            crowd=load.crowd,
            num_blocks=max(1, more) * load.num_blocks,
        )
        search = replace(self, load=whole_load, is_whole=True, tried=[])
        for number in range(MOST_WHOLE):
            whole = search.add(at)
            slope = search.secant or slope
            by = search.meets() - at if search.secant else -whole.excess / slope
            longest = FAR * 2**number
            at += min(longest, max(-longest, by))
            if abs(by) <= FAR:
                break
        return Truth(
            requests_per_s=math.exp(at),
            error=whole.error / slope,
            evaluations=len(self.tried),
            nearest=whole,
        )


def true_goodput(
    fleet: Fleet, load: Load, slo: Slo, *, guess: float, goal: float = GOAL
) -> Truth | None:
    """Search from a guess, with a part of the requests, and finish with all of them.

    None where the targets are kept at no rate that is worth a replica.
    """
    part = replace(load, num_requests=math.ceil(load.num_requests / COARSER))
    search = _Search(fleet=fleet, load=part, slo=slo, goal=goal)
    at = math.log(guess)
    floor = at + math.log(LEAST_RATE)
    while at > floor:
        search.add(at)
        if search.is_done or len(search.tried) >= MOST_EVALUATIONS:
            return search.truth(load)
        at = search.next()
    return None
