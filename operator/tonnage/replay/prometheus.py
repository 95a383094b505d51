"""A Prometheus of the simulation: keeps scrapes, and gives them out as they are.

To the operator raw, to rivals by the few functions over a window that they ask for. Windows are
open at their start, as since Prometheus 3. After a scrape that failed there is nothing newest.
"""

import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

from tonnage.engine.chance import Chance
from tonnage.settings import Settings

Labels = tuple[tuple[str, str], ...]
SeriesKey = tuple[str, Labels]
"""A metric's name and its labels, those of the target left out."""
Page = Mapping[SeriesKey, float]
"""What one scrape of one target returned."""
LOOKBACK_S: Final = 300.0
"""Of the newest sample."""
NEAR: Final = 1.1
"""Mean intervals between samples within which a window's edge is extrapolated to."""
LEAST: Final = 2
"""Samples of a slope."""
Points = Sequence[tuple[float, float]]
"""(time, value) in order of time."""


class Series(NamedTuple):
    """One series of an answer."""

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One metric, how it is reduced over a window, and its own labels that are kept."""

    metric: str
    over: Callable[[Points, float, float], float | None] | None = None
    """What becomes of the samples of a window, its length and its end; None: the newest alone."""
    scrapes: int = 1
    """Of the window."""
    own_labels: tuple[str, ...] = ()


def rate(points: Points, window_s: float, at_s: float) -> float | None:
    """Return the growth of a counter per second, extrapolated to the edges as Prometheus does.

    Sources:
        [prometheus-source] promql/functions.go, extrapolatedRate.
    """
    if len(points) < LEAST:
        return None
    (first_s, first), (last_s, last) = points[0], points[-1]
    falls = sum(before for (_, before), (_, value) in pairwise(points) if value < before)
    grown = last - first + falls
    if grown <= 0:
        return 0.0
    sampled_s = last_s - first_s
    mean_s = sampled_s / (len(points) - 1)
    before_s, after_s = (
        gap_s if gap_s < NEAR * mean_s else mean_s / 2
        for gap_s in (first_s - (at_s - window_s), at_s - last_s)
    )
    before_s = min(before_s, sampled_s * first / grown)  # no counter was below zero
    return grown * (sampled_s + before_s + after_s) / sampled_s / window_s


@dataclass(slots=True)
class Target:
    """What one pod was scraped for."""

    labels: Mapping[str, str]
    pages: deque[tuple[float, Page | None]] = field(default_factory=deque)
    """With the times of the scrapes; None: it failed."""
    keys: dict[str, list[SeriesKey]] = field(default_factory=lambda: defaultdict(list))
    """All series ever seen, by metric."""
    _seen: set[SeriesKey] = field(default_factory=set)

    def take(self, at_s: float, page: Page | None, kept_s: float) -> None:
        self.pages.append((at_s, page))
        while self.pages[0][0] <= at_s - kept_s:
            self.pages.popleft()
        for key in (page or {}).keys() - self._seen:
            self._seen.add(key)
            self.keys[key[0]].append(key)

    def points(self, key: SeriesKey, after_s: float) -> list[tuple[float, float]]:
        """Return the samples of a series after a time."""
        return [
            (at_s, page[key])
            for at_s, page in self.pages
            if at_s > after_s and page is not None and key in page
        ]

    def newest(self, key: SeriesKey, after_s: float) -> float | None:
        at_s, page = self.pages[-1]
        return page.get(key) if page and at_s > after_s else None


class SimulatedPrometheus:
    """Takes scrapes and gives them out; times are unix seconds."""

    def __init__(self, settings: Settings, table: Mapping[str, Query]) -> None:
        """``table``: what a rival asks."""
        self._settings, self._table = settings, table
        self.targets: dict[tuple[str, str], Target] = {}
        """By namespace and pod."""
        longest = max((query.scrapes for query in table.values()), default=1)
        self._kept_s = max(LOOKBACK_S, longest * settings.scrape_interval_s)

    def take(self, namespace: str, pod: str, at_s: float, page: Page | None) -> None:
        """Keep what a scrape of a pod returned; None: it failed."""
        settings = self._settings
        target = self.targets.get((namespace, pod))
        if target is None:
            labels = {settings.namespace_label: namespace, settings.pod_label: pod}
            target = self.targets[namespace, pod] = Target(labels)
        target.take(at_s, page, self._kept_s)

    def drop(self, namespace: str, pod: str) -> None:
        """Forget a pod that is gone."""
        self.targets.pop((namespace, pod), None)

    def ask(self, at_s: float) -> dict[str, list[Series]]:
        """Answer all queries of the table: of series that differ in other labels the largest."""
        return {
            name: [
                each for target in self.targets.values() for each in self._of(target, query, at_s)
            ]
            for name, query in self._table.items()
        }

    def _of(self, target: Target, query: Query, at_s: float) -> Iterator[Series]:
        window_s = query.scrapes * self._settings.scrape_interval_s
        found: dict[Labels, float] = {}
        for key in target.keys.get(query.metric, ()):
            if query.over is None:
                value = target.newest(key, at_s - LOOKBACK_S)
            else:
                value = query.over(target.points(key, at_s - window_s), window_s, at_s)
            if value is not None and math.isfinite(value):
                kept = tuple(each for each in key[1] if each[0] in ("engine", *query.own_labels))
                found[kept] = max(value, found.get(kept, value))
        for labels, value in found.items():
            yield Series({**target.labels, **dict(labels)}, value)


Fault = Callable[[Page | None, int, float], Page | None]
"""Takes the page, the number of its pod in order of creation and the time; None: no page."""


def drop_scrapes(share: float, *, seed: int = 0) -> Fault:
    """Return a fault that loses a share of all scrapes."""
    chance = Chance(seed)
    return lambda page, *_: None if page is not None and chance.share() < share else page
