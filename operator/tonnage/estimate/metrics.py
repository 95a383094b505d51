"""What Prometheus is asked in one tick, for the whole fleet: a fixed table, as PromQL.

Each query is one counter's rate or one gauge, ``max by`` the engine: two Prometheus replicas
deliver every series twice, and a maximum does not mind. Sums, ratios and the join to our own
pods are arithmetic on the answers. No text of a user reaches a query. Names are those of vLLM
0.33, with fallbacks down to 0.8.

Arrivals are the increase of a counter and of two gauges over the same scrapes, so that their sum
is the number of requests that came between the first and the last of them, and nothing but
counting errs. For that the three must be extrapolated alike. Prometheus divides what it saw by the
time between the first and the last sample and multiplies it with that time, longer by the gaps to
both ends of the window where they are below 1.1 scrapes, by half a scrape where they are not:
``rate`` divides this by the window, ``delta`` does not, and both see the same scrapes. ``deriv``
fits a line, which is no difference of anything. The one exception is a counter near zero, which
``rate`` extrapolates back to zero at most: in the first window of an engine, completions are too
few by at most one scrape's. ``delta`` of the counter would not have it, but would take a restart
for a negative number of completions.

Sources:
    [prometheus-source] promql/functions.go, extrapolatedRate.
    [vllm-source] v1/metrics/loggers.py.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tonnage.settings import Settings
from tonnage.units import MILLION, MS_PER_S, PETA

WINDOWS = (4, 8, 20, 60)
"""In scrapes: over which arrivals are counted. One to fifteen minutes at the usual 15 s."""
FRESH_SCRAPES = 3
"""Samples older than so many scrape intervals are stale. One scrape that fails hides no younger
one: Prometheus answers an instant selector with nothing until the next that works."""
BUSY_SCRAPES = 4
"""Over which a busy engine shows how long its steps take: one bad scrape spoils one window."""
ATTAINMENT_SCRAPES = 8
"""Over which latencies are judged."""
FAST_SCRAPES = 8
SLOW_SCRAPES = 60
LENGTH_WINDOWS = (SLOW_SCRAPES, FAST_SCRAPES, BUSY_SCRAPES)
"""Over which the lengths of requests are told: the slow window is steady, the fast one sees what
changes, the shortest one another shape."""
LARGEST = PETA
"""No rate or gauge of an engine comes near: what is beyond was not measured."""
MOST_REQUESTS = 10 * MILLION
"""That one engine may have at a time: each takes a connection and a task of its front end, some
100 KB, and ten million of them more than the memory of any node."""
LATENCY_BOUNDS_S = (
    0.001, 0.0025, 0.005, 0.0075, 0.01, 0.0125, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.045, 0.05,
    0.06, 0.07, 0.08, 0.1, 0.125, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0,
    4.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 300.0,
)  # fmt: skip
"""One constant ladder for TTFT and inter-token latency: a changed SLO restarts nothing."""
TTFT_BOUNDS_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
TPOT_BOUNDS_S = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
)  # fmt: skip
"""What vLLM takes for either when it is told nothing: a scale target is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One metric, how it is reduced over a window, and its own labels that are kept."""

    metric: str
    function: str | None = None
    """None: the gauge as it is."""
    scrapes: int = BUSY_SCRAPES
    own_labels: tuple[str, ...] = ()
    matchers: str = ""
    fallbacks: tuple[str, ...] = ()
    """Names of the metric in other versions of the engine."""
    aggregation: str = "max"
    decides: bool = True
    """False: it is only shown to people, and may fail alone."""
    largest: float = LARGEST
    """A value above was not measured."""
    is_of_gpu: bool = False
    """Reported by the GPU's exporter, which names the pod by labels of its own, and no engine."""

    @property
    def least(self) -> float:
        """A value below was not measured: the growth of a gauge alone may be negative."""
        return -self.largest if self.function == "delta" else 0.0


def _rate(metric: str, **more: object) -> Query:
    return Query(metric=metric, function="rate", **more)  # type: ignore[arg-type]


