"""The fixed set of queries of one tick, for the whole fleet, and what their answers mean.

Each query is one counter's rate or one gauge, ``max by`` the engine: two Prometheus replicas
deliver every series twice, and a maximum does not mind. Sums, ratios and the join to our own
pods are done here. No text of a user reaches a query.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tonnage.cluster.prometheus import Series
from tonnage.estimate.samples import EngineSamples, LongSamples
from tonnage.manifests.arguments import DEFAULT_BOUNDS_S, LATENCY_BOUNDS_S
from tonnage.manifests.children import prometheus_duration
from tonnage.settings import Settings
from tonnage.units import PETA

RATE_SCRAPES = 4
ATTAINMENT_SCRAPES = 8
LONG_SCRAPES = 60
"""15 minutes at the usual 15 s."""
LARGEST = PETA
"""No rate or gauge of an engine comes near: what is beyond was not measured."""
PodKey = tuple[str, str]
"""(namespace, pod)"""
EngineKey = tuple[str, str, str]
"""(namespace, pod, engine); a series without engine belongs to the pod."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One metric, how it is reduced over a window, and its own labels that are kept."""

    metric: str
    function: str | None = None
    """None: the gauge as it is."""
    scrapes: int = RATE_SCRAPES
    own_labels: tuple[str, ...] = ()
    matchers: str = ""
    fallbacks: tuple[str, ...] = ()
    """Names of the metric in other versions of the engine."""
    aggregation: str = "max"


def _rate(metric: str, **more: object) -> Query:
    return Query(metric=metric, function="rate", **more)  # type: ignore[arg-type]


TABLE: Mapping[str, Query] = {
    "timestamp": Query(metric="vllm:num_requests_running", function="timestamp"),
    "running": Query(metric="vllm:num_requests_running"),
    "waiting": Query(
        metric="vllm:num_requests_waiting_by_reason",
        matchers='reason="capacity"',
        fallbacks=("vllm:num_requests_waiting",),
    ),
    "mean_running": Query(metric="vllm:num_requests_running", function="avg_over_time"),
    "running_growth": Query(metric="vllm:num_requests_running", function="deriv"),
    "waiting_growth": Query(metric="vllm:num_requests_waiting", function="deriv"),
    "kv_usage": Query(
        metric="vllm:kv_cache_usage_perc",
        function="avg_over_time",
        fallbacks=("vllm:gpu_cache_usage_perc",),
    ),
    "completions": _rate("vllm:request_success_total", own_labels=("finished_reason",)),
    "rejections": _rate("vllm:admission_rejections_total", own_labels=("reason",)),
    "prompt_tokens": _rate("vllm:prompt_tokens_total"),
    "computed_prompt_tokens": _rate(
        "vllm:prompt_tokens_by_source_total", matchers='source="local_compute"'
    ),
    "output_tokens": _rate("vllm:generation_tokens_total"),
    "token_gap_s": _rate(
        "vllm:inter_token_latency_seconds_sum",
        fallbacks=("vllm:time_per_output_token_seconds_sum",),
    ),
    "token_gaps": _rate(
        "vllm:inter_token_latency_seconds_count",
        fallbacks=("vllm:time_per_output_token_seconds_count",),
    ),
    "steps": _rate("vllm:iteration_tokens_total_count"),
    "preemptions": _rate("vllm:num_preemptions_total"),
    "cache": Query(
        metric="vllm:cache_config_info",
        own_labels=("kv_cache_size_tokens", "num_gpu_blocks"),
        aggregation="group",
    ),
    "finished": _rate("vllm:request_prompt_tokens_count", scrapes=LONG_SCRAPES),
    "finished_prompt_tokens": _rate("vllm:request_prompt_tokens_sum", scrapes=LONG_SCRAPES),
    "finished_output_tokens": _rate("vllm:request_generation_tokens_sum", scrapes=LONG_SCRAPES),
    "long_prompt_tokens": _rate("vllm:prompt_tokens_total", scrapes=LONG_SCRAPES),
    "long_computed_tokens": _rate(
        "vllm:prompt_tokens_by_source_total",
        scrapes=LONG_SCRAPES,
        matchers='source="local_compute"',
    ),
    "ttft": _rate(
        "vllm:time_to_first_token_seconds_bucket", scrapes=ATTAINMENT_SCRAPES, own_labels=("le",)
    ),
    "tpot": _rate(
        "vllm:request_time_per_output_token_seconds_bucket",
        scrapes=ATTAINMENT_SCRAPES,
        own_labels=("le",),
    ),
}
HISTOGRAMS = frozenset({"ttft", "tpot"})


def expression(query: Query, settings: Settings, *, le_matcher: str = "") -> str:
    """Return the PromQL of a query.

    >>> settings = Settings(prometheusUrl="http://prometheus:9090")
    >>> expression(TABLE["steps"], settings)
    'max by (namespace, pod, engine) (rate(vllm:iteration_tokens_total_count[60s]))'
    """
    labels = (settings.namespace_label, settings.pod_label, "engine", *query.own_labels)
    by = f"{query.aggregation} by ({', '.join(labels)})"

    def reduced(metric: str, matchers: str) -> str:
        selector = ",".join(filter(None, (settings.prometheus_selector, matchers)))
        series = f"{metric}{{{selector}}}" if selector else metric
        if query.function is None or query.function == "timestamp":
            return f"timestamp({series})" if query.function else series
        window = prometheus_duration(query.scrapes * settings.scrape_interval_s)
        return f"{query.function}({series}[{window}])"

    matchers = ",".join(filter(None, (query.matchers, le_matcher)))
    own = f"{by} ({reduced(query.metric, matchers)})"
    others = (f"{by} ({reduced(name, '')})" for name in query.fallbacks)
    return " or ".join((own, *others))


def bucket_matcher(limits_s: Iterable[float]) -> str:
    """Return the matcher of the histogram bounds next to these limits, and of the total.

    Neighbours in the ladder of our manifests and in the engine's own, for a scale target.
    """
    needed: set[float] = set()
    for limit_s in limits_s:
        for ladder in (LATENCY_BOUNDS_S, DEFAULT_BOUNDS_S):
            needed.add(max((bound for bound in ladder if bound <= limit_s), default=0.0))
            needed.add(min((bound for bound in ladder if bound >= limit_s), default=0.0))
    names = [str(float(bound)) for bound in sorted(needed - {0.0})]
    return f'le=~"{"|".join([*names, "[+]Inf"])}"'.replace(".", "[.]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrape:
    """Everything that Prometheus said in one tick, by pod."""

    engines: Mapping[PodKey, tuple[EngineSamples, ...]]
    long: Mapping[PodKey, tuple[LongSamples, ...]]


def scrape(
    ask: Callable[[str], Sequence[Series]],
    settings: Settings,
    *,
    ttft_limits_s: Iterable[float],
    tpot_limits_s: Iterable[float],
) -> Scrape:
    """Ask every query of the table once and join the answers by engine.

    Raises:
        PrometheusError: any query failed; a half answer is no answer.
    """
    matchers = {"ttft": bucket_matcher(ttft_limits_s), "tpot": bucket_matcher(tpot_limits_s)}
    answers = {
        name: ask(expression(query, settings, le_matcher=matchers.get(name, "")))
        for name, query in TABLE.items()
    }
    return join(answers, settings)


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
