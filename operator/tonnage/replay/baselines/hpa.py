"""The HorizontalPodAutoscaler, which most rivals go through, and KEDA's totals before it.

Follows kubernetes/kubernetes pkg/controller/podautoscaler: ``replica_calculator.go`` for the number
that a metric asks for, ``horizontal.go`` for windows and rates, autoscaling/v2 defaults for both.
Where several metrics are given the highest number counts.

KEDA follows kedacore/keda, Prometheus scaler with metricType AverageValue, which is the default.
The trigger that asks for most counts; one without an answer lets nothing go down.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tonnage.replay.baselines.rule import Signals, gauges, limit_s, scrapes_in, whole
from tonnage.replay.prometheus import Query, rate
from tonnage.sizing.workload import Target

SYNC_S: Final = 15.0
TOLERANCE: Final = 0.1
Total = Callable[[Signals], float | None]
QUEUE_THRESHOLD: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """The most that may be added or taken away within a period."""

    pods: int = 0
    fraction: float = 0.0
    """Of those there were when the period began."""
    period_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Behavior:
    """Of one direction: what was recommended in the window bounds it, and the fastest rate."""

    window_s: float
    rates: tuple[Rate, ...]


DEFAULT_UP: Final = Behavior(
    window_s=0.0, rates=(Rate(pods=4, period_s=15.0), Rate(fraction=1.0, period_s=15.0))
)


DEFAULT_DOWN: Final = Behavior(window_s=300.0, rates=(Rate(fraction=1.0, period_s=15.0),))


@dataclass(slots=True, kw_only=True)
class Hpa:
    """What an autoscaler remembers of one target."""

    up: Behavior = DEFAULT_UP
    down: Behavior = DEFAULT_DOWN
    recommended: list[tuple[float, int]] = field(default_factory=list)
    """When, and how many: within the longer window."""
    changes: list[tuple[float, int]] = field(default_factory=list)
    """When, and by how many: within the longest period of a rate."""

    def replicas(self, signals: Signals, wanted: int) -> int:
        """Return what becomes of the number that metrics ask for."""
        at_s, now = signals.at_s, signals.asked
        if not self.recommended:
            self.recommended.append((at_s, now))
        steady = self._stabilize(wanted, now, at_s)
        if steady > now:
            allowed = min(steady, max(now, self._highest(now, at_s)))
        else:
            allowed = max(steady, min(now, self._lowest(now, at_s)))
        found = signals.bounded(allowed)
        longest_s = max(rate.period_s for rate in (*self.up.rates, *self.down.rates))
        self.changes = [each for each in self.changes if each[0] > at_s - longest_s]
        if found != now:
            self.changes.append((at_s, found - now))
        return found

    def _stabilize(self, wanted: int, now: int, at_s: float) -> int:
        """Go up no further than the least, down no further than the most of the windows."""
        longest_s = max(self.up.window_s, self.down.window_s)
        self.recommended = [each for each in self.recommended if each[0] > at_s - longest_s]
        low = min([wanted, *self._within(self.up.window_s, at_s)])
        high = max([wanted, *self._within(self.down.window_s, at_s)])
        self.recommended.append((at_s, wanted))
        return min(max(now, low), high)

    def _within(self, window_s: float, at_s: float) -> list[int]:
        return [number for when, number in self.recommended if when > at_s - window_s]

    def _highest(self, now: int, at_s: float) -> int:
        return max(
            math.ceil(start + max(rate.pods, start * rate.fraction))
            for rate, start in self._starts(self.up.rates, now, at_s)
        )

    def _lowest(self, now: int, at_s: float) -> int:
        return min(
            int(start - max(rate.pods, start * rate.fraction))
            for rate, start in self._starts(self.down.rates, now, at_s)
        )

    def _starts(self, rates: Sequence[Rate], now: int, at_s: float) -> list[tuple[Rate, int]]:
        """Return how many there were when the period of each rate began."""
        return [
            (rate, now - sum(by for when, by in self.changes if when > at_s - rate.period_s))
            for rate in rates
        ]


def for_pods(values: Collection[float], target: float, signals: Signals) -> int:
    """Return what a metric of pods asks for, with a target for their mean.

    Pods without a value count as zero on the way up and as on target on the way down.
    """
    now, missing = signals.asked, len(signals.pods) - len(values)
    if not values:
        return now
    used = sum(values) / target
    ratio = used / len(values)
    if missing <= 0:
        return now if _is_near(ratio) else whole(used)
    filled = used + missing if ratio < 1 else used
    again = filled / (len(values) + missing)
    if _is_near(again) or (ratio - 1) * (again - 1) < 0:
        return now
    return max(now, whole(filled)) if again > 1 else min(now, whole(filled))


def for_total(total: float | None, target: float, signals: Signals) -> int:
    """Return what an external metric asks for, with a target for its share of each replica.

    All replicas count, Ready or not. Nothing answered: nothing changes.
    """
    now = signals.asked
    if total is None or (now and _is_near(total / (target * now))):
        return now
    return whole(total / target)


def _is_near(ratio: float) -> bool:
    return abs(ratio - 1) <= TOLERANCE


@dataclass(slots=True, kw_only=True)
class Concurrency:
    """Asks for so many replicas that each has ``target`` requests, running and waiting.

    The strongest of the simple baselines. The default target is ours, to be tuned in hindsight.
    """

    target: float
    hpa: Hpa = field(default_factory=Hpa)
    interval_s: float = SYNC_S
    table: Mapping[str, Query] = field(default_factory=lambda: gauges("running", "waiting"))

    def replicas(self, signals: Signals) -> int:
        running, waiting = signals.by_pod("running"), signals.by_pod("waiting")
        outstanding = [running[pod] + waiting[pod] for pod in running if pod in waiting]
        return self.hpa.replicas(signals, for_pods(outstanding, self.target, signals))


UP: Final = Behavior(window_s=0.0, rates=(Rate(fraction=1.0, period_s=15.0),))


@dataclass(slots=True, kw_only=True)
class Keda:
    """What a ScaledObject with these triggers asks for."""

    triggers: tuple[tuple[Total, float], ...]
    """The total, and its share of a replica."""
    table: Mapping[str, Query]
    hpa: Hpa = field(default_factory=Hpa)
    interval_s: float = SYNC_S

    def replicas(self, signals: Signals) -> int:
        asked = (for_total(total(signals), share, signals) for total, share in self.triggers)
        return self.hpa.replicas(signals, max(asked))


def epp_queue(running: float) -> Keda:
    """Return KEDA on what llm-d's router tells: its queue, and so many requests on a replica.

    Follows llm-d/llm-d guides/workload-autoscaling/keda-epp/optimized-baseline
    base/scaledobject.yaml (b0d6a794) and components/trigger-queue (f8197655).

    The router counts as running what it has sent and what has not ended. It is not modelled that
    it holds requests back while the pool is saturated: what waits in engines counts as its queue.
    """
    return Keda(
        triggers=((_queue_length, QUEUE_THRESHOLD), (requests_running, running)),
        table=gauges("waiting"),
        hpa=Hpa(up=UP),
    )


def requests_running(signals: Signals) -> float:
    return signals.in_flight - signals.waiting_at_router


def _queue_length(signals: Signals) -> float | None:
    waiting = signals.total("waiting")
    return None if waiting is None else waiting + signals.waiting_at_router


WINDOW_S: Final = 60.0
SMOOTHED: Final = 3
"""Evaluations of the recording rule, one each 15 s, in its mean over 45 s."""
QUANTILE: Final = 0.9
CLAMP: Final = 2.0
BAND: Final = 0.40 / 0.55
"""Of the lower threshold over the upper."""
SLO_UP: Final = Behavior(
    window_s=30.0, rates=(Rate(pods=4, period_s=60.0), Rate(fraction=1.0, period_s=60.0))
)
SLO_DOWN: Final = Behavior(window_s=180.0, rates=(Rate(pods=1, period_s=120.0),))


@dataclass(slots=True, kw_only=True)
class SloLaw:
    """llm-d's SLO-aware law: up above ``threshold`` of P90's limit, down below 0.73 times that.

    Follows llm-d/llm-d guides/workload-autoscaling/README.slo-aware.md (d38c9f0c) and slo-aware/.
    Its router tells latencies as measured, as it does where its predictor is not trained, and they
    are those of the engines. Scrapes are those that all rivals have, not every 5 s. In its favour
    the HPA's tolerance is left out, which would swallow a step of one from ten replicas on.
    """

    threshold: float
    scrape_interval_s: float
    hpa: Hpa = field(default_factory=lambda: Hpa(up=SLO_UP, down=SLO_DOWN))
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
        slo = signals.slo
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
