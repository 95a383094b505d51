"""Rate over true capacity: who is handed what everybody else must learn.

Follows nobody: it tells what comes of not knowing the capacity from what comes of not knowing the
future. The number is held for five minutes, like an HPA's.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from replay_others.inside import true_requests_per_s
from tonnage.replay.baselines.rule import Arrivals, Signals, whole
from tonnage.replay.prometheus import Query

HOLD_S: Final = 300.0
WINDOW_S: Final = 60.0


@dataclass(slots=True, kw_only=True)
class TrueRate:
    """Asks for the rate of a minute over a share ``load`` of a replica's true goodput."""

    load: float
    true: Callable[[Signals], float] = true_requests_per_s
    each: float | None = None
    """That a replica serves; None: it was not asked yet."""
    arrivals: Arrivals = field(default_factory=lambda: Arrivals(window_s=WINDOW_S))
    asked: list[tuple[float, int]] = field(default_factory=list)
    """When, and how many, within the time that they are held."""
    interval_s: float = 15.0
    table: Mapping[str, Query] = field(default_factory=dict)

    def replicas(self, signals: Signals) -> int:
        at_s, rate = signals.at_s, self.arrivals.requests_per_s(signals)
        if rate is None:
            self.asked.append((at_s, signals.asked))
            return signals.asked
        self.each = self.each or self.true(signals)
        wanted = whole(rate / (self.load * self.each))
        self.asked = [each for each in self.asked if each[0] > at_s - HOLD_S] + [(at_s, wanted)]
        return max(number for _, number in self.asked)
