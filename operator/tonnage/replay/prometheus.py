"""A Prometheus of the simulation: keeps scrapes, and gives them out as they are.

To the operator raw, to rivals by the few functions over a window that they ask for. Windows are
open at their start, as since Prometheus 3. After a scrape that failed there is nothing newest.
"""

import math
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from tonnage.replay.query import OVER_TIME, Query, Series
from tonnage.settings import Settings

Labels = tuple[tuple[str, str], ...]
SeriesKey = tuple[str, Labels]
"""A metric's name and its labels, those of the target left out."""
Page = Mapping[SeriesKey, float]
"""What one scrape of one target returned."""
LOOKBACK_S: Final = 300.0
"""Of the newest sample."""


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
            if query.function is None:
                value = target.newest(key, at_s - LOOKBACK_S)
            else:
                points = target.points(key, at_s - window_s)
                value = OVER_TIME[query.function](points, window_s, at_s)
            if value is not None and math.isfinite(value):
                kept = tuple(each for each in key[1] if each[0] in ("engine", *query.own_labels))
                found[kept] = max(value, found.get(kept, value))
        for labels, value in found.items():
            yield Series({**target.labels, **dict(labels)}, value, at_s)
