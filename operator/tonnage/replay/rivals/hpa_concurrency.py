"""An HPA on the requests that each replica has: the strongest of the simple baselines.

Follows no project's manifest: the default target is ours, to be tuned in hindsight.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tonnage.replay.query import Query
from tonnage.replay.rivals.hpa import SYNC_S, Hpa, for_pods
from tonnage.replay.rivals.rule import Signals, gauges


@dataclass(slots=True, kw_only=True)
class Concurrency:
    """Asks for so many replicas that each has ``target`` requests, running and waiting."""

    target: float
    hpa: Hpa = field(default_factory=Hpa)
    interval_s: float = SYNC_S
    table: Mapping[str, Query] = field(default_factory=lambda: gauges("running", "waiting"))

    def replicas(self, signals: Signals) -> int:
        running, waiting = signals.by_pod("running"), signals.by_pod("waiting")
        held = [running[pod] + waiting[pod] for pod in running if pod in waiting]
        return self.hpa.replicas(signals, for_pods(held, self.target, signals))
