"""Headroom, holding, and the record of both: how far demand rises above the plan within a start.

It is noted each minute by how much demand is above what was planned for a start ago. The headroom
is the least that as few notes exceed as the promise allows to be late: where forecasts come true
there is none. What rises by more than half is a jump, for which no headroom pays. A rate is counted
over a minute or more, so a plan may be made in the midst of a jump: it is told by how far demand
rose in the minutes around the plan.

Replicas that demand has left are held for some starts, by what letting them go costs: one that is
needed again is missed for a whole start. At each note it is asked for what a fleet would stand that
held them for 3, 6, 12 or 24 starts: for the highest demand of so long, until a start ago. What came
above would have been short, what it exceeds held for nothing. A replica that is short costs as many
that are held as the promise asks: 99 under p99. They are held for the time that cost least, a tenth
less than a shorter one. What comes a little above is for forecasts and headroom alone.

These records are stored, since they hang on what was planned when; demand of the week comes from
Prometheus at the start (``past``).
"""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Final, NamedTuple

from msgspec import Meta

from tonnage.estimate.forecasters import BIN_S, SAMPLE_INTERVAL_S, WAYS, Pattern, Recent
from tonnage.sizing.request import SizingRequest
from tonnage.units import HOUR_S, PETA

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


def unmeasured_headroom(request: SizingRequest) -> float:
    """Return the share to add to what spec.demand expects, before any of it was measured.

    A peak that the spec states counts against it. Without an SLO there is no headroom.
    """
    if request.slo.is_offline:
        return 0.0
    return max(0.0, (1 + UNSEEN) / request.demand.peak_ratio - 1)


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
CHEAPER: Final = 0.9
"""Of the cost of a shorter time: what a longer one has to stay below."""
MOST_PRICE: Final = 99.0
"""Of a replica short, in replicas held: promises above p99 have none that is higher."""

HoldCost = tuple[tuple[float, float], ...]
"""(short, held for nothing) by the starts for which replicas are held: demand times faded notes."""
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


LARGEST: Final = PETA
"""No figure that we write comes near."""
LONGEST_NAME: Final = 64

Number = Annotated[float, Meta(ge=-LARGEST, le=LARGEST)]
Amount = Annotated[float, Meta(ge=0, le=LARGEST)]
Positive = Annotated[float, Meta(gt=0, le=LARGEST)]
Count = Annotated[int, Meta(ge=0, le=int(LARGEST))]
Name = Annotated[str, Meta(max_length=LONGEST_NAME)]

FORGET_S: Final = 12 * HOUR_S
"""In which the record of a forecast loses all but 1/e of its weight."""
MOST_WEIGHT: Final = 1.001 / (1 - math.exp(-SAMPLE_INTERVAL_S / FORGET_S))
"""That a score comes to if it is never without a note, and a rounding."""
MOST_NOTES: Final = 1.1 * FORGET_NOTES
"""What the weight of notes comes to if none is missed, and a rounding."""
MOST_REPLICAS: Final = 1e4
"""Of demand: a fleet has a thousand replicas at most."""
HEADROOM_CHANGE: Final = 0.04
STRICT: Final = 0.99
"""The quantile at which headroom is compared, and for how long replicas are held."""

Weight = Annotated[float, Meta(ge=0, le=MOST_NOTES)]
Replicas = Annotated[float, Meta(ge=0, le=MOST_NOTES * MOST_REPLICAS)]
ForEachEdge = Meta(min_length=len(FIRST), max_length=len(FIRST))
ForEachTime = Meta(min_length=len(NOTHING_HELD), max_length=len(NOTHING_HELD))


class Score(NamedTuple):
    """The loss of one way to forecast; both sums lose weight with time."""

    loss: Annotated[float, Meta(ge=0, le=MOST_WEIGHT * MOST_REPLICAS)]
    weight: Annotated[float, Meta(gt=0, le=MOST_WEIGHT)]

    @property
    def mean(self) -> float:
        return self.loss / self.weight if self.weight else math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRecord:
    """How forecasts and plans of an object's demand fared."""

    record: Annotated[Mapping[Name, Score], Meta(max_length=len(WAYS))]
    """By way to forecast."""
    rises: Annotated[tuple[Weight, ...], ForEachEdge] = FIRST
    held: Annotated[tuple[tuple[Replicas, Replicas], ...], ForEachTime] = NOTHING_HELD


def is_news(before: KeptRecord | None, after: KeptRecord) -> bool:
    """Tell whether rises ask for another headroom, or replicas are held for another time."""
    rises, held = (before.rises, before.held) if before else (FIRST, NOTHING_HELD)
    rooms = [headroom(each, quantile=STRICT) for each in (rises, after.rises)]
    starts = [held_starts(each, quantile=STRICT) for each in (held, after.held)]
    return abs(rooms[0] - rooms[1]) > HEADROOM_CHANGE or starts[0] != starts[1]
