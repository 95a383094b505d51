"""What Prometheus answered, as figures of one engine over a window: there, or None."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tonnage.estimate.metrics import (
    ATTAINMENT_SCRAPES,
    BUSY_SCRAPES,
    FRESH_SCRAPES,
    LENGTH_WINDOWS,
    TABLE,
    WINDOWS,
    Query,
)
from tonnage.estimate.series import UNUSABLE, Series

MAX_ENGINES = 64
"""Of one pod; more than any node has data-parallel ranks."""
REFUSED = f"rejections_{ATTAINMENT_SCRAPES}"
PodKey = tuple[str, str]
"""(namespace, pod)"""
Found = Mapping[str, Sequence[Series]]
"""Series by query."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalWindow:
    """The parts of arrivals at one engine, over one window. None: missing, never zero."""

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
    """By window in scrapes."""
    mean_running: float | None = None
    kv_usage_fraction: float | None = None
    computed_prompt_tokens_per_s: float | None = None
    """Without those that a cache held."""
    started_prompt_tokens_per_s: float | None = None
    moved_prompt_tokens_per_s: float | None = None
    """Of those, whose cache came from another engine or from the host's memory."""
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
    refused_per_s: float = 0.0
    """Rate of requests that a queue limit refused, over ``ATTAINMENT_SCRAPES`` like the two above;
    vLLM counts them since 0.32."""
    untaken_share: float = 0.0
    """Of its cache, where prompts that engines of the other role have yet to take fill most."""
    waiting_for_decode: float = 0.0
    """Requests that wait for that room: they are none of ``waiting``."""
    mean_deferred: float | None = None
    """Requests that wait, and not for capacity, over ``ATTAINMENT_SCRAPES``."""
    dram_active_fraction: float | None = None
    """Of the cycles of the memory interface, mean over the pod's GPUs; with its first engine."""
    read_bytes_per_s: float | None = None
    """By the engine's own count of what each GPU reads; needs ``--enable-mfu-metrics``."""
    write_bytes_per_s: float | None = None


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


def engine_samples(pod: str, engine: str, found: Found, interval_s: float) -> EngineSamples:
    refused = _one(found, REFUSED)
    return EngineSamples(
        pod=pod,
        engine=engine,
        age_s=age_s(found, interval_s),
        scraped_at_s=scraped_at_s(found),
        arrived=arrivals(found),
        running=_one(found, "running"),
        waiting=_one(found, "waiting"),
        num_scrapes=_one(found, "scrapes"),
        arrivals={scrapes: _arrivals(found, scrapes, interval_s) for scrapes in WINDOWS},
        lengths={scrapes: _lengths(found, scrapes) for scrapes in LENGTH_WINDOWS},
        mean_running=_one(found, "mean_running"),
        kv_usage_fraction=_one(found, "kv_usage"),
        computed_prompt_tokens_per_s=_computed_prompt_tokens_per_s(found, BUSY_SCRAPES),
        started_prompt_tokens_per_s=_one(found, f"started_prompt_tokens_{BUSY_SCRAPES}"),
        moved_prompt_tokens_per_s=_one(found, "moved_prompt_tokens"),
        token_gap_s_per_s=_one(found, "token_gap_s"),
        token_gaps_per_s=_one(found, "token_gaps"),
        num_resets=_one(found, "resets"),
        num_falls=_one(found, "falls"),
        prefill_s_per_s=_one(found, "prefill_s"),
        prefills_per_s=_one(found, "prefills"),
        preemptions_per_s=_one(found, "preemptions"),
        kv_tokens=_cache_label(found, "kv_cache_size_tokens"),
        num_gpu_blocks=_cache_label(found, "num_gpu_blocks"),
        ttft_within={} if _is_lost(found, REFUSED, refused) else _buckets(found, "ttft"),
        tpot_within=_buckets(found, "tpot"),
        refused_per_s=refused or 0.0,
        mean_deferred=_one(found, "deferred"),
        dram_active_fraction=_mean(_usable(found, "dram_active")),
        read_bytes_per_s=_one(found, "read_bytes"),
        write_bytes_per_s=_one(found, "write_bytes"),
    )


def age_s(found: Found, interval_s: float) -> float | None:
    """Return the age of the newest scrape; where the last one failed, the most it can be."""
    ages = [series.evaluated_at_s - series.value for series in _scrapes(found)]
    hidden_s = FRESH_SCRAPES * interval_s if found.get("running") else None
    return min(ages, default=hidden_s)


def scraped_at_s(found: Found) -> float | None:
    return max((series.value for series in _scrapes(found)), default=None)


def _scrapes(found: Found) -> Iterator[Series]:
    return (series for series in found.get("timestamp", ()) if series.value != UNUSABLE)


def arrivals(found: Found) -> float | None:
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
