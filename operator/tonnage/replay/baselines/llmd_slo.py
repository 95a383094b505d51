"""llm-d's SLO-aware law: replicas by how near P90 latencies are to their limits.

Follows llm-d/llm-d guides/workload-autoscaling/README.slo-aware.md (d38c9f0c) and slo-aware/.
Its router tells latencies as measured, as it does where its predictor is not trained, and they
are those of the engines. Scrapes are those that all rivals have, not every 5 s. In its favour the
HPA's tolerance is left out, which would swallow a step of one from ten replicas on.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tonnage.replay.baselines.hpa import SYNC_S, Behavior, Hpa, Rate
from tonnage.replay.baselines.rule import Signals, limit_s, scrapes_in, whole
from tonnage.replay.prometheus import Query, rate
from tonnage.sizing.workload import Target

WINDOW_S: Final = 60.0
SMOOTHED: Final = 3
"""Evaluations of the recording rule, one each 15 s, in its mean over 45 s."""
QUANTILE: Final = 0.9
CLAMP: Final = 2.0
BAND: Final = 0.40 / 0.55
"""Of the lower threshold over the upper."""
UP: Final = Behavior(
    window_s=30.0, rates=(Rate(pods=4, period_s=60.0), Rate(fraction=1.0, period_s=60.0))
)
DOWN: Final = Behavior(window_s=180.0, rates=(Rate(pods=1, period_s=120.0),))


@dataclass(slots=True, kw_only=True)
class SloLaw:
    """Goes up above ``threshold`` of the limit, down below 0.73 times that."""

    threshold: float
    scrape_interval_s: float
    hpa: Hpa = field(default_factory=lambda: Hpa(up=UP, down=DOWN))
    recent: list[float] = field(default_factory=list)
    """Worst latency over its limit, of the newest evaluations."""
    interval_s: float = SYNC_S

    @property
    def table(self) -> Mapping[str, Query]:
        scrapes = scrapes_in(WINDOW_S, self.scrape_interval_s)
        names = {"ttft": "time_to_first_token", "tpot": "request_time_per_output_token"}
        return {
            name: Query(
                metric=f"vllm:{metric}_seconds_bucket",
                over=rate,
                scrapes=scrapes,
                own_labels=("le",),
            )
            for name, metric in names.items()
        }

    def replicas(self, signals: Signals) -> int:
        slo = signals.told.slo
        ratios = (_ratio(signals, "ttft", slo.ttft), _ratio(signals, "tpot", slo.tpot))
        self.recent = [*self.recent, min(CLAMP, max(ratios))][-SMOOTHED:]
        saturation = sum(self.recent) / len(self.recent)
        return self.hpa.replicas(signals, self._desired_replicas(signals, saturation))

    def _desired_replicas(self, signals: Signals, saturation: float) -> int:
        now, ready, down = signals.asked, signals.ready, BAND * self.threshold
        if saturation > self.threshold:
            credit = ready / now if 0 < ready < now else 1.0
            return now + whole(now * (saturation * credit / self.threshold - 1))
        if saturation < down:
            return now - math.floor(now * (1 - saturation / down))
        return now


def _ratio(signals: Signals, query: str, targets: Sequence[Target]) -> float:
    """Return P90 over its limit; 0 where nothing was measured or promised."""
    found_s = quantile(signals.buckets(query), QUANTILE)
    return 0.0 if found_s is None else found_s / limit_s(targets, QUANTILE)


def quantile(within: Mapping[float, float], q: float) -> float | None:
    """Return a quantile of what ``within`` counts by upper bound; None where it counts nothing.

    Evenly spread in a bucket; beyond the last finite bound it is that bound.

    Follows prometheus/prometheus promql/quantile.go bucketQuantile, of classic buckets.

    >>> quantile({1.0: 50, 2.0: 100, math.inf: 100}, 0.9)
    1.8
    """
    total = within.get(math.inf, 0.0)
    if total <= 0:
        return None
    rank, low, before = q * total, 0.0, 0.0
    for bound, count in sorted(within.items()):
        if math.isinf(bound):
            break
        if count >= rank:
            return low + (bound - low) * (rank - before) / (count - before)
        low, before = bound, count
    return low
