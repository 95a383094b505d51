"""What Prometheus is asked in one tick, for the whole fleet: a fixed table, as PromQL.

Each query is one counter's rate or one gauge, ``max by`` the engine: two Prometheus replicas
deliver every series twice, and a maximum does not mind. Sums, ratios and the join to our own
pods are arithmetic on the answers. No text of a user reaches a query.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tonnage.settings import Settings
from tonnage.units import MS_PER_S

RATE_SCRAPES = 4
ATTAINMENT_SCRAPES = 8
LONG_SCRAPES = 60
"""15 minutes at the usual 15 s."""
LATENCY_BOUNDS_S = (
    0.001, 0.0025, 0.005, 0.0075, 0.01, 0.0125, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.045, 0.05,
    0.06, 0.07, 0.08, 0.1, 0.125, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0,
    4.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 300.0,
)  # fmt: skip
"""One constant ladder for TTFT and inter-token latency: a changed SLO restarts nothing."""
DEFAULT_BOUNDS_S = (
    0.001, 0.005, 0.01, 0.02, 0.025, 0.04, 0.05, 0.06, 0.075, 0.08, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4,
    0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
"""What vLLM takes for the two families when it is told nothing, both together."""


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


def queries(
    settings: Settings, *, ttft_limits_s: Iterable[float], tpot_limits_s: Iterable[float]
) -> dict[str, str]:
    """Return the PromQL of every query of the table; histograms only around these limits."""
    matchers = {"ttft": bucket_matcher(ttft_limits_s), "tpot": bucket_matcher(tpot_limits_s)}
    return {
        name: expression(query, settings, le_matcher=matchers.get(name, ""))
        for name, query in TABLE.items()
    }


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


def prometheus_duration(duration_s: float) -> str:
    """Write a duration as Prometheus reads it: a whole number of one unit.

    >>> prometheus_duration(60), prometheus_duration(1.5)
    ('60s', '1500ms')
    """
    if duration_s == round(duration_s):
        return f"{round(duration_s)}s"
    return f"{max(1, round(duration_s * MS_PER_S))}ms"


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
