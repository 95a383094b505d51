"""Error budget: how many requests may still be late, of those that came within a window.

A ledger counts the requests that were judged against each limit, and those that were late, by bins
of a 24th of the window. What a target allows to be late of the requests that came is its budget;
requests that are still to come earn none. A bin that ages out of the window takes its late requests
with it, so a budget that is burnt comes back by itself.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from tonnage.units import DAY_S, HOUR_S, format_s

BINS: Final = 24
"""Of a window: the oldest leaves it as a whole."""
DEFAULT_WINDOW_S: Final = DAY_S
FEWEST, FEWEST_ALLOWED = 100.0, 1.0
"""Requests, and late ones allowed of them, below which a budget says nothing: one would burn it."""
STAYS: Final = 0.5
"""Of these, down to which a budget that says something goes on."""
ROUNDING: Final = 1e-9

Judged = tuple[float, float]
"""(requests, late requests)"""
Bins = Mapping[int, Judged]
"""By number of the bin, since 1970."""


def limit_key(latency: str, limit_s: float) -> str:
    """Return the name under which the requests that exceed a limit are counted.

    >>> limit_key("TTFT", 2)
    'TTFT 2.00 s'
    """
    return f"{latency} {format_s(limit_s)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Requests in time and late of one object, by limit and bin."""

    window_s: float = DEFAULT_WINDOW_S
    limits: Mapping[str, Bins] = field(default_factory=dict)
    since_s: float = 0.0
    """Since when they are counted: what came before is in no bin."""

    @property
    def bin_s(self) -> float:
        return self.window_s / BINS

    def is_whole(self, now_s: float) -> bool:
        """Tell whether all bins of the window were counted."""
        return self.since_s <= (math.floor(now_s / self.bin_s) - BINS + 1) * self.bin_s


@dataclass(frozen=True)
class Objective:
    """The share of the requests that may exceed a limit."""

    latency: str
    quantile: float
    limit_s: float
    allowed_share: float

    @cached_property
    def limit(self) -> str:
        return limit_key(self.latency, self.limit_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorBudget:
    """What is left of the late requests that one objective allows, over a window."""

    objective: Objective
    window_s: float
    num_requests: float
    """That came within the window and were judged."""
    num_late: float
    recent_share: float
    """Late ones among those of this bin and the ones before, for an hour at least."""

    @property
    def left(self) -> float:
        """Share of the budget that is not burnt; below 0 more are late than may be."""
        return 1 - self.num_late / (self.objective.allowed_share * self.num_requests)

    @property
    def is_burnt(self) -> bool:
        return self.left < -ROUNDING

    @property
    def burn_rate(self) -> float:
        """Recent late requests over those allowed: at 1 a window burns its budget."""
        return self.recent_share / self.objective.allowed_share


def with_judged(known: Ledger, judged: Mapping[str, Judged], *, at_s: float) -> Ledger:
    """Return the ledger with what was judged just now, by limit.

    Where the clock was set back, what is counted for a time to come counts for now.
    """
    now = math.floor(at_s / known.bin_s)
    added = ((limit, now, each) for limit, each in judged.items())
    return _ledger(known, (*_entries(known), *added), now=now)


def with_past(known: Ledger, past: Ledger, *, now_s: float) -> Ledger:
    """Return the ledger with what was counted before it began."""
    before = in_window(past, known.window_s if known.limits else past.window_s, now_s=now_s)
    both = (*_entries(before), *_entries(known))
    return _ledger(before, both, now=math.floor(now_s / before.bin_s))


def in_window(known: Ledger, window_s: float, *, now_s: float) -> Ledger:
    """Return the ledger in bins of another window, each by its middle or, of the last one, now.

    What a shorter one does not reach goes.
    """
    if window_s == known.window_s:
        return known
    moved = replace(known, window_s=window_s)
    entries = (
        (limit, math.floor(min(now_s, (at + 0.5) * known.bin_s) / moved.bin_s), each)
        for limit, at, each in _entries(known)
    )
    return _ledger(moved, entries, now=math.floor(now_s / moved.bin_s))


def _entries(known: Ledger) -> Iterator[tuple[str, int, Judged]]:
    return ((limit, at, each) for limit, bins in known.limits.items() for at, each in bins.items())


def _ledger(known: Ledger, entries: Iterable[tuple[str, int, Judged]], *, now: int) -> Ledger:
    """Return a ledger of these entries (limit, bin, judged), less those that left the window."""
    limits = defaultdict[str, dict[int, Judged]](dict)
    for limit, at, (number, late) in entries:
        if at > now - BINS:
            was = limits[limit].get(min(at, now), (0.0, 0.0))
            limits[limit][min(at, now)] = was[0] + number, was[1] + late
    return replace(known, limits=dict(limits))


def error_budget(
    known: Ledger, objective: Objective, *, now_s: float, was_known: bool = False
) -> ErrorBudget | None:
    """Return the budget of an objective; None: too few requests were judged to say anything.

    ``was_known``: it said something before, and goes on down to fewer.
    """
    now, recent_bins = math.floor(now_s / known.bin_s), math.ceil(HOUR_S / known.bin_s) + 1
    requests = late = recent = recent_late = 0.0
    for at, (number, num_late) in known.limits.get(objective.limit, {}).items():
        if at > now - BINS:
            requests, late = requests + number, late + num_late
        if at > now - recent_bins:
            recent, recent_late = recent + number, recent_late + num_late
    allowed, share = objective.allowed_share * requests, STAYS if was_known else 1.0
    if requests < share * FEWEST or allowed < share * FEWEST_ALLOWED - ROUNDING:
        return None
    return ErrorBudget(
        objective=objective,
        window_s=known.window_s,
        num_requests=requests,
        num_late=late,
        recent_share=recent_late / recent if recent else 0.0,
    )
