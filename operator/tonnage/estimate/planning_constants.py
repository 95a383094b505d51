"""What is believed of the speed of some engines, and what a plan is asked with.

A plan stands on the slow end of what is believed: of the prior's whole range before anything is
measured, and of less and less as evidence comes. Each other constant is another search, so the last
ones are asked with again until what is believed has clearly left them.
"""

import math
from dataclasses import dataclass
from typing import Final

from tonnage.catalog.engine_speed import SpeedConstants
from tonnage.estimate.learner import SHARES, constants_of, slow_end, with_constants
from tonnage.estimate.posterior import SpeedPosterior, Three

BAND: Final = 0.03
SETTLED_BAND: Final = 0.01
"""When the same was asked for some time: what is left of the band costs replicas, or promises."""
SETTLED_S: Final = 600.0


@dataclass(frozen=True, kw_only=True)
class PlanningConstants:
    """What a plan was asked with: the middle of what was believed, and its slow end."""

    key: str
    middle: SpeedPosterior
    slow: SpeedPosterior
    since_s: float


@dataclass(frozen=True, kw_only=True)
class Belief:
    """The speed of an object's engines, before and after what was measured."""

    constants: SpeedConstants
    """The prior's."""
    prior: SpeedPosterior
    """Before any window: of the catalogue, or of a load test of such an engine."""
    widest: SpeedPosterior
    """The prior with the doubt that remains where everything may have changed."""
    posterior: SpeedPosterior
    """Now; the prior where nothing was measured."""
    asked: PlanningConstants
    calibrated_at_s: float | None = None
    """Unix time of the load test, if the posterior stands on that alone."""

    @property
    def is_measured(self) -> bool:
        return self.posterior.num_windows > 0

    def constants_at(self, posterior: SpeedPosterior) -> SpeedConstants:
        return constants_of(posterior, self.constants)


def planning_constants_now(
    posterior: SpeedPosterior,
    last: PlanningConstants | Three | None,
    *,
    key: str,
    share: float,
    now_s: float,
) -> PlanningConstants:
    """Return what to ask with: as last time while that is within a band of what is believed.

    ``last`` may be the constants that a status shows of a plan: another process asked with them.
    """
    slow = slow_end(posterior, share=share)
    if isinstance(last, tuple):
        slow_then = with_constants(slow, last)
        last = PlanningConstants(key=key, middle=posterior, slow=slow_then, since_s=now_s)
    if last and last.key == key:
        band = BAND if now_s - last.since_s < SETTLED_S else SETTLED_BAND
        if not has_left(slow, last.slow, band=band):
            return last
    return PlanningConstants(key=key, middle=posterior, slow=slow, since_s=now_s)


def has_left(wanted: SpeedPosterior, asked: SpeedPosterior, *, band: float = BAND) -> bool:
    """Tell whether a step would differ by more than a band, in sum or by one constant alone."""
    moves = _weighted_moves(wanted, asked)
    return max(abs(sum(moves)), *(abs(each) for each in moves)) > band


def step_ratio(one: SpeedPosterior, other: SpeedPosterior) -> float:
    """Return the time of a typical step with some constants, over that with others."""
    return math.exp(sum(_weighted_moves(one, other)))


def _weighted_moves(one: SpeedPosterior, other: SpeedPosterior) -> list[float]:
    """Return the logarithm by which each constant makes a typical step longer than another does."""
    return [
        share * math.log(new / old)
        for share, new, old in zip(SHARES, one.constants, other.constants, strict=True)
    ]
