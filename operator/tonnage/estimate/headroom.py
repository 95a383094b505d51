"""Headroom: how far demand rises above what was planned for, within a start, and how often.

A plan for what is expected is too small whenever more comes, and what a promise allows to be late
is soon used up. So it is noted each minute by how much demand stands above what was planned for a
start ago. The headroom is the least that few enough notes exceed: as few as the promise allows to
be late. Where forecasts come true there is none.

What rises by more than half is a jump: no headroom pays for it. A jump is seen in the midst, too: a
rate is counted over a minute or more, so a plan may be made for half of it. How far demand rose in
the minutes around the plan is therefore told as well; over a whole start, a ramp gets as far.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

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

ForecastErrors = Sequence[float]
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
