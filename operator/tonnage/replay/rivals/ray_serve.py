"""Ray Serve: ongoing requests over a target for each replica, after delays.

Follows ray-project/ray python/ray/serve/autoscaling_policy.py and config.py, with the defaults of
``num_replicas="auto"``: 2 requests, metrics every 10 s over 30 s, 30 s before it goes up, 600 s
before it goes down, no smoothing.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tonnage.estimate.metrics import Query
from tonnage.replay.rivals.patience import Patience
from tonnage.replay.rivals.rule import Signals, whole

LOOKBACK: Final = 3
"""Samples, one each 10 s."""


@dataclass(slots=True, kw_only=True)
class RayServe:
    """Asks for so many replicas that each has ``target`` requests ongoing."""

    target: float
    ongoing: deque[int] = field(default_factory=lambda: deque(maxlen=LOOKBACK))
    patience: Patience = field(default_factory=lambda: Patience(up_s=30.0, down_s=600.0))
    interval_s: float = 10.0
    table: Mapping[str, Query] = field(default_factory=dict)
    reads_engines: bool = False

    def replicas(self, signals: Signals) -> int:
        self.ongoing.append(signals.in_flight)
        mean = sum(self.ongoing) / len(self.ongoing)
        return self.patience.allowed(whole(mean / self.target), signals, self.interval_s)
