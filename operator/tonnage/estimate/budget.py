"""Error budget: how many requests may still be late, of those that came within a window.

A ledger counts, for each SLO target, the requests that were judged and those that were late, by
bins of a 24th of the window. What a target allows to be late of the requests that came is its
budget; requests that are still to come earn none. A bin that ages out of the window takes its late
requests with it, so a budget that is burnt comes back by itself.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from tonnage.units import DAY_S, HOUR_S

BINS: Final = 24
"""Of a window: the oldest leaves it as a whole."""
DEFAULT_WINDOW_S: Final = DAY_S
LEAST_WINDOW_S, MOST_WINDOW_S = HOUR_S, 7 * DAY_S
"""A bin of the shortest holds one judgement: latencies are counted over two minutes."""
FEWEST: Final = 100.0
"""Requests, below which a budget says nothing: one late request would burn it."""

Judged = tuple[float, float]
"""(requests, late requests)"""
Bins = Mapping[int, Judged]
"""By number of the bin, since 1970."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Requests in time and late of one object, by target and bin."""

    window_s: float = DEFAULT_WINDOW_S
    targets: Mapping[str, Bins] = field(default_factory=dict)
    """By latency and limit: of another limit other requests are late."""

    @property
    def bin_s(self) -> float:
        return self.window_s / BINS


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorBudget:
    """What is left of the late requests that one target allows, over a window."""

    target: str
    window_s: float
    allowed_share: float
    """Of requests, that may be late."""
    num_requests: float
    """That came within the window and were judged."""
    num_late: float
    recent_share: float
    """Of the requests of the last hour, or of the last bin where that is longer: those late."""

    @property
    def attainment(self) -> float:
        return 1 - self.num_late / self.num_requests

    @property
    def left(self) -> float:
        """Share of the budget that is not burnt; below 0 more are late than may be."""
        return 1 - self.num_late / (self.allowed_share * self.num_requests)

    @property
    def burn_rate(self) -> float:
        """Late requests of late over those allowed: at 1 a window burns its budget."""
        return self.recent_share / self.allowed_share


def with_judged(
    known: Ledger, judged: Mapping[str, Judged], *, at_s: float, window_s: float
) -> Ledger:
    """Return the ledger with what was judged just now, by target. ``window_s``: of the budget.

    Where the window is another one than before, what was counted is put into its bins.
    """
    if window_s != known.window_s:
        known = _in_bins_of(known, window_s, at_s=at_s)
    now = math.floor(at_s / known.bin_s)
    targets = {
        target: {at: each for at, each in bins.items() if now - BINS < at <= now}
        for target, bins in known.targets.items()
    }
    for target, more in judged.items():
        bins = targets.setdefault(target, {})
        bins[now] = _sum((bins.get(now, (0.0, 0.0)), more))
    return replace(known, targets={target: bins for target, bins in targets.items() if bins})


def _in_bins_of(known: Ledger, window_s: float, *, at_s: float) -> Ledger:
    """Return the ledger in bins of another window, each by its middle or, of the last one, now."""
    moved = Ledger(window_s=window_s)
    targets = dict[str, Bins]()
    for target, bins in known.targets.items():
        found = dict[int, Judged]()
        for at, each in bins.items():
            to = math.floor(min(at_s, (at + 0.5) * known.bin_s) / moved.bin_s)
            found[to] = _sum((found.get(to, (0.0, 0.0)), each))
        targets[target] = found
    return replace(moved, targets=targets)


def error_budget(
    known: Ledger, allowed_shares: Mapping[str, float], *, now_s: float
) -> ErrorBudget | None:
    """Return the budget of the target that has least left; None: too few requests were judged.

    ``allowed_shares``: of requests that may be late, by target.
    """
    now, recent_bins = math.floor(now_s / known.bin_s), math.ceil(HOUR_S / known.bin_s)
    found = list[ErrorBudget]()
    for target, share in allowed_shares.items():
        bins = {at: each for at, each in known.targets.get(target, {}).items() if at > now - BINS}
        requests, late = _sum(bins.values())
        recent = _sum(each for at, each in bins.items() if at > now - recent_bins)
        if requests < FEWEST or share <= 0:
            continue
        found.append(
            ErrorBudget(
                target=target,
                window_s=known.window_s,
                allowed_share=share,
                num_requests=requests,
                num_late=late,
                recent_share=recent[1] / recent[0] if recent[0] else 0.0,
            )
        )
    return min(found, key=lambda each: each.left, default=None)


def _sum(bins: Iterable[Judged]) -> Judged:
    known = list(bins)
    return sum(requests for requests, _ in known), sum(late for _, late in known)
