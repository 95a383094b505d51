"""Rate over true capacity: who is handed what everybody else must learn.

Follows nobody: it tells what comes of not knowing the capacity from what comes of not knowing the
future. The number is held for five minutes, like an HPA's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tonnage.estimate.metrics import Query
from tonnage.replay.rivals.arrivals import Arrivals
from tonnage.replay.rivals.rule import Signals, whole

HOLD_S: Final = 300.0
WINDOW_S: Final = 60.0


@dataclass(slots=True, kw_only=True)
class TrueRate:
    """Asks for the rate of a minute over a share ``load`` of a replica's true goodput."""

    load: float
    arrivals: Arrivals = field(default_factory=lambda: Arrivals(window_s=WINDOW_S))
    asked: list[tuple[float, int]] = field(default_factory=list)
    """When, and how many, within the time that they are held."""
    interval_s: float = 15.0
    table: Mapping[str, Query] = field(default_factory=dict)
    reads_engines: bool = False

    def replicas(self, signals: Signals) -> int:
        at_s, rate = signals.at_s, self.arrivals.requests_per_s(signals)
        if rate is None:
            self.asked.append((at_s, signals.asked))
            return signals.asked
        wanted = whole(rate / (self.load * signals.told.true_requests_per_s))
        self.asked = [each for each in self.asked if each[0] > at_s - HOLD_S] + [(at_s, wanted)]
        return max(number for _, number in self.asked)
