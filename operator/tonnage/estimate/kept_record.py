"""What forecasts and plans of one object came to: the part of its history that is stored.

Demand of the week is asked of Prometheus at the start (``past``). The records of forecasts, of
rises and of holding are not there: they hang on what was planned when.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final, NamedTuple

from msgspec import Meta

from tonnage.estimate.forecasters import SAMPLE_INTERVAL_S, WAYS
from tonnage.estimate.headroom import FIRST, FORGET_NOTES, NOTHING_HELD, headroom, held_starts
from tonnage.units import HOUR_S, PETA

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
