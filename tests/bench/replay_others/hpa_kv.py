"""An HPA on the share of the KV cache that each pod has in use.

Follows the baseline of llm-d/llm-d-workload-variant-autoscaler docs/benchmark.md: a target of 0.7.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tonnage.estimate.metrics import Query
from tonnage.replay.rivals.hpa import SYNC_S, Hpa, for_pods
from tonnage.replay.rivals.rule import Signals, gauges


@dataclass(slots=True, kw_only=True)
class KvUsage:
    """Asks for so many replicas that their caches are filled to ``target`` in the mean."""

    target: float
    hpa: Hpa = field(default_factory=Hpa)
    interval_s: float = SYNC_S
    table: Mapping[str, Query] = field(default_factory=lambda: gauges("kv_usage"))

    def replicas(self, signals: Signals) -> int:
        used = signals.by_pod("kv_usage")
        return self.hpa.replicas(signals, for_pods(used.values(), self.target, signals))
