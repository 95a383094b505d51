"""The scrapes of all engines, and what a round of questions adds to them.

The samples of one scrape of a target have the same time, and those of two Prometheus replicas have
not. So the times of ``RUNNING`` in the one label set that is followed are the scrapes of an engine,
and what was sampled at other times is of another replica. When it stops another is followed.
"""

from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import chain
from math import inf, isfinite, isnan, nan
from typing import Final, NamedTuple

from tonnage.estimate.metrics import (
    BUCKETS,
    CACHE,
    CACHE_LABELS,
    COLUMNS,
    DRAM_ACTIVE,
    FRESH_SCRAPES,
    LARGEST,
    PLACES,
    SLOW_SCRAPES,
    Bound,
    column_of,
)
from tonnage.estimate.scrapes import QUEUED, RUNNING, EngineScrapes
from tonnage.settings import Settings

PodKey = tuple[str, str]
"""(namespace, pod)"""
EngineKey = tuple[str, str, str]
"""(namespace, pod, engine)"""
MAX_ENGINES = 64
"""Of one pod: the leader of several nodes reports all data-parallel ranks of its replica."""
MAX_NEW = 256
"""Scrapes of a round: more than the longest window has."""
MAX_BOUNDS = 256
"""Of all histograms together."""
MAX_LABEL_CHARACTERS: Final = 256
"""Of a label that is read. The longest of Kubernetes is a pod's name, 253."""
SERIES_OF_ONE: Final = 256
"""Of each pod asked for, above which their places are found anew: pods report ever new ones."""
LABELS_BYTES, SAMPLE_BYTES, ENGINE_BYTES = 256, 32, 4096
"""Of memory: to know the place of a series, of one of its samples, of an engine with a few."""
FEW: Final = 4096
"""Series of which the places are known however few pods are asked for."""
CAPACITY = PLACES["waiting"]
Samples = Sequence[tuple[float, float]]
"""(unix time, value) in order of time."""

Slot = int | tuple[int, str]
"""A column of a page, or a part of one that is a sum; ``OF_GPU``: of none."""
OF_GPU: Final[Slot] = -1


class Place(NamedTuple):
    """Where the samples of a series go."""

    engine: EngineKey
    slot: Slot
    largest: float = LARGEST


NEW: Final = Place(("", "", ""), OF_GPU)
"""Of a series that was not seen before."""


@dataclass(slots=True)
class EngineRows:
    """What a round says of one engine."""

    places: list[tuple[Place, int]] = field(default_factory=list)
    """Of each series, and how many of its samples are known."""
    figures: "array[float]" = field(default_factory=lambda: array("d"))
    """Time and value of each of these: a tenth of the memory of objects."""
    times: dict[int, Sequence[float]] = field(default_factory=dict)
    """When each label set of ``RUNNING`` was sampled."""
    since_s: float = -inf
    """What was sampled until then is known."""

    def note(self, place: Place, samples: Samples) -> int:
        """Note the samples of a series; return how many were no finite number."""
        first = len(samples)
        while first and samples[first - 1][0] > self.since_s:
            first -= 1
        new = array("d", chain.from_iterable(samples[first:]))
        self.places.append((place, len(samples) - first))
        self.figures += new
        return len(samples) - first - sum(map(isfinite, new[1::2]))

    def pages(self, times: Sequence[float], width: int) -> Mapping[float, list[float]]:
        """Return the columns of what was sampled at these times.

        Of copies of a series the largest counts, and of what comes in parts the sum.
        """
        by_slot, begin = defaultdict[Slot, list[tuple[Place, int, int]]](list), 0
        for place, number in self.places:
            by_slot[place.slot].append((place, begin, begin + 2 * number))
            begin += 2 * number
        pages: dict[float, list[float]] = {at_s: [nan] * width for at_s in times}
        for slot, copies in by_slot.items():
            found = dict[float, float]()
            for place, first, end in copies:
                figures = iter(self.figures[first:end])
                for at_s, value in zip(figures, figures, strict=True):
                    figure = value if 0 <= value <= place.largest else inf
                    if at_s in pages and found.get(at_s, -inf) < figure:
                        found[at_s] = figure
            column = slot[0] if isinstance(slot, tuple) else slot
            for at_s, figure in found.items():
                known = pages[at_s][column]
                pages[at_s][column] = figure if isnan(known) else known + figure
        return pages

    def followed(self, engine: EngineScrapes, stopped_s: float) -> Sequence[float]:
        """Return the scrapes of the label set that is followed; another one if it stopped."""
        newest_s = max(times[-1] for times in self.times.values())
        times = self.times.get(engine.followed or 0)
        if times is None or newest_s - times[-1] > stopped_s:
            engine.followed = max(self.times, key=lambda each: (self.times[each][-1], each))
            times = self.times[engine.followed]
        return times


