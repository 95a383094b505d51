"""A real engine under a known request log, and what the operator makes of its scrapes."""

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np

from page_builders import take_series
from recorded_pages import Labels, Recording, read_recording
from tonnage.estimate.demand import count_arrivals
from tonnage.estimate.fleet_scrapes import Answered, FleetScrapes
from tonnage.estimate.metrics import COLUMNS, PLACES, WINDOWS
from tonnage.estimate.samples import EngineSamples, fleet_samples
from tonnage.settings import Settings

POD = {"namespace": "recorded", "pod": "a"}
AFTER_SCRAPE = 0.25
"""Of an interval: when Prometheus is asked, so that no scrape is on the edge of a window."""
CHANGE_PENALTY = 3.0
"""Times the logarithm of the number of scrapes: what another phase must add to the likelihood."""
SHORTEST_PHASE = 8
"""In scrapes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """One request, as its client saw it; times on the clock of the scrapes."""

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    ttft_s: float
    e2e_s: float

    @property
    def first_token_at_s(self) -> float:
        return self.arrival_s + self.ttft_s

    @property
    def ended_at_s(self) -> float:
        return self.arrival_s + self.e2e_s

    @property
    def tpot_s(self) -> float:
        """Zero for an answer of one token, as vLLM counts it."""
        later = self.output_tokens - 1
        return (self.e2e_s - self.ttft_s) / later if later else 0.0


@dataclass(frozen=True, kw_only=True)
class Watched:
    """A recording beside its log."""

    recording: Recording
    log: Sequence[Logged]

    @cached_property
    def settings(self) -> Settings:
        return Settings(
            prometheus_url="http://prometheus.test:9090",
            scrape_interval_s=round(self.recording.interval_s, 2),
        )

    @property
    def interval_s(self) -> float:
        return self.settings.scrape_interval_s

    @cached_property
    def engines(self) -> Mapping[float, tuple[EngineSamples, ...]]:
        """What the operator reads shortly after each scrape."""
        pod = POD["namespace"], POD["pod"]
        scrapes, found = FleetScrapes(self.settings), {}
        scrapes.expect(frozenset({pod}))
        by_time = defaultdict[float, list](list)
        for metric, series in self.recording.series.items():
            for labels, points in series.items():
                told = {"__name__": metric, **dict(labels)}
                for at_s, value in points:
                    by_time[at_s].append((told, [(at_s, value)]))
        for scrape_s in self.recording.scrapes_s:
            answered = Answered()
            for labels, samples in by_time[scrape_s]:
                take_series(scrapes, answered, labels, samples)
            scrapes.add(answered)
            at_s = scrape_s + AFTER_SCRAPE * self.interval_s
            found[scrape_s] = fleet_samples(scrapes, at_s).get(pod, ())
        return found

    def seen(self, scrape_s: float) -> tuple[EngineSamples, ...]:
        """Return what the operator reads shortly after a scrape."""
        return self.engines[scrape_s]

    def gauge(self, metric: str, scrape_s: float) -> float:
        """Return a gauge as a scrape has it."""
        series = self.recording.series[metric].values()
        return sum(value for points in series for at_s, value in points if at_s == scrape_s)

    def grown(self, metric: str, first_s: float, last_s: float) -> Mapping[Labels, float]:
        """Return by how much each series of a counter grew within a time."""
        found = {}
        for labels, points in self.recording.series[metric].items():
            within = [value for at_s, value in points if first_s <= at_s <= last_s]
            found[labels] = within[-1] - within[0]
        return found

    def mean_tokens(self, tokens: str, requests: str, first_s: float, last_s: float) -> float:
        """Return the ratio of two counters of lengths over a time."""
        metrics = (COLUMNS[PLACES[name]].metrics[0] for name in (tokens, requests))
        sums = (sum(self.grown(metric, first_s, last_s).values()) for metric in metrics)
        return next(sums) / next(sums)

    def scrapes_within(self, first_s: float, last_s: float) -> list[float]:
        return [each for each in self.recording.scrapes_s if first_s <= each <= last_s]

    def windows(self, scrapes: int, first_s: float, last_s: float) -> Iterator[tuple[float, float]]:
        """Yield (first, last scrape) of windows one after the other, without a gap."""
        times_s = self.scrapes_within(first_s, last_s)
        for end in range(scrapes - 1, len(times_s), scrapes - 1):
            yield times_s[end - scrapes + 1], times_s[end]

    def counted(self, first_s: float, last_s: float) -> tuple[float, int, float, int]:
        """Return (requests, those of the log, seconds, windows) over the shortest windows."""
        spans = list(self.windows(WINDOWS[0], first_s, last_s))
        requests = [count_arrivals(self.seen(end_s), WINDOWS[0]).requests for _, end_s in spans]
        logged = sum(self.num_logged(start_s, end_s) for start_s, end_s in spans)
        return sum(requests), logged, sum(end - start for start, end in spans), len(spans)

    def num_logged(self, after_s: float, until_s: float) -> int:
        return len(self.of_log(lambda each: each.arrival_s, after_s, until_s))

    def of_log(
        self, time: Callable[[Logged], float], after_s: float, until_s: float
    ) -> list[Logged]:
        """Return the requests to which something happened within a time."""
        return [each for each in self.log if after_s < time(each) <= until_s]

    def in_flight(self, at_s: float) -> int:
        return sum(each.arrival_s <= at_s < each.ended_at_s for each in self.log)

    def phases(self) -> list[tuple[float, float]]:
        """Return the times of steady arrivals, found in the log."""
        scrapes_s = self.recording.scrapes_s
        counts = [self.num_logged(start_s, end_s) for start_s, end_s in pairwise(scrapes_s)]
        edges = change_points(counts)
        return [(scrapes_s[start], scrapes_s[end]) for start, end in pairwise(edges)]


def read_watched(folder: Path) -> Watched:
    """Read ``requests.jsonl`` and ``scrapes.txt`` or ``scrapes.txt.gz``."""
    scrapes = next(each for each in sorted(folder.glob("scrapes.txt*")))
    lines = (folder / "requests.jsonl").read_text().splitlines()
    records = (json.loads(line) for line in lines if line.strip())
    names = Logged.__slots__
    log = [Logged(**{name: record[name] for name in names}) for record in records]
    return Watched(
        recording=read_recording(scrapes, labels=POD),
        log=sorted(log, key=lambda each: each.arrival_s),
    )


def change_points(counts: Sequence[int]) -> list[int]:
    """Return where the rate of counts changes, beginning and end included.

    The split into steady parts of which the Poisson likelihood is largest, less a penalty for each
    part that grows with the burstiness of neighbours.
    """
    number, shortest = len(counts), min(SHORTEST_PHASE, len(counts))
    sums = np.concatenate([[0.0], np.cumsum(counts)])
    steps = sum((later - earlier) ** 2 for earlier, later in pairwise(counts))
    dispersion = max(1.0, steps / 2 / max(sum(counts), 1))
    penalty = CHANGE_PENALTY * dispersion * math.log(number)
    best, previous = np.full(number + 1, -np.inf), np.zeros(number + 1, dtype=int)
    best[0] = 0.0
    for end in range(shortest, number + 1):
        starts = np.arange(end - shortest + 1)
        totals = sums[end] - sums[starts]
        likelihoods = totals * np.log(np.maximum(totals, 1e-9) / (end - starts))
        values = best[starts] + likelihoods - penalty
        previous[end] = np.argmax(values)
        best[end] = values[previous[end]]
    edges = [number]
    while edges[-1]:
        edges.append(int(previous[edges[-1]]))
    return edges[::-1]
