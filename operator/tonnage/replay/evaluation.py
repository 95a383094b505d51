"""How a simulation is judged: which requests were kept, at what cost, and how often it scaled."""

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import Final

from tonnage.replay.cluster import Pod, Record, RunSnapshot
from tonnage.replay.ground_truth import Work
from tonnage.replay.traffic import Traffic
from tonnage.sizing.workload import Slo, Target
from tonnage.units import HOUR_S

QUANTILES: Final = (0.5, 0.95, 0.99)
SLIDING_S: Final = 300.0
"""From the beginning of an hour that is judged to that of the next one."""
FEWEST_OF_AN_HOUR: Final = 100
"""Requests: with fewer, one more or less is percents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyLimits:
    """What a request has to keep, in seconds; infinite: no such target."""

    ttft_s: float
    tpot_s: float

    @classmethod
    def of(cls, slo: Slo) -> "LatencyLimits":
        """Return the limits that most requests are promised: of the highest percentiles."""
        return cls(ttft_s=_limit_s(slo.ttft), tpot_s=_limit_s(slo.tpot))


def _limit_s(targets: Sequence[Target]) -> float:
    highest = max(targets, key=lambda each: each.quantile, default=None)
    return math.inf if highest is None else highest.limit_s


def promised_share(slo: Slo) -> float:
    """Return the share of requests that the targets promise the limits to."""
    return max(each.quantile for each in (*slo.ttft, *slo.tpot))


def unjudged_targets(slo: Slo) -> Iterator[str]:
    """Yield what the share of requests that keep one limit of each latency cannot say."""
    share = promised_share(slo)
    for name, targets in (("TTFT", slo.ttft), ("TPOT", slo.tpot)):
        ordered = sorted(targets, key=lambda each: each.quantile)
        for each in ordered[:-1]:
            yield f"{name} {each} is not judged, only its highest percentile is"
        for each in ordered[-1:]:
            if each.quantile < share:
                yield f"{name} {each} is asked of {share:.0%} here, as the other latency is"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutcomes:
    """What became of each request, by arrival: latencies infinite where it never got so far."""

    arrival_s: "array[float]"
    ttft_s: "array[float]"
    tpot_s: "array[float]"
    """0 where only one token was asked for, as in vLLM's histogram."""
    is_kept: bytes
    num_too_long: int
    """Of these, that no engine takes; they are missed."""

    @property
    def num_requests(self) -> int:
        return len(self.arrival_s)

    @property
    def num_unserved(self) -> int:
        """Requests that came to no engine, were refused, or did not end."""
        lost = sum(
            math.isinf(ttft_s) or math.isinf(tpot_s)
            for ttft_s, tpot_s in zip(self.ttft_s, self.tpot_s, strict=True)
        )
        return lost - self.num_too_long

    @property
    def attainment(self) -> float:
        """Return the share that was kept; 1 where nobody came."""
        return sum(self.is_kept) / len(self.is_kept) if self.is_kept else 1.0

    def by_window(
        self, window_s: float, every_s: float, until_s: float
    ) -> Iterator["RequestWindow"]:
        """Yield how those fared that came within windows, which may overlap."""
        kept = [0, *accumulate(self.is_kept)]
        start_s = 0.0
        while start_s < until_s:
            first = bisect_left(self.arrival_s, start_s)
            last = bisect_left(self.arrival_s, start_s + window_s)
            yield RequestWindow(
                start_s=start_s, num_requests=last - first, num_kept=kept[last] - kept[first]
            )
            start_s += every_s


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestWindow:
    """The requests that came within a time."""

    start_s: float
    num_requests: int
    num_kept: int

    @property
    def attainment(self) -> float | None:
        """None: nobody came."""
        return self.num_kept / self.num_requests if self.num_requests else None


