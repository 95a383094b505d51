"""What Prometheus is asked in one tick, for the whole fleet: raw samples, as PromQL.

A range selector at a moment is answered with every sample in it and its time. So all scrapes since
the last tick come, one that failed is bridged, and what windows make of them is arithmetic of our
own. No text of a user reaches a query.

What a page of an engine says that is read is in columns: one mapping for every name, those of vLLM
0.33 and down to 0.8. A version, or an engine, that names a metric otherwise gets its name here.

Sources:
    [vllm-source] v1/metrics/loggers.py.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from tonnage.settings import Settings
from tonnage.units import MILLION, MS_PER_S, PETA, THOUSAND

LARGEST = PETA
"""No counter or gauge of an engine comes near: what is beyond was not measured."""
MOST_REQUESTS = 10 * MILLION
"""That one engine may have at a time: each takes a connection and a task of its front end, some
100 KB, and ten million of them more than the memory of any node."""
RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
BY_REASON = "vllm:num_requests_waiting_by_reason"
COMPLETED, REJECTED = "vllm:request_success_total", "vllm:admission_rejections_total"
PROMPT_TOKENS = "vllm:prompt_tokens_by_source_total"
CACHE = "vllm:cache_config_info"
CACHE_LABELS = ("kv_cache_size_tokens", "num_gpu_blocks")
"""That its series tells figures by. The label ``block_size`` is none of them: before 0.24 it is not
that of the blocks that are counted."""
BUCKETS: Final[Mapping[str, str]] = {
    "vllm:time_to_first_token_seconds_bucket": "ttft",
    "vllm:request_time_per_output_token_seconds_bucket": "tpot",
    "vllm:request_queue_time_seconds_bucket": "queue",
    "vllm:request_prompt_tokens_bucket": "prompt",
}
"""Histograms, of which each bound is a column."""
DRAM_ACTIVE = "DCGM_FI_PROF_DRAM_ACTIVE"
"""Of the GPU's exporter, which names the pod by labels of its own, and no engine."""


class Column(NamedTuple):
    """One figure of a page."""

    name: str
    metrics: tuple[str, ...]
    """Its names in the versions of the engine: a page has one of them."""
    own: tuple[str, str] = ("", "")
    """The label that its series have, and the value; none: whatever they have."""
    summed: str = ""
    """The label by which it comes in several series, of which the sum counts."""
    is_gauge: bool = False
    largest: float = LARGEST
    """A value above was not measured."""


def _gauge(
    name: str, *metrics: str, own: tuple[str, str] = ("", ""), largest: float = MOST_REQUESTS
) -> Column:
    return Column(name, metrics, own, is_gauge=True, largest=largest)


LONG: Final = (
    _gauge("running", RUNNING),
    _gauge("queued", WAITING),
    Column("completed", (COMPLETED,), summed="finished_reason"),
    Column("rejected", (REJECTED,), summed="reason"),
    Column("finished", ("vllm:request_generation_tokens_count",)),
    Column("finished_prompt_tokens", ("vllm:request_prompt_tokens_sum",)),
    Column("finished_output_tokens", ("vllm:request_generation_tokens_sum",)),
    Column("started", ("vllm:time_to_first_token_seconds_count",)),
    Column("started_prompt_tokens", ("vllm:prompt_tokens_total",)),
    Column("computed_prompt_tokens", (PROMPT_TOKENS,), ("source", "local_compute")),
    Column(
        "cached_prompt_tokens", ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total")
    ),
)
"""Figures that are read over a quarter of an hour."""
SHORT: Final = (
    _gauge("waiting", BY_REASON, own=("reason", "capacity")),
    _gauge("deferred", BY_REASON, own=("reason", "deferred")),
    _gauge("kv_usage", "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", largest=1.0),
    Column(
        "token_gap_s",
        ("vllm:inter_token_latency_seconds_sum", "vllm:time_per_output_token_seconds_sum"),
    ),
    Column(
        "token_gaps",
        ("vllm:inter_token_latency_seconds_count", "vllm:time_per_output_token_seconds_count"),
    ),
    Column("prefill_s", ("vllm:request_prefill_time_seconds_sum",)),
    Column("prefills", ("vllm:request_prefill_time_seconds_count",)),
    Column("first_token_s", ("vllm:time_to_first_token_seconds_sum",)),
    Column("queue_s", ("vllm:request_queue_time_seconds_sum",)),
    Column("queues", ("vllm:request_queue_time_seconds_count",)),
    Column("preemptions", ("vllm:num_preemptions_total",)),
    # From another engine, or from the host's memory.
    Column("moved_prompt_tokens", (PROMPT_TOKENS,), ("source", "external_kv_transfer")),
    Column("read_bytes", ("vllm:estimated_read_bytes_per_gpu_total",)),
    Column("write_bytes", ("vllm:estimated_write_bytes_per_gpu_total",)),
)
"""Figures that are read over the last minutes."""
COLUMNS: Final = (*LONG, *SHORT)
PLACES: Final[Mapping[str, int]] = {column.name: at for at, column in enumerate(COLUMNS)}
"""Of each column in a row; bounds of histograms come after them."""
Bound = tuple[str, float]
"""A histogram of ``BUCKETS``, and the upper bound in seconds, or in tokens."""


