"""What came to one engine, from what its page said at every tick: pages of another are left out.

Requests that ended, were rejected, run or wait are together all that ever came to an engine: a
number that grows by what comes, and falls where the engine begins anew. A page that is not the
engine's spoils every rate over it: a counter that falls to zero and returns looks to Prometheus
like one that began anew and counted all of it again. Of the readings of a quarter of an hour those
are believed that need the fewest exceptions: one that is left out is one, and an engine that began
anew some. So one reading, or three, beside a track to which the next returns was none of it, and a
track that goes on elsewhere is another one.
"""

import math
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from operator import add, sub, truediv
from statistics import median
from typing import Final, NamedTuple

from tonnage.estimate.metrics import SLOW_SCRAPES

KEPT_SCRAPES = SLOW_SCRAPES + 8
"""The first ones have nothing before them that they could be held against."""
REACH = 12
"""Readings in a row that may be left out."""
LEFT_OUT = 1.0
UNCONFIRMED, LATER_UNCONFIRMED = 2.0, 0.5
"""Of the newest reading, and of each before it, if nothing after it tells which is right."""
CHANGED = 3.5
"""An engine that began anew: believed from the fifth reading on."""
SUDDEN = 2.75
"""A growth that is rare: believed from the third reading on."""
IMPOSSIBLE = 8.0
USUAL, LEAST_SUDDEN = 4.0, 20.0
"""Times the requests that usually end in such a time, or go on to, and requests beside: beyond, a
growth is sudden. Those that run or wait may be any number at once."""
MOST_PER_S = 100.0
"""Requests/s that end at one engine at most, or as many as ever did: beyond is impossible."""
SLACK, SLACK_SHARE = 3.0, 0.1
"""By which a sum of gauges and counters may fall, in requests and of those in flight."""


class Reading(NamedTuple):
    """What one scrape said of the requests that ever came to an engine."""

    at_s: float
    arrived: float
    """Ended, rejected, running or waiting."""
    running: float
    waiting: float
    """For capacity."""

    @property
    def num_ended(self) -> float:
        return self.arrived - self.running - self.waiting


def _is_change(before: Reading, after: Reading) -> bool:
    """Tell whether one reading may be no plain successor of another, whatever is usual."""
    has_grown = after.num_ended - before.num_ended > LEAST_SUDDEN
    return has_grown or after.arrived - before.arrived < -SLACK


class Readings:
    """What the scrapes of one engine said, by time: in one array, a fifth of so many objects."""

    __slots__ = ("_figures", "changed_at_s")

    def __init__(self, readings: Iterable[Reading] = ()) -> None:
        known = tuple(readings)
        self._figures = array("d", chain.from_iterable(known))
        changes = (after.at_s for before, after in pairwise(known) if _is_change(before, after))
        self.changed_at_s = max(changes, default=-math.inf)
        """When one last was far from the one before it."""

    def __len__(self) -> int:
        return len(self._figures) // WIDTH

    def __iter__(self) -> Iterator[Reading]:
        return map(Reading, *self.columns)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Readings) and self._figures == other._figures

    __hash__ = None  # type: ignore[assignment]

    @property
    def columns(self) -> Iterator["array[float]"]:
        """The figures of all readings, one field of ``Reading`` after the other."""
        return (self._figures[part::WIDTH] for part in range(WIDTH))

    @property
    def first(self) -> Reading:
        return Reading(*self._figures[:WIDTH])

    @property
    def last(self) -> Reading:
        return Reading(*self._figures[-WIDTH:])

    def with_newest(self, newest: Reading, *, since_s: float) -> "Readings":
        """Return those after that time, and the newest one."""
        found = Readings([newest])
        dropped = bisect_right(self._figures[::WIDTH], since_s)
        found._figures = self._figures[dropped * WIDTH :] + found._figures
        is_change = bool(self) and _is_change(self.last, newest)
        found.changed_at_s = newest.at_s if is_change else self.changed_at_s
        return found


WIDTH: Final = len(Reading._fields)
NOTHING_READ: Final = Readings()
EngineKey = tuple[str, str]
"""(pod, engine)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """The readings of one engine that are its own."""

    sound: tuple[Reading, ...]
    totals: tuple[float, ...]
    """Requests that came since the first of them, over every new beginning."""
    odd_s: tuple[float, ...]
    """When a reading was none of the engine's, or it began anew."""

    def per_s(self, *, since_s: float, least_s: float) -> float | None:
        """Return requests/s since a time; None where too little of that was watched."""
        within = [
            (reading.at_s, total)
            for reading, total in zip(self.sound, self.totals, strict=True)
            if reading.at_s > since_s
        ]
        if not within:
            return None
        (began_s, first), (ended_s, last) = within[0], within[-1]
        seconds = ended_s - began_s
        return (last - first) / seconds if 0 < seconds >= least_s else None


