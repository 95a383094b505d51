"""A vLLM server's ``/metrics`` page, as the few figures that a load test watches. Pure."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

PREFIX = "vllm:"
IDENTITY_LABELS = ("pod", "instance", "host", "hostname", "server", "replica", "node")
"""By which a page that was put together from several servers tells them apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePage:
    """One reading. None: the page does not have the figure."""

    engines: frozenset[str]
    """Data-parallel ranks."""
    servers: frozenset[str]
    """Whatever tells servers apart: labels, and when the process began."""
    running: float | None
    waiting: float | None
    succeeded: float | None
    """Requests that ended well, so far."""
    looked_up_tokens: float | None
    """Of prompts, in the prefix cache."""
    cached_tokens: float | None
    """Of these, found in it."""
    drafts: float
    kv_tokens: float | None
    """Of one data-parallel rank, in requests of the maximum length."""
    gpu_memory_utilization: float | None

    @property
    def in_flight(self) -> float:
        return (self.running or 0.0) + (self.waiting or 0.0)


def read_page(text: str) -> EnginePage | None:
    """Read a page; None where it is no Prometheus text, or not vLLM's."""
    try:
        samples = [
            sample for family in text_string_to_metric_families(text) for sample in family.samples
        ]
    except ValueError:
        return None
    own = [sample for sample in samples if sample.name.startswith(PREFIX)]
    if not own:
        return None
    starts = (each for each in samples if each.name == "process_start_time_seconds")
    cache = next((each.labels for each in own if each.name == "vllm:cache_config_info"), {})
    return EnginePage(
        engines=frozenset(each.labels["engine"] for each in own if each.labels.get("engine")),
        servers=frozenset((*_identities(own), *(f"started {each.value:.2f}" for each in starts))),
        running=_total(own, "vllm:num_requests_running"),
        waiting=_total(own, "vllm:num_requests_waiting"),
        succeeded=_total(own, "vllm:request_success_total"),
        looked_up_tokens=_total(
            own, "vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"
        ),
        cached_tokens=_total(
            own, "vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"
        ),
        drafts=_total(own, "vllm:spec_decode_num_drafts_total") or 0.0,
        kv_tokens=_figure(cache.get("kv_cache_size_tokens")),
        gpu_memory_utilization=_figure(cache.get("gpu_memory_utilization")),
    )


def _identities(samples: Iterable[Sample]) -> Iterable[str]:
    for sample in samples:
        named = [f"{key} {sample.labels[key]}" for key in IDENTITY_LABELS if key in sample.labels]
        if named:
            yield ", ".join(named)


def _total(samples: Iterable[Sample], *names: str) -> float | None:
    """Return the sum of a family over its labels, under the first of its names that is there."""
    known = list(samples)
    for name in names:
        values = [sample.value for sample in known if sample.name == name]
        if values and all(0 <= value < math.inf for value in values):
            return sum(values)
    return None


def _figure(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0 < value < math.inf else None
