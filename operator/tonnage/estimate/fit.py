"""Constants of the step-time formula from steps of known work that were timed one by one.

A load test knows what each of its steps did, so offset and slope tell themselves apart in it: three
constants are fitted at once, by least squares in the logarithms. The prior pulls weakly, so that
what the measurements leave open stays where it was.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tonnage.estimate.posterior import SpeedPosterior, Three, UpperTriangle
from tonnage.estimate.speed import with_speed
from tonnage.sizing.step_time.model import StepTimeModel
from tonnage.sizing.step_time.step import Step

MEASUREMENT_DEVIATION: Final = 0.02
"""Of the logarithm of a timed step: what clocks, networks and the formula's own shape leave."""
PRIOR_DEVIATIONS: Final[Three] = (1.0, 0.5, 0.5)
"""Of the logarithms: far wider than priors are wrong."""
HIGHEST_EFFICIENCY: Final = 0.98
"""No memory and no multiplier is busier."""
FACTOR_BOUND: Final = 20.0
"""A constant further from its prior than this is no constant of this engine."""
ROUNDS: Final = 60
STEP: Final = 1e-5
CLOSE: Final = 1e-9
HALVINGS: Final = 12
UNMOVED: Final[Three] = (0.0, 0.0, 0.0)
NAMES: Final = ("overhead factor", "bandwidth efficiency", "prefill efficiency")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedStep:
    """One kind of step, and how long it took."""

    work: Step
    step_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedFit:
    """What the measurements say."""

    speed: SpeedPosterior
    at_bounds: tuple[str, ...] = ()
    """Constants that the measurements would move further than any engine's are."""
    unmoved: tuple[str, ...] = ()
    """Constants that so few steps say nothing of: as the prior has them, with its doubt."""


def errors(model: StepTimeModel, timed: Iterable[TimedStep]) -> tuple[float, ...]:
    """Return how far the formula is off each step: predicted over measured, less 1."""
    return tuple(model.step(each.work).total_s / each.step_s - 1 for each in timed)


def fit_speed(model: StepTimeModel, timed: Sequence[TimedStep]) -> SpeedFit:
    """Fit the constants to timed steps, no more of them than steps; ``model`` has the prior's.

    Minimizes, with r the logarithm of predicted over measured and x the moves of the logarithms of
    the constants from their priors::

        sum (r / MEASUREMENT_DEVIATION) ** 2 + sum (x / PRIOR_DEVIATIONS) ** 2

    by Gauss-Newton, each step halved until it helps, within bounds. The covariance is that of this
    sum, wider where the steps scatter more than a clock explains.
    """
    problem = _Problem(model, timed)
    moves, cost = UNMOVED, problem.cost(UNMOVED)
    for _ in range(ROUNDS):
        better = problem.improve(moves, cost)
        if better is None:
            break
        gained, (moves, cost) = cost - better[1], better
        if gained < CLOSE * max(1.0, cost):
            break
    overhead, bandwidth, prefill = problem.values(moves)
    speed = SpeedPosterior(
        overhead_factor=overhead,
        bandwidth_efficiency=bandwidth,
        prefill_efficiency=prefill,
        covariance=problem.covariance(moves, cost),
    )
    return SpeedFit(speed=speed, at_bounds=problem.at_bounds(moves), unmoved=problem.unmoved)


