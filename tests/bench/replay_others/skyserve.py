"""SkyServe: the rate of a minute over what a replica is said to serve, after long delays.

Follows skypilot-org/skypilot sky/serve/autoscalers.py RequestRateAutoscaler: decided every 20 s,
300 s before it goes up, 1,200 s before it goes down. ``target_qps_per_replica`` is the user's to
say: here a share of the goodput that is believed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from replay_others.patience import Patience
from tonnage.estimate.metrics import Query
from tonnage.replay.rivals.arrivals import Arrivals
from tonnage.replay.rivals.rule import Signals, whole

WINDOW_S: Final = 60.0


@dataclass(slots=True, kw_only=True)
class SkyServe:
    """Asks for the rate over ``load`` of a replica's believed goodput."""

    load: float
    arrivals: Arrivals = field(default_factory=lambda: Arrivals(window_s=WINDOW_S))
    patience: Patience = field(default_factory=lambda: Patience(up_s=300.0, down_s=1200.0))
    interval_s: float = 20.0
    table: Mapping[str, Query] = field(default_factory=dict)

    def replicas(self, signals: Signals) -> int:
        rate = self.arrivals.requests_per_s(signals)
        if rate is None:
            return signals.asked
        wanted = whole(rate / (self.load * signals.told.believed_requests_per_s))
        return self.patience.confirm(wanted, signals, self.interval_s)
