"""llm-scaling-manager, which went on from WVA: tokens held, and what full replicas were seen to do.

Follows the source of ev-shindin/llm-scaling-manager, of September and October 2026:
internal/engines/analyzers/saturation/{analyze (050a3b22), replica_capacity (273ea4fb),
throughput_floor (116fc310), aggregate (412b8e7c), shape_change (3eef4175), keys, constants
(e673b93c), start_est (3efed19f)}.go, internal/signals/floor/floor.go (22d0b18d),
internal/engines/allocation/analyzer_helpers.go (c19cb827), the sticky scale-down of its decisions,
and docs/developer-guide/saturation-analyzer.md (3efed19f), for one kind of replica that prefills
and decodes, with its default policy and no limiter::

    capacity = min(0.8 * pool, tokens held with five waiting, else what flags allow)
    mu       = output tokens/s with five waiting / output tokens of a request
    demand   = max(tokens held, (lambda + backlog / max(60 s, start)) / mu * capacity)

The backlog is that at the end of a start. Before a replica was ever full there is no mu: requests
that wait count with all their tokens then. A mu may hold the fleet at first, and asks for replicas
once a full replica was read twice, a minute apart, with the lengths that come. KEDA leaves the HPA
at its defaults: down after 300 s.

Left out is the line of ITL over KV usage, by which it prices a fleet that only decodes; the warm
pool, scale to zero and quotas; and the lengths that the router reads off the bytes of its queue.
Rates are those that its router sends. In its favour the HPA's tolerance is left out, as for WVA,
and its process, with which all that it has learned is lost, never ends.
"""

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median, median_low
from typing import Final, NamedTuple

from replay_others.wva2 import allowed_tokens, peaks
from tonnage.replay.baselines.hpa import Hpa
from tonnage.replay.baselines.rule import Arrivals, ObservedPod, Signals, rates, scrapes_in, whole
from tonnage.replay.baselines.wva import (
    BAND,
    INTERVAL_S,
    PEAK_S,
    Gauge,
    MeanRequest,
    is_other,
    lengths,
    shapes,
)
from tonnage.replay.prometheus import Query

SIZES: Final = (100.0, 500.0, 1500.0, 3000.0, 6000.0)
"""Tokens at which a class of prompts or answers ends."""
READINGS: Final = 10
"""That a window holds."""
SPACING_S: Final = 60.0
"""From one reading to the next that counts."""
ENOUGH: Final = 2
HOLD_S: Final = 300.0
"""The longest that a change of lengths keeps what was measured before it from asking."""
WEIGHT: Final = 0.3
"""Of a new start among those before."""


def size_class(tokens: float) -> int:
    """Return the class of a mean length.

    >>> size_class(99), size_class(100), size_class(9000)
    (0, 1, 5)
    """
    return bisect_right(SIZES, tokens)


class FullRate(NamedTuple):
    """Requests per second of a replica that has a queue."""

    requests_per_s: float
    readings: int
    is_own: bool
    """Of answers of this class; else of the class nearest to it."""

    @property
    def is_sure(self) -> bool:
        """It was read twice of such answers, and may ask for replicas."""
        return self.is_own and self.readings >= ENOUGH


@dataclass(slots=True, kw_only=True)
class RateWindow:
    """Readings a minute apart, of those between them the highest."""

    rates: deque[float] = field(default_factory=lambda: deque(maxlen=READINGS))
    counted_s: float = -math.inf
    last: float | None = None

    def take(self, rate: float, at_s: float) -> None:
        """Take a reading; after a minute with the same digits it is the old one read again."""
        before, self.last = self.last, rate
        if at_s < self.counted_s + SPACING_S:
            self.rates[-1] = max(self.rates[-1], rate)
        elif rate != before:
            self.rates.append(rate)
            self.counted_s = at_s


@dataclass(slots=True, kw_only=True)
class FullRates:
    """Windows by the classes of prompts and answers."""

    windows: dict[tuple[int, int], RateWindow] = field(default_factory=dict)

    def take(self, shape: MeanRequest, rate: float, at_s: float) -> None:
        self.windows.setdefault(_key(shape), RateWindow()).take(rate, at_s)

    def read(self, shape: MeanRequest) -> FullRate | None:
        """Return the median of the class, or of the nearest class of answers to such prompts."""
        prompt, own = _key(shape)
        for answer in _nearest_first(own):
            if window := self.windows.get((prompt, answer)):
                return FullRate(median_low(window.rates), len(window.rates), answer == own)
        return None


def _key(shape: MeanRequest) -> tuple[int, int]:
    return size_class(shape.input_tokens), size_class(shape.output_tokens)


def _nearest_first(own: int) -> Iterable[int]:
    """Return classes by how far they are, of two the one of shorter answers first."""
    return sorted(range(len(SIZES) + 1), key=lambda each: (abs(each - own), each))


