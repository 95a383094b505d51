"""The answers of a round by pod and engine: what is as it was a round ago is not read again."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from tonnage.estimate.metrics import TABLE
from tonnage.estimate.samples import (
    MAX_ENGINES,
    EngineSamples,
    Found,
    PodKey,
    age_s,
    arrivals,
    engine_samples,
    scraped_at_s,
)
from tonnage.estimate.series import Series, Vector, changed_labels
from tonnage.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrape:
    """Everything that Prometheus said in one tick, by pod."""

    engines: Mapping[PodKey, tuple[EngineSamples, ...]] = field(default_factory=dict)
    dropped_engines: Mapping[PodKey, int] = field(default_factory=dict)
    """How many engines beyond the most of one pod were left out, of the pods that had more."""
    answers: Found = field(default_factory=dict)
    """That it was read from."""


GROWING = frozenset({"timestamp", "completed", "rejected", "queued"})
"""Queries of which nothing but the newest scrape is told: of a busy engine it is always another."""
NEWEST = (*sorted(GROWING), "running")
"""Those that tell of it."""
Engines = dict[str, dict[str, list[Series]]]
"""By engine and by query."""
Crowded = Mapping[PodKey, Sequence[str]]
"""Engines in order, of the pods that name more than one may have."""
Place = dict[str, list[Series]] | None
"""Of the series with the same labels, by query; None: they are of no pod."""


def join(
    answers: Mapping[str, Sequence[Series]], settings: Settings, before: Scrape | None = None
) -> Scrape:
    """Turn the answers of all queries into samples by pod; an answer that is missing may be.

    ``before``: what was said a tick ago. Of pods that say the same only the newest scrape is read.
    """
    vectors, last = _vectors(answers), _vectors(before.answers) if before else {}
    crowded = _crowded_pods(answers, settings)
    dropped = {key: len(names) - MAX_ENGINES for key, names in crowded.items()}
    if before is None or not vectors or vectors.keys() != last.keys():
        engines = _join(answers, settings, crowded)
        return Scrape(engines=engines, dropped_engines=dropped, answers=answers)
    pods = _changed_pods(vectors, last, settings)
    newest = {name: answers[name] for name in NEWEST if name in answers}
    same = dict[PodKey, tuple[EngineSamples, ...]]()
    for key, told in _by_pod(newest, settings, crowded).items():
        known, read = before.engines.get(key, ()), _ordered_engines(told)
        if key not in pods and [each.engine for each in known] == list(read):
            same[key] = _as_of_now(known, read, settings.scrape_interval_s)
    pods |= before.engines.keys() - same.keys()
    fresh = _join(_of_pods(vectors, pods, settings), settings, crowded)
    return Scrape(engines={**same, **fresh}, dropped_engines=dropped, answers=answers)


def _crowded_pods(answers: Found, settings: Settings) -> Crowded:
    """Return the pods that name more engines than one may have, and these in order.

    A pod can invent thousands: nothing is built of them.
    """
    named = defaultdict[PodKey, set[str]](set)
    of_engines = (series for name, series in answers.items() if not TABLE[name].is_of_gpu)
    for each in _label_sets(of_engines).values():
        named[_pod_of(each, settings)].add(each.get("engine", ""))
    return {
        key: _in_order(names)
        for key, names in named.items()
        if all(key) and len(names - {""}) > MAX_ENGINES
    }


def _label_sets(answers: Iterable[Sequence[Series]]) -> Mapping[int, Mapping[str, str]]:
    """Return the labels of all series by id: those of an engine are often one object."""
    found = dict[int, Mapping[str, str]]()
    for series in answers:
        told = series.labels if isinstance(series, Vector) else [each.labels for each in series]
        found.update(zip(map(id, told), told, strict=True))
    return found


def _in_order(names: Set[str]) -> Sequence[str]:
    return sorted(names - {""}, key=lambda name: (len(name), name))


def _vectors(answers: Found) -> Mapping[str, Vector]:
    """Return the answers by column; none where one comes in another way."""
    found = {name: each for name, each in answers.items() if isinstance(each, Vector)}
    return found if len(found) == len(answers) else {}


def _join(
    answers: Found, settings: Settings, crowded: Crowded
) -> dict[PodKey, tuple[EngineSamples, ...]]:
    return {
        key: tuple(
            engine_samples(key[1], engine, each, settings.scrape_interval_s)
            for engine, each in _ordered_engines(engines).items()
        )
        for key, engines in _by_pod(answers, settings, crowded).items()
    }


def _changed_pods(
    now: Mapping[str, Vector], then: Mapping[str, Vector], settings: Settings
) -> set[PodKey]:
    """Return the pods that said something else then: equal labels are one object in both."""
    found = dict[int, Mapping[str, str]]()
    for name, series in now.items():
        for labels in changed_labels(series, then[name], with_values=name not in GROWING):
            found[id(labels)] = labels
    return {_pod_of(labels, settings) for labels in found.values()}


def _of_pods(answers: Mapping[str, Vector], pods: Set[PodKey], settings: Settings) -> Found:
    """Return the series of some pods."""
    labels = _label_sets(answers.values())
    kept = {place for place, each in labels.items() if _pod_of(each, settings) in pods}
    return {
        name: series.where([place in kept for place in map(id, series.labels)])
        for name, series in answers.items()
    }


def _pod_of(labels: Mapping[str, str], settings: Settings) -> PodKey:
    return labels.get(settings.namespace_label, ""), labels.get(settings.pod_label, "")


def _as_of_now(
    engines: Iterable[EngineSamples], newest: Mapping[str, Found], interval_s: float
) -> tuple[EngineSamples, ...]:
    """Return a pod's engines with their newest scrape, in which nothing else was otherwise."""
    return tuple(
        replace(
            each,
            age_s=age_s(found, interval_s),
            scraped_at_s=scraped_at_s(found),
            arrived=arrivals(found),
        )
        for each in engines
        for found in (newest[each.engine],)
    )


