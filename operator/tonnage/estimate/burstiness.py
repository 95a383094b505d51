"""How burstily requests come: what the number of them in one time after the other says of gaps.

Sizing takes the squared coefficient of variation of the gaps between arrivals, ``arrival_scv``, of
a stream whose gaps are drawn alike and apart from each other. In such a stream the number of
arrivals in a time has a variance over its mean that tends to the same figure as the time holds
more of them (the variance of a renewal process grows by ``rate * scv`` per second); in a time with
few arrivals it is nearer to 1, whatever the gaps. So this ratio, the index of dispersion, is taken
over windows of ten arrivals or more, and stands for the gaps. Bursts that are longer than a window
but shorter than the hour count as well; a trend does not, since only differences between
neighbours are looked at.

Sources:
    [cox-lewis] The Statistical Analysis of Series of Events, 1966, chapter 4.
    [von-neumann] The mean square successive difference, Annals of Mathematical Statistics 12, 1941.
"""

import math
from dataclasses import dataclass
from itertools import pairwise

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
LOWEST, HIGHEST = 0.25, 16.0
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

    A clock that was set back by more than a window, and another length, begin anew: windows of two
    lengths are not compared.
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
    10,000, for the power of two next to it, from 0.25 to 16: what is asked of sizing does not
    change with every window, and is not asked anew for nothing. Where what the spec gives lies
    within nine tenths of the range, it is believed again.
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
    return float(2 ** round(math.log2(min(max(near, LOWEST), HIGHEST))))


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
