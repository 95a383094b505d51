"""Headroom: how far demand rises above what was planned for, within a start, and how often.

A plan for what is expected is too small whenever more comes, and what a promise allows to be late
is soon used up. So it is noted each minute by how much demand stands above what was planned for a
start ago. The headroom is the least that few enough notes exceed: as few as the promise allows to
be late. Where forecasts come true there is none.

What rises by more than half is a jump: no headroom pays for it. A jump is seen in the midst, too: a
rate is counted over a minute or more, so a plan may be made for half of it. How far demand rose in
the minutes around the plan is therefore told as well; over a whole start, a ramp gets as far.

Holding: for how many starts replicas stay that demand has left, by what letting them go costs.

A replica that is removed and needed again is missed for a whole start; one that is held costs until
it is needed, or for nothing. Which is dearer hangs on whether demand comes back, and a record tells
that. At each note it is asked for what a fleet would stand that held its replicas for 3, 6, 12 or
24 starts: for the highest demand of so long, until a start ago. What came above it would have been
short, what it exceeds would have been held for nothing. A replica that is short costs as many that
are held as the promise asks: 99 under p99. Replicas are held for the time that cost least, a tenth
less than a shorter one; where demand never came back, or holding did not help, for three starts.

What comes a little above is for forecasts and headroom, and no reason to hold.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from tonnage.estimate.forecasters import BIN_S, Pattern, Recent

EDGES: Final = (0.0, 0.02, 0.05, 0.1, 0.15)
"""Shares above the plan that are told apart; the last is the most that is kept."""
JUMP: Final = 0.5
UNSEEN: Final = EDGES[-1]
"""Share above what spec.demand expects, before any of it was measured: a mean is told there, and
no record yet how far demand rises above it. In three hours of four of the traces that knobs are
fixed on, the highest three of the first ten minutes stood 19 and 31 % above the mean at most."""
LATE: Final = 1 / 3
"""Of the requests of a note above the plan, those that are late: where it stands little above,
whole replicas and the queue take it up."""
FORGET_NOTES: Final = 1440
"""In which a note loses all but 1/e of its weight: a day of minutes."""
FIRST: Final = (27.0, 0.0, 3.0, 0.0, 0.0, 0.0)
"""Notes that there are before any: one in ten a twentieth above the plan. Under a promise of p99 a
little more than an hour of calm takes that back, p95 allows as much from the start."""

ForecastErrors = tuple[float, ...]
"""Weight of the notes up to each edge, and of those above the last."""


def add_forecast_error(rises: ForecastErrors, share: float, *, risen: float) -> ForecastErrors:
    """Return the record with one more note.

    ``share``: of demand above what was planned for; below 0 where less came. ``risen``: from the
    least to the highest demand of the minutes around the plan, in which a jump may fall.
    """
    if share > 0 and max(share, risen) > JUMP:
        return rises
    kept = math.exp(-1 / FORGET_NOTES)
    found = [kept * weight for weight in rises]
    found[bisect_left(EDGES, share)] += 1.0
    return tuple(found)


def headroom(rises: ForecastErrors, *, quantile: float) -> float:
    """Return the share to add to what is planned for. ``quantile``: of the promise.

    >>> headroom(FIRST, quantile=0.99), headroom(FIRST, quantile=0.5)
    (0.05, 0.0)
    """
    allowed, above = (1 - quantile) * sum(rises) / LATE, 0.0
    for index in range(len(EDGES), 0, -1):
        above += rises[index]
        if above > allowed:
            return EDGES[min(index, len(EDGES) - 1)]
    return 0.0


STARTS: Final = (3.0, 6.0, 12.0, 24.0)
"""For which replicas may be held."""
"""In which a note loses all but 1/e of its weight: a day of minutes."""
CHEAPER: Final = 0.9
"""Of the cost of a shorter time: what a longer one has to stay below."""
MOST_PRICE: Final = 99.0
"""Of a replica short, in replicas held: promises above p99 have none that is higher."""

HoldCost = tuple[tuple[float, float], ...]
"""(short, held for nothing) by the starts for which replicas are held: demand times notes, those of
long ago with less weight."""
NOTHING_HELD: Final[HoldCost] = ((0.0, 0.0),) * len(STARTS)


def highest(recent: Recent, pattern: Pattern, *, at_s: float, lead_s: float) -> tuple[float, ...]:
    """Return the highest demand of so many starts until now: notes, then means of ten minutes."""
    oldest_s = recent[0][0] if recent else at_s
    found, most = [], 0.0
    for newer, older in pairwise((0.0, *STARTS)):
        until_s, since_s = at_s - newer * lead_s, at_s - older * lead_s
        most = max(most, *(rate for when_s, rate in recent if since_s <= when_s <= until_s), 0.0)
        bins = range(math.ceil(since_s / BIN_S), math.ceil(min(until_s, oldest_s) / BIN_S))
        most = max([most, *(pattern[each][0] for each in bins if each in pattern)])
        found.append(most)
    return tuple(found)


def with_held(held: HoldCost, provisioned_for: Sequence[float], *, came: float) -> HoldCost:
    """Return the record with one more note.

    ``provisioned_for``: the demand that replicas were there for, by the starts they are held.
    """
    if len(provisioned_for) != len(STARTS):
        return held
    kept = math.exp(-1 / FORGET_NOTES)

    def one(known: tuple[float, float], stood: float) -> tuple[float, float]:
        short = came - stood if came > (1 + EDGES[-1]) * stood else 0.0
        return kept * known[0] + short, kept * known[1] + max(0.0, stood - came)

    return tuple(one(known, stood) for known, stood in zip(held, provisioned_for, strict=True))


def held_starts(held: HoldCost, *, quantile: float) -> float:
    """Return for how many starts replicas are held. ``quantile``: of the promise.

    >>> held_starts(NOTHING_HELD, quantile=0.99)
    3.0
    """
    price = min(MOST_PRICE, quantile / (1 - quantile)) if quantile < 1 else MOST_PRICE
    costs = [price * short + over for short, over in held]
    return next(
        starts for starts, cost in zip(STARTS, costs, strict=True) if CHEAPER * cost <= min(costs)
    )
