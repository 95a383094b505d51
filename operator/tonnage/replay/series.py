"""A run over time: what was asked for, what was Ready, what came, what waited, what was kept."""

import math
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from tonnage.replay.evaluation import RequestOutcomes
from tonnage.replay.fluid import Work
from tonnage.replay.record import Record, RunSnapshot
from tonnage.replay.traffic import Traffic

WIDTHS_S: Final = (60.0, 300.0, 600.0, 900.0, 1800.0, 3600.0)
MOST: Final = 300
"""Points, but for traffic of more than twelve days."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesPoint:
    """The means of a while; of requests that did not come, None."""

    at_s: float
    """When it began."""
    until_s: float
    replicas: float
    """Asked for."""
    ready: float
    """Those that are being taken away not among them."""
    live: float
    """Pods that are billed."""
    load: float
    """Replicas at their fluid bound that the requests of the time take."""
    requests_per_s: float
    planned_requests_per_s: float | None
    """None: no controller says what it plans for in this time."""
    waiting: float
    """Requests without their first token, at the end of the while."""
    attainment: float | None


def series(
    record: Record, drawn: Traffic, found: RequestOutcomes, work: Work
) -> tuple[SeriesPoint, ...]:
    return tuple(_points(record, drawn, found, work, width_of(drawn.duration_s)))


def width_of(duration_s: float) -> float:
    """Return the least width of points that makes not too many of them.

    >>> width_of(3600), width_of(86_400)
    (60.0, 300.0)
    """
    return next((each for each in WIDTHS_S if duration_s / each <= MOST), WIDTHS_S[-1])


def _points(
    record: Record, drawn: Traffic, found: RequestOutcomes, work: Work, width_s: float
) -> Iterator[SeriesPoint]:
    until_s, pods = drawn.duration_s, record.cluster.pods
    arrival_s = drawn.arrival_s
    first_s = array("d", sorted(each or math.inf for each in record.cluster.table.first_token_s))
    rows = zip(
        found.by_window(width_s, width_s, until_s),
        _means(_spans(record, lambda each: each.replicas), width_s, until_s),
        _means(_spans(record, lambda each: each.planned_requests_per_s), width_s, until_s),
        _means(_spans(record, _is_planned), width_s, until_s),
        _means(((pod.ready_s, pod.deleted_s, 1) for pod in pods), width_s, until_s),
        _means(((pod.created_s, pod.ended_s, 1) for pod in pods), width_s, until_s),
        strict=True,
    )
    for window, replicas, planned, known, ready, live in rows:
        from_s, to_s = window.start_s, min(until_s, window.start_s + width_s)
        yield SeriesPoint(
            at_s=from_s,
            until_s=to_s,
            replicas=replicas,
            ready=ready,
            live=live,
            load=work.mean(from_s, to_s),
            requests_per_s=window.num_requests / (to_s - from_s),
            planned_requests_per_s=planned / known if known else None,
            waiting=bisect_right(arrival_s, to_s) - bisect_right(first_s, to_s),
            attainment=window.attainment,
        )


Span = tuple[float, float, float]
"""From when, until when, and how many."""


def _is_planned(moment: RunSnapshot) -> float:
    return moment.planned_requests_per_s is not None


def _spans(record: Record, figure: Callable[[RunSnapshot], float | None]) -> Iterator[Span]:
    """Yield a figure of each act of the controller that has one, which holds until the next act."""
    ends_s = [*(moment.at_s for moment in record.moments[1:]), math.inf]
    for moment, until_s in zip(record.moments, ends_s, strict=False):
        if (value := figure(moment)) is not None:
            yield moment.at_s, until_s, value


def _means(spans: Iterable[Span], width_s: float, until_s: float) -> list[float]:
    """Return how many there were in each while, in the mean over its time.

    >>> _means([(-5.0, 90.0, 2), (30.0, math.inf, 1)], 60.0, 150.0)
    [2.5, 2.0, 1.0]
    """
    starts_s = [number * width_s for number in range(math.ceil(until_s / width_s))]
    sums_s = [0.0] * len(starts_s)
    for from_s, to_s, number in spans:
        begins_s, ends_s = max(0.0, from_s), min(until_s, to_s)
        if begins_s >= ends_s:
            continue
        for place in range(int(begins_s // width_s), math.ceil(ends_s / width_s)):
            start_s = starts_s[place]
            overlap_s = min(ends_s, start_s + width_s) - max(begins_s, start_s)
            sums_s[place] += number * overlap_s
    return [
        sum_s / (min(until_s, start_s + width_s) - start_s)
        for start_s, sum_s in zip(starts_s, sums_s, strict=True)
    ]
