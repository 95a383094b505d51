"""KubeAI: the ten-minute mean of active requests over a target for each replica.

Follows substratusai/kubeai internal/modelautoscaler/autoscaler.go (2025-10-15): every 10 s, 100
requests by default, down after as many lower asks in a row as ``scaleDownDelaySeconds``, 30, has
steps. The mean is over what there was so far until ten minutes are full.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tonnage.estimate.metrics import Query
from tonnage.replay.rivals.patience import Patience
from tonnage.replay.rivals.rule import Signals, whole

SAMPLES: Final = 60
"""Of 10 s each."""


@dataclass(slots=True, kw_only=True)
class KubeAi:
    """Asks for so many replicas that each has ``target`` active requests."""

    target: float
    active: deque[int] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    patience: Patience = field(default_factory=lambda: Patience(up_s=0.0, down_s=30.0))
    interval_s: float = 10.0
    table: Mapping[str, Query] = field(default_factory=dict)
    reads_engines: bool = False

    def replicas(self, signals: Signals) -> int:
        self.active.append(signals.in_flight)
        mean = sum(self.active) / len(self.active)
        return self.patience.allowed(whole(mean / self.target), signals, self.interval_s)
