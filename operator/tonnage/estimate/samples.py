"""What Prometheus answered, as figures of one engine over a window: there, or None."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

from tonnage.estimate.metrics import (
    BUSY_SCRAPES,
    FAST_SCRAPES,
    FRESH_SCRAPES,
    SLOW_SCRAPES,
    TABLE,
    WINDOWS,
    Query,
)
from tonnage.estimate.series import UNUSABLE, Series, Vector, changed
from tonnage.settings import Settings
from tonnage.values import replace

MAX_ENGINES = 64
"""Of one pod; more than any node has data-parallel ranks."""
PodKey = tuple[str, str]
"""(namespace, pod)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalWindow:
    """What arrivals at one engine are made of, over one window. None: missing, never zero."""

    completions_per_s: float | None = None
    backlog_growth_per_s: float | None = None
    """Growth of running + waiting, for whatever reason they wait."""
    rejections_per_s: float | None = None
    """vLLM counts them since 0.32."""
    is_by_track: bool = False
    """All of it is in the first, and exact: nothing was extrapolated by Prometheus."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthWindow:
    """The tokens of requests at one engine, over one window. None: missing, never zero."""

    finished_per_s: float | None = None
    """Requests; the two below are theirs."""
    finished_prompt_tokens_per_s: float | None = None
    finished_output_tokens_per_s: float | None = None
    started_per_s: float | None = None
    """Requests that got their first token; the two below are of their prompts."""
    started_prompt_tokens_per_s: float | None = None
    computed_prompt_tokens_per_s: float | None = None
    """Of those started, without what a cache held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSamples:
    """The figures of one engine (a data-parallel rank) of one pod. None: missing, never zero.

    Those of no window of their own are means over ``BUSY_SCRAPES``.
    """

    pod: str
    engine: str
    age_s: float | None = None
    """Of the newest scrape, when Prometheus said it."""
    held_s: float = 0.0
    """Since Prometheus said all of this."""
    scraped_at_s: float | None = None
    """When that was, where it did not fail."""
    arrived: float | None = None
    """Requests that ever came, by that scrape alone."""
    running: float | None = None
    """At the newest scrape, like ``waiting``."""
    waiting: float | None = None
    """For capacity; requests deferred for other reasons do not count."""
    num_scrapes: float | None = None
    """That the longest window holds: fewer of an engine that is younger."""
    arrivals: Mapping[int, ArrivalWindow] = field(default_factory=dict)
    """By window in scrapes."""
    lengths: Mapping[int, LengthWindow] = field(default_factory=dict)
    """By window in scrapes: a fast and a slow one."""
    mean_running: float | None = None
    kv_usage_fraction: float | None = None
    computed_prompt_tokens_per_s: float | None = None
    """Without those that a cache held."""
    token_gap_s_per_s: float | None = None
    """Rate of the sum of inter-token latencies."""
    token_gaps_per_s: float | None = None
    """Rate of their count."""
    num_resets: float | None = None
    """Times that the counters fell: the engine began anew, or a scrape was none of it."""
    num_falls: float | None = None
    """The same over the longest window."""
    prefill_s_per_s: float | None = None
    """Rate of the sum of times from scheduled to first token, of requests that finished."""
    prefills_per_s: float | None = None
    """Rate of their count."""
    preemptions_per_s: float | None = None
    kv_tokens: float | None = None
    """Capacity of this rank in requests of the longest length, where the engine reports it."""
    num_gpu_blocks: float | None = None
    """Of all data-parallel ranks of the pod together; of whatever size the engine cut them."""
    ttft_within: Mapping[float, float] = field(default_factory=dict)
    """Rate of requests by upper bound of TTFT in seconds, infinity for all."""
    tpot_within: Mapping[float, float] = field(default_factory=dict)
    dram_active_fraction: float | None = None
    """Of the cycles of the memory interface, mean over the pod's GPUs; with its first engine."""
    read_bytes_per_s: float | None = None
    """By the engine's own count of what each GPU reads; needs ``--enable-mfu-metrics``."""
    write_bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrape:
    """Everything that Prometheus said in one tick, by pod."""

    engines: Mapping[PodKey, tuple[EngineSamples, ...]] = field(default_factory=dict)
    dropped_engines: Mapping[PodKey, int] = field(default_factory=dict)
    """How many engines beyond the most of one pod were left out, of the pods that had more."""
    answers: "Found" = field(default_factory=dict)
    """That it was made of."""


