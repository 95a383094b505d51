"""PromQL over the scrapes of one target: its functions over a window, and its aggregations.

Sources:
    [prometheus-source] promql/functions.go extrapolatedRate, linearRegression.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

Reduced = float | None

NEAR: Final = 1.1
"""Mean intervals between samples within which a window's edge is extrapolated to."""
LEAST: Final = 2
"""Samples of a slope."""


@dataclass(slots=True)
class SampleColumn:
    """The samples of one series, None where a scrape had none. Scrapes are numbered.

    ``hole`` and ``fall``: the newest scrape without a sample, and with less than the one before.
    """

    values: list[float | None] = field(default_factory=list)
    hole: int = -1
    fall: int = -1
    known: float = math.nan
    """The newest sample."""

    def take(self, value: float | None, number: int) -> None:
        self.values.append(value)
        if value is None:
            self.hole = number
            return
        if value < self.known:
            self.fall = number
        self.known = value


@dataclass(frozen=True, slots=True)
class ScrapeWindow:
    """A window over scrapes, open at its start: what series that are scraped together share."""

    first: int
    last: int
    """Places in a column: of the first sample, and behind the last one."""
    number: int
    """Of the first scrape."""
    times: Sequence[float]
    start_s: float
    end_s: float
    sampled_s: float
    """Between the first and the last sample."""
    before_s: float
    after_s: float
    """To which a slope is extrapolated at both ends."""


def span_of(
    times: Sequence[float], start_s: float, end_s: float, *, dropped: int = 0
) -> ScrapeWindow:
    """Return the window over these times; ``dropped``: scrapes before the first of them."""
    first, last = bisect_right(times, start_s), bisect_right(times, end_s)
    within = times[first:last]
    sampled_s = before_s = after_s = 0.0
    if len(within) >= LEAST:
        sampled_s = within[-1] - within[0]
        mean_s = sampled_s / (len(within) - 1)
        before_s, after_s = within[0] - start_s, end_s - within[-1]
        before_s = before_s if before_s < NEAR * mean_s else mean_s / 2
        after_s = after_s if after_s < NEAR * mean_s else mean_s / 2
    return ScrapeWindow(
        first, last, first + dropped, within, start_s, end_s, sampled_s, before_s, after_s
    )


def _samples(column: SampleColumn, span: ScrapeWindow) -> tuple[list[float], ScrapeWindow]:
    """Return the samples in a window, and the window as their times have it."""
    values = column.values[span.first : span.last]
    if column.hole < span.number or None not in values:
        return values, span  # type: ignore[return-value]
    known = [(t, v) for t, v in zip(span.times, values, strict=True) if v is not None]
    return [v for _, v in known], span_of([t for t, _ in known], span.start_s, span.end_s)


def _increase(column: SampleColumn, span: ScrapeWindow) -> Reduced:
    """Return the growth of a counter over a whole window; it begins anew where it falls."""
    values, known = _samples(column, span)
    if len(values) < LEAST:
        return None
    grown = values[-1] - values[0]
    if column.fall > span.number:
        grown += sum(before for before, value in pairwise(values) if value < before)
    if grown > 0 and values[0] >= 0:
        return _extrapolate(grown, known, known.sampled_s * values[0] / grown)
    return _extrapolate(grown, known)


def _delta(column: SampleColumn, span: ScrapeWindow) -> Reduced:
    values, known = _samples(column, span)
    return None if len(values) < LEAST else _extrapolate(values[-1] - values[0], known)


def _extrapolate(grown: float, span: ScrapeWindow, most_before_s: float = math.inf) -> float:
    """Return the growth over a whole window, from samples that do not reach its edges."""
    if grown == 0:
        return 0.0
    before_s = min(span.before_s, most_before_s)
    return grown * (span.sampled_s + before_s + span.after_s) / span.sampled_s


def _rate(column: SampleColumn, span: ScrapeWindow) -> Reduced:
    found = _increase(column, span)
    return None if found is None else found / (span.end_s - span.start_s)


def _deriv(column: SampleColumn, span: ScrapeWindow) -> Reduced:
    """Return the slope of the line of least squares."""
    values, known = _samples(column, span)
    times = known.times
    if len(values) < LEAST:
        return None
    mean_t, mean_v = sum(times) / len(times), sum(values) / len(values)
    spread = sum((t - mean_t) ** 2 for t in times)
    together = sum((t - mean_t) * (v - mean_v) for t, v in zip(times, values, strict=True))
    return together / spread if spread else None


def _resets(column: SampleColumn, span: ScrapeWindow) -> Reduced:
    values, _ = _samples(column, span)
    if not values:
        return None
    return sum(b < a for a, b in pairwise(values)) if column.fall > span.number else 0


def _instant(column: SampleColumn, span: ScrapeWindow) -> Reduced:
    """Return the newest value; None where the last scrape had none."""
    return column.values[span.last - 1] if span.times else None


def _timestamp(column: SampleColumn, span: ScrapeWindow) -> Reduced:
    return None if _instant(column, span) is None else span.times[-1]


def _over(
    function: Callable[[Sequence[float]], float],
) -> Callable[[SampleColumn, ScrapeWindow], Reduced]:
    def over(column: SampleColumn, span: ScrapeWindow) -> Reduced:
        values, _ = _samples(column, span)
        return function(values) if values else None

    return over


def _numbers(values: Sequence[float]) -> Iterator[float]:
    return (value for value in values if not math.isnan(value))


FUNCTIONS: Final[Mapping[str | None, Callable[[SampleColumn, ScrapeWindow], Reduced]]] = {
    None: _instant,
    "timestamp": _timestamp,
    "rate": _rate,
    "increase": _increase,
    "delta": _delta,
    "deriv": _deriv,
    "avg_over_time": _over(lambda values: sum(values) / len(values)),
    "min_over_time": _over(lambda values: min(_numbers(values), default=math.nan)),
    "max_over_time": _over(lambda values: max(_numbers(values), default=math.nan)),
    "sum_over_time": _over(sum),
    "count_over_time": _over(len),
    "last_over_time": _over(lambda values: values[-1]),
    "resets": _resets,
    "changes": _over(lambda values: sum(b != a for a, b in pairwise(values))),
}
INSTANT: Final = (None, "timestamp")
"""Functions of an instant selector, whose window is the lookback."""
AGGREGATIONS: Final[Mapping[str, Callable[[Sequence[float]], float]]] = {
    "max": max,
    "min": min,
    "sum": sum,
    "group": lambda _: 1.0,
}
