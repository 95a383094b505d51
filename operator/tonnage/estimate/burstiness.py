"""How burstily requests come: what the number of them in one time after the other says of gaps.

Sizing takes the squared coefficient of variation of the gaps between arrivals, ``arrival_scv``. In
a renewal process the variance of the number of arrivals over its mean tends to the same figure as
more come in a time; with few of them it is nearer to 1. So this ratio, the index of dispersion, is
taken over windows of ten arrivals or more. Bursts that are longer than a window but shorter than
the hour count as well; a trend does not, since only differences between neighbours are looked at.

Sources:
    [cox-lewis] The Statistical Analysis of Series of Events, 1966, chapter 4.
    [von-neumann] The mean square successive difference, Annals of Mathematical Statistics 12, 1941.

A count spans a few scrapes: of a burst that is shorter it tells a mean, which is too low, while
engines take up a part of it in their batches. So a burst is taken for two thirds as long as what it
is counted in, until what was late in bursts, with the replicas that the reserve asks for, says
otherwise. It is held against what may be late of all requests since the factor last moved: where it
is more the factor grows at once, where a replica less would still do it goes back slowly.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tonnage.estimate.attainment import LARGEST_UP, STEEPNESS, TargetResult
from tonnage.estimate.posterior import BURST_FACTORS
from tonnage.units import DAY_S

KEPT_S = 3600.0
MIN_MEAN = 10.0
"""Arrivals in a window: with fewer, neighbours are put together."""
MIN_WINDOWS = 20
"""Below, no ratio is believed."""
LEFT_OUT = 0.1
"""Of the differences of neighbours, the largest, two at least: steps of the load are no bursts."""
KEPT_MEAN = 0.623
"""Of a squared normal variable without its largest tenth: P(chi-square of 3 < 2.706) / 0.9."""
LARGEST_CHANGE = 2.0
"""A factor, in one window: what is believed changes with evidence that lasts."""
CONFIDENCE_Z = 3.9
"""Of a normal variable: all but one in 10,000, since it is looked at once a minute."""
LIKELY_Z = 1.64
LEAST_SCV, MOST_SCV = 0.25, 16.0
EFFICIENCY = 2 / 3
"""Degrees of freedom that a difference of neighbours is worth, of one deviation from the mean."""
LENGTH_TOLERANCE = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedWindow:
    """So many arrivals in the seconds before a time."""

    at_s: float
    count: float
    seconds: float


Counted = tuple[CountedWindow, ...]
"""Windows of the last hour, the oldest first; no two overlap."""


def add_count(state: Counted, *, at_s: float, count: float, seconds: float) -> Counted:
    """Return the windows with one more, if it overlaps none, and without those of an hour ago.

    A clock that was set back by more than a window, and windows of another length, begin anew.
    """
    new = CountedWindow(at_s=at_s, count=count, seconds=seconds)
    was = state[-1] if state else new
    if at_s < was.at_s - seconds or abs(was.seconds - seconds) > LENGTH_TOLERANCE * was.seconds:
        return (new,)
    if state and at_s - seconds < state[-1].at_s:
        return state
    return (*(each for each in state if each.at_s > at_s - KEPT_S), new)


def arrival_scv(state: Counted, believed: float, *, given: float) -> float:
    """Return the squared coefficient of variation of gaps: what is believed until windows deny it.

    It is left only where it lies outside of the range that so many windows leave, all but one in
    10,000, for the power of two next to it, from 0.25 to 16: sizing is not asked anew for nothing.
    Where what the spec gives lies within nine tenths of the range, it is believed again.
    """
    found = dispersion(state)
    if found is None:
        return believed
    low, high = _range(found, LIKELY_Z)
    if low <= given <= high:
        return given
    low, high = _range(found, CONFIDENCE_Z)
    if low <= believed <= high:
        return believed
    near = min(max(found[0], believed / LARGEST_CHANGE), believed * LARGEST_CHANGE)
    return float(2 ** round(math.log2(min(max(near, LEAST_SCV), MOST_SCV))))


def _range(found: tuple[float, float], z: float) -> tuple[float, float]:
    ratio, freedom = found
    return ratio * freedom / _chi_square(freedom, z), ratio * freedom / _chi_square(freedom, -z)


def dispersion(state: Counted) -> tuple[float, float] | None:
    """Return variance over mean of the counts, and degrees of freedom; None: too few of them."""
    counts = _with_enough([each.count for each in state])
    if len(counts) < MIN_WINDOWS:
        return None
    steps = sorted((later - earlier) ** 2 for earlier, later in pairwise(counts))
    kept = steps[: -max(2, math.ceil(LEFT_OUT * len(steps)))]
    mean = sum(counts) / len(counts)
    return sum(kept) / len(kept) / KEPT_MEAN / 2 / mean, EFFICIENCY * len(kept)


def _with_enough(counts: list[float]) -> list[float]:
    """Return the counts, neighbours put together so that their mean is large enough."""
    total = sum(counts)
    if total <= 0:
        return []
    size = math.ceil(MIN_MEAN * len(counts) / total)
    whole = len(counts) - len(counts) % size
    return [sum(counts[start : start + size]) for start in range(0, whole, size)]


def _chi_square(freedom: float, z: float) -> float:
    """Return the quantile of chi-square at that of a normal variable, as Wilson and Hilferty do."""
    part = 2 / (9 * freedom)
    return freedom * max(1e-3, 1 - part + z * math.sqrt(part)) ** 3


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


BurstTally = Mapping[str, tuple[float, float]]
"""By target: requests late in bursts, and how many of all may be late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BurstWindow:
    """How promises fared in a window, and whether it holds requests of a burst."""

    verdicts: Sequence[TargetResult]
    is_burst: bool
    seconds: float


def add_window(tally: BurstTally, window: BurstWindow) -> BurstTally:
    """Return the tally with one more window. What is late outside of bursts is no burst's."""
    kept = math.exp(-window.seconds / FORGET_S)
    found = {name: (kept * late, kept * may) for name, (late, may) in tally.items()}
    for each in window.verdicts:
        late, may = found.get(each.target, (0.0, 0.0))
        late += each.late_by_load if window.is_burst else 0.0
        found[each.target] = late, may + each.num_requests * (1 - each.quantile)
    return found


def factor_after(factor: float, tally: BurstTally) -> float:
    """Return the factor after a burst for which the reserve was there; as before: nothing is known.

    >>> round(factor_after(1.5, {"TTFT": (60.0, 40.0)}), 2)
    1.66
    """
    pairs = [(late, may) for late, may in tally.values() if may > 0]
    missed = max((late / may for late, may in pairs if late > max(1.0, may)), default=1.0)
    if missed > 1.0:
        step = min(LARGEST_DOWN, math.log(missed) / POWER)
        return min(HIGHEST, factor * math.exp(step))
    spares = [may >= ENOUGH_ALLOWED and late < SPARE * may for late, may in pairs]
    return max(LOWEST, factor * math.exp(-LARGEST_UP)) if spares and all(spares) else factor
