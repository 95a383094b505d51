"""How much more a burst takes than its count says, by what was late in bursts.

A count spans a few scrapes: of a burst that is shorter it tells a mean, which is too low. Engines
take up a part of a burst in their batches and in the time to the first token, so it takes less. How
the two come out hangs on how short the burst is, and nobody sees that between two scrapes. So a
burst is taken for two thirds as long as what it is counted in, until there is evidence: what was
late where the replicas were Ready that the reserve asks for.

The promise is about all requests, so those late in bursts are held against what may be late of all
that came since the factor last moved. Where they are more the factor grows at once, where they are
so few that a replica less would still do it goes back slowly.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tonnage.estimate.attainment import LARGEST_UP, STEEPNESS, TargetResult
from tonnage.estimate.posterior import BURST_FACTORS
from tonnage.units import DAY_S

FIRST = 1.5
LARGEST_DOWN = 0.15
"""Of the logarithm of a load, that late requests are taken to tell of in one judgement."""
LOWEST, HIGHEST = BURST_FACTORS
"""Times what counts tell above the usual: a burst that lasts for two of the three gaps between the
scrapes of a window, for all, for one."""
POWER = STEEPNESS[0]
"""Of the load, with which late requests are taken to grow: the least, as a reserve that is still
too small is missed in every burst."""
SPARE = 0.1
"""Of the late requests that are allowed: with fewer, the reserve may be smaller."""
ENOUGH_ALLOWED = 20.0
"""Late requests that would be allowed, before it goes back."""
FORGET_S = DAY_S
"""In which evidence loses all but 1/e of its weight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BurstTally:
    """By target: requests late in bursts, and how many of all may be late."""

    late: Mapping[str, float] = field(default_factory=dict)
    allowed: Mapping[str, float] = field(default_factory=dict)

    @property
    def pairs(self) -> list[tuple[float, float]]:
        """(late, allowed) of each target that allows any."""
        return [(self.late.get(name, 0.0), may) for name, may in self.allowed.items() if may > 0]


@dataclass(frozen=True, slots=True, kw_only=True)
class BurstWindow:
    """How promises fared in a window, and whether it holds requests of a burst."""

    verdicts: Sequence[TargetResult]
    is_burst: bool
    seconds: float


def add_window(tally: BurstTally, window: BurstWindow) -> BurstTally:
    """Return the tally with one more window. What is late outside of bursts is no burst's."""
    kept = math.exp(-window.seconds / FORGET_S)
    late = {name: kept * value for name, value in tally.late.items()}
    allowed = {name: kept * value for name, value in tally.allowed.items()}
    for each in window.verdicts:
        may_be = each.num_requests * (1 - each.quantile)
        allowed[each.target] = allowed.get(each.target, 0.0) + may_be
        late[each.target] = late.get(each.target, 0.0) + (
            each.late_by_load if window.is_burst else 0.0
        )
    return BurstTally(late=late, allowed=allowed)


def factor_after(factor: float, tally: BurstTally) -> float:
    """Return the factor after a burst for which the reserve was there; as before: nothing is known.

    >>> tally = BurstTally(late={"TTFT": 60.0}, allowed={"TTFT": 40.0})
    >>> round(factor_after(1.5, tally), 2)
    1.66
    """
    missed = max((late / may for late, may in tally.pairs if late > max(1.0, may)), default=1.0)
    if missed > 1.0:
        step = min(LARGEST_DOWN, math.log(missed) / POWER)
        return min(HIGHEST, factor * math.exp(step))
    spares = [may >= ENOUGH_ALLOWED and late < SPARE * may for late, may in tally.pairs]
    return max(LOWEST, factor * math.exp(-LARGEST_UP)) if spares and all(spares) else factor
