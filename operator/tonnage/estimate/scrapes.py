"""The scrapes of one engine, of a quarter of an hour: what windows, means and differences are of.

A page that does not follow the one before it (a counter is lower, or more requests ended than can
be) waits for two more. Where they return to the engine's own counters, it was a page of another
engine, or a broken one, and is left out. Where they do not, the engine began anew: counters go on
from where they were, and the time in between was not watched.
"""

import math
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from math import isfinite, nan
from operator import sub
from typing import Final, NamedTuple

from tonnage.estimate.metrics import (
    COLUMNS,
    FAST_SCRAPES,
    FRESH_SCRAPES,
    LONG,
    PLACES,
    SLOW_SCRAPES,
)

Row = Sequence[float]
"""The columns of a page, bounds of histograms last. NaN: not on it; infinite: there, no figure."""
Timed = tuple[float, Row]
"""A page and the time of its scrape."""
TIME, WATCHED, IN_FLIGHT, NUM_OWN = 0, 1, 2, 3
"""Columns before those of the page: when, the time that was watched until then, and the requests
that run or wait, without the jumps where the engine began anew."""
NUM_EVERY, THEN_EVERY = 20, 4
"""So many scrapes are kept, and of those before them every fourth."""
KEPT_SHORT = FAST_SCRAPES + 2
RESTARTED, REPLACED, MOST_ODD = 3, 5, 8
"""Pages in a row that follow each other and not those before, from which on they are believed: with
lower counters an engine began anew; with higher ones that is rare, and a broken page likelier. And
how many that follow nothing may come."""
LEAST_SUDDEN, USUAL = 20.0, 4.0
"""More requests end between two scrapes than can be: beyond what was in flight, so many, and so
many times what usually end. Short ones may: the time that an engine says they took is believed if
no more than these, without what usually ends, would have run all the time."""
ROUNDING = 1e-9
"""Of sums of floats."""
RUNNING, QUEUED, COMPLETED, REJECTED = (
    PLACES[name] for name in ("running", "queued", "completed", "rejected")
)
TOOK_S = PLACES["token_gap_s"], PLACES["prefill_s"]
GAUGES: Final = frozenset(at for at, column in enumerate(COLUMNS) if column.is_gauge)


class Window(NamedTuple):
    """The newest scrapes of an engine."""

    rows: int
    seconds: float
    """That were watched in it."""


class _Rows:
    """Rows of figures in one array: a tenth of the memory of so many lists."""

    __slots__ = ("_kept", "_values", "width")

    def __init__(self, width: int) -> None:
        self.width = width
        self._values = array("d")

    def __len__(self) -> int:
        return len(self._values) // self.width

    def append(self, row: Row) -> None:
        if len(row) > self.width:
            self._widen(len(row))
        self._values.extend(row)
        self._values.extend([nan] * (self.width - len(row)))

    def column(self, place: int, rows: int) -> "array[float]":
        """Return the newest figures of a column."""
        if place >= self.width:
            return array("d")
        first = max(0, len(self._values) - rows * self.width)
        return self._values[first + place :: self.width]

    def growths(self, rows: int) -> Iterable[float]:
        """Return the last row less the first of so many; NaN: there are fewer."""
        values, width = self._values, self.width
        first = len(values) - rows * width
        if first < 0:
            return [nan] * width
        return map(sub, values[-width:], values[first : first + width])

    def forget(self, first: int, rows: int = 1) -> None:
        """Drop so many rows, from the first of them on."""
        del self._values[first * self.width : (first + rows) * self.width]

    def _widen(self, width: int) -> None:
        """Make room for bounds of histograms that came to be asked for."""
        wider = array("d")
        for first in range(0, len(self._values), self.width):
            wider.extend(self._values[first : first + self.width])
            wider.extend([nan] * (width - self.width))
        self._values, self.width = wider, width