def metrics_of(columns: Sequence[Column]) -> list[str]:
    """Return the names of the metrics of columns, each once."""
    return list(dict.fromkeys(metric for column in columns for metric in column.metrics))


def _by_metric() -> Mapping[str, Sequence[int]]:
    found = defaultdict[str, list[int]](list)
    for at, column in enumerate(COLUMNS):
        for metric in column.metrics:
            found[metric].append(at)
    return found


BY_METRIC: Final = _by_metric()


def column_of(labels: Mapping[str, str]) -> tuple[int, str] | None:
    """Return the column of a series and what it is a part of it by; None: it is in none.

    >>> column_of({"__name__": "vllm:request_success_total", "finished_reason": "stop"})
    (2, 'stop')
    """
    for at in BY_METRIC.get(labels.get("__name__", ""), ()):
        column = COLUMNS[at]
        label, value = column.own
        if not label or labels.get(label) == value:
            return at, labels.get(column.summed, "") if column.summed else ""
    return None


WINDOWS = (4, 8, 20, 60)
"""In scrapes: over which arrivals are counted. One to fifteen minutes at the usual 15 s."""
FRESH_SCRAPES = 3
"""Samples older than so many scrape intervals are stale."""
BUSY_SCRAPES = 4
"""Over which a busy engine shows how long its steps take: one bad scrape spoils one window."""
ATTAINMENT_SCRAPES = 8
"""Over which latencies are judged."""
FAST_SCRAPES = 8
SLOW_SCRAPES = 60
LENGTH_WINDOWS = (SLOW_SCRAPES, FAST_SCRAPES, BUSY_SCRAPES)
"""Over which the lengths of requests are told: the slow window is steady, the fast one sees what
changes, the shortest one another shape."""
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
QUEUE_BOUNDS_S = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0,
    240.0, 480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
"""Of the time for which a request waits, like all times of a whole request."""
NUM_BELOW = 3
PROMPT_BOUNDS = tuple(
    float(THOUSAND * lead * scale) for scale in (1, 10, 100) for lead in (1, 2, 5)
)
"""Of a prompt's tokens, from those on which one alone may be late. No time has them."""

SCRAPES, LATENCIES, GPUS, HISTORY = "scrapes", "latencies", "gpus", "history"
QUERIES = (SCRAPES, LATENCIES, GPUS)
"""In the order in which they are asked."""
DECIDING = (SCRAPES,)
"""Without an answer to these nothing may be lowered."""


