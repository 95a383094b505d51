"""Ways to forecast demand from what was noted of it; ``forecast`` says which is believed."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from statistics import median
from typing import Final

from tonnage.units import HOUR_S

LAST: Final = "last value"
RISE: Final = "a rise that goes on"
SAMPLE_INTERVAL_S: Final = 60.0
"""Between two notes."""
BIN_S: Final = 600.0
"""Of the pattern of days and weeks."""
DAY_S: Final = 24 * HOUR_S
WEEK_S: Final = 7 * DAY_S
LARGEST_RISE: Final = 3.0
"""Times the demand now that a forecast may lead to, and by which levels of two days may differ."""
TREND_S: Final = 600.0
HALF_S: Final = 300.0
"""In which a rise is seen, at least."""
NEAR_S: Final = 1.5 * SAMPLE_INTERVAL_S
"""Around a time, in which there are three notes: a jump between two of them is no rise in both."""

Recent = Sequence[tuple[float, float]]
"""(time, demand), a minute apart."""
Pattern = Mapping[int, tuple[float, int]]
"""(mean demand, notes) by ten minutes since 1970."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastInput:
    """What a forecast may stand on. Times are unix seconds."""

    recent: Recent
    pattern: Pattern
    at_s: float
    demand: float
    """Now."""
    lead_s: float
    """From now to what is forecast."""


def _forecast_by_rise(seen: ForecastInput) -> float | None:
    """Go on as demand rose in both halves of the last two leads, by the lesser of the two.

    A jump is in one of them only, and does not go on; neither does what fell again at once.
    """
    if not seen.recent:
        return None
    first_s = max(seen.recent[0][0], seen.at_s - 2 * max(seen.lead_s, HALF_S))
    half_s = (seen.at_s - first_s) / 2
    if half_s < HALF_S:
        return None
    first, middle, last = (_near(seen, at_s) for at_s in (first_s, first_s + half_s, seen.at_s))
    if not (first and middle and last):
        return None
    risen = min(min(middle) - median(first), min(seen.demand, *last) - max(middle))
    most = LARGEST_RISE * seen.demand
    return min(seen.demand + max(0.0, risen) * seen.lead_s / half_s, most)


def noted_since(recent: Recent, since_s: float) -> Recent:
    """Return the notes from a time on."""
    return recent[bisect_left(recent, since_s, key=itemgetter(0)) :]


def _near(seen: ForecastInput, at_s: float) -> list[float]:
    first = bisect_left(seen.recent, at_s - NEAR_S, key=itemgetter(0))
    last = bisect_right(seen.recent, at_s + NEAR_S, lo=first, key=itemgetter(0))
    return [rate for _, rate in seen.recent[first:last]]


def _forecast_by_trend(seen: ForecastInput) -> float | None:
    """Go on by the slope of least squares over the last ten minutes, or a lead if that is more."""
    points = noted_since(seen.recent, seen.at_s - max(TREND_S, seen.lead_s))
    if len(points) < TREND_S / SAMPLE_INTERVAL_S / 2:
        return None
    mean_s = sum(at for at, _ in points) / len(points)
    mean = sum(rate for _, rate in points) / len(points)
    spread = sum((at - mean_s) ** 2 for at, _ in points)
    slope = sum((at - mean_s) * (rate - mean) for at, rate in points) / spread
    return min(seen.demand + slope * seen.lead_s, LARGEST_RISE * seen.demand)


def _before(period_s: float) -> Callable[[ForecastInput], float | None]:
    """Go on as demand did then, moved to the level of today."""

    def way(seen: ForecastInput) -> float | None:
        then = _pattern_at(seen.pattern, seen.at_s - period_s)
        later = _pattern_at(seen.pattern, seen.at_s + seen.lead_s - period_s)
        if then is None or later is None:
            return None
        level = seen.demand / then if then else 1.0
        return seen.demand + (later - then) * min(max(level, 1 / LARGEST_RISE), LARGEST_RISE)

    return way


def _pattern_at(pattern: Pattern, at_s: float) -> float | None:
    """Return the demand at a time in the past, on the line between the middles of two bins."""
    place = at_s / BIN_S - 0.5
    low, share = math.floor(place), place - math.floor(place)
    one, other = pattern.get(low), pattern.get(low + 1)
    if one is None or other is None:
        return None
    return (1 - share) * one[0] + share * other[0]


WAYS: Final[Mapping[str, Callable[[ForecastInput], float | None]]] = {
    LAST: lambda seen: seen.demand,
    RISE: _forecast_by_rise,
    "trend": _forecast_by_trend,
    "the day before": _before(DAY_S),
    "the week before": _before(WEEK_S),
}


def forecasts(seen: ForecastInput) -> Iterable[tuple[str, float]]:
    """Yield what each way that has what it takes comes to."""
    for name, way in WAYS.items():
        found = way(seen)
        if found is not None:
            yield name, max(0.0, found)