@dataclass(slots=True, kw_only=True)
class ShapeWatch:
    """The lengths that the fleet is taken to serve, and whether they changed a while ago."""

    known: MeanRequest | None = None
    """When they last changed."""
    changed_s: float | None = None
    """Since when what was measured is of other lengths; None: it is of these."""
    gave_up_s: float = -math.inf

    def note(self, shape: MeanRequest, at_s: float) -> bool:
        """Take what is served now, and tell whether a change has not been measured yet."""
        is_new = self.known is not None and is_other(shape, self.known)
        if is_new or self.known is None:
            self.known = shape
        if self.changed_s is not None and at_s >= self.changed_s + HOLD_S:
            self.changed_s, self.gave_up_s = None, at_s
        if is_new and self.changed_s is None and at_s >= self.gave_up_s + HOLD_S:
            self.changed_s = at_s
        return is_new or self.changed_s is not None

    def settle(self) -> None:
        """Take the fleet for measured with these lengths."""
        self.changed_s, self.gave_up_s = None, -math.inf


@dataclass(slots=True, kw_only=True)
class Starts:
    """How long replicas took to be Ready, newer ones weighing more."""

    mean_s: float | None = None
    """None: none has started yet."""
    seen: set[str] = field(default_factory=set)

    def note(self, pods: Iterable[ObservedPod]) -> None:
        for name, took_s in self._new(pods):
            self.seen.add(name)
            before_s = took_s if self.mean_s is None else self.mean_s
            self.mean_s = (1 - WEIGHT) * before_s + WEIGHT * took_s

    def _new(self, pods: Iterable[ObservedPod]) -> Iterator[tuple[str, float]]:
        for pod in pods:
            if pod.ready_for_s is not None and pod.name not in self.seen:
                yield pod.name, pod.age_s - pod.ready_for_s


FULL_KV: Final = 0.8
FULL_QUEUE: Final = 5.0
DRAIN_S: Final = 60.0
"""In which a backlog is to be served, where a replica starts sooner."""
STUCK_STARTS: Final = 2.0
"""Starts, after which a pod is not expected any more."""
GO: Final = 0.25
"""Of the way from the lower threshold to the upper, at which what is left is to be."""