def queries(
    settings: Settings,
    *,
    ttft_limits_s: Iterable[float],
    tpot_limits_s: Iterable[float],
    namespaces: Sequence[str] = (),
    has_history: bool = False,
) -> dict[str, str]:
    """Return the PromQL of every query; histograms only around these limits.

    ``namespaces``: answers for these alone, where one for all would be too large.
    ``has_history``: the last quarter of an hour too, for engines that were not asked about before.
    """
    interval_s = settings.scrape_interval_s
    # The gauge comes with the histograms, since its times are those of the scrapes.
    bounds = bound_matcher(judged_bounds(ttft_limits_s, tpot_limits_s))
    prefixes = ("", *settings.series_prefixes)
    named = {
        SCRAPES: _named([*metrics_of(COLUMNS), CACHE], prefixes),
        LATENCIES: f"{_named([RUNNING, *BUCKETS], prefixes)},{bounds}",
        **({HISTORY: _named(metrics_of(LONG), prefixes)} if has_history else {}),
    }
    spans_s = {
        LATENCIES: (ATTAINMENT_SCRAPES + 1) * interval_s if has_history else 0.0,
        HISTORY: (SLOW_SCRAPES + 1) * interval_s,
    }
    gpus = ",".join(filter(None, (_named([DRAM_ACTIVE]), _exporters(settings))))
    found, spaces = {}, [space for space, _ in settings.pod_labels]
    for name, matchers in (*named.items(), (GPUS, gpus)):
        within = _within(namespaces, [settings.dcgm_namespace_label] if name == GPUS else spaces)
        selector = ",".join(filter(None, (matchers, settings.prometheus_selector, within)))
        span_s = max(spans_s.get(name, 0.0), FRESH_SCRAPES * interval_s + settings.tick_s)
        found[name] = f"{{{selector}}}[{prometheus_duration(span_s)}]"
    return found


def _named(metrics: Sequence[str], prefixes: Sequence[str] = ("",)) -> str:
    names = (prefix + metric for prefix in prefixes for metric in metrics)
    return f'__name__=~"{"|".join(names)}"'


def _within(namespaces: Sequence[str], labels: Sequence[str]) -> str:
    """Return the matcher of these namespaces; of several labels a series may lack all but one."""
    names, nothing = dict.fromkeys(labels), "|" if len(set(labels)) > 1 else ""
    allowed = "|".join(namespaces) + nothing
    return ",".join(f'{each}=~"{allowed}"' for each in names) if namespaces else ""


def _exporters(settings: Settings) -> str:
    """Return the matcher of targets that may tell of other namespaces' pods.

    A label of the target's is Prometheus' own: what a page calls so is renamed to exported_.
    """
    is_known = settings.dcgm_namespace_label == f"exported_{settings.namespace_label}"
    allowed = "|".join(settings.dcgm_namespaces) if is_known else ""
    return f'{settings.namespace_label}=~"{allowed}"' if allowed else ""


def prometheus_duration(duration_s: float) -> str:
    """Write a duration as Prometheus reads it: a whole number of one unit.

    >>> prometheus_duration(60), prometheus_duration(1.5)
    ('60s', '1500ms')
    """
    if duration_s == round(duration_s):
        return f"{round(duration_s)}s"
    return f"{max(1, round(duration_s * MS_PER_S))}ms"


def bounds_near(ttft_limits_s: Iterable[float], tpot_limits_s: Iterable[float]) -> list[float]:
    """Return the bounds of histograms next to these limits.

    Neighbours in the ladder of our manifests and in the engine's own, for a scale target.
    """
    needed = set[float]()
    for limits_s, own in ((ttft_limits_s, TTFT_BOUNDS_S), (tpot_limits_s, TPOT_BOUNDS_S)):
        for limit_s in limits_s:
            needed |= {*_next_to(limit_s, LATENCY_BOUNDS_S), *_next_to(limit_s, own)}
    return sorted(needed)


def judged_bounds(ttft_limits_s: Iterable[float], tpot_limits_s: Iterable[float]) -> list[float]:
    """Return the same, and the bounds that tell why TTFT is late: of queues and of long prompts."""
    limits_s = list(ttft_limits_s)
    why = set(PROMPT_BOUNDS if limits_s else ())
    for limit_s in limits_s:  # a prompt's own prefill is in it too
        why.update([bound for bound in QUEUE_BOUNDS_S if bound < limit_s][-NUM_BELOW:])
    return sorted({*bounds_near(limits_s, tpot_limits_s), *why})


def _next_to(limit_s: float, ladder: Sequence[float]) -> set[float]:
    below = max((bound for bound in ladder if bound <= limit_s), default=0.0)
    above = min((bound for bound in ladder if bound >= limit_s), default=0.0)
    return {below, above} - {0.0}


def bound_matcher(bounds_s: Iterable[float]) -> str:
    """Return the matcher of series with these bounds, of the total, and of what has no bounds."""
    names = [str(float(bound)) for bound in bounds_s]
    return f'le=~"{"|".join([*names, "[+]Inf", ""])}"'.replace(".", "[.]")