class EngineScrapes:
    """A ring of the scrapes of one engine."""

    __slots__ = (
        "_interval_s",
        "_known",
        "_long",
        "_odd",
        "_offsets",
        "_raw",
        "_short",
        "_unwatched_s",
        "followed",
    )

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self.followed: int | None = None
        """Which of the label sets in which its series come."""
        self._long = _Rows(NUM_OWN + len(LONG))
        self._short = _Rows(len(COLUMNS) - len(LONG))
        self._raw, self._known = array("d"), array("d")
        """The last figure of each column, on the page and in the ring; what is in flight first."""
        self._offsets = array("d")
        """Between them since the engine began anew; NaN: the next page tells."""
        self._unwatched_s = 0.0
        self._odd: list[Timed] = []
        """Pages that do not follow, with their times."""

    @property
    def at_s(self) -> float:
        """Return the time of the newest scrape that was taken; none: long ago."""
        return self._long.column(TIME, 1)[0] if len(self._long) else -math.inf

    @property
    def seen_at_s(self) -> float:
        """Return the time of the newest scrape, whether it was taken or not."""
        return self._odd[-1][0] if self._odd else self.at_s

    @property
    def span_s(self) -> float:
        """Return the time from the first scrape that is known to the newest."""
        return self.at_s - self._long.column(TIME, len(self._long))[0] if len(self._long) else 0.0

    def add(self, at_s: float, page: Row) -> None:
        """Take in a scrape that is newer than all before it."""
        if not isfinite(page[RUNNING]) or at_s - self.at_s < self._interval_s / 2:
            return
        if not len(self._long) or self._is_next(at_s, page):
            self._odd.clear()
            self._append(at_s, page)
            return
        self._odd.append((at_s, page))
        self._begin_anew()

    def windows(self, scrapes: Iterable[int]) -> Mapping[int, Window]:
        """Return the windows of so many scrapes each, or of as many as there are."""
        number = len(self._long)
        times, watched = (self._long.column(at, number) for at in (TIME, WATCHED))
        found = dict[int, Window]()
        for each in scrapes:
            first = bisect_right(times, times[-1] - (each - 0.5) * self._interval_s)
            found[each] = Window(number - first, watched[-1] - watched[first])
        return found

    def newest(self, place: int) -> float | None:
        """Return a gauge as the newest scrapes have it."""
        known = [v for v in self._column(place, FRESH_SCRAPES) if isfinite(v)]
        return known[-1] if known else None

    def mean(self, place: int, window: Window) -> float | None:
        """Return the mean of a gauge over a window."""
        known = [value for value in self._column(place, window.rows) if isfinite(value)]
        return sum(known) / len(known) if known else None

    def rates(self, window: Window) -> Sequence[float | None]:
        """Return the growth of each column over a window, per second; None: it is not known.

        What is in flight comes first. Over long windows there are the columns of ``LONG`` alone.
        """
        rows, seconds = window
        if seconds <= 0:
            return [None] * len(self._raw)
        is_short = rows <= len(self._short)
        grown = [*self._long.growths(rows), *(self._short.growths(rows) if is_short else ())]
        return [
            each / seconds if isfinite(each) else self._bridged(at, rows)
            for at, each in enumerate(grown[IN_FLIGHT:])
        ]

    def is_told(self, place: int, window: Window) -> bool:
        """Tell whether a column was on a page of a window, with a figure or without one."""
        return not all(math.isnan(value) for value in self._column(place, window.rows))

    def _thin(self) -> None:
        """Drop what no window reaches, and most of what only the longest does."""
        if len(self._short) > KEPT_SHORT:
            self._short.forget(0)
        times = self._long.column(TIME, len(self._long))
        if times[-1] - times[0] > (SLOW_SCRAPES + THEN_EVERY) * self._interval_s:
            self._long.forget(0)
        old = len(times) - NUM_EVERY - 1
        if old > 0 and times[old] - times[old - 1] < (THEN_EVERY - 0.5) * self._interval_s:
            self._long.forget(old)

    def _column(self, place: int, rows: int) -> "array[float]":
        if place < len(LONG):
            return self._long.column(NUM_OWN + place, rows)
        return self._short.column(place - len(LONG), rows)

    def _bridged(self, at: int, rows: int) -> float | None:
        """Return the growth of a column that a row at an end of a window lacks."""
        return self._slope(self._column(at - 1, rows)) if isfinite(self._raw[at]) else None

    def _slope(self, values: "array[float]") -> float | None:
        """Return the growth per second from the first figure to the last that are there."""
        rows = len(values)
        known = [at for at, value in enumerate(values) if isfinite(value)]
        if len(known) < 2 or rows - known[-1] > FRESH_SCRAPES:  # noqa: PLR2004 -- two ends
            return None
        watched = self._long.column(WATCHED, rows)
        seconds = watched[known[-1]] - watched[known[0]]
        return (values[known[-1]] - values[known[0]]) / seconds if seconds > 0 else None

    def _usual_per_s(self) -> float:
        """Return the requests that usually end: over all that is known, or of late."""
        number = len(self._long)
        rates = (self._slope(self._long.column(NUM_OWN + COMPLETED, rows)) for rows in (number, 2))
        return max(filter(None, rates), default=0.0)

    def _is_next(self, at_s: float, page: Row) -> bool:
        raw = self._raw[1:]
        joined = page[RUNNING] + page[QUEUED] - raw[RUNNING] - raw[QUEUED]
        if raw[COMPLETED] == 0 and joined > LEAST_SUDDEN:
            return False  # nothing has ended yet that would tell a broken page
        return _can_follow((self.at_s, raw), (at_s, page), self._usual_per_s)

    def _begin_anew(self) -> None:
        """Take in pages that did not follow, if they are as many in a row as are believed."""
        odd, first, raw = self._odd, len(self._odd) - 1, self._raw[1:]
        known = [(self.at_s, raw), *odd]
        rates = (
            (_ended(page) - _ended(last)) / (at_s - last_s)
            for (last_s, last), (at_s, page) in pairwise(known)
        )
        usual_per_s = max(
            self._usual_per_s(), min(each if isfinite(each) else 0.0 for each in rates)
        )
        while first and _can_follow(odd[first - 1], odd[first], lambda: usual_per_s):
            first -= 1
        believed = odd[first:]
        is_surge = len(believed) >= RESTARTED and self._is_surge(believed)
        least = RESTARTED if is_surge or _has_fallen(raw, believed[0][1]) else REPLACED
        if len(believed) < least and len(odd) < MOST_ODD:
            return
        if not is_surge:
            self._unwatched_s += believed[0][0] - self.at_s
            self._offsets = array("d", [nan] * len(self._offsets))
        self._odd = []
        for at_s, page in believed:
            self._append(at_s, page)

    def _is_surge(self, pages: Sequence[Timed]) -> bool:
        """Tell whether pages grow among themselves as the first of them did from what was known."""
        (began_s, began), (ended_s, ended) = pages[0], pages[-1]
        raw = self._raw[1:]
        if _has_fallen(raw, began):
            return False
        jump, grown = _ended(began) - _ended(raw), _ended(ended) - _ended(began)
        usual = USUAL * (began_s - self.at_s) * grown / (ended_s - began_s)
        return jump <= LEAST_SUDDEN + usual

    def _append(self, at_s: float, page: Row) -> None:
        figures = [page[RUNNING] + page[QUEUED], *page]
        known, raw, offsets = self._known, self._raw, self._offsets
        missing = len(figures) - len(raw)
        known.extend([nan] * missing)
        raw.extend([nan] * missing)
        offsets.extend([0.0] * missing)
        for at, value in enumerate(figures):
            if not isfinite(value):
                continue
            raw[at] = value
            if at - 1 not in GAUGES:
                if math.isnan(offsets[at]):
                    offsets[at] = known[at] - value if isfinite(known[at]) else 0.0
                known[at] = figures[at] = value + offsets[at]
        own = (at_s, at_s - self._unwatched_s)
        self._long.append([*own, *figures[: 1 + len(LONG)]])
        self._short.append(figures[1 + len(LONG) :])
        self._thin()


def _ended(page: Row) -> float:
    rejected = page[REJECTED]
    return page[COMPLETED] + (rejected if isfinite(rejected) else 0.0)


def _can_follow(before: Timed, after: Timed, usual_per_s: Callable[[], float]) -> bool:
    """Tell whether a page can be the next of an engine.

    ``usual_per_s``: requests that usually end, called only where many did.
    """
    (before_s, known), (after_s, page) = before, after
    if _has_fallen(known, page):
        return False
    grown = _ended(page) - _ended(known)
    if not grown > LEAST_SUDDEN:  # or not known
        return True
    in_flight = known[RUNNING] + (known[QUEUED] if isfinite(known[QUEUED]) else 0.0)
    passed_s, at_once = after_s - before_s, LEAST_SUDDEN + in_flight
    if 0 < sum(page[at] - known[at] for at in TOOK_S) <= at_once * passed_s:
        return True
    return grown <= at_once + USUAL * usual_per_s() * passed_s


def _has_fallen(before: Row, page: Row) -> bool:
    return any(
        value < last * (1 - ROUNDING) and at not in GAUGES
        for at, (last, value) in enumerate(zip(before, page, strict=False))
    )
