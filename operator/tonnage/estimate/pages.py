"""What a page of an engine says that is read: its metrics in all versions, as columns.

One mapping for every name: those of vLLM 0.33, with the names down to 0.8. A version, or an engine,
that names a metric otherwise gets its name here.

Sources:
    [vllm-source] v1/metrics/loggers.py.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from tonnage.units import MILLION, PETA

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
        "cached_prompt_tokens",
        ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
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