GROWING = frozenset({"timestamp", "completed", "rejected", "queued"})
"""Queries of which nothing but the newest scrape is told: of a busy engine it is always another."""
NEWEST = (*sorted(GROWING), "running")
"""Those that tell of it."""
Found = Mapping[str, Sequence[Series]]
Engines = dict[str, dict[str, list[Series]]]
"""By engine and by query."""
Place = dict[str, list[Series]] | None
"""Of the series with the same labels, by query; None: they are of no pod."""


def join(
    answers: Mapping[str, Sequence[Series]], settings: Settings, before: Scrape | None = None
) -> Scrape:
    """Turn the answers of all queries into samples by pod; an answer that is missing may be.

    ``before``: what was said a tick ago. Of pods that say the same only the newest scrape is read.
    """
    vectors, last = _vectors(answers), _vectors(before.answers) if before else {}
    if before is None or not vectors or vectors.keys() != last.keys():
        return replace(_joined(answers, settings), answers=answers)
    pods = _changed_pods(vectors, last, settings)
    newest = {name: answers[name] for name in NEWEST if name in answers}
    renewed = {
        key: _renewed(before.engines[key], _kept(engines), settings.scrape_interval_s)
        for key, engines in _by_pod(newest, settings).items()
        if key not in pods and key in before.engines
    }
    pods |= before.engines.keys() - {key for key, engines in renewed.items() if engines}
    fresh = _joined(_of_pods(vectors, pods, settings), settings)
    dropped = {key: each for key, each in before.dropped_engines.items() if key not in pods}
    return Scrape(
        engines={**{key: each for key, each in renewed.items() if each}, **fresh.engines},
        dropped_engines={**dropped, **fresh.dropped_engines},
        answers=answers,
    )


def _vectors(answers: Found) -> Mapping[str, Vector]:
    """Return the answers by column; none where one comes in another way."""
    found = {name: each for name, each in answers.items() if isinstance(each, Vector)}
    return found if len(found) == len(answers) else {}


def _joined(answers: Found, settings: Settings) -> Scrape:
    by_pod = _by_pod(answers, settings)
    kept = {key: _kept(engines) for key, engines in by_pod.items()}
    return Scrape(
        engines={
            key: tuple(
                _engine_samples(key[1], engine, each, settings.scrape_interval_s)
                for engine, each in engines.items()
            )
            for key, engines in kept.items()
        },
        dropped_engines={
            key: number
            for key, engines in by_pod.items()
            if (number := len(engines.keys() - {""}) - MAX_ENGINES) > 0
        },
    )


def _changed_pods(
    now: Mapping[str, Vector], then: Mapping[str, Vector], settings: Settings
) -> set[PodKey]:
    """Return the pods that said something else then: equal labels are one object in both."""
    found = dict[int, Mapping[str, str]]()
    for name, series in now.items():
        for labels in changed(series, then[name], with_values=name not in GROWING):
            found[id(labels)] = labels
    return {_pod_of(labels, settings) for labels in found.values()}


def _of_pods(answers: Mapping[str, Vector], pods: Set[PodKey], settings: Settings) -> Found:
    """Return the series of some pods."""
    labels = dict[int, Mapping[str, str]]()
    for series in answers.values():
        labels.update(zip(map(id, series.labels), series.labels, strict=True))
    kept = {place for place, each in labels.items() if _pod_of(each, settings) in pods}
    return {
        name: series.where([place in kept for place in map(id, series.labels)])
        for name, series in answers.items()
    }


