"""What the scrapes of one engine say: growth over windows, means and gauges, each there or None."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from tonnage.estimate.fleet_scrapes import EngineKey, FleetScrapes, PodKey, in_order
from tonnage.estimate.metrics import (
    ATTAINMENT_SCRAPES,
    BUSY_SCRAPES,
    CACHE_LABELS,
    COLUMNS,
    FRESH_SCRAPES,
    PLACES,
    WINDOWS,
)
from tonnage.estimate.scrapes import EngineScrapes, Window


class WindowRates(NamedTuple):
    """Growth of the counters of one engine over one window. None: missing, never zero.

    Each but the first two is a column of ``pages``, in that order; those of ``SHORT`` are in no
    window longer than ``ATTAINMENT_SCRAPES``.
    """

    seconds: float = 0.0
    """That were watched in it, from its first scrape to its last."""
    in_flight_per_s: float | None = None
    """Growth of running + waiting requests, for whatever reason they wait."""
    completed_per_s: float | None = None
    """Requests, like all that follow without another unit."""
    rejected_per_s: float | None = None
    """vLLM counts them since 0.32."""
    finished_per_s: float | None = None
    """The two below are theirs."""
    finished_prompt_tokens_per_s: float | None = None
    finished_output_tokens_per_s: float | None = None
    started_per_s: float | None = None
    """Requests that got their first token; the three below are of their prompts."""
    started_prompt_tokens_per_s: float | None = None
    computed_prompt_tokens_per_s: float | None = None
    """Without those that a cache held: before 0.16 what started without cache hits."""
    cached_prompt_tokens_per_s: float | None = None
    token_gap_s_per_s: float | None = None
    """Sum of inter-token latencies."""
    token_gaps_per_s: float | None = None
    prefill_s_per_s: float | None = None
    """Sum of times from scheduled to first token, of requests that finished."""
    prefills_per_s: float | None = None
    first_token_s_per_s: float | None = None
    """Sum of the times to the first token, of requests that started."""
    queue_s_per_s: float | None = None
    """Sum of times from arrival at the engine to scheduled, of requests that finished."""
    queues_per_s: float | None = None
    preemptions_per_s: float | None = None
    moved_prompt_tokens_per_s: float | None = None
    """Of those started, whose cache came from another engine or from the host's memory."""
    read_bytes_per_s: float | None = None
    """By the engine's own count of what each GPU reads; needs ``--enable-mfu-metrics``."""
    write_bytes_per_s: float | None = None


