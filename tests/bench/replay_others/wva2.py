"""WVA's second analyzer: tokens in the cache and in the queue, over what a replica can hold.

Follows llm-d/llm-d-workload-variant-autoscaler
internal/engines/analyzers/saturation_v2/analyzer.go and
internal/engines/pipeline/cost_aware_optimizer.go (2026-08-18), the default since 0.9.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from tonnage.estimate.metrics import RUNNING, WAITING
from tonnage.replay.baselines.rule import KV_USAGE, Signals, scrapes_in
from tonnage.replay.baselines.wva import (
    INTERVAL_S,
    PEAK_S,
    Gauge,
    MeanRequest,
    desired_replicas,
    lengths,
    mean_shape,
    shapes,
)
from tonnage.replay.prometheus import Points, Query
from tonnage.sizing.request import Flags


def highest(points: Points, _window_s: float, _at_s: float) -> float | None:
    return max((value for _, value in points), default=None)


def peaks(scrape_interval_s: float) -> dict[str, Query]:
    """Return the queries of KV usage and requests: the most of a minute."""
    scrapes = scrapes_in(PEAK_S, scrape_interval_s)
    return {
        name: Query(metric=metric, over=highest, scrapes=scrapes)
        for name, metric in (("kv_usage", KV_USAGE), ("waiting", WAITING), ("running", RUNNING))
    }


def allowed_tokens(shape: MeanRequest, flags: Flags) -> float:
    """Return what flags let a cache hold, where prompts are computed as fast as they leave."""
    prompt, output = shape.input_tokens, shape.output_tokens
    if output <= 0:
        return 0.0
    balanced = flags.max_num_batched_tokens * output / (prompt + output)
    return min(balanced, flags.max_num_seqs) * (prompt + output / 2)


FULL_KV: Final = 0.8
FULL_QUEUE: Final = 5.0
OBSERVED: Final = 10
"""Capacities that are remembered for a class of outputs."""
SHORT_TOKENS: Final = 100.0
MEDIUM_TOKENS: Final = 500.0


@dataclass(slots=True, kw_only=True)
class TokenSaturation:
    """Keeps demand in tokens at most at ``load`` of the capacity that is there or on its way."""

    load: float
    scrape_interval_s: float
    gauge: Gauge = field(default_factory=Gauge)
    observed: dict[str, deque[float]] = field(default_factory=dict)
    """Tokens in use of replicas with a full queue, by class of outputs."""
    interval_s: float = INTERVAL_S

    @property
    def table(self) -> Mapping[str, Query]:
        return {**peaks(self.scrape_interval_s), **lengths(self.scrape_interval_s)}

    def replicas(self, signals: Signals) -> int:
        used, waiting = signals.by_pod("kv_usage"), signals.by_pod("waiting")
        pods = [pod for pod in used if pod in waiting]
        if not pods:
            return self.gauge.replicas(signals, signals.asked)
        demand, capacities, found = 0.0, [], shapes(signals)
        for pod in pods:
            shape, tokens = found.get(pod, MeanRequest()), used[pod] * signals.kv_tokens
            demand += tokens + waiting[pod] * (shape.input_tokens + shape.output_tokens)
            capacities.append(self._capacity(tokens, waiting[pod], shape, signals))
        mean = mean_shape(found)
        demand += signals.waiting_at_router * (mean.input_tokens + mean.output_tokens)
        wanted = desired_replicas(signals, demand, median(capacities), load=self.load)
        return self.gauge.replicas(signals, wanted)

    def _capacity(
        self, tokens: float, waiting: float, shape: MeanRequest, signals: Signals
    ) -> float:
        """Return the tokens that a replica can have in its cache, by memory and by compute."""
        by_memory = FULL_KV * signals.kv_tokens
        seen = self.observed.setdefault(_class_of(shape), deque(maxlen=OBSERVED))
        if waiting >= FULL_QUEUE and tokens > 0:
            seen.append(tokens)
            return min(by_memory, tokens)
        if seen:
            return min(by_memory, sum(seen) / len(seen))
        return min(by_memory, allowed_tokens(shape, signals.flags) or by_memory)


def _class_of(shape: MeanRequest) -> str:
    if shape.output_tokens < SHORT_TOKENS:
        return "short"
    return "medium" if shape.output_tokens < MEDIUM_TOKENS else "long"
