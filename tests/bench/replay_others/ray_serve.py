"""Ray Serve: ongoing requests over a target for each replica, after delays.

Follows ray-project/ray python/ray/serve/autoscaling_policy.py and config.py, with the defaults of
``num_replicas="auto"``: 2 requests, metrics every 10 s over 30 s, 30 s before it goes up, 600 s
before it goes down, no smoothing.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from replay_others.inside import Patience
from tonnage.replay.baselines.rule import Signals, whole
from tonnage.replay.prometheus import Query

SAMPLE_S, WINDOW_S = 10.0, 30.0


@dataclass(slots=True, kw_only=True)
class RayServe:
    """Asks for so many replicas that each has ``target`` requests in the mean of ``counts``.

    The mean is over what there was so far until the window is full.
    """

    target: float
    counts: deque[int] = field(default_factory=lambda: deque(maxlen=round(WINDOW_S / SAMPLE_S)))
    patience: Patience = field(default_factory=lambda: Patience(up_s=30.0, down_s=600.0))
    interval_s: float = SAMPLE_S
    table: Mapping[str, Query] = field(default_factory=dict)

    def replicas(self, signals: Signals) -> int:
        self.counts.append(signals.in_flight)
        mean = sum(self.counts) / len(self.counts)
        return self.patience.confirm(whole(mean / self.target), signals, self.interval_s)