def add_reading(readings: Readings, newest: Reading, *, interval_s: float) -> Readings:
    """Add a reading, if it is of another scrape; those too old to matter are dropped."""
    if readings and newest.at_s < readings.last.at_s:
        return Readings([newest])  # the clock was set back
    if readings and newest.at_s == readings.last.at_s:
        return readings
    return readings.with_newest(newest, since_s=newest.at_s - KEPT_SCRAPES * interval_s)


def is_plain(read: Readings, *, interval_s: float) -> bool:
    """Tell whether every reading follows the one before it: then all are the engine's own."""
    return read.changed_at_s <= read.first.at_s or _Steps(read, interval_s).are_plain


def track_of(read: Iterable[Reading], *, interval_s: float) -> Track:
    """Return the readings that are the engine's own, by the fewest exceptions."""
    readings = tuple(read)
    steps = _Steps(Readings(readings), interval_s)
    followed = _follow(len(readings), steps)
    sound = tuple(readings[at] for at in followed)
    grown = [steps.growth(first, second) for first, second in pairwise(followed)]
    began = {readings[to].at_s for at, to in pairwise(followed) if steps.has_fallen(at, to)}
    left_out = {each.at_s for each in readings} - {each.at_s for each in sound}
    return Track(
        sound=sound,
        totals=tuple(accumulate(grown, initial=0.0)),
        odd_s=tuple(sorted(left_out | began)),
    )


class _Steps:
    """How likely one reading of an engine follows another, as exceptions that it takes."""

    def __init__(self, readings: Readings, interval_s: float) -> None:
        self._at_s, self._arrived, running, waiting = readings.columns
        self._in_flight: list[float] = list(map(add, running, waiting))
        self._ended: list[float] = list(map(sub, map(sub, self._arrived, running), waiting))
        grown = map(sub, self._ended[1:], self._ended)
        times = [max(interval_s / 2, each) for each in map(sub, self._at_s[1:], self._at_s)]
        rates: list[float] = list(map(truediv, grown, times))
        self._usual_per_s = max(0.0, median(rates)) if rates else 0.0
        self._before_per_s, self._after_per_s = [0.0, *rates], [*rates, 0.0]

    @property
    def are_plain(self) -> bool:
        """Tell whether every reading follows the one before it."""
        return not any(self.cost(at, at + 1) for at in range(len(self._at_s) - 1))

    def has_fallen(self, first: int, second: int) -> bool:
        slack = SLACK + SLACK_SHARE * self._in_flight[first]
        return self._arrived[second] < self._arrived[first] - slack

    def cost(self, first: int, second: int) -> float:
        has_fallen, ended = self.has_fallen(first, second), self._ended[second]
        known = 0.0 if has_fallen else self._ended[first]
        grown = ended - known
        again = CHANGED if has_fallen else 0.0
        if grown <= LEAST_SUDDEN or grown <= self._usual(first, second):
            return again
        seconds = self._at_s[second] - self._at_s[first]
        return again + (SUDDEN if grown <= max(known, MOST_PER_S * seconds) else IMPOSSIBLE)

    def _usual(self, first: int, second: int) -> float:
        """Return the most requests that are usual in such a time, or before or after it."""
        seconds = self._at_s[second] - self._at_s[first]
        around = max(self._usual_per_s, self._before_per_s[first], self._after_per_s[second])
        return LEAST_SUDDEN + USUAL * seconds * around

    def growth(self, first: int, second: int) -> float:
        """Return the requests that came between two readings; a new beginning counts from zero.

        What is no plain growth counts as the most that is: it may still be none of the engine's.
        """
        known = 0.0 if self.has_fallen(first, second) else self._arrived[first]
        grown = self._arrived[second] - known
        most = self._usual(first, second) if self.cost(first, second) else grown
        return max(0.0, min(grown, most))


def _follow(number: int, steps: _Steps) -> Sequence[int]:
    """Return the places of the readings that take the fewest exceptions to follow."""
    costs, before = list[float](), list[int | None]()
    for at in range(number):
        choices: list[tuple[float, int | None]] = [(LEFT_OUT * at, None)]
        choices += (
            (costs[last] + LEFT_OUT * (at - last - 1) + steps.cost(last, at), last)
            for last in range(max(0, at - REACH), at)
        )
        cost, chosen = min(choices, key=lambda choice: choice[0])
        costs.append(cost)
        before.append(chosen)
    ends = [cost + _unconfirmed_cost(len(costs) - 1 - at) for at, cost in enumerate(costs)]
    return list(_backwards(before, ends.index(min(ends))))[::-1]


def _unconfirmed_cost(number: int) -> float:
    return UNCONFIRMED + LATER_UNCONFIRMED * (number - 1) if number else 0.0


def _backwards(before: Sequence[int | None], last: int) -> Iterator[int]:
    at: int | None = last
    while at is not None:
        yield at
        at = before[at]