NOTHING_SAID = WindowRates()
NO_CACHE = (None,) * len(CACHE_LABELS)
COUNTED = (0, *(1 + at for at, column in enumerate(COLUMNS) if not column.is_gauge))
"""Of growths, those of ``WindowRates``."""
REJECTED = 1 + PLACES["rejected"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSamples:
    """The figures of one engine (a data-parallel rank) of one pod. None: missing, never zero."""

    pod: str
    engine: str
    scrape_interval_s: float
    age_s: float | None = None
    """Of the newest scrape, when Prometheus said it."""
    held_s: float = field(default=0.0, compare=False)
    """Since Prometheus said all of this; 0: for no longer than a scrape interval."""
    span_s: float | None = None
    """From the first scrape that is known to the newest; None: for as long as the engine is."""
    running: float | None = None
    """At the newest scrape, like ``waiting``."""
    waiting: float | None = None
    """For capacity; requests deferred for other reasons do not count."""
    windows: Mapping[int, WindowRates] = field(default_factory=dict)
    """By window in scrapes."""
    mean_running: float | None = None
    """Over ``BUSY_SCRAPES``, like the share below."""
    kv_usage_fraction: float | None = None
    kv_tokens: float | None = None
    """Capacity of this rank in requests of the longest length, where the engine reports it."""
    num_gpu_blocks: float | None = None
    """Of all data-parallel ranks of the pod together; of whatever size the engine cut them."""
    ttft_within: Mapping[float, float] = field(default_factory=dict)
    """Requests by upper bound of TTFT in seconds, infinity for all, per second of
    ``ATTAINMENT_SCRAPES``: of an engine that was watched for a part of it those of that part."""
    tpot_within: Mapping[float, float] = field(default_factory=dict)
    queue_within: Mapping[float, float] = field(default_factory=dict)
    """By the time from arrival at the engine to scheduled, of requests that finished."""
    prompts_within: Mapping[float, float] = field(default_factory=dict)
    """By tokens of the prompt, of requests that finished."""
    untaken_share: float = 0.0
    """Of its cache, where prompts that engines of the other role have yet to take fill most."""
    waiting_for_decode: float = 0.0
    """Requests that wait for that room: they are none of ``waiting``."""
    mean_deferred: float | None = None
    """Requests that wait, and not for capacity; like ``ttft_within``."""
    dram_active_fraction: float | None = None
    """Of the cycles of the memory interface, mean over the pod's GPUs; with its first engine."""

    def over(self, scrapes: int) -> WindowRates:
        """Return the growth over a window of so many scrapes."""
        return self.windows.get(scrapes, NOTHING_SAID)

    @property
    def busy(self) -> WindowRates:
        return self.over(BUSY_SCRAPES)

    @property
    def refused_per_s(self) -> float:
        """Return the requests/s that a queue limit refused; like ``ttft_within``."""
        window = self.over(ATTAINMENT_SCRAPES)
        return (window.rejected_per_s or 0.0) * _judged_share(window, self.scrape_interval_s)

    def says_all_arrivals(self, scrapes: int) -> bool:
        """Tell whether no part of arrivals is missing; the counter of rejections may be."""
        window = self.over(scrapes)
        return None not in {window.completed_per_s, window.in_flight_per_s, self.waiting}

    @property
    def is_fresh(self) -> bool:
        """Tell whether these samples may be acted on; those from the future may not.

        For one scrape interval they are as they were when Prometheus said them, since nothing newer
        could have come. For how long they are held beyond that is age, too.
        """
        age_s, interval_s = self.age_s, self.scrape_interval_s
        if age_s is None or age_s < -interval_s:
            return False
        return age_s + max(0.0, self.held_s - interval_s) <= FRESH_SCRAPES * interval_s


def fleet_samples(scrapes: FleetScrapes, at_s: float) -> Mapping[PodKey, tuple[EngineSamples, ...]]:
    """Return the figures of all engines at a time by Prometheus' clock."""
    return {
        pod: tuple(
            _engine_samples((*pod, name), engines[name], scrapes, at_s, is_first=not number)
            for number, name in enumerate(in_order(engines))
        )
        for pod, engines in scrapes.engines.items()
    }


def _engine_samples(
    key: EngineKey, scrapes: EngineScrapes, fleet: FleetScrapes, at_s: float, *, is_first: bool
) -> EngineSamples:
    """Return the figures of an engine; of one that went silent the little that is still of use."""
    age_s = at_s - scrapes.at_s
    known = partial(
        EngineSamples,
        pod=key[1],
        engine=key[2],
        scrape_interval_s=fleet.interval_s,
        age_s=age_s,
        running=scrapes.newest(PLACES["running"]),
        waiting=scrapes.newest(PLACES["waiting"]),
    )
    if age_s > FRESH_SCRAPES * fleet.interval_s:
        return known()
    windows = scrapes.windows(WINDOWS)
    growths = {number: scrapes.rates(window) for number, window in windows.items()}
    busy, judged = windows[BUSY_SCRAPES], windows[ATTAINMENT_SCRAPES]
    told, share = growths[ATTAINMENT_SCRAPES], _judged_share(judged, fleet.interval_s)
    is_lost = _lacks_refusals(scrapes, judged, told)
    deferred = scrapes.mean(PLACES["deferred"], judged)
    kv_tokens, num_gpu_blocks = fleet.caches.get(key, NO_CACHE)
    return known(
        span_s=scrapes.span_s,
        windows={each: _rates(scrapes, windows[each], growths[each]) for each in WINDOWS},
        mean_running=scrapes.mean(PLACES["running"], busy),
        kv_usage_fraction=scrapes.mean(PLACES["kv_usage"], busy),
        kv_tokens=kv_tokens,
        num_gpu_blocks=num_gpu_blocks,
        ttft_within={} if is_lost else _buckets(told, share, fleet, "ttft"),
        tpot_within=_buckets(told, share, fleet, "tpot"),
        queue_within=_buckets(told, share, fleet, "queue"),
        prompts_within=_buckets(told, share, fleet, "prompt"),
        mean_deferred=None if deferred is None else share * deferred,
        dram_active_fraction=fleet.gpus.get(key[:2]) if is_first else None,
    )


Growths = Sequence[float | None]
"""Per second: of what is in flight, then of all columns over one window."""


def _rates(scrapes: EngineScrapes, window: Window, growths: Growths) -> WindowRates:
    """Return growths by name; where a figure of refusals was no number, no arrivals are known."""
    known = WindowRates(window.seconds, *[growths[at] for at in COUNTED if at < len(growths)])
    started, computed = known.started_prompt_tokens_per_s, known.computed_prompt_tokens_per_s
    if started is not None and computed is None:
        cached = known.cached_prompt_tokens_per_s or 0.0
        known = known._replace(computed_prompt_tokens_per_s=max(0.0, started - cached))
    if _lacks_refusals(scrapes, window, growths):
        return known._replace(completed_per_s=None, in_flight_per_s=None)
    return known


def _lacks_refusals(scrapes: EngineScrapes, window: Window, growths: Growths) -> bool:
    return growths[REJECTED] is None and scrapes.is_told(PLACES["rejected"], window)


def _judged_share(window: Window | WindowRates, interval_s: float) -> float:
    """Return the share of ``ATTAINMENT_SCRAPES`` that was watched."""
    return min(1.0, window.seconds / ((ATTAINMENT_SCRAPES - 1) * interval_s))


def _buckets(growths: Growths, share: float, fleet: FleetScrapes, name: str) -> dict[float, float]:
    told = (
        (bound_s, growths[1 + place])
        for (histogram, bound_s), place in fleet.bounds.items()
        if histogram == name and 1 + place < len(growths)
    )
    return {bound_s: share * per_s for bound_s, per_s in told if per_s is not None}


Rates = tuple[float, float | None, float | None]
"""The seconds that were watched; of tokens, say, and of the requests that they belong to."""


def sums_of(rates: Iterable[Rates]) -> tuple[float, float]:
    """Return what both came to in the time watched, over the engines that tell both rates."""
    totals = [(s * total, s * number) for s, total, number in rates if total is not None and number]
    return sum(total for total, _ in totals), sum(number for _, number in totals)


def mean_of(rates: Iterable[Rates]) -> float | None:
    """Return the first of both over the second, in the time watched; None: no engine tells both."""
    total, number = sums_of(rates)
    return total / number if number else None