def fates(record: Record, drawn: Traffic, limits: LatencyLimits) -> RequestOutcomes:
    """Hold every request against the limits: both must be kept."""
    table = record.cluster.table
    arrival_s: Sequence[float] = drawn.arrival_s
    first_s, ended_s = memoryview(table.first_token_s), memoryview(table.ended_s)
    tokens = memoryview(table.output_tokens)
    server_s = record.cluster.served.truth.server_s
    ttfts_s = [
        begun_s - at_s + server_s if begun_s else math.inf
        for at_s, begun_s in zip(arrival_s, first_s, strict=True)
    ]
    tpots_s = [
        (done_s - begun_s) / (num_tokens - 1 if num_tokens > 1 else 1)
        if 0 < done_s < math.inf
        else math.inf
        for begun_s, done_s, num_tokens in zip(first_s, ended_s, tokens, strict=True)
    ]
    rows = zip(arrival_s, ttfts_s, tpots_s, strict=True)
    if lost_s := drawn.too_long_s:
        lost = ((at_s, math.inf, math.inf) for at_s in lost_s)
        rows = zip(*sorted((*lost, *rows), key=itemgetter(0)), strict=True)
        arrival_s, ttfts_s, tpots_s = map(list, rows)
    is_kept = [
        ttft_s <= limits.ttft_s and tpot_s <= limits.tpot_s and max(ttft_s, tpot_s) < math.inf
        for ttft_s, tpot_s in zip(ttfts_s, tpots_s, strict=True)
    ]
    return RequestOutcomes(
        arrival_s=array("d", arrival_s),
        ttft_s=array("d", ttfts_s),
        tpot_s=array("d", tpots_s),
        is_kept=bytes(is_kept),
        num_too_long=len(lost_s),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFigures:
    """One run in figures, over the time of the traffic."""

    duration_s: float
    num_requests: int
    num_too_long: int
    num_unserved: int
    attainment: float
    worst_hour: float
    """The least share kept of the requests that came within an hour."""
    worst_hour_at_s: float
    """When it began."""
    gpu_hours: float
    """From the creation of pods to their end."""
    scaled_up: int
    """Times that more replicas were asked for."""
    scaled_down: int
    starting_s: float
    """Of replicas that were billed and not yet Ready, or never."""
    draining_s: float
    mean_replicas: float
    """Billed."""
    max_replicas: int
    """Pods at a time, those starting and draining included."""
    ttft_s: tuple[float, ...]
    """By ``QUANTILES``."""
    tpot_s: tuple[float, ...]

    @property
    def gpu_hours_per_day(self) -> float:
        return self.gpu_hours * 24 * HOUR_S / self.duration_s


def run_figures(record: Record, drawn: Traffic, found: RequestOutcomes) -> RunFigures:
    until_s = drawn.duration_s
    worst = worst_hour(found, until_s)
    pods = record.cluster.pods
    asked = [moment.replicas for moment in record.moments if moment.at_s <= until_s]
    steps = [late - early for early, late in pairwise(asked)]
    return RunFigures(
        duration_s=until_s,
        num_requests=found.num_requests,
        num_too_long=found.num_too_long,
        num_unserved=found.num_unserved,
        attainment=found.attainment,
        worst_hour=worst[0],
        worst_hour_at_s=worst[1],
        gpu_hours=record.gpu_s(0, until_s) / HOUR_S,
        scaled_up=sum(step > 0 for step in steps),
        scaled_down=sum(step < 0 for step in steps),
        starting_s=sum(_within_s(p.created_s, min(p.ready_s, p.deleted_s), until_s) for p in pods),
        draining_s=sum(
            _within_s(p.deleted_s, p.ended_s, until_s) for p in pods if p.ready_s < p.deleted_s
        ),
        mean_replicas=sum(_within_s(p.created_s, p.ended_s, until_s) for p in pods) / until_s,
        max_replicas=_most_at_once(pods, until_s),
        ttft_s=quantiles(found.ttft_s),
        tpot_s=quantiles(found.tpot_s),
    )


def worst_hour(found: RequestOutcomes, until_s: float) -> tuple[float, float]:
    """Return the least attainment of any hour, and when that hour began.

    Hours begin every five minutes and lie within the traffic; those with few requests do not count.
    Where none does, all of the traffic is one.
    """
    hours = [
        (share, window.start_s)
        for window in found.by_window(HOUR_S, SLIDING_S, max(0.0, until_s - HOUR_S) + 1)
        if window.num_requests >= FEWEST_OF_AN_HOUR and (share := window.attainment) is not None
    ]
    return min(hours, default=(found.attainment, 0.0))


def quantiles(values: Sequence[float]) -> tuple[float, ...]:
    """Return the smallest values that so many shares of all do not exceed; NaN where none is."""
    ascending = sorted(values)
    if not ascending:
        return tuple(math.nan for _ in QUANTILES)
    return tuple(ascending[math.ceil(each * len(ascending)) - 1] for each in QUANTILES)


def _within_s(begun_s: float, ended_s: float, until_s: float) -> float:
    """Return how much of a while is within the time of the traffic."""
    return max(0.0, min(until_s, ended_s) - max(0.0, begun_s))


def _most_at_once(pods: Sequence[Pod], until_s: float) -> int:
    counted = [pod for pod in pods if _within_s(pod.created_s, pod.ended_s, until_s) > 0]
    begins = sorted(max(0.0, pod.created_s) for pod in counted)
    ends = sorted(pod.ended_s for pod in counted)
    return max(
        (number - bisect_right(ends, at_s) for number, at_s in enumerate(begins, start=1)),
        default=0,
    )


WIDTHS_S: Final = (60.0, 300.0, 600.0, 900.0, 1800.0, 3600.0)
MOST: Final = 300
"""Points, but for traffic of more than twelve days."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesPoint:
    """The means of a while; of requests that did not come, None."""

    at_s: float
    """When it began."""
    until_s: float
    replicas: float
    """Asked for."""
    ready: float
    """Those that are being taken away not among them."""
    live: float
    """Pods that are billed."""
    load: float
    """Replicas at their fluid bound that the requests of the time take."""
    requests_per_s: float
    planned_requests_per_s: float | None
    """None: no controller says what it plans for in this time."""
    waiting: float
    """Requests without their first token, at the end of the while."""
    attainment: float | None


def width_of(duration_s: float) -> float:
    """Return the least width of points that makes not too many of them.

    >>> width_of(3600), width_of(86_400)
    (60.0, 300.0)
    """
    return next((each for each in WIDTHS_S if duration_s / each <= MOST), WIDTHS_S[-1])


def series(
    record: Record, drawn: Traffic, found: RequestOutcomes, work: Work
) -> Iterator[SeriesPoint]:
    until_s, pods, width_s = drawn.duration_s, record.cluster.pods, width_of(drawn.duration_s)
    arrival_s = drawn.arrival_s
    first_s = array("d", sorted(each or math.inf for each in record.cluster.table.first_token_s))
    rows = zip(
        found.by_window(width_s, width_s, until_s),
        _means(_spans(record, lambda each: each.replicas), width_s, until_s),
        _means(_spans(record, lambda each: each.planned_requests_per_s), width_s, until_s),
        _means(
            _spans(record, lambda each: each.planned_requests_per_s is not None), width_s, until_s
        ),
        _means(((pod.ready_s, pod.deleted_s, 1) for pod in pods), width_s, until_s),
        _means(((pod.created_s, pod.ended_s, 1) for pod in pods), width_s, until_s),
        strict=True,
    )
    for window, replicas, planned, known, ready, live in rows:
        from_s, to_s = window.start_s, min(until_s, window.start_s + width_s)
        yield SeriesPoint(
            at_s=from_s,
            until_s=to_s,
            replicas=replicas,
            ready=ready,
            live=live,
            load=work.mean(from_s, to_s),
            requests_per_s=window.num_requests / (to_s - from_s),
            planned_requests_per_s=planned / known if known else None,
            waiting=bisect_right(arrival_s, to_s) - bisect_right(first_s, to_s),
            attainment=window.attainment,
        )


Span = tuple[float, float, float]
"""From when, until when, and how many."""


def _spans(record: Record, figure: Callable[[RunSnapshot], float | None]) -> Iterator[Span]:
    """Yield a figure of each act of the controller that has one, which holds until the next act."""
    ends_s = [*(moment.at_s for moment in record.moments[1:]), math.inf]
    for moment, until_s in zip(record.moments, ends_s, strict=False):
        if (value := figure(moment)) is not None:
            yield moment.at_s, until_s, value


def _means(spans: Iterable[Span], width_s: float, until_s: float) -> list[float]:
    """Return how many there were in each while, in the mean over its time.

    >>> _means([(-5.0, 90.0, 2), (30.0, math.inf, 1)], 60.0, 150.0)
    [2.5, 2.0, 1.0]
    """
    starts_s = [number * width_s for number in range(math.ceil(until_s / width_s))]
    sums_s = [0.0] * len(starts_s)
    for from_s, to_s, number in spans:
        begins_s, ends_s = max(0.0, from_s), min(until_s, to_s)
        if begins_s >= ends_s:
            continue
        for place in range(int(begins_s // width_s), math.ceil(ends_s / width_s)):
            start_s = starts_s[place]
            overlap_s = min(ends_s, start_s + width_s) - max(begins_s, start_s)
            sums_s[place] += number * overlap_s
    return [
        sum_s / (min(until_s, start_s + width_s) - start_s)
        for start_s, sum_s in zip(starts_s, sums_s, strict=True)
    ]