def _pod_of(labels: Mapping[str, str], settings: Settings) -> PodKey:
    return labels.get(settings.namespace_label, ""), labels.get(settings.pod_label, "")


def _renewed(
    engines: tuple[EngineSamples, ...], newest: Mapping[str, Found], interval_s: float
) -> tuple[EngineSamples, ...]:
    """Return engines by their newest scrape; none where that tells of others."""
    if [each.engine for each in engines] != list(newest):
        return ()
    return tuple(
        replace(
            each,
            age_s=_age_s(newest[each.engine], interval_s),
            scraped_at_s=_scraped_at_s(newest[each.engine]),
            arrived=_arrived(newest[each.engine]),
        )
        for each in engines
    )


def _by_pod(answers: Mapping[str, Sequence[Series]], settings: Settings) -> dict[PodKey, Engines]:
    """Return the series by pod, engine and query. The labels of an engine are often one object."""
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
                places[at] = _place(by_pod, series.labels, names, must_be=is_of_gpu)
            place = places[at]
            if place is not None:
                place[name].append(series)
    return by_pod


def _place(
    by_pod: dict[PodKey, Engines],
    labels: Mapping[str, str],
    names: tuple[str, str],
    *,
    must_be: bool,
) -> Place:
    """Return where the series of an engine go. ``must_be``: it was told of before.

    A GPU may serve a pod that is no engine.
    """
    key = labels.get(names[0], ""), labels.get(names[1], "")
    is_told = bool(key[0] and key[1]) and (key in by_pod or not must_be)
    return by_pod[key][labels.get("engine", "")] if is_told else None


def _kept(engines: Engines) -> Mapping[str, Found]:
    """Return the engines of one pod in order, no more than the most.

    What a pod reports without engine, such as rejections, counts with its first one.
    """
    names = sorted(engines.keys() - {""}, key=lambda name: (len(name), name))[:MAX_ENGINES]
    if not names:
        return engines
    of_pod = engines.get("", {})
    return {name: engines[name] for name in names} | {names[0]: of_pod | engines[names[0]]}


def _is_usable(value: float, query: Query) -> bool:
    return query.least <= value <= query.largest


def _usable(found: Found, name: str) -> list[float]:
    """Return the values of a figure, none of them if one cannot be, or is there without a value."""
    values = [series.value for series in found.get(name, ())]
    if not values:
        return values
    query = TABLE[name]
    least, largest = query.least, query.largest
    for value in values:
        if not least <= value <= largest:  # neither is NaN
            return []
    return values


def _one(found: Found, name: str) -> float | None:
    """Return a figure, its own labels summed; None when there is none."""
    values = _usable(found, name)
    return sum(values) if values else None


def _is_lost(found: Found, name: str, figure: float | None) -> bool:
    """Tell whether a figure that not every engine tells was told, and cannot be."""
    return figure is None and bool(found.get(name))


def _engine_samples(pod: str, engine: str, found: Found, interval_s: float) -> EngineSamples:
    return EngineSamples(
        pod=pod,
        engine=engine,
        age_s=_age_s(found, interval_s),
        scraped_at_s=_scraped_at_s(found),
        arrived=_arrived(found),
        running=_one(found, "running"),
        waiting=_one(found, "waiting"),
        num_scrapes=_one(found, "scrapes"),
        arrivals={scrapes: _arrivals(found, scrapes, interval_s) for scrapes in WINDOWS},
        lengths={scrapes: _lengths(found, scrapes) for scrapes in (FAST_SCRAPES, SLOW_SCRAPES)},
        mean_running=_one(found, "mean_running"),
        kv_usage_fraction=_one(found, "kv_usage"),
        computed_prompt_tokens_per_s=_computed_prompt_tokens_per_s(found, BUSY_SCRAPES),
        token_gap_s_per_s=_one(found, "token_gap_s"),
        token_gaps_per_s=_one(found, "token_gaps"),
        num_resets=_one(found, "resets"),
        num_falls=_one(found, "falls"),
        prefill_s_per_s=_one(found, "prefill_s"),
        prefills_per_s=_one(found, "prefills"),
        preemptions_per_s=_one(found, "preemptions"),
        kv_tokens=_cache_label(found, "kv_cache_size_tokens"),
        num_gpu_blocks=_cache_label(found, "num_gpu_blocks"),
        ttft_within=_buckets(found, "ttft"),
        tpot_within=_buckets(found, "tpot"),
        dram_active_fraction=_mean(_usable(found, "dram_active")),
        read_bytes_per_s=_one(found, "read_bytes"),
        write_bytes_per_s=_one(found, "write_bytes"),
    )