def _by_pod(answers: Found, settings: Settings, crowded: Crowded) -> dict[PodKey, Engines]:
    """Return the series by pod, engine and query, without those of engines beyond the most."""
    most = {key: frozenset(["", *names[:MAX_ENGINES]]) for key, names in crowded.items()}
    by_pod: dict[PodKey, Engines] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    names = settings.namespace_label, settings.pod_label
    of_engines: dict[int, Place] = {}
    of_gpus: dict[int, Place] = {}
    for name in sorted(answers, key=lambda name: TABLE[name].is_of_gpu):
        is_of_gpu = TABLE[name].is_of_gpu
        places = of_gpus if is_of_gpu else of_engines
        for series in answers[name]:
            at = id(series.labels)
            if at not in places:
                places[at] = _place(by_pod, series.labels, names, most, must_be=is_of_gpu)
            place = places[at]
            if place is not None:
                place[name].append(series)
    return by_pod


def _place(
    by_pod: dict[PodKey, Engines],
    labels: Mapping[str, str],
    names: tuple[str, str],
    most: Mapping[PodKey, Set[str]],
    *,
    must_be: bool,
) -> Place:
    """Return where the series of an engine go. ``must_be``: it was told of before.

    A GPU may serve a pod that is no engine.
    """
    key = labels.get(names[0], ""), labels.get(names[1], "")
    engine = labels.get("engine", "")
    is_told = bool(key[0] and key[1]) and (key in by_pod or not must_be)
    return by_pod[key][engine] if is_told and engine in most.get(key, (engine,)) else None


def _ordered_engines(engines: Engines) -> Mapping[str, Found]:
    """Return the engines of one pod in order.

    What a pod reports without engine, such as rejections, counts with its first one.
    """
    names = _in_order(engines.keys())
    if not names:
        return engines
    of_pod = engines.get("", {})
    return {name: engines[name] for name in names} | {names[0]: of_pod | engines[names[0]]}
