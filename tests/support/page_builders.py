"""Pages of engines, as a round of questions tells them."""

import threading
from math import isnan

from tonnage.estimate.fleet_scrapes import MAX_BOUNDS, Answered, FleetScrapes
from tonnage.estimate.metrics import COLUMNS, PLACES
from tonnage.settings import Settings

OWN = {"completed": "stop", "rejected": "max_num_queued_reqs"}
"""Values of the label that a sum comes in."""


def labels_of(name, pod, engine="0", **more):
    """The labels of the series of a column."""
    column = COLUMNS[PLACES[name]]
    found = {"__name__": column.metrics[0], "namespace": pod[0], "pod": pod[1]}
    found |= {"engine": engine} if engine is not None else {}
    found |= {column.own[0]: column.own[1]} if column.own[0] else {}
    found |= {column.summed: OWN[name]} if column.summed else {}
    return found | more


def series_hash(labels):
    return hash(tuple(sorted(labels.items())))


def take_series(scrapes, into, labels, samples):
    scrapes.take(into, series_hash(labels), labels.copy, samples)


def take_page(scrapes, pod, at_s, page, engine="0", **more):
    """Add one scrape of an engine, figures by column; ``more``: labels of all series."""
    answered = Answered()
    for name, value in page.items():
        take_series(scrapes, answered, labels_of(name, pod, engine, **more), [(at_s, value)])
    scrapes.add(answered)


def pages_of(rows):
    """What a round says of an engine: figures by column, by time."""
    pages = rows.pages(sorted(set(rows.figures[::2])), len(COLUMNS) + MAX_BOUNDS)
    return {
        at_s: {at: figure for at, figure in enumerate(page) if not isnan(figure)}
        for at_s, page in pages.items()
    }


REACH_S = 1000.0
"""How far back a page history goes."""
STEADY = {
    "running": 20,
    "queued": 0,
    "waiting": 0,
    "rejected": 0,
    "finished": 2,
    "finished_prompt_tokens": 8000,
    "finished_output_tokens": 2000,
    "started": 2,
    "started_prompt_tokens": 8000,
    "computed_prompt_tokens": 8000,
}
"""What each pod reports beside its completions: gauges, and counters per second. Lengths are those
that the specs of tests expect."""


class PageHistory:
    """The pages of one engine, of which counters grow by what a test says at the time."""

    def __init__(self, interval_s=15.0):
        self.interval_s, self.pages, self._totals = interval_s, [], {}
        self._lock = threading.Lock()

    def advance(self, figures, until_s):
        """Scrape until a time; figures by column: gauges, and counters per second."""
        with self._lock:
            self._advance(figures, until_s)

    def _advance(self, figures, until_s):
        if self.pages and until_s < self.pages[-1][0]:
            self.pages.clear()  # the clock was set back
        first_s = self.pages[-1][0] if self.pages else until_s - REACH_S
        number = int((until_s - first_s) / self.interval_s + 1e-6)
        for left in range(number - 1, -1, -1):
            self._scrape(figures, until_s - left * self.interval_s)
        since_s = until_s - REACH_S
        self.pages[:] = [each for each in self.pages if each[0] >= since_s]

    def _scrape(self, figures, at_s):
        last_s = self.pages[-1][0] if self.pages else at_s - 1000 * self.interval_s
        page = {}
        for name, value in figures.items():
            is_gauge = name in PLACES and COLUMNS[PLACES[name]].is_gauge
            if value is None or isinstance(value, str) or is_gauge:
                page[name] = value
                continue
            grown = self._totals.get(name, 0.0) + value * (at_s - last_s)
            self._totals[name] = page[name] = grown
        self.pages.append((at_s, page))

    def samples(self, name, since_s):
        """(time, value) of a column, where a page has it."""
        return [
            (at_s, page[name])
            for at_s, page in self.pages
            if at_s > since_s and page.get(name) is not None
        ]


class Everybody(frozenset):
    """Pods of which any is one."""

    def __contains__(self, pod):
        return True


def for_everybody():
    """Scrapes of whatever pod is told of."""
    scrapes = FleetScrapes(Settings(prometheus_url="http://prometheus.test:9090"))
    scrapes.expect(Everybody([("", "")]))
    return scrapes