def _requests(metric: str, **more: object) -> Query:
    return Query(metric=metric, largest=MOST_REQUESTS, **more)  # type: ignore[arg-type]


RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
BY_REASON = "vllm:num_requests_waiting_by_reason"
COMPLETED, REJECTED = "vllm:request_success_total", "vllm:admission_rejections_total"
STEPS = "vllm:iteration_tokens_total_count"
PROMPT_TOKENS = "vllm:prompt_tokens_by_source_total"
LOCAL_COMPUTE = 'source="local_compute"'
MOVED = 'source="external_kv_transfer"'
"""From another engine, or from the host's memory."""


def _arrivals(scrapes: int) -> dict[str, Query]:
    """Return the parts of arrivals. Waiting for whatever reason: it has arrived."""
    return {
        f"completions_{scrapes}": _rate(
            COMPLETED, scrapes=scrapes, own_labels=("finished_reason",)
        ),
        f"running_growth_{scrapes}": _requests(RUNNING, function="delta", scrapes=scrapes),
        f"waiting_growth_{scrapes}": _requests(WAITING, function="delta", scrapes=scrapes),
        f"rejections_{scrapes}": _rate(REJECTED, scrapes=scrapes, own_labels=("reason",)),
    }


def _lengths(scrapes: int) -> dict[str, Query]:
    """Return the parts of mean lengths.

    vLLM counts the tokens of a prompt, and its TTFT, when its prefill ends, long before the
    request does: a new shape of prompts shows there first. Before 0.16 those that are computed are
    what was started without the hits of the prefix cache.
    """
    return {
        f"finished_{scrapes}": _rate("vllm:request_generation_tokens_count", scrapes=scrapes),
        f"finished_prompt_tokens_{scrapes}": _rate(
            "vllm:request_prompt_tokens_sum", scrapes=scrapes
        ),
        f"finished_output_tokens_{scrapes}": _rate(
            "vllm:request_generation_tokens_sum", scrapes=scrapes
        ),
        f"started_{scrapes}": _rate("vllm:time_to_first_token_seconds_count", scrapes=scrapes),
        f"started_prompt_tokens_{scrapes}": _rate("vllm:prompt_tokens_total", scrapes=scrapes),
        f"computed_prompt_tokens_{scrapes}": _rate(
            PROMPT_TOKENS, scrapes=scrapes, matchers=LOCAL_COMPUTE
        ),
        f"cached_prompt_tokens_{scrapes}": _rate(
            "vllm:prefix_cache_hits_total",
            scrapes=scrapes,
            fallbacks=("vllm:gpu_prefix_cache_hits_total",),
        ),
    }


def _of_windows(
    made: Callable[[int], Mapping[str, Query]], windows: Iterable[int]
) -> tuple[str, ...]:
    return tuple(name for scrapes in windows for name in made(scrapes))


