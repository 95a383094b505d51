"""The series of the last tick on the metrics page: those of an object go when the object goes."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tonnage.control.series import FAMILIES, FleetSeries, Key, MetricSample, ObjectSeries

STALE_S = 300
"""Series of a tick that is longer ago are not shown: they say nothing about now."""
FLEET_FAMILIES = {
    "tonnage_tick_age_seconds": "Since the last complete tick",
    "tonnage_objects": "ModelDeployments",
    "tonnage_objects_without_series": "ModelDeployments without series of their own: too many",
    "tonnage_blind": "1 while Prometheus answers nothing that a decision needs",
}
INTERNAL_ERRORS = "Internal errors about one object in a tick; only it stays as it is"
BORN_S = 60
"""For so long a new counter is shown as zero: one that begins above zero has no increase, and
Prometheus must have scraped the zero."""
OBJECT_LABELS = ("namespace", "name")
Place = tuple[str, tuple[str, ...]]
"""Family, and the values of its own labels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Count:
    value: float
    born_at_s: float

    def value_at(self, now_s: float) -> float:
        return self.value if now_s - self.born_at_s >= BORN_S else 0.0


class Exporter(Collector):
    """Shows what the loop last told. The loop tells from its thread, the page asks from others."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._told: FleetSeries | None = None
        self._told_at_s = 0.0
        self._num_faults = 0
        self._counts: dict[Key, dict[Place, _Count]] = {}

    def note(self, series: FleetSeries) -> None:
        """Take in the series of a tick that is over."""
        with self._lock:
            self._told, self._told_at_s = series, self._clock()
            self._num_faults += series.num_faults
            self._counts = {each.key: self._add(each) for each in series.objects}

    def _add(self, series: ObjectSeries) -> dict[Place, "_Count"]:
        counts = self._counts.get(series.key, {})
        for each in series.counts:
            place = each.family, each.labels
            before = counts.get(place, _Count(value=0.0, born_at_s=self._told_at_s))
            counts[place] = replace(before, value=before.value + each.value)
        return counts

    def _shown_counts(self) -> dict[Key, dict[Place, float]]:
        now_s = self._clock()
        return {
            key: {place: each.value_at(now_s) for place, each in counts.items()}
            for key, counts in self._counts.items()
        }

    def forget(self) -> None:
        """Show nothing more: another process leads, and shows it."""
        with self._lock:
            self._told, self._counts = None, {}

    def collect(self) -> Iterator[Metric]:
        """Yield every family, most of them empty where nothing was told of late."""
        with self._lock:
            age_s = self._clock() - self._told_at_s
            series = self._told if age_s < STALE_S else None
            counts = self._shown_counts()
            known_age_s = age_s if self._told else None
            faults = CounterMetricFamily(
                "tonnage_internal_errors", INTERNAL_ERRORS, value=self._num_faults
            )
        yield faults
        yield from _of_fleet(series, known_age_s)
        samples = defaultdict[str, list[tuple[Key, MetricSample]]](list)
        for key, sample in _of_objects(series, counts) if series else ():
            samples[sample.family].append((key, sample))
        for name in FAMILIES:
            yield _metric(name, samples[name])


def _of_objects(
    series: FleetSeries, counts: Mapping[Key, Mapping[Place, float]]
) -> Iterator[tuple[Key, MetricSample]]:
    for each in series.objects:
        for sample in each.gauges:
            yield each.key, sample
        for (family, labels), value in counts.get(each.key, {}).items():
            yield each.key, MetricSample(family, value, labels)


def _metric(name: str, samples: Iterable[tuple[Key, MetricSample]]) -> Metric:
    family = FAMILIES[name]
    labels = (*OBJECT_LABELS, *family.labels)
    kind = CounterMetricFamily if family.is_counter else GaugeMetricFamily
    metric = kind(name, family.text, labels=labels)
    for key, sample in samples:
        metric.add_metric((*key, *sample.labels), sample.value)
    return metric


def _of_fleet(series: FleetSeries | None, age_s: float | None) -> Iterator[Metric]:
    values = {"tonnage_tick_age_seconds": age_s}
    if series:
        values["tonnage_objects"] = series.num_objects
        values["tonnage_objects_without_series"] = series.num_left_out
        values["tonnage_blind"] = series.is_blind
    for name, text in FLEET_FAMILIES.items():
        metric = GaugeMetricFamily(name, text)
        value = values.get(name)
        if value is not None:
            metric.add_metric((), value)
        yield metric