class _Problem:
    """The sum of squares, and what lowers it."""

    def __init__(self, model: StepTimeModel, timed: Sequence[TimedStep]) -> None:
        prior = model.constants
        self._model, self._timed = model, timed
        self._start: Three = (1.0, prior.bandwidth_efficiency, prior.prefill_efficiency)
        widest = math.log(FACTOR_BOUND)
        self._low: Three = (-widest, -widest, -widest)
        self._high: Three = (
            widest,
            max(0.0, min(widest, math.log(HIGHEST_EFFICIENCY / self._start[1]))),
            max(0.0, min(widest, math.log(HIGHEST_EFFICIENCY / self._start[2]))),
        )
        self._free = self._moving()

    def _moving(self) -> frozenset[int]:
        """Return the constants that move: as many as steps, first those that steps hang on most."""
        at = self.residuals(UNMOVED)
        slopes = [self._slope(UNMOVED, axis, at) for axis in range(len(UNMOVED))]
        weights = [_product(slope, slope) for slope in slopes]
        order = sorted(range(len(weights)), key=lambda axis: -weights[axis])
        return frozenset(order[: len(self._timed)])

    @property
    def unmoved(self) -> tuple[str, ...]:
        return tuple(name for axis, name in enumerate(NAMES) if axis not in self._free)

    def values(self, moves: Three) -> Three:
        overhead, bandwidth, prefill = (
            start * math.exp(move) for start, move in zip(self._start, moves, strict=True)
        )
        return overhead, bandwidth, prefill

    def at_bounds(self, moves: Three) -> tuple[str, ...]:
        return tuple(
            name
            for name, move, low, high in zip(NAMES, moves, self._low, self._high, strict=True)
            if move <= low + CLOSE or (move >= high - CLOSE and high > 0)
        )

    def residuals(self, moves: Three) -> list[float]:
        constants = with_speed(self._model.constants, self.values(moves))
        model = replace(self._model, constants=constants)
        return [
            math.log(model.step(each.work).total_s / each.step_s) / MEASUREMENT_DEVIATION
            for each in self._timed
        ]

    def cost(self, moves: Three) -> float:
        pulls = (move / wide for move, wide in zip(moves, PRIOR_DEVIATIONS, strict=True))
        return sum(each**2 for each in (*self.residuals(moves), *pulls))

    def improve(self, moves: Three, cost: float) -> tuple[Three, float] | None:
        """Return a better point and its cost; None where no step in the best direction helps."""
        information, slope = self._normal(moves)
        direction = solve(information, slope)
        share = 1.0
        for _ in range(HALVINGS):
            tried = self._within(moves, direction, share)
            found = self.cost(tried)
            if found < cost:
                return tried, found
            share /= 2
        return None

    def covariance(self, moves: Three, cost: float) -> UpperTriangle:
        information, _ = self._normal(moves)
        wider = max(1.0, cost / max(1, len(self._timed) - len(moves)))
        columns = [
            solve(information, unit) for unit in ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))
        ]
        first, second, third = [
            [wider * each for each in column] if axis in self._free else column
            for axis, column in enumerate(columns)
        ]
        return first[0], second[0], third[0], second[1], third[1], third[2]

    def _within(self, moves: Three, direction: Three, share: float) -> Three:
        one, two, three = (
            min(max(move + share * each, low), high)
            for move, each, low, high in zip(moves, direction, self._low, self._high, strict=True)
        )
        return one, two, three

    def _normal(self, moves: Three) -> tuple[tuple[Three, Three, Three], Three]:
        """Return the matrix and the right side of the Gauss-Newton step, the prior's included."""
        at = self.residuals(moves)
        slopes = [
            self._slope(moves, axis, at) if axis in self._free else [0.0] * len(at)
            for axis in range(len(moves))
        ]
        rows = [[_product(one, other) for other in slopes] for one in slopes]
        right = [-_product(slope, at) for slope in slopes]
        for axis, wide in enumerate(PRIOR_DEVIATIONS):
            rows[axis][axis] += 1 / wide**2
            right[axis] -= moves[axis] / wide**2
        first, second, third = [(row[0], row[1], row[2]) for row in rows]
        return (first, second, third), (right[0], right[1], right[2])

    def _slope(self, moves: Three, axis: int, at: list[float]) -> list[float]:
        stepped = list(moves)
        stepped[axis] += STEP
        beyond = self.residuals((stepped[0], stepped[1], stepped[2]))
        return [(there - here) / STEP for there, here in zip(beyond, at, strict=True)]


def _product(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def solve(matrix: tuple[Three, Three, Three], right: Three) -> Three:
    """Solve three linear equations of a positive definite matrix, by Cramer's rule.

    >>> solve(((2, 0, 0), (0, 4, 0), (0, 0, 8)), (2, 2, 2))
    (1.0, 0.5, 0.25)
    """
    (a, b, c), (d, e, f), (g, h, i) = matrix
    p, q, r = right
    whole = a * (e * i - f * h) - b * (d * i - f * g) + c * (d * h - e * g)
    one = p * (e * i - f * h) - b * (q * i - f * r) + c * (q * h - e * r)
    two = a * (q * i - f * r) - p * (d * i - f * g) + c * (d * r - q * g)
    three = a * (e * r - q * h) - b * (d * r - q * g) + p * (d * h - e * g)
    return one / whole, two / whole, three / whole
