"""A Prometheus of the simulation: keeps scrapes, and answers the operator's table of queries.

What PromQL does is done by the fields of a ``Query``: a selector, a function over a window, one
aggregation, and ``or`` for the names in other versions. Windows are open at their start, as since
Prometheus 3. A scrape that failed leaves stale markers: instant selectors find nothing until the
next one that works, functions over a window pass over them.

Sources:
    [prometheus-source] promql/functions.go extrapolatedRate, linearRegression.
"""

import math
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from tonnage.estimate.metrics import Query
from tonnage.estimate.samples import Series
from tonnage.settings import Settings

Labels = tuple[tuple[str, str], ...]
SeriesKey = tuple[str, Labels]
"""A metric's name and its labels, those of the target left out."""
Page = Mapping[SeriesKey, float]
"""What one scrape of one target returned."""
Reduced = float | None
Window = tuple[Sequence[float], Sequence[float], float, float]
"""Times and values of the samples in it, and where it begins and ends."""

LOOKBACK_S: Final = 300.0
"""Of an instant selector."""
NEAR: Final = 1.1
"""Mean intervals between samples within which a window's edge is extrapolated to."""
LEAST: Final = 2
"""Samples of a slope."""
SPARE: Final = 4
"""Times the scrapes that are needed, before old ones are dropped."""
MATCHER: Final = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"((?:[^"\\]|\\.)*)"')


@dataclass(slots=True)
class _Target:
    """The series of one target, which share the times of their scrapes."""

    labels: Mapping[str, str]
    times: list[float] = field(default_factory=list)
    columns: dict[SeriesKey, list[float | None]] = field(default_factory=dict)
    bound: dict[tuple[str, str, tuple[str, ...]], list[tuple[SeriesKey, Labels]]] = field(
        default_factory=dict
    )
    """By metric, matchers and kept labels: the series found, and the labels of the answer."""

    def take(self, at_s: float, page: Page | None) -> None:
        self.times.append(at_s)
        found = page or {}
        for key in found:
            if key not in self.columns:
                self.columns[key] = [None] * (len(self.times) - 1)
                self.bound.clear()
        for key, column in self.columns.items():
            column.append(found.get(key))

    def forget(self, before_s: float) -> None:
        kept = bisect_right(self.times, before_s)
        del self.times[:kept]
        for column in self.columns.values():
            del column[:kept]

    def window(self, key: SeriesKey, start_s: float, end_s: float) -> Window:
        first, last = bisect_right(self.times, start_s), bisect_right(self.times, end_s)
        times, values = self.times[first:last], self.columns[key][first:last]
        if None in values:
            known = [(t, v) for t, v in zip(times, values, strict=True) if v is not None]
            return [t for t, _ in known], [v for _, v in known], start_s, end_s
        return times, values, start_s, end_s  # type: ignore[return-value]

    def newest(self, key: SeriesKey, at_s: float) -> tuple[float, float] | None:
        """Return time and value of an instant selector; None where it is stale."""
        last = bisect_right(self.times, at_s) - 1
        if last < 0 or self.times[last] <= at_s - LOOKBACK_S:
            return None
        value = self.columns[key][last]
        return None if value is None else (self.times[last], value)


class Prometheus:
    """Takes scrapes and answers a table of queries at a time; times are unix seconds."""

    def __init__(self, settings: Settings, table: Mapping[str, Query]) -> None:
        self._settings, self._table = settings, table
        self._targets: dict[tuple[str, str], _Target] = {}
        longest = max((query.scrapes for query in table.values()), default=1)
        self._kept_s = max(LOOKBACK_S, longest * settings.scrape_interval_s)

    def take(self, namespace: str, pod: str, at_s: float, page: Page | None) -> None:
        """Keep what a scrape of a pod returned; None: it failed."""
        settings = self._settings
        target = self._targets.get((namespace, pod))
        if target is None:
            labels = {settings.namespace_label: namespace, settings.pod_label: pod}
            target = self._targets[namespace, pod] = _Target(labels)
        target.take(at_s, page)
        if len(target.times) > SPARE * self._kept_s / settings.scrape_interval_s:
            target.forget(at_s - self._kept_s)

    def drop(self, namespace: str, pod: str) -> None:
        """Forget a pod that is gone."""
        self._targets.pop((namespace, pod), None)

    def ask(
        self, at_s: float, *, le_matchers: Mapping[str, str] | None = None
    ) -> dict[str, list[Series]]:
        """Answer all queries of the table; ``le_matchers``: further matchers by query."""
        further = le_matchers or {}
        return {
            name: self._answer(query, at_s, further.get(name, ""))
            for name, query in self._table.items()
        }

    def _answer(self, query: Query, at_s: float, further: str) -> list[Series]:
        matchers = ",".join(filter(None, (query.matchers, further)))
        found = self._vector(query, query.metric, matchers, at_s)
        for name in query.fallbacks:
            found = {**self._vector(query, name, "", at_s), **found}
        return [
            Series(labels=dict(labels), value=value, evaluated_at_s=at_s)
            for labels, value in found.items()
            if math.isfinite(value)
        ]

    def _vector(self, query: Query, metric: str, matchers: str, at_s: float) -> dict[Labels, float]:
        grouped: dict[Labels, list[float]] = {}
        for target in self._targets.values():
            for key, labels in self._bound(target, query, metric, matchers):
                value = self._reduced(query, target, key, at_s)
                if value is not None:
                    grouped.setdefault(labels, []).append(value)
        aggregate = AGGREGATIONS[query.aggregation]
        return {labels: aggregate(values) for labels, values in grouped.items()}

    def _bound(
        self, target: _Target, query: Query, metric: str, matchers: str
    ) -> list[tuple[SeriesKey, Labels]]:
        known = (metric, matchers, query.own_labels)
        found = target.bound.get(known)
        if found is None:
            settings = self._settings
            kept = (settings.namespace_label, settings.pod_label, "engine", *query.own_labels)
            found = target.bound[known] = list(_selected(target, metric, matchers, kept))
        return found

    def _reduced(self, query: Query, target: _Target, key: SeriesKey, at_s: float) -> Reduced:
        if query.function is None or query.function == "timestamp":
            newest = target.newest(key, at_s)
            if newest is None:
                return None
            return newest[0] if query.function else newest[1]
        start_s = at_s - query.scrapes * self._settings.scrape_interval_s
        return FUNCTIONS[query.function](target.window(key, start_s, at_s))