TABLE: Mapping[str, Query] = {
    "timestamp": Query(metric=RUNNING, function="timestamp"),
    "waiting": _requests(
        BY_REASON,
        function="last_over_time",
        scrapes=FRESH_SCRAPES,
        matchers='reason="capacity"',
        fallbacks=(WAITING,),
    ),
    **{name: query for scrapes in WINDOWS for name, query in _arrivals(scrapes).items()},
    "running": _requests(RUNNING, function="last_over_time", scrapes=FRESH_SCRAPES),
    "completed": Query(metric=COMPLETED, own_labels=("finished_reason",)),
    "rejected": Query(metric=REJECTED, own_labels=("reason",)),
    "queued": _requests(WAITING),
    "falls": Query(metric=STEPS, function="resets", scrapes=SLOW_SCRAPES + 1),
    "scrapes": Query(metric=RUNNING, function="count_over_time", scrapes=SLOW_SCRAPES),
    "cache": Query(
        metric="vllm:cache_config_info",
        own_labels=("kv_cache_size_tokens", "num_gpu_blocks"),
        aggregation="group",
    ),
    "mean_running": _requests(RUNNING, function="avg_over_time"),
    "kv_usage": Query(
        metric="vllm:kv_cache_usage_perc",
        function="avg_over_time",
        fallbacks=("vllm:gpu_cache_usage_perc",),
        largest=1.0,
    ),
    "token_gap_s": _rate(
        "vllm:inter_token_latency_seconds_sum",
        fallbacks=("vllm:time_per_output_token_seconds_sum",),
    ),
    "token_gaps": _rate(
        "vllm:inter_token_latency_seconds_count",
        fallbacks=("vllm:time_per_output_token_seconds_count",),
    ),
    "resets": Query(
        metric=STEPS,
        function="resets",
        scrapes=BUSY_SCRAPES + 1,  # the window's first scrape may be what a bad one fell to
    ),
    "prefill_s": _rate("vllm:request_prefill_time_seconds_sum"),
    "prefills": _rate("vllm:request_prefill_time_seconds_count"),
    "preemptions": _rate("vllm:num_preemptions_total"),
    **{name: query for scrapes in LENGTH_WINDOWS for name, query in _lengths(scrapes).items()},
    "ttft": _rate(
        "vllm:time_to_first_token_seconds_bucket", scrapes=ATTAINMENT_SCRAPES, own_labels=("le",)
    ),
    "tpot": _rate(
        "vllm:request_time_per_output_token_seconds_bucket",
        scrapes=ATTAINMENT_SCRAPES,
        own_labels=("le",),
    ),
    "deferred": _requests(
        BY_REASON,
        function="avg_over_time",
        scrapes=ATTAINMENT_SCRAPES,
        matchers='reason="deferred"',
    ),
    "moved_prompt_tokens": _rate(PROMPT_TOKENS, matchers=MOVED),
    "read_bytes": _rate("vllm:estimated_read_bytes_per_gpu_total", decides=False),
    "write_bytes": _rate("vllm:estimated_write_bytes_per_gpu_total", decides=False),
    "dram_active": Query(
        metric="DCGM_FI_PROF_DRAM_ACTIVE",
        function="avg_over_time",
        own_labels=("UUID", "GPU_I_ID"),
        decides=False,
        largest=1.0,
        is_of_gpu=True,
    ),
}
"""In the order in which they are asked: where time runs out, what decides was answered."""


GROUPS: Mapping[str, tuple[str, ...]] = {
    "arrivals": (
        "timestamp", "waiting", "running", "completed", "rejected", "queued", "falls", "scrapes",
        *_of_windows(_arrivals, WINDOWS),
    ),
    "lengths": _of_windows(_lengths, LENGTH_WINDOWS),
    "speed": (
        "mean_running", "kv_usage", "token_gap_s", "token_gaps", "resets", "prefill_s", "prefills",
        "preemptions",
    ),
    "memory": ("cache", "moved_prompt_tokens"),
    "latency": ("ttft", "tpot", "deferred"),
    "shown": ("read_bytes", "write_bytes", "dram_active"),
}  # fmt: skip
"""Queries by what they are for: what is wrong while they fail."""


def group_of(query: str) -> str:
    """Return the group of a query.

    >>> group_of("ttft"), group_of("another")
    ('latency', 'other')
    """
    return next((group for group, names in GROUPS.items() if query in names), "other")


def deciding(scrapes: int) -> tuple[str, ...]:
    """Name the queries that demand over a window needs: without one nothing may be lowered."""
    return ("timestamp", "waiting", *_arrivals(scrapes))


DECIDING = deciding(WINDOWS[0])


def queries(
    settings: Settings,
    *,
    ttft_limits_s: Iterable[float],
    tpot_limits_s: Iterable[float],
    namespaces: Sequence[str] = (),
) -> dict[str, str]:
    """Return the PromQL of every query of the table; histograms only around these limits.

    ``namespaces``: answers for these alone, where one for all would be too large.
    """
    matchers = {
        "ttft": bucket_matcher(ttft_limits_s, TTFT_BOUNDS_S),
        "tpot": bucket_matcher(tpot_limits_s, TPOT_BOUNDS_S),
    }
    return {
        name: expression(query, settings, le_matcher=matchers.get(name, ""), namespaces=namespaces)
        for name, query in TABLE.items()
    }


