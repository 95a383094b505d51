"""Recorded pages of ``/metrics``: every sample of one target."""

import gzip
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

HEAD = re.compile(r"# scrape_at_s (\S+)")
Labels = tuple[tuple[str, str], ...]
Points = Sequence[tuple[float, float]]
"""(time, value), in order of time."""


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
