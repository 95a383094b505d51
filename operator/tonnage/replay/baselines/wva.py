"""llm-d's Workload Variant Autoscaler: what its analyzers share, and that of throughput.

Every 15 s an analyzer says how many replicas it desires, and an HPA on that gauge brings them:
AverageValue 1, 10 pods in 150 s, a window of 240 s on the way down, as in docs/benchmark.md.
Lengths are means over five minutes. In their favour the HPA's tolerance is
left out: from ten replicas on it would swallow a step of one, which analyzers wait for.

The throughput analyzer holds output tokens asked for against what a replica makes at a full cache.
Follows llm-d/llm-d-workload-variant-autoscaler internal/engines/analyzers/throughput and
docs/developer-guide/throughput-analyzer.md (2026-08-18), which is switched on beside the second
analyzer; here it decides alone. A line of ITL over KV usage is fitted to what replicas show; until
ten points spread over three tenths of usage it goes through 6 ms at none, an H100's. The thresholds
of its engine, 0.85 and 0.70, come on top of the 0.85 of the cache that counts as full. It knows
no max-num-seqs, so where that binds first it takes a replica for more than it is.

Rates are those that its router sends, and so is the queue.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tonnage.replay.baselines.hpa import Behavior, Hpa, Rate
from tonnage.replay.baselines.rule import Arrivals, Signals, gauges, rates, scrapes_in, whole
from tonnage.replay.prometheus import Query

INTERVAL_S: Final = 15.0
PEAK_S: Final = 60.0
LENGTHS_S: Final = 300.0
BAND: Final = 0.70 / 0.85
"""Of the utilization below which it goes down over that above which it goes up."""
NEW_SHAPE: Final = 0.20
"""From which on either mean length is another."""
RATES: Final = (Rate(pods=10, period_s=150.0),)
FULL: Final = 0.85
"""KV usage at which the supply of a replica is told."""
LOWEST, HIGHEST = 0.15, 0.85
"""KV usage of points that are taken."""
MOST_POINTS, LEAST_POINTS = 20, 10
LEAST_SPREAD: Final = 0.30
OLDEST_S: Final = 1800.0
BASE_S: Final = 0.006
DRAIN: Final = 2.0
"""Times of an answer, in which a queue is to be served."""
MISMATCH: Final = 0.15
MISMATCHED: Final = 3
"""Times in a row, after which points are given up."""
SURE_USAGE: Final = 0.30
"""From which a rate of tokens is held against the line."""


@dataclass(slots=True, kw_only=True)
class Gauge:
    """The number desired, and the HPA that follows it."""

    hpa: Hpa = field(
        default_factory=lambda: Hpa(
            up=Behavior(window_s=0.0, rates=RATES), down=Behavior(window_s=240.0, rates=RATES)
        )
    )
    desired: int | None = None

    def replicas(self, signals: Signals, desired: int) -> int:
        self.desired = signals.bounded(desired)
        return self.hpa.replicas(signals, self.desired)


def desired_replicas(signals: Signals, demand: float, each: float, *, load: float) -> int:
    """Return replicas of which demand takes ``load`` at most; ``each``: supply of one.

    What is missing is added to those that are there or on their way; what is spare of those that
    are Ready is taken away.
    """
    coming = signals.ready + signals.pending
    missing = demand / load - coming * each
    if missing > 0:
        return coming + whole(missing / each)
    spare = signals.ready * each - demand / (BAND * load)
    return coming - math.floor(max(0.0, spare) / each)


def lengths(scrape_interval_s: float) -> dict[str, Query]:
    """Return the queries of the lengths of requests that finished."""
    scrapes = scrapes_in(LENGTHS_S, scrape_interval_s)
    metrics = {
        "input": "request_prompt_tokens_sum",
        "output": "request_generation_tokens_sum",
        "finished": "request_generation_tokens_count",
    }
    return rates(metrics, scrapes=scrapes)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanRequest:
    """Mean tokens of a request; 0: none has finished."""

    input_tokens: float = 0.0
    output_tokens: float = 0.0


def shapes(signals: Signals) -> dict[str, MeanRequest]:
    """Return the mean request of each pod that has finished one."""
    inputs, outputs = signals.by_pod("input"), signals.by_pod("output")
    return {
        pod: MeanRequest(input_tokens=inputs[pod] / finished, output_tokens=outputs[pod] / finished)
        for pod, finished in signals.by_pod("finished").items()
        if finished > 0 and pod in inputs and pod in outputs
    }


def mean_shape(found: dict[str, MeanRequest]) -> MeanRequest:
    if not found:
        return MeanRequest()
    each = found.values()
    return MeanRequest(
        input_tokens=sum(shape.input_tokens for shape in each) / len(found),
        output_tokens=sum(shape.output_tokens for shape in each) / len(found),
    )


def is_other(shape: MeanRequest, known: MeanRequest) -> bool:
    pairs = ((shape.input_tokens, known.input_tokens), (shape.output_tokens, known.output_tokens))
    return any(abs(now - before) > NEW_SHAPE * before for now, before in pairs)


class ItlSample(NamedTuple):
    """What one replica showed."""

    at_s: float
    usage: float
    itl_s: float


class ItlLine(NamedTuple):
    """ITL over KV usage."""

    slope_s: float
    base_s: float

    def at(self, usage: float) -> float:
        return self.base_s + self.slope_s * usage


@dataclass(slots=True, kw_only=True)
class Throughput:
    """Keeps demand in tokens/s at most at ``load`` of the supply that is there or on its way."""

    load: float
    scrape_interval_s: float
    gauge: Gauge = field(default_factory=Gauge)
    arrivals: Arrivals = field(default_factory=lambda: Arrivals(window_s=PEAK_S))
    points: deque[ItlSample] = field(default_factory=lambda: deque(maxlen=MOST_POINTS))
    shape: MeanRequest | None = None
    """Of requests when points were last given up."""
    mismatches: int = 0
    interval_s: float = INTERVAL_S

    @property
    def table(self) -> Mapping[str, Query]:
        scrapes = scrapes_in(PEAK_S, self.scrape_interval_s)
        metrics = {
            "gap_s": "inter_token_latency_seconds_sum",
            "gaps": "inter_token_latency_seconds_count",
            "prompt_tokens": "prompt_tokens_total",
            "cached_tokens": "prompt_tokens_cached_total",
        }
        return {
            **gauges("kv_usage"),
            **rates(metrics, scrapes=scrapes),
            **lengths(self.scrape_interval_s),
        }

    def replicas(self, signals: Signals) -> int:
        rate, shape = self.arrivals.requests_per_s(signals), mean_shape(shapes(signals))
        shown = _itl_samples(signals)
        self._take(shown, shape, signals.at_s)
        line = self._line(shown)
        if rate is None or not shape.output_tokens or line is None or line.at(FULL) <= 0:
            return self.gauge.replicas(signals, signals.asked)
        held = signals.kv_tokens / _kv_tokens(shape, signals)
        self._verify(line, held, signals)
        demand = rate * shape.output_tokens + signals.waiting_at_router / (DRAIN * line.at(FULL))
        each = FULL * held / line.at(FULL)
        return self.gauge.replicas(signals, desired_replicas(signals, demand, each, load=self.load))

    def _take(self, shown: Sequence[ItlSample], shape: MeanRequest, at_s: float) -> None:
        """Take what replicas show, of requests of one shape and of half an hour."""
        if not shape.output_tokens:
            return
        if self.shape is None or is_other(shape, self.shape):
            self.shape = shape
            self._give_up()
        self.points += (each for each in shown if LOWEST <= each.usage <= HIGHEST)
        while self.points and self.points[0].at_s < at_s - OLDEST_S:
            self.points.popleft()

    def _line(self, shown: Sequence[ItlSample]) -> ItlLine | None:
        """Return the line of least squares; through the base where points are too few or alike."""
        usages = [each.usage for each in self.points]
        is_ready = len(usages) >= LEAST_POINTS and max(usages) - min(usages) >= LEAST_SPREAD
        return fit_line(self.points) if is_ready else through_base(shown)

    def _verify(self, line: ItlLine, held: float, signals: Signals) -> None:
        """Give points up where the line has told another rate of tokens for three times."""
        usages, made = signals.by_pod("kv_usage"), signals.by_pod("output")
        sure = [pod for pod, usage in usages.items() if usage >= SURE_USAGE and made.get(pod)]
        expected = sum(usages[pod] * held / line.at(usages[pod]) for pod in sure)
        is_off = abs(sum(made[pod] for pod in sure) - expected) > MISMATCH * expected
        self.mismatches = self.mismatches + 1 if is_off else 0
        if self.mismatches >= MISMATCHED:
            self._give_up()

    def _give_up(self) -> None:
        self.points.clear()
        self.mismatches = 0


def _itl_samples(signals: Signals) -> list[ItlSample]:
    """Return KV usage and ITL of each replica that makes tokens."""
    usages = signals.by_pod("kv_usage")
    gap_s, gaps = signals.by_pod("gap_s"), signals.by_pod("gaps")
    return [
        ItlSample(signals.at_s, usages[pod], gap_s[pod] / number)
        for pod, number in gaps.items()
        if number > 0 and usages.get(pod) and gap_s.get(pod)
    ]


def fit_line(points: Sequence[ItlSample]) -> ItlLine:
    mean = sum(each.usage for each in points) / len(points)
    mean_s = sum(each.itl_s for each in points) / len(points)
    spread = sum((each.usage - mean) ** 2 for each in points)
    slope_s = sum((each.usage - mean) * (each.itl_s - mean_s) for each in points) / spread
    return ItlLine(slope_s, mean_s - slope_s * mean)


def through_base(points: Sequence[ItlSample]) -> ItlLine | None:
    """Return the line of least squares through what an idle H100 takes; None: it would fall."""
    if not points:
        return None
    slope_s = sum((each.itl_s - BASE_S) * each.usage for each in points) / sum(
        each.usage**2 for each in points
    )
    return ItlLine(slope_s, BASE_S) if slope_s > 0 else None


def _kv_tokens(shape: MeanRequest, signals: Signals) -> float:
    """Return the tokens that a request has in the cache in the mean, those of others left out."""
    prompt, cached = signals.total("prompt_tokens"), signals.total("cached_tokens")
    hits = min(1.0, cached / prompt) if prompt and cached else 0.0
    return shape.input_tokens * (1 - hits) + shape.output_tokens / 2