def _selected(
    target: _Target, metric: str, matchers: str, kept: tuple[str, ...]
) -> Iterator[tuple[SeriesKey, Labels]]:
    tests = [_test(*match.groups()) for match in MATCHER.finditer(matchers)]
    for key in target.columns:
        if key[0] == metric:
            labels = {**target.labels, **dict(key[1])}
            if all(labels_pass(labels) for labels_pass in tests):
                yield key, tuple((name, labels[name]) for name in kept if name in labels)


def _test(name: str, operator: str, text: str) -> Callable[[Mapping[str, str]], bool]:
    """Return the test of one label matcher; a label that is absent is empty."""
    is_pattern, is_wanted = "~" in operator, not operator.startswith("!")
    pattern = re.compile(text if is_pattern else re.escape(text))
    return lambda labels: bool(pattern.fullmatch(labels.get(name, ""))) is is_wanted


def _increase(window: Window, *, is_counter: bool) -> Reduced:
    """Return the increase over a whole window, from samples that do not reach its edges."""
    times, values, start_s, end_s = window
    if len(values) < LEAST:
        return None
    grown = values[-1] - values[0]
    if is_counter:
        grown += sum(before for before, value in pairwise(values) if value < before)
    sampled_s = times[-1] - times[0]
    mean_s = sampled_s / (len(values) - 1)
    before_s, after_s = times[0] - start_s, end_s - times[-1]
    before_s = before_s if before_s < NEAR * mean_s else mean_s / 2
    after_s = after_s if after_s < NEAR * mean_s else mean_s / 2
    if is_counter and grown > 0 and values[0] >= 0:
        before_s = min(before_s, sampled_s * values[0] / grown)
    return grown * (sampled_s + before_s + after_s) / sampled_s


def _rate(window: Window) -> Reduced:
    found = _increase(window, is_counter=True)
    return None if found is None else found / (window[3] - window[2])


def _deriv(window: Window) -> Reduced:
    """Return the slope of the line of least squares."""
    times, values, _, _ = window
    if len(values) < LEAST:
        return None
    mean_t, mean_v = sum(times) / len(times), sum(values) / len(values)
    spread = sum((t - mean_t) ** 2 for t in times)
    together = sum((t - mean_t) * (v - mean_v) for t, v in zip(times, values, strict=True))
    return together / spread if spread else None


def _over(function: Callable[[Sequence[float]], float]) -> Callable[[Window], Reduced]:
    return lambda window: function(window[1]) if window[1] else None


def _numbers(values: Sequence[float]) -> Iterator[float]:
    return (value for value in values if not math.isnan(value))


FUNCTIONS: Final[Mapping[str, Callable[[Window], Reduced]]] = {
    "rate": _rate,
    "increase": lambda window: _increase(window, is_counter=True),
    "delta": lambda window: _increase(window, is_counter=False),
    "deriv": _deriv,
    "avg_over_time": _over(lambda values: sum(values) / len(values)),
    "min_over_time": _over(lambda values: min(_numbers(values), default=math.nan)),
    "max_over_time": _over(lambda values: max(_numbers(values), default=math.nan)),
    "sum_over_time": _over(sum),
    "count_over_time": _over(len),
    "last_over_time": _over(lambda values: values[-1]),
    "resets": _over(lambda values: sum(b < a for a, b in pairwise(values))),
    "changes": _over(lambda values: sum(b != a for a, b in pairwise(values))),
}
AGGREGATIONS: Final[Mapping[str, Callable[[Sequence[float]], float]]] = {
    "max": max,
    "min": min,
    "sum": sum,
    "group": lambda _: 1.0,
}