def _age_s(found: Found, interval_s: float) -> float | None:
    """Return the age of the newest scrape; where the last one failed, the most it can be."""
    ages = [series.evaluated_at_s - series.value for series in _scrapes(found)]
    hidden_s = FRESH_SCRAPES * interval_s if found.get("running") else None
    return min(ages, default=hidden_s)


def _scraped_at_s(found: Found) -> float | None:
    return max((series.value for series in _scrapes(found)), default=None)


def _scrapes(found: Found) -> Iterator[Series]:
    return (series for series in found.get("timestamp", ()) if series.value != UNUSABLE)


def _arrived(found: Found) -> float | None:
    completed, running, queued = (_one(found, name) for name in ("completed", "running", "queued"))
    rejected = _one(found, "rejected")
    if completed is None or running is None or queued is None:
        return None
    if _is_lost(found, "rejected", rejected):
        return None
    return completed + (rejected or 0.0) + running + queued


def _arrivals(found: Found, scrapes: int, interval_s: float) -> ArrivalWindow:
    running, waiting = (_one(found, f"{name}_growth_{scrapes}") for name in ("running", "waiting"))
    rejections = _one(found, f"rejections_{scrapes}")
    if _is_lost(found, f"rejections_{scrapes}", rejections):
        return ArrivalWindow()
    window_s = scrapes * interval_s  # a rate is per second already, a difference is not
    return ArrivalWindow(
        completions_per_s=_one(found, f"completions_{scrapes}"),
        backlog_growth_per_s=None
        if running is None or waiting is None
        else (running + waiting) / window_s,
        rejections_per_s=rejections,
    )


def _lengths(found: Found, scrapes: int) -> LengthWindow:
    return LengthWindow(
        finished_per_s=_one(found, f"finished_{scrapes}"),
        finished_prompt_tokens_per_s=_one(found, f"finished_prompt_tokens_{scrapes}"),
        finished_output_tokens_per_s=_one(found, f"finished_output_tokens_{scrapes}"),
        started_per_s=_one(found, f"started_{scrapes}"),
        started_prompt_tokens_per_s=_one(found, f"started_prompt_tokens_{scrapes}"),
        computed_prompt_tokens_per_s=_computed_prompt_tokens_per_s(found, scrapes),
    )


def _computed_prompt_tokens_per_s(found: Found, scrapes: int) -> float | None:
    computed = _one(found, f"computed_prompt_tokens_{scrapes}")
    started = _one(found, f"started_prompt_tokens_{scrapes}")
    if computed is not None or started is None:
        return computed
    return max(0.0, started - (_one(found, f"cached_prompt_tokens_{scrapes}") or 0.0))


def _cache_label(found: Found, name: str) -> float | None:
    """Return a figure from the labels of the info series.

    The label ``block_size`` is none: before 0.24 it is not that of the blocks that are counted.
    """
    figures = (_number(series.labels.get(name)) for series in found.get("cache", ()))
    return next((figure for figure in figures if figure), None)


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0 < value < math.inf else None


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _buckets(found: Found, name: str) -> Mapping[float, float]:
    bounds = ((_bound(series.labels.get("le")), series.value) for series in found.get(name, ()))
    query = TABLE[name]
    return {le: value for le, value in bounds if le is not None and _is_usable(value, query)}


def _bound(le: str | None) -> float | None:
    return math.inf if le == "+Inf" else _number(le)
