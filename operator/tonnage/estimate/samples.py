"""What Prometheus answered, as figures of one engine over a window: there, or None."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tonnage.settings import Settings
from tonnage.units import PETA

LARGEST = PETA
"""No rate or gauge of an engine comes near: what is beyond was not measured."""
PodKey = tuple[str, str]
"""(namespace, pod)"""
EngineKey = tuple[str, str, str]
"""(namespace, pod, engine); a series without engine belongs to the pod."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One series of an instant vector: its labels, its value and when it was evaluated."""

    labels: Mapping[str, str]
    value: float
    evaluated_at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSamples:
    """The figures of one engine (a data-parallel rank) of one pod. None: missing, never zero."""

    pod: str
    engine: str
    age_s: float | None = None
    """Since the newest scrape."""
    running: float | None = None
    waiting: float | None = None
    """For capacity; requests deferred for other reasons do not count."""
    mean_running: float | None = None
    kv_usage_fraction: float | None = None
    """Mean over the window."""
    completions_per_s: float | None = None
    backlog_growth_per_s: float | None = None
    """Growth of running + waiting."""
    rejections_per_s: float | None = None
    prompt_tokens_per_s: float | None = None
    computed_prompt_tokens_per_s: float | None = None
    """Without those that the prefix cache held."""
    output_tokens_per_s: float | None = None
    token_gap_s_per_s: float | None = None
    """Rate of the sum of inter-token latencies."""
    token_gaps_per_s: float | None = None
    """Rate of their count."""
    steps_per_s: float | None = None
    preemptions_per_s: float | None = None
    kv_tokens: float | None = None
    """Capacity of this rank in requests of the longest length, where the engine reports it."""
    num_gpu_blocks: float | None = None
    """Of all data-parallel ranks of the pod together; of whatever size the engine cut them."""
    ttft_within: Mapping[float, float] = field(default_factory=dict)
    """Rate of requests by upper bound of TTFT in seconds, infinity for all."""
    tpot_within: Mapping[float, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LongSamples:
    """Counters of one engine over a long window: the lengths of requests."""

    requests_per_s: float
    """Finished ones; the two below are theirs, so that a ramp does not skew the means."""
    prompt_tokens_per_s: float
    output_tokens_per_s: float
    started_prompt_tokens_per_s: float
    computed_prompt_tokens_per_s: float
    """Of those started, without what the prefix cache held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrape:
    """Everything that Prometheus said in one tick, by pod."""

    engines: Mapping[PodKey, tuple[EngineSamples, ...]] = field(default_factory=dict)
    long: Mapping[PodKey, tuple[LongSamples, ...]] = field(default_factory=dict)


def join(answers: Mapping[str, Sequence[Series]], settings: Settings) -> Scrape:
    """Turn the answers of all queries into samples by pod."""
    by_engine: dict[EngineKey, dict[str, list[Series]]] = defaultdict(lambda: defaultdict(list))
    for name, answer in answers.items():
        for series in answer:
            labels = series.labels
            namespace, pod = labels.get(settings.namespace_label), labels.get(settings.pod_label)
            if namespace and pod:
                by_engine[namespace, pod, labels.get("engine", "")][name].append(series)
    _give_to_first_engine(by_engine)
    engines: dict[PodKey, list[EngineSamples]] = defaultdict(list)
    long: dict[PodKey, list[LongSamples]] = defaultdict(list)
    for (namespace, pod, engine), found in by_engine.items():
        engines[namespace, pod].append(_engine_samples(pod, engine, found))
        long[namespace, pod].extend(_long_samples(found))
    return Scrape(
        engines={key: tuple(each) for key, each in engines.items()},
        long={key: tuple(each) for key, each in long.items()},
    )


def _give_to_first_engine(by_engine: dict[EngineKey, dict[str, list[Series]]]) -> None:
    """Count what a pod reports without engine, such as rejections, with its first engine."""
    first: dict[PodKey, EngineKey] = {}
    for key in sorted(by_engine):
        if key[2]:
            first.setdefault(key[:2], key)
    for pod, key in first.items():
        for name, series in by_engine.pop((*pod, ""), {}).items():
            by_engine[key].setdefault(name, series)


Found = Mapping[str, Sequence[Series]]


def _one(found: Found, name: str, *, may_be_negative: bool = False) -> float | None:
    """Return a figure, its own labels summed; None when there is none or one cannot be."""
    values = [series.value for series in found.get(name, ())]
    lowest = -LARGEST if may_be_negative else 0.0
    are_usable = all(lowest <= value <= LARGEST for value in values)
    return sum(values) if values and are_usable else None


def _engine_samples(pod: str, engine: str, found: Found) -> EngineSamples:
    running_growth, waiting_growth = (
        _one(found, name, may_be_negative=True) for name in ("running_growth", "waiting_growth")
    )
    return EngineSamples(
        pod=pod,
        engine=engine,
        age_s=_age_s(found),
        running=_one(found, "running"),
        waiting=_one(found, "waiting"),
        mean_running=_one(found, "mean_running"),
        kv_usage_fraction=_one(found, "kv_usage"),
        completions_per_s=_one(found, "completions"),
        backlog_growth_per_s=None
        if running_growth is None or waiting_growth is None
        else running_growth + waiting_growth,
        rejections_per_s=_one(found, "rejections"),
        prompt_tokens_per_s=_one(found, "prompt_tokens"),
        computed_prompt_tokens_per_s=_one(found, "computed_prompt_tokens"),
        output_tokens_per_s=_one(found, "output_tokens"),
        token_gap_s_per_s=_one(found, "token_gap_s"),
        token_gaps_per_s=_one(found, "token_gaps"),
        steps_per_s=_one(found, "steps"),
        preemptions_per_s=_one(found, "preemptions"),
        kv_tokens=_cache_label(found, "kv_cache_size_tokens"),
        num_gpu_blocks=_cache_label(found, "num_gpu_blocks"),
        ttft_within=_buckets(found, "ttft"),
        tpot_within=_buckets(found, "tpot"),
    )


def _age_s(found: Found) -> float | None:
    ages = [series.evaluated_at_s - series.value for series in found.get("timestamp", ())]
    return min(ages, default=None)


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


def _buckets(found: Found, name: str) -> Mapping[float, float]:
    bounds = ((_bound(series.labels.get("le")), series.value) for series in found.get(name, ()))
    return {le: value for le, value in bounds if le is not None and 0 <= value <= LARGEST}


def _bound(le: str | None) -> float | None:
    return math.inf if le == "+Inf" else _number(le)


def _long_samples(found: Found) -> Iterable[LongSamples]:
    finished = _one(found, "finished")
    prompt, output = _one(found, "finished_prompt_tokens"), _one(found, "finished_output_tokens")
    if finished is None or prompt is None or output is None:
        return
    started, computed = _one(found, "long_prompt_tokens"), _one(found, "long_computed_tokens")
    yield LongSamples(
        requests_per_s=finished,
        prompt_tokens_per_s=prompt,
        output_tokens_per_s=output,
        started_prompt_tokens_per_s=started or 0.0,
        computed_prompt_tokens_per_s=(started or 0.0) if computed is None else computed,
    )