def expression(
    query: Query, settings: Settings, *, le_matcher: str = "", namespaces: Sequence[str] = ()
) -> str:
    """Return the PromQL of a query.

    >>> settings = Settings(prometheusUrl="http://prometheus:9090")
    >>> expression(TABLE["preemptions"], settings)
    'max by (namespace, pod, engine) (rate(vllm:num_preemptions_total[60s]))'
    """
    place = (settings.namespace_label, settings.pod_label)
    engine = () if query.is_of_gpu else ("engine",)
    by = f"{query.aggregation} by ({', '.join((*place, *engine, *query.own_labels))})"
    namespace = settings.dcgm_namespace_label if query.is_of_gpu else settings.namespace_label
    within = f'{namespace}=~"{"|".join(namespaces)}"' if namespaces else ""
    target = _exporters(settings) if query.is_of_gpu else ""

    def reduced(metric: str, matchers: str) -> str:
        selector = ",".join(filter(None, (settings.prometheus_selector, target, within, matchers)))
        series = f"{metric}{{{selector}}}" if selector else metric
        if query.function is None or query.function == "timestamp":
            return f"timestamp({series})" if query.function else series
        window = prometheus_duration(query.scrapes * settings.scrape_interval_s)
        return f"{query.function}({series}[{window}])"

    matchers = ",".join(filter(None, (query.matchers, le_matcher)))
    own = reduced(query.metric, matchers)
    if query.is_of_gpu:
        own = _relabel(own, settings)
    others = (f"{by} ({reduced(name, '')})" for name in query.fallbacks)
    return " or ".join((f"{by} ({own})", *others))


def _exporters(settings: Settings) -> str:
    """Return the matcher of targets that may tell of other namespaces' pods.

    A label of the target's is Prometheus' own: what a page calls so is renamed to exported_.
    """
    is_known = settings.dcgm_namespace_label == f"exported_{settings.namespace_label}"
    allowed = "|".join(settings.dcgm_namespaces) if is_known else ""
    return f'{settings.namespace_label}=~"{allowed}"' if allowed else ""


def _relabel(series: str, settings: Settings) -> str:
    """Return series of a GPU's exporter under the labels that engines have for namespace and pod.

    Its own under these names are those of the exporter's pod; where it tells no other, they go.
    """
    told = (
        (settings.namespace_label, settings.dcgm_namespace_label),
        (settings.pod_label, settings.dcgm_pod_label),
    )
    for label, source in told:
        if label != source:
            series = f'label_replace({series}, "{label}", "$1", "{source}", "(.*)")'
    return series


def prometheus_duration(duration_s: float) -> str:
    """Write a duration as Prometheus reads it: a whole number of one unit.

    >>> prometheus_duration(60), prometheus_duration(1.5)
    ('60s', '1500ms')
    """
    if duration_s == round(duration_s):
        return f"{round(duration_s)}s"
    return f"{max(1, round(duration_s * MS_PER_S))}ms"


def bucket_matcher(limits_s: Iterable[float], own_bounds_s: Sequence[float]) -> str:
    """Return the matcher of the histogram bounds next to these limits, and of the total.

    Neighbours in the ladder of our manifests and in the engine's own, for a scale target.
    """
    needed: set[float] = set()
    for limit_s in limits_s:
        for ladder in (LATENCY_BOUNDS_S, own_bounds_s):
            needed.add(max((bound for bound in ladder if bound <= limit_s), default=0.0))
            needed.add(min((bound for bound in ladder if bound >= limit_s), default=0.0))
    names = [str(float(bound)) for bound in sorted(needed - {0.0})]
    return f'le=~"{"|".join([*names, "[+]Inf"])}"'.replace(".", "[.]")
