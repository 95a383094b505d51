"""What the scrapes of one engine say, as figures over windows: there, or None."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import isfinite

from tonnage.estimate.fleet_scrapes import EngineKey, FleetScrapes, PodKey
from tonnage.estimate.metrics import (
    ATTAINMENT_SCRAPES,
    BUSY_SCRAPES,
    FRESH_SCRAPES,
    LENGTH_WINDOWS,
    WINDOWS,
)
from tonnage.estimate.pages import PLACES
from tonnage.estimate.scrapes import EngineScrapes, Window


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalWindow:
    """The parts of arrivals at one engine, over one window. None: missing, never zero."""

    completions_per_s: float | None = None
    backlog_growth_per_s: float | None = None
    """Growth of running + waiting, for whatever reason they wait."""
    rejections_per_s: float | None = None
    """vLLM counts them since 0.32."""
    seconds: float | None = None
    """That were watched in it; None: the whole window, from its first scrape to its last."""


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
    span_s: float | None = None
    """From the first scrape that is known to the newest; None: for as long as the engine is."""
    running: float | None = None
    """At the newest scrape, like ``waiting``."""
    waiting: float | None = None
    """For capacity; requests deferred for other reasons do not count."""
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


def fleet_samples(
    scrapes: FleetScrapes, at_s: float, interval_s: float
) -> Mapping[PodKey, tuple[EngineSamples, ...]]:
    """Return the figures of all engines at a time by Prometheus' clock."""
    found = dict[PodKey, tuple[EngineSamples, ...]]()
    for pod in scrapes.pods:
        engines = scrapes.engines_of(pod)
        found[pod] = tuple(
            _engine_samples((*pod, name), each, scrapes, at_s, is_first=not number)
            if at_s - each.at_s <= FRESH_SCRAPES * interval_s
            else _stale_samples(pod[1], name, each, at_s)
            for number, (name, each) in enumerate(engines.items())
        )
    return found


def _stale_samples(pod: str, engine: str, scrapes: EngineScrapes, at_s: float) -> EngineSamples:
    """Return the little that is still of use of an engine that went silent."""
    return EngineSamples(
        pod=pod,
        engine=engine,
        age_s=at_s - scrapes.at_s,
        running=scrapes.newest(PLACES["running"]),
        waiting=scrapes.newest(PLACES["waiting"]),
    )


def _engine_samples(
    key: EngineKey, scrapes: EngineScrapes, fleet: FleetScrapes, at_s: float, *, is_first: bool
) -> EngineSamples:
    windows = {number: scrapes.window(number) for number in WINDOWS}
    rates = {number: scrapes.rates(window) for number, window in windows.items()}
    busy, judged = windows[BUSY_SCRAPES], windows[ATTAINMENT_SCRAPES]
    kv_tokens, num_gpu_blocks = fleet.cache_of(key)
    refused = _rate(rates[ATTAINMENT_SCRAPES], "rejected")
    is_lost = refused is None and scrapes.is_told(PLACES["rejected"], judged)
    rate = partial(_rate, rates[BUSY_SCRAPES])
    return EngineSamples(
        pod=key[1],
        engine=key[2],
        age_s=at_s - scrapes.at_s,
        span_s=scrapes.span_s,
        running=scrapes.newest(PLACES["running"]),
        waiting=scrapes.newest(PLACES["waiting"]),
        arrivals={each: _arrivals(scrapes, windows[each], rates[each]) for each in WINDOWS},
        lengths={each: _lengths(rates[each]) for each in LENGTH_WINDOWS},
        mean_running=scrapes.mean(PLACES["running"], busy),
        kv_usage_fraction=scrapes.mean(PLACES["kv_usage"], busy),
        computed_prompt_tokens_per_s=_computed_per_s(rates[BUSY_SCRAPES]),
        started_prompt_tokens_per_s=rate("started_prompt_tokens"),
        moved_prompt_tokens_per_s=rate("moved_prompt_tokens"),
        token_gap_s_per_s=rate("token_gap_s"),
        token_gaps_per_s=rate("token_gaps"),
        prefill_s_per_s=rate("prefill_s"),
        prefills_per_s=rate("prefills"),
        preemptions_per_s=rate("preemptions"),
        kv_tokens=kv_tokens,
        num_gpu_blocks=num_gpu_blocks,
        ttft_within={} if is_lost else _buckets(rates[ATTAINMENT_SCRAPES], fleet, "ttft"),
        tpot_within=_buckets(rates[ATTAINMENT_SCRAPES], fleet, "tpot"),
        refused_per_s=refused or 0.0,
        mean_deferred=scrapes.mean(PLACES["deferred"], judged),
        dram_active_fraction=fleet.dram_active(key[:2]) if is_first else None,
        read_bytes_per_s=rate("read_bytes"),
        write_bytes_per_s=rate("write_bytes"),
    )


Rates = Sequence[float]
"""Of all columns over one window, what is in flight last."""


def _told(per_s: float) -> float | None:
    return per_s if isfinite(per_s) else None


def _rate(rates: Rates, name: str) -> float | None:
    return _told(rates[PLACES[name]])


def _arrivals(scrapes: EngineScrapes, window: Window, rates: Rates) -> ArrivalWindow:
    rejections = _rate(rates, "rejected")
    if rejections is None and scrapes.is_told(PLACES["rejected"], window):
        return ArrivalWindow()
    return ArrivalWindow(
        completions_per_s=_rate(rates, "completed"),
        backlog_growth_per_s=_told(rates[-1]),
        rejections_per_s=rejections,
        seconds=window.seconds,
    )


def _lengths(rates: Rates) -> LengthWindow:
    return LengthWindow(
        finished_per_s=_rate(rates, "finished"),
        finished_prompt_tokens_per_s=_rate(rates, "finished_prompt_tokens"),
        finished_output_tokens_per_s=_rate(rates, "finished_output_tokens"),
        started_per_s=_rate(rates, "started"),
        started_prompt_tokens_per_s=_rate(rates, "started_prompt_tokens"),
        computed_prompt_tokens_per_s=_computed_per_s(rates),
    )


def _computed_per_s(rates: Rates) -> float | None:
    """Return prompt tokens that were computed: before 0.16 those started without cache hits."""
    computed, started = (
        _rate(rates, "computed_prompt_tokens"),
        _rate(rates, "started_prompt_tokens"),
    )
    if computed is not None or started is None:
        return computed
    return max(0.0, started - (_rate(rates, "cached_prompt_tokens") or 0.0))


def _buckets(rates: Rates, fleet: FleetScrapes, name: str) -> Mapping[float, float]:
    return {
        bound_s: rates[place]
        for (histogram, bound_s), place in fleet.bounds.items()
        if histogram == name and place < len(rates) - 1 and isfinite(rates[place])
    }