@dataclass(slots=True)
class Answered:
    """What one answer, or a round of them, says."""

    engines: dict[EngineKey, EngineRows] = field(default_factory=dict)
    caches: dict[EngineKey, tuple[float | None, ...]] = field(default_factory=dict)
    gpus: dict[PodKey, list[float]] = field(default_factory=dict)
    num_dropped: int = 0
    """Samples that are no finite number."""
    kept_bytes: int = 0
    """That all of it takes at most, with what is remembered of labels."""

    def merge(self, other: "Answered") -> None:
        """Take over another answer of the same round."""
        self.num_dropped += other.num_dropped
        self.kept_bytes += other.kept_bytes
        self.caches |= other.caches
        for pod, means in other.gpus.items():
            self.gpus.setdefault(pod, []).extend(means)
        for key, rows in other.engines.items():
            own = self.engines.setdefault(key, rows)
            if own is rows:
                continue
            for labels, times in rows.times.items():
                own.times[labels] = sorted({*own.times.get(labels, ()), *times})
            own.places += rows.places
            own.figures += rows.figures


class FleetScrapes:
    """The scrapes of the engines that are asked for."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.interval_s = settings.scrape_interval_s
        self._pods: Set[PodKey] = frozenset()
        self._anew: Set[str] = frozenset()
        self.engines: dict[PodKey, dict[str, EngineScrapes]] = {}
        """By pod and by name."""
        self.caches: dict[EngineKey, tuple[float | None, ...]] = {}
        """Figures that engines tell of their caches, by ``CACHE_LABELS``."""
        self.gpus: Mapping[PodKey, float] = {}
        """Share of cycles in which the memory of a pod's GPUs was active."""
        self.bounds: dict[Bound, int] = {}
        """Of histograms that are asked for, and their columns."""
        self._places: dict[int, Place | None] = {}
        """By hash of all labels. None: of nobody who is asked for."""
        self._keys: dict[EngineKey, EngineKey] = {}

    def expect(self, pods: Set[PodKey], *, anew: Set[str] = frozenset()) -> None:
        """From now on take in series of these pods, and forget the others.

        ``anew``: namespaces of whose engines scrapes of before those that are known may come.
        """
        self._anew = anew
        is_outgrown = len(self._places) > max(FEW, SERIES_OF_ONE * len(pods))
        if pods == self._pods and not is_outgrown:
            return
        self._pods, self._places = pods, {}
        self.engines = {pod: found for pod, found in self.engines.items() if pod in pods}
        self._keys = {(*pod, each): (*pod, each) for pod, of in self.engines.items() for each in of}
        self.caches = {key: self.caches[key] for key in self._keys if key in self.caches}

    def take(
        self, into: Answered, series: int, labels: Callable[[], Mapping[str, str]], samples: Samples
    ) -> None:
        """Take in the samples of a series; ``series``: a hash of its labels."""
        place = self._places.get(series, NEW)
        if place is NEW:
            place = self._places[series] = self._find(labels(), into)
            into.kept_bytes += LABELS_BYTES
        if place is None or not samples:
            return
        engine, slot, _ = place
        into.kept_bytes += SAMPLE_BYTES * (1 + len(samples))
        if slot == OF_GPU:
            shares = (value for _, value in samples if 0 <= value <= 1)
            into.gpus.setdefault(engine[:2], []).extend(shares)
            return
        rows = into.engines.get(engine)
        if rows is None:
            known = self.engines.get(engine[:2], {}).get(engine[2])
            since_s = known.seen_at_s if known and engine[0] not in self._anew else -inf
            rows = into.engines[engine] = EngineRows(since_s=since_s)
            into.kept_bytes += ENGINE_BYTES
        if slot == RUNNING:
            rows.times[series] = [at_s for at_s, _ in samples]
        into.num_dropped += rows.note(place, samples)

    def add(self, answered: Answered) -> None:
        """Add what a round said, and take it out: samples take as much as all that they add to."""
        by_pod = defaultdict[PodKey, dict[str, EngineRows]](dict)
        for (namespace, pod, engine), rows in answered.engines.items():
            by_pod[namespace, pod][engine] = rows
        answered.engines.clear()
        for key, of_pod in by_pod.items():
            self._add_pod(key, of_pod)
        self.caches |= answered.caches
        self.gpus = {pod: sum(v) / len(v) for pod, v in answered.gpus.items() if v}

    def _find(self, labels: Mapping[str, str], into: Answered) -> Place | None:
        """Return where a series goes. That of a cache has its figures in labels."""
        stored, settings = labels.get("__name__", ""), self._settings
        prefix = next(filter(stored.startswith, settings.series_prefixes), "")
        metric = stored.removeprefix(prefix)
        pairs = settings.pod_labels
        if metric == DRAM_ACTIVE:
            pairs = ((settings.dcgm_namespace_label, settings.dcgm_pod_label),)
        named = ((labels.get(space, ""), labels.get(name, "")) for space, name in pairs)
        pod = next((each for each in named if each in self._pods), None)
        engine = "" if metric == DRAM_ACTIVE else labels.get("engine", "")
        if pod is None or len(engine) > MAX_LABEL_CHARACTERS:
            return None
        own = (*pod, engine)
        key = self._keys.setdefault(own, own)
        if metric == DRAM_ACTIVE:
            return Place(key, OF_GPU)
        if metric == CACHE:
            into.caches[key] = tuple(_figure(labels.get(name)) for name in CACHE_LABELS)
            return None
        return self._column(key, metric, {**labels, "__name__": metric})

    def _column(self, key: EngineKey, metric: str, labels: Mapping[str, str]) -> Place | None:
        if histogram := BUCKETS.get(metric):
            le = labels.get("le")
            bound_s = inf if le == "+Inf" else _figure(le)
            bound = (histogram, bound_s or 0.0)
            is_known = bound in self.bounds or len(self.bounds) < MAX_BOUNDS
            if bound_s is None or not is_known:
                return None
            return Place(key, self.bounds.setdefault(bound, len(COLUMNS) + len(self.bounds)))
        found = column_of(labels)
        if found is None or len(found[1]) > MAX_LABEL_CHARACTERS:
            return None
        column, part = found
        return Place(key, (column, part) if part else column, COLUMNS[column].largest)

    def _add_pod(self, pod: PodKey, of_pod: dict[str, EngineRows]) -> None:
        """Add what the engines of one pod say.

        What a pod reports without engine, such as rejections, counts with its first one.
        """
        names = in_order(name for name, rows in of_pod.items() if rows.times)
        alone = of_pod.get("")
        for name in names:
            also = alone if name == names[0] and name else None
            self._add_engine((*pod, name), of_pod[name], also)

    def _add_engine(self, key: EngineKey, rows: EngineRows, also: EngineRows | None) -> None:
        engine = self._engine(key, max(times[-1] for times in rows.times.values()))
        if engine is None:
            return
        times = rows.followed(engine, FRESH_SCRAPES * self.interval_s)
        if times[-1] < engine.seen_at_s - self.interval_s:  # the clock was set back
            self.engines[key[:2]][key[2]] = EngineScrapes(self.interval_s)
            return
        first_s = next((at_s for at_s in times if at_s > rows.since_s), inf)
        if first_s < engine.at_s - engine.span_s - self.interval_s:
            followed = engine.followed
            engine = self.engines[key[:2]][key[2]] = EngineScrapes(self.interval_s)
            engine.followed = followed
        width, seen_at_s = len(COLUMNS) + len(self.bounds), engine.seen_at_s
        new = [at_s for at_s in times if at_s > max(seen_at_s, rows.since_s)][-MAX_NEW:]
        more = also.pages(new, width) if also else {}
        for at_s, page in rows.pages(new, width).items():
            for column, figure in enumerate(more.get(at_s, ())):
                if isnan(page[column]):
                    page[column] = figure
            if isnan(page[CAPACITY]):  # an older engine tells no reasons
                page[CAPACITY] = page[QUEUED]
            engine.add(at_s, page)

    def _engine(self, key: EngineKey, at_s: float) -> EngineScrapes | None:
        """Return the scrapes of an engine, new ones if it is new; None: its pod has too many."""
        of_pod = self.engines.setdefault(key[:2], {})
        found = of_pod.get(key[2])
        if found is None:
            if len(of_pod) >= MAX_ENGINES:
                oldest = min(of_pod, key=lambda name: of_pod[name].seen_at_s)
                if at_s - of_pod[oldest].seen_at_s <= FRESH_SCRAPES * self.interval_s:
                    return None
                del of_pod[oldest]
            found = of_pod[key[2]] = EngineScrapes(self.interval_s)
        return found

    def forget_silent(self, at_s: float) -> None:
        """Forget engines of which no window has a scrape any more."""
        since_s = at_s - SLOW_SCRAPES * self.interval_s
        for pod, of_pod in list(self.engines.items()):
            for name in [name for name, each in of_pod.items() if each.seen_at_s < since_s]:
                del of_pod[name]
            if not of_pod:
                del self.engines[pod]


def in_order(names: Iterable[str]) -> Sequence[str]:
    return sorted(names, key=lambda name: (len(name), name))


def _figure(text: str | None) -> float | None:
    """Return a label as a figure above zero.

    >>> _figure("0.5"), _figure("auto"), _figure("0")
    (0.5, None, None)
    """
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0 < value < inf else None
