"""A Prometheus of the simulation: keeps scrapes, and answers the operator's table of queries.

What PromQL does is done by the fields of a ``Query``: a selector, a function over a window, one
aggregation, and ``or`` for the names in other versions. Windows are open at their start, as since
Prometheus 3. A scrape that failed leaves stale markers: instant selectors find nothing until the
next one that works, functions over a window pass over them.

Which series a query is about is found once for each target, and only these are kept by series. The
series of a target share the times of their scrapes, and so what a window makes of them.
"""

import math
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tonnage.estimate.metrics import Query
from tonnage.estimate.series import Series
from tonnage.replay.promql import (
    AGGREGATIONS,
    FUNCTIONS,
    INSTANT,
    SampleColumn,
    ScrapeWindow,
    span_of,
)
from tonnage.settings import Settings

Labels = tuple[tuple[str, str], ...]
SeriesKey = tuple[str, Labels]
"""A metric's name and its labels, those of the target left out."""
Page = Mapping[SeriesKey, float]
"""What one scrape of one target returned."""
Row = Sequence[float | None]
"""The values of one scrape in the order in which the target's series were first seen."""

LOOKBACK_S: Final = 300.0
"""Of an instant selector."""
SPARE: Final = 4
"""Times the scrapes that are needed, before old ones are dropped."""
MATCHER: Final = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class _Bound:
    """What a query finds at one target: labels of the answer, and the series behind it."""

    labels: Mapping[str, str]
    choices: tuple[tuple[SampleColumn, ...], ...]
    """Of the metric itself, then of its other names."""

    def values(
        self, function: Callable[[SampleColumn, ScrapeWindow], float | None], span: ScrapeWindow
    ) -> list[float]:
        """Return what a function makes of the series of the first name that has any."""
        for columns in self.choices:
            found = [v for column in columns if (v := function(column, span)) is not None]
            if found:
                return found
        return []


@dataclass(slots=True)
class _Target:
    """The series of one target, which share the times of their scrapes."""

    labels: Mapping[str, str]
    times: list[float] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    num_dropped: int = 0
    """Scrapes before the first that is kept."""
    blank: dict[SeriesKey, None] = field(default_factory=dict)
    """All series ever seen."""
    columns: dict[SeriesKey, SampleColumn] = field(default_factory=dict)
    """Of those that a query is about."""
    places: list[tuple[int, SampleColumn]] = field(default_factory=list)
    """The same by their place in a row."""
    bound: dict[tuple[str, str], tuple[_Bound, ...]] = field(default_factory=dict)
    """By query and matchers."""
    _spans: dict[float, ScrapeWindow] = field(default_factory=dict)
    _spans_at_s: float = math.nan

    def take(self, at_s: float, page: Page | None) -> None:
        number = self.num_dropped + len(self.times)
        self.times.append(at_s)
        self._spans_at_s = math.nan
        values: dict[SeriesKey, float | None] = {**self.blank, **(page or {})}
        if len(values) > len(self.blank):
            self.blank = dict.fromkeys(values)
            self.bound.clear()
        row = list(values.values())
        self.rows.append(row)
        for place, column in self.places:
            column.take(row[place], number)

    def forget(self, before_s: float) -> None:
        dropped = bisect_right(self.times, before_s)
        self.num_dropped += dropped
        del self.times[:dropped], self.rows[:dropped]
        for column in self.columns.values():
            del column.values[:dropped]

    def column(self, key: SeriesKey) -> SampleColumn:
        """Return a series, from the first scrape that is kept; from now on it is one by itself."""
        found = self.columns.get(key)
        if found is None:
            found, place = SampleColumn(), list(self.blank).index(key)
            for number, row in enumerate(self.rows, self.num_dropped):
                found.take(row[place] if place < len(row) else None, number)
            self.columns[key] = found
            self.places.append((place, found))
        return found

    def span(self, window_s: float, at_s: float) -> ScrapeWindow:
        """Return a window that ends at a time; asked again for the same time, the same one."""
        if self._spans_at_s != at_s:
            self._spans, self._spans_at_s = {}, at_s
        found = self._spans.get(window_s)
        if found is None:
            found = span_of(self.times, at_s - window_s, at_s, dropped=self.num_dropped)
            self._spans[window_s] = found
        return found


class SimulatedPrometheus:
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
            name: list(self._answer(name, query, at_s, further.get(name, "")))
            for name, query in self._table.items()
        }

    def _answer(self, name: str, query: Query, at_s: float, further: str) -> Iterator[Series]:
        function, aggregate = FUNCTIONS[query.function], AGGREGATIONS[query.aggregation]
        window_s = query.scrapes * self._settings.scrape_interval_s
        if query.function in INSTANT:
            window_s = LOOKBACK_S
        for target in self._targets.values():
            span = target.span(window_s, at_s)
            for each in self._bound_at(target, name, query, further):
                values = each.values(function, span)
                if values and math.isfinite(value := aggregate(values)):
                    yield Series(labels=each.labels, value=value, evaluated_at_s=at_s)

    def _bound_at(
        self, target: _Target, name: str, query: Query, further: str
    ) -> tuple[_Bound, ...]:
        """Return what a query finds at a target, looked for once."""
        found = target.bound.get((name, further))
        if found is None:
            found = target.bound[name, further] = self._bind(query, further, target)
        return found

    def _bind(self, query: Query, further: str, target: _Target) -> tuple[_Bound, ...]:
        settings = self._settings
        kept = (settings.namespace_label, settings.pod_label, "engine", *query.own_labels)
        matchers = ",".join(filter(None, (query.matchers, further)))
        found: dict[Labels, list[list[SampleColumn]]] = {}
        for metric, passed in ((query.metric, matchers), *((name, "") for name in query.fallbacks)):
            of_name: dict[Labels, list[SampleColumn]] = {}
            for key, labels in _select(target, metric, passed, kept):
                of_name.setdefault(labels, []).append(target.column(key))
            for labels, columns in of_name.items():
                found.setdefault(labels, []).append(columns)
        return tuple(
            _Bound(dict(labels), tuple(map(tuple, choices))) for labels, choices in found.items()
        )


def _select(
    target: _Target, metric: str, matchers: str, kept: tuple[str, ...]
) -> Iterator[tuple[SeriesKey, Labels]]:
    tests = [_test(*match.groups()) for match in MATCHER.finditer(matchers)]
    for key in target.blank:
        if key[0] == metric:
            labels = {**target.labels, **dict(key[1])}
            if all(labels_pass(labels) for labels_pass in tests):
                yield key, tuple((name, labels[name]) for name in kept if name in labels)


def _test(name: str, operator: str, text: str) -> Callable[[Mapping[str, str]], bool]:
    """Return the test of one label matcher; a label that is absent is empty."""
    is_pattern, is_wanted = "~" in operator, not operator.startswith("!")
    pattern = re.compile(text if is_pattern else re.escape(text))
    return lambda labels: bool(pattern.fullmatch(labels.get(name, ""))) is is_wanted
