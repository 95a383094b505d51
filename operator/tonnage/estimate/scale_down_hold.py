"""Holding: for how many starts replicas stay that demand has left, by what letting them go costs.

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
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from tonnage.estimate.forecasters import BIN_S, Pattern, Recent
from tonnage.estimate.headroom import EDGES

STARTS: Final = (3.0, 6.0, 12.0, 24.0)
"""For which replicas may be held."""
FORGET_NOTES: Final = 1440
"""In which a note loses all but 1/e of its weight: a day of minutes."""
CHEAPER: Final = 0.9
"""Of the cost of a shorter time: what a longer one has to stay below."""
MOST_PRICE: Final = 99.0
"""Of a replica short, in replicas held: promises above p99 have none that is higher."""

HoldCost = Sequence[tuple[float, float]]
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
