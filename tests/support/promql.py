"""What Prometheus answers from recorded scrapes, for the PromQL that the operator writes.

``or`` of aggregations ``max by`` and ``group by`` over one selector, as it is, over a window or as
``timestamp()``. Windows are open to the left, as since Prometheus 3.0; a series that a scrape does
not hold any more is stale from then on.

Sources:
    [prometheus-source] promql/functions.go, extrapolatedRate; promql/engine.go.
"""

import bisect
import gzip
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path

import promql_parser as promql
from prometheus_client.parser import text_string_to_metric_families

from tonnage.estimate.series import Series

LOOKBACK_S = 300.0
EXTRAPOLATED_SCRAPES = 1.1
"""A sample nearer to the end of a window than so many scrapes speaks for the time up to it."""
HEAD = re.compile(r"# scrape_at_s (\S+)")
Labels = tuple[tuple[str, str], ...]
Points = Sequence[tuple[float, float]]
"""(time, value), in order of time."""
Vector = dict[Labels, float]


@dataclass(frozen=True, kw_only=True)
class Recording:
    """Every sample of one target, by metric and labels."""

    scrapes_s: Sequence[float]
    """When it was scraped, in order."""
    series: Mapping[str, Mapping[Labels, Points]] = field(repr=False)

    @property
    def interval_s(self) -> float:
        """The usual time between two scrapes."""
        gaps = sorted(later - earlier for earlier, later in pairwise(self.scrapes_s))
        return gaps[len(gaps) // 2]


def read_recording(path: Path, *, labels: Mapping[str, str]) -> Recording:
    """Read pages of ``/metrics``, each headed by ``# scrape_at_s T``; add the target's labels."""
    text = (
        gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    ).decode()
    _, *parts = HEAD.split(text)
    pages = sorted(zip(map(float, parts[::2]), parts[1::2], strict=True))
    return recorded(
        (at_s, ((each.name, labels | each.labels, each.value) for each in _samples(page)))
        for at_s, page in pages
    )


def _samples(page: str) -> Iterator:
    return (each for family in text_string_to_metric_families(page) for each in family.samples)


def recorded(
    scrapes: Iterable[tuple[float, Iterable[tuple[str, Mapping[str, str], float]]]],
) -> Recording:
    """Return the recording of scrapes, each of (metric, labels, value)."""
    scrapes_s: list[float] = []
    series: dict[str, dict[Labels, list[tuple[float, float]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for at_s, samples in scrapes:
        scrapes_s.append(at_s)
        for metric, labels, value in samples:
            series[metric][tuple(sorted(labels.items()))].append((at_s, value))
    return Recording(scrapes_s=scrapes_s, series=series)


def answer(recording: Recording, text: str, at_s: float) -> list[Series]:
    """Return the instant vector of an expression at a time."""
    found = _evaluate(recording, _parsed(text), at_s)
    return [
        Series(labels=dict(labels), value=value, evaluated_at_s=at_s)
        for labels, value in found.items()
    ]


@cache
def _parsed(text: str):
    return promql.parse(text)


def _evaluate(recording: Recording, expr, at_s: float) -> Vector:
    match expr:
        case promql.BinaryExpr() if str(expr.op) == "or":
            left = _evaluate(recording, expr.lhs, at_s)
            return _evaluate(recording, expr.rhs, at_s) | left
        case promql.AggregateExpr():
            return _aggregated(expr, _evaluate(recording, expr.expr, at_s))
        case promql.Call():
            return _called(recording, expr, at_s)
        case promql.VectorSelector():
            return {labels: value for labels, (_, value) in _newest(recording, expr, at_s)}
    raise NotImplementedError(f"{type(expr).__name__}: {expr.prettify()}")


def _aggregated(expr, vector: Vector) -> Vector:
    groups: dict[Labels, list[float]] = defaultdict(list)
    for labels, value in vector.items():
        kept = tuple((name, text) for name, text in labels if name in expr.modifier.labels)
        groups[kept].append(value)
    reduce = {"max": max, "group": lambda _: 1.0}[str(expr.op)]
    return {labels: reduce(values) for labels, values in groups.items()}


def _called(recording: Recording, expr, at_s: float) -> Vector:
    argument, *replaced = expr.args
    name = expr.func.name
    if replaced:  # labels of GPUs, of which no recording has any
        return _evaluate(recording, argument, at_s)
    if name == "timestamp":
        return {labels: seconds for labels, (seconds, _) in _newest(recording, argument, at_s)}
    window_s = argument.range.total_seconds()
    found = {}
    for labels, points in _selected(recording, argument.vector_selector):
        start = bisect.bisect(points, at_s - window_s, key=lambda point: point[0])
        end = bisect.bisect(points, at_s, key=lambda point: point[0])
        value = reduced(name, points[start:end], window_s=window_s, at_s=at_s)
        if value is not None:
            found[labels] = value
    return found


def _newest(recording: Recording, selector, at_s: float) -> Iterator[tuple[Labels, tuple]]:
    """Yield the newest sample of each series that the last scrape still held."""
    scraped = bisect.bisect(recording.scrapes_s, at_s)
    last_s = recording.scrapes_s[scraped - 1] if scraped else None
    for labels, points in _selected(recording, selector):
        end = bisect.bisect(points, at_s, key=lambda point: point[0])
        if end and points[end - 1][0] == last_s and at_s - last_s < LOOKBACK_S:
            yield labels, points[end - 1]


def _selected(recording: Recording, selector) -> Iterator[tuple[Labels, Points]]:
    matchers = selector.matchers.matchers
    for labels, points in recording.series.get(selector.name, {}).items():
        told = dict(labels)
        if all(_matches(each, told.get(each.name, "")) for each in matchers):
            yield labels, points


def _matches(matcher, text: str) -> bool:
    match str(matcher.op):
        case "MatchOp.Equal":
            return text == matcher.value
        case "MatchOp.Re":
            return re.fullmatch(matcher.value, text) is not None
    raise NotImplementedError(str(matcher.op))


OVER_TIME = {
    "count_over_time": len,
    "avg_over_time": lambda points: sum(value for _, value in points) / len(points),
    "last_over_time": lambda points: points[-1][1],
    "resets": lambda points: sum(after < before for (_, before), (_, after) in pairwise(points)),
}


def reduced(name: str, points: Points, *, window_s: float, at_s: float) -> float | None:
    """Return what a function makes of the samples in a window; None: nothing."""
    if name in OVER_TIME:
        return OVER_TIME[name](points) if points else None
    if len(points) < 2:
        return None
    is_counter = {"rate": True, "increase": True, "delta": False}[name]
    grown = points[-1][1] - points[0][1]
    if is_counter:
        grown += sum(before for (_, before), (_, after) in pairwise(points) if after < before)
    sampled_s = points[-1][0] - points[0][0]
    to_start_s = _extrapolated_s(points[0][0] - (at_s - window_s), sampled_s / (len(points) - 1))
    to_end_s = _extrapolated_s(at_s - points[-1][0], sampled_s / (len(points) - 1))
    if is_counter and grown > 0 and points[0][1] >= 0:
        to_start_s = min(to_start_s, sampled_s * points[0][1] / grown)
    total = grown * (sampled_s + to_start_s + to_end_s) / sampled_s
    return total / window_s if name == "rate" else total


def _extrapolated_s(distance_s: float, each_s: float) -> float:
    return distance_s if distance_s < EXTRAPOLATED_SCRAPES * each_s else each_s / 2