class Row(NamedTuple):
    """What one replica said."""

    tokens: float
    """In its cache, the most of a minute."""
    waiting: float
    shape: MeanRequest
    made_per_s: float
    """Output tokens."""

    @property
    def is_full(self) -> bool:
        return self.waiting >= FULL_QUEUE and self.tokens > 0

    @property
    def all_tokens(self) -> float:
        """With those that its queue would hold at its end."""
        return self.tokens + self.waiting * (self.shape.input_tokens + self.shape.output_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """What is there, and what is on its way."""

    each: float
    """Tokens that a replica can hold."""
    ready: int
    """Replicas that said something."""
    coming: int
    """The same with those that will."""


@dataclass(slots=True, kw_only=True)
class ScalingManager:
    """Keeps demand in tokens at most at ``load`` of the capacity that is there or on its way."""

    load: float
    scrape_interval_s: float
    gauge: Gauge = field(default_factory=lambda: Gauge(hpa=Hpa()))
    arrivals: Arrivals = field(default_factory=lambda: Arrivals(window_s=PEAK_S))
    held: dict[int, deque[float]] = field(default_factory=dict)
    """Tokens that full replicas had in use, by the class of their answers."""
    rates: FullRates = field(default_factory=FullRates)
    watch: ShapeWatch = field(default_factory=ShapeWatch)
    starts: Starts = field(default_factory=Starts)
    interval_s: float = INTERVAL_S

    @property
    def table(self) -> Mapping[str, Query]:
        scrapes = scrapes_in(PEAK_S, self.scrape_interval_s)
        return {
            **peaks(self.scrape_interval_s),
            **lengths(self.scrape_interval_s),
            **rates({"made": "generation_tokens_total"}, scrapes=scrapes),
        }

    def replicas(self, signals: Signals) -> int:
        requests_per_s, rows = self.arrivals.requests_per_s(signals), _rows(signals)
        if not rows:
            return self.gauge.replicas(signals, signals.asked)
        self.starts.note(signals.pods)
        shape = _fleet_shape(signals)
        is_stale = bool(shape.output_tokens) and self.watch.note(shape, signals.at_s)
        capacities = [self._capacity(row, signals) for row in rows]
        supply = Supply(
            each=median(capacities), ready=len(rows), coming=max(signals.asked, len(rows))
        )
        rate = self._full_rate(rows, shape, signals.at_s)
        if is_stale and rate and rate.is_sure:
            self.watch.settle()
            is_stale = False
        demand = sum(row.all_tokens for row in rows) + _queued_tokens(rows, signals)
        if rate and requests_per_s:
            wanted = self._floor(requests_per_s, rate, supply, signals, rows)
            if is_stale or not rate.is_sure:
                wanted = min(wanted, self._bound(requests_per_s, rate, supply, signals, is_stale))
            demand = max(sum(row.tokens for row in rows), wanted)
        return self.gauge.replicas(signals, self._desired(demand, supply, signals))

    def _capacity(self, row: Row, signals: Signals) -> float:
        """Return the tokens that a replica can have in its cache, by memory and by compute."""
        by_memory = FULL_KV * signals.kv_tokens
        held = self.held.setdefault(size_class(row.shape.output_tokens), deque(maxlen=READINGS))
        if row.is_full:
            held.append(row.tokens)
        if held:
            return min(by_memory, fmean(held))
        return min(by_memory, allowed_tokens(row.shape, signals.flags) or by_memory)

    def _full_rate(self, rows: Sequence[Row], shape: MeanRequest, at_s: float) -> FullRate | None:
        """Take what full replicas make, and return what one serves of the lengths known."""
        if self.watch.known is None:
            return None
        for row in rows:
            if row.is_full and row.made_per_s > 0 and shape.output_tokens:
                self.rates.take(self.watch.known, row.made_per_s / shape.output_tokens, at_s)
        return self.rates.read(self.watch.known)

    def _floor(
        self,
        requests_per_s: float,
        rate: FullRate,
        supply: Supply,
        signals: Signals,
        rows: Sequence[Row],
    ) -> float:
        """Return the tokens of as many replicas as keep up, and serve the backlog in time."""
        backlog = sum(row.waiting for row in rows) + signals.waiting_at_router
        start_s = self.starts.mean_s
        if start_s is not None:
            served = rate.requests_per_s * (supply.ready * start_s + _credit_s(signals, start_s))
            backlog = max(0.0, backlog + requests_per_s * start_s - served)
        drain_s = max(DRAIN_S, start_s or 0.0)
        return (requests_per_s + backlog / drain_s) / rate.requests_per_s * supply.each

    def _bound(
        self,
        requests_per_s: float,
        rate: FullRate,
        supply: Supply,
        signals: Signals,
        is_stale: bool,
    ) -> float:
        """Return the demand that brings no replica; or those that the router's queue takes."""
        each, queued = rate.requests_per_s, signals.waiting_at_router
        if rate.is_own and not is_stale and queued > max(requests_per_s, each):
            justified = max(1, math.floor(queued / (each * DRAIN_S)))
            return self.load * (supply.ready + justified) * supply.each
        return self.load * supply.coming * supply.each

    def _desired(self, demand: float, supply: Supply, signals: Signals) -> int:
        """Return replicas of which demand takes ``load``, and what goes where less is taken.

        The last number on the way down is asked for again while it would be enough.
        """
        missing = demand / self.load - supply.coming * supply.each
        if missing > 0:
            return supply.coming + whole(missing / supply.each)
        low, now, last = BAND * self.load, signals.asked, self.gauge.desired
        spare = supply.ready * supply.each - demand / low
        fresh = now
        if spare > 0:
            left = demand / (low + GO * (self.load - low))
            spare = max(spare, supply.ready * supply.each - left)
            fresh = max(1, now - math.floor(spare / supply.each))
        if last and last < min(now, fresh) and demand < self.load * last * supply.each:
            return last
        return fresh


def _rows(signals: Signals) -> list[Row]:
    used, waiting = signals.by_pod("kv_usage"), signals.by_pod("waiting")
    made, found = signals.by_pod("made"), shapes(signals)
    return [
        Row(
            tokens=used[pod] * signals.kv_tokens,
            waiting=waiting[pod],
            shape=found.get(pod, MeanRequest()),
            made_per_s=made.get(pod, 0.0),
        )
        for pod in used
        if pod in waiting
    ]


def _fleet_shape(signals: Signals) -> MeanRequest:
    """Return the mean of all requests that finished."""
    finished = signals.total("finished") or 0.0
    prompt, output = signals.total("input") or 0.0, signals.total("output") or 0.0
    if not finished:
        return MeanRequest()
    return MeanRequest(input_tokens=prompt / finished, output_tokens=output / finished)


def _queued_tokens(rows: Sequence[Row], signals: Signals) -> float:
    """Return what the router's queue would hold at its end, as replicas' mean requests."""
    known = [row.shape for row in rows if row.shape.output_tokens]
    if not known:
        return 0.0
    each = fmean(shape.input_tokens + shape.output_tokens for shape in known)
    return signals.waiting_at_router * each


def _credit_s(signals: Signals, start_s: float) -> float:
    """Return the time for which replicas that start will serve, of the start of one more."""
    ages = (pod.age_s for pod in signals.pods if pod.ready_for_s is None)
    return sum(min(age_s, start_s) for age_s in ages if age_s <= STUCK_STARTS * start_s)
