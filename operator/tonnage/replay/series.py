"""A run over time: what was asked for, what was Ready, what came, what waited, what was kept."""

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tonnage.replay.drawn import Drawn
from tonnage.replay.fluid import Work
from tonnage.replay.judge import Fates
from tonnage.replay.record import Moment, Record

WIDTHS_S: Final = (60.0, 300.0, 600.0, 900.0, 1800.0, 3600.0)
MOST: Final = 300
"""Points, but for traffic of more than twelve days."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The means of a while; of what nobody noted, None."""

    at_s: float
    """When it began."""
    until_s: float
    replicas: float | None
    """Asked for."""
    ready: float | None
    live: float | None
    """Pods that are billed."""
    load: float
    """Replicas at their fluid bound that the requests of the time take."""
    requests_per_s: float
    waiting: float
    """Requests without their first token, at the end of the while."""
    attainment: float | None


def series(record: Record, drawn: Drawn, found: Fates, work: Work) -> tuple[Point, ...]:
    return tuple(_points(record, drawn, found, work, width_of(drawn.duration_s)))


def width_of(duration_s: float) -> float:
    """Return the least width of points that makes not too many of them.

    >>> width_of(3600), width_of(86_400)
    (60.0, 300.0)
    """
    return next((each for each in WIDTHS_S if duration_s / each <= MOST), WIDTHS_S[-1])


def _points(
    record: Record, drawn: Drawn, found: Fates, work: Work, width_s: float
) -> Iterator[Point]:
    moments, until_s = record.moments, drawn.duration_s
    times_s = [moment.at_s for moment in moments]
    arrival_s = drawn.traffic.arrival_s
    first_s = array("d", sorted(each or math.inf for each in record.cluster.table.first_token_s))
    for window in found.by_window(width_s, width_s, until_s):
        from_s, to_s = window.start_s, min(until_s, window.start_s + width_s)
        seen = moments[bisect_left(times_s, from_s) : bisect_left(times_s, to_s)]
        yield Point(
            at_s=from_s,
            until_s=to_s,
            replicas=_mean(seen, "replicas"),
            ready=_mean(seen, "ready"),
            live=_mean(seen, "live"),
            load=work.mean(from_s, to_s),
            requests_per_s=window.num_requests / (to_s - from_s),
            waiting=bisect_right(arrival_s, to_s) - bisect_right(first_s, to_s),
            attainment=window.attainment,
        )


def _mean(moments: list[Moment], name: str) -> float | None:
    if not moments:
        return None
    total: float = sum(getattr(moment, name) for moment in moments)
    return total / len(moments)
