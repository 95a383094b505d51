"""WVA's first analyzer: spare KV cache and spare queue of the replicas that are not saturated.

Follows llm-d/llm-d-workload-variant-autoscaler internal/saturationv1/analyzer.go (2026-08-18):
one replica at a time, and none while the last one is on its way.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from replay_others.wva import peaks
from tonnage.estimate.metrics import Query
from tonnage.replay.rivals.rule import Signals
from tonnage.replay.rivals.wva import INTERVAL_S, Gauge

FULL_QUEUE: Final = 5.0
SPARE_KV: Final = 0.1
SPARE_QUEUE: Final = 3.0


@dataclass(slots=True, kw_only=True)
class Saturation:
    """A replica is saturated at ``full_kv`` of its cache, or five waiting."""

    full_kv: float
    scrape_interval_s: float
    gauge: Gauge = field(default_factory=Gauge)
    interval_s: float = INTERVAL_S

    @property
    def table(self) -> Mapping[str, Query]:
        return peaks(self.scrape_interval_s)

    def replicas(self, signals: Signals) -> int:
        now = signals.asked
        desired = now if self.gauge.desired is None else self.gauge.desired
        if desired == now and not signals.pending:
            desired += self._step(signals)
        return self.gauge.replicas(signals, desired)

    def _step(self, signals: Signals) -> int:
        used, waiting = signals.by_pod("kv_usage"), signals.by_pod("waiting")
        both = [(used[pod], waiting[pod]) for pod in used if pod in waiting]
        if not both:
            return 0
        free = [(self.full_kv - kv, FULL_QUEUE - queue) for kv, queue in both]
        free = [(kv, queue) for kv, queue in free if kv > 0 and queue > 0]
        spare_kv = sum(kv for kv, _ in free) / max(1, len(free))
        spare_queue = sum(queue for _, queue in free) / max(1, len(free))
        if spare_kv < SPARE_KV or spare_queue < SPARE_QUEUE:
            return 1
        if len(free) > 1:
            factor = len(free) / (len(free) - 1)
            kv = self.full_kv - (self.full_kv - spare_kv) * factor
            queue = FULL_QUEUE - (FULL_QUEUE - spare_queue) * factor
            return -1 if kv >= SPARE_KV and queue >= SPARE_QUEUE else 0
        return 0
