"""The ``/metrics`` page: vLLM 0.33's names, labels, types and buckets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)

from tonnage.engine.schedule import Rank
from tonnage.replay.prometheus import FINISHED_REASONS, PROMPT_SOURCES, REJECTION_REASONS
from tonnage_lab.emulator.step import Prompt, RankStep
from tonnage_lab.emulator.truth import StepWork

LABELS: Final = ("model_name", "engine")

COUNTERS: Final = {
    "num_preemptions": "Preemptions so far.",
    "prompt_tokens": "Prompt tokens whose prefill ended.",
    "prompt_tokens_cached": "Prompt tokens taken from a cache.",
    "generation_tokens": "Tokens generated.",
    "prefix_cache_queries": "Tokens looked up in the prefix cache.",
    "prefix_cache_hits": "Tokens found in the prefix cache.",
    "external_prefix_cache_queries": "Tokens looked up in other instances' caches.",
    "external_prefix_cache_hits": "Tokens found in other instances' caches.",
    "mm_cache_queries": "Items looked up in the multi-modal cache.",
    "mm_cache_hits": "Items found in the multi-modal cache.",
}

LABELLED_COUNTERS: Final = {
    "prompt_tokens_by_source": (
        "Prompt tokens by where they came from.",
        "source",
        PROMPT_SOURCES,
    ),
    "prompt_tokens_cached_by_source": (
        "Cached prompt tokens by tier.",
        "source",
        ("device", "host", "p2p", "disk", "external_unspecified"),
    ),
    "request_success": (
        "Requests that ended, by reason.",
        "finished_reason",
        FINISHED_REASONS,
    ),
}

WORK_COUNTERS: Final = {
    "estimated_flops_per_gpu": "Estimated floating point operations of one GPU.",
    "estimated_read_bytes_per_gpu": "Estimated bytes read from one GPU's memory.",
    "estimated_write_bytes_per_gpu": "Estimated bytes written to one GPU's memory.",
}
"""Only with ``--enable-mfu-metrics``."""

DRAFT_COUNTERS: Final = {
    "spec_decode_num_drafts": "Drafts: one for each sequence in each step.",
    "spec_decode_num_draft_tokens": "Draft tokens.",
    "spec_decode_num_accepted_tokens": "Draft tokens that were right.",
}
ACCEPTED_BY_POSITION: Final = (
    "spec_decode_num_accepted_tokens_per_pos",
    "Draft tokens that were right, by their position in the draft.",
    "position",
)
"""Only with ``--speculative-config``."""

HISTOGRAMS: Final = {
    "request_prompt_tokens": ("Prompt tokens of a request.", "request_tokens"),
    "request_generation_tokens": ("Generated tokens of a request.", "request_tokens"),
    "iteration_tokens_total": ("Tokens of an engine step.", "iteration_tokens"),
    "request_max_num_generation_tokens": ("Most tokens that were asked for.", "request_tokens"),
    "request_params_n": ("Completions asked for by a request.", "request_params_n"),
    "request_params_max_tokens": ("The request's max_tokens.", "request_tokens"),
    "time_to_first_token_seconds": ("Arrival to first token.", "time_to_first_token"),
    "inter_token_latency_seconds": ("Between two tokens of a request.", "inter_token_latency"),
    "request_time_per_output_token_seconds": (
        "Mean between two tokens of a request.",
        "inter_token_latency",
    ),
    "e2e_request_latency_seconds": ("Arrival to last token.", "request_latency"),
    "request_queue_time_seconds": ("Arrival to first scheduled.", "request_latency"),
    "request_inference_time_seconds": ("First scheduled to last token.", "request_latency"),
    "request_prefill_time_seconds": ("First scheduled to first token.", "request_latency"),
    "request_decode_time_seconds": ("First to last token.", "request_latency"),
    "request_num_preemptions": ("Preemptions of a request.", "request_num_preemptions"),
    "request_prefill_kv_computed_tokens": (
        "Prompt tokens computed, cached ones left out.",
        "request_tokens",
    ),
}
"""Meaning and bucket family."""

SLEEP_STATES: Final = {"awake": 1, "weights_offloaded": 0, "discard_all": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTimes:
    """When things happened to one request that ended, on one clock, in seconds."""

    arrived_s: float
    started_s: float
    first_token_s: float
    last_token_s: float


@dataclass(slots=True, kw_only=True)
class LastStep:
    """What the gauges show: the rank as it was when its last step ended, as in vLLM."""

    num_running: int = 0
    num_waiting: int = 0
    num_deferred: int = 0
    """Requests whose KV cache is on its way from another engine."""
    num_without_room: int = 0
    """Requests whose KV cache has no room here yet."""
    kv_usage_fraction: float = 0.0

    @property
    def num_short_of_capacity(self) -> int:
        return self.num_waiting + self.num_without_room

    def note(self, rank: Rank, num_blocks: int, *, left_waiting: int | None = None) -> None:
        """Take the figures; ``left_waiting`` by the step's schedule: who came since is no queue.

        vLLM puts those who come during a step into the scheduler's queue when the next one begins.
        """
        self.num_running = rank.num_running
        num_waiting = len(rank.waiting)
        self.num_waiting = num_waiting if left_waiting is None else min(left_waiting, num_waiting)
        self.kv_usage_fraction = max(0.0, 1 - rank.free_blocks / num_blocks)


class MetricsPage:
    """The families of one server. ``engine`` makes the series of one rank."""

    def __init__(self, *, model_name: str, buckets: Mapping[str, Sequence[float]]) -> None:
        self.registry = CollectorRegistry()
        self.model_name = model_name
        GCCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        ProcessCollector(registry=self.registry)
        self.counters = {name: self._counter(name, text, LABELS) for name, text in COUNTERS.items()}
        self.labelled = {
            name: self._counter(name, text, (*LABELS, label))
            for name, (text, label, _) in LABELLED_COUNTERS.items()
        }
        self.histograms = {
            name: self._histogram(name, text, buckets[family])
            for name, (text, family) in HISTOGRAMS.items()
        }
        self.running = self._gauge("num_requests_running", "Requests in the batch.")
        self.waiting = self._gauge("num_requests_waiting", "Requests that wait.")
        self.waiting_by_reason = self._gauge(
            "num_requests_waiting_by_reason", "Requests that wait, by reason.", "reason"
        )
        self.kv_usage = self._gauge("kv_cache_usage_perc", "Share of the KV cache in use, 0 to 1.")
        self.sleep_state = self._gauge("engine_sleep_state", "1 for the state.", "sleep_state")
        self._rejections = self._counter(
            "admission_rejections", "Requests refused by a queue limit.", ("model_name", "reason")
        )
        for reason in REJECTION_REASONS:
            self._rejections.labels(model_name, reason)
        self._work: dict[str, Counter] = {}
        self._drafts: dict[str, Counter] = {}
        self._accepted: Counter | None = None
        self._num_draft_tokens = 0

    def _counter(self, name: str, text: str, labels: Sequence[str]) -> Counter:
        return Counter(f"vllm:{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"vllm:{name}", text, (*LABELS, *labels), registry=self.registry)

    def _histogram(self, name: str, text: str, bounds: Sequence[float]) -> Histogram:
        return Histogram(f"vllm:{name}", text, LABELS, buckets=bounds, registry=self.registry)

    def count_rejection(self, reason: str) -> None:
        """Note a request that a queue limit refused."""
        self._rejections.labels(self.model_name, reason).inc()

    def show_work(self) -> None:
        """Add the analytic counters of ``--enable-mfu-metrics``."""
        self._work = {
            name: self._counter(name, text, LABELS) for name, text in WORK_COUNTERS.items()
        }

    def show_drafts(self, num_draft_tokens: int) -> None:
        """Add the counters of speculative decoding, with so many tokens drafted in each step."""
        self._num_draft_tokens = num_draft_tokens
        self._drafts = {
            name: self._counter(name, text, LABELS) for name, text in DRAFT_COUNTERS.items()
        }
        name, text, label = ACCEPTED_BY_POSITION
        self._accepted = self._counter(name, text, (*LABELS, label))

    def show_cache_configs(self, configs: Sequence[Mapping[str, str]]) -> None:
        """Add the info series whose labels are the cache's configuration, ``engine`` included."""
        gauge = Gauge(
            "vllm:cache_config_info",
            "Cache configuration.",
            list(configs[0]),
            registry=self.registry,
        )
        for config in configs:
            gauge.labels(**config).set(1)

    def engine(self, index: int, work: StepWork | None) -> "EngineSeries":
        """Return the series of one data-parallel rank, all present from the start."""
        labels = (self.model_name, str(index))
        last_step = LastStep()
        self._gauges_of(last_step, labels)
        return EngineSeries(
            last_step=last_step,
            counters={name: each.labels(*labels) for name, each in self.counters.items()},
            labelled={
                (name, value): self.labelled[name].labels(*labels, value)
                for name, (_, _, values) in LABELLED_COUNTERS.items()
                for value in values
            },
            histograms={name: each.labels(*labels) for name, each in self.histograms.items()},
            work_counters={name: each.labels(*labels) for name, each in self._work.items()},
            work=work,
            draft_counters={name: each.labels(*labels) for name, each in self._drafts.items()},
            accepted=[
                self._accepted.labels(*labels, str(position))
                for position in range(self._num_draft_tokens)
                if self._accepted
            ],
        )

    def _gauges_of(self, step: LastStep, labels: tuple[str, str]) -> None:
        self.running.labels(*labels).set_function(lambda: step.num_running)
        self.waiting.labels(*labels).set_function(
            lambda: step.num_short_of_capacity + step.num_deferred
        )
        self.kv_usage.labels(*labels).set_function(lambda: step.kv_usage_fraction)
        by_reason = self.waiting_by_reason
        by_reason.labels(*labels, "capacity").set_function(lambda: step.num_short_of_capacity)
        by_reason.labels(*labels, "deferred").set_function(lambda: step.num_deferred)
        for state, value in SLEEP_STATES.items():
            self.sleep_state.labels(*labels, state).set(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSeries:
    """The series of one engine, bound to its labels."""

    last_step: LastStep
    counters: Mapping[str, Counter]
    labelled: Mapping[tuple[str, str], Counter]
    histograms: Mapping[str, Histogram]
    work_counters: Mapping[str, Counter]
    work: StepWork | None
    draft_counters: Mapping[str, Counter]
    accepted: Sequence[Counter]
    """Draft tokens that were right, by their position; empty where nothing is drafted."""

    def count_step(self, step: RankStep) -> None:
        """Note one engine step; one that found nothing to do on this rank is none."""
        if step.is_empty:
            return
        num_tokens = step.prompt_tokens + step.generated_tokens
        self.histograms["iteration_tokens_total"].observe(num_tokens)
        self.counters["generation_tokens"].inc(step.generated_tokens)
        self.counters["num_preemptions"].inc(len(step.preempted))
        if self.accepted:
            self._count_drafts(step)
        if self.work and self.work_counters:
            self._count_work(step, self.work)

    def _count_drafts(self, step: RankStep) -> None:
        for emission in step.decoding:
            self.draft_counters["spec_decode_num_drafts"].inc()
            self.draft_counters["spec_decode_num_draft_tokens"].inc(len(self.accepted))
            self.draft_counters["spec_decode_num_accepted_tokens"].inc(emission.num_tokens - 1)
            for counter in self.accepted[: emission.num_tokens - 1]:
                counter.inc()

    def _count_work(self, step: RankStep, work: StepWork) -> None:
        verified = len(step.decoding) * (1 + len(self.accepted))
        num_tokens = verified + step.prefill_tokens
        self.work_counters["estimated_flops_per_gpu"].inc(work.flop(num_tokens))
        self.work_counters["estimated_read_bytes_per_gpu"].inc(work.read_bytes(step.context_tokens))
        self.work_counters["estimated_write_bytes_per_gpu"].inc(work.write_bytes(num_tokens))

    def count_start(self, prompt: Prompt) -> None:
        """Note a request that was scheduled for the first time."""
        self.counters["prefix_cache_queries"].inc(prompt.tokens)
        self.counters["prefix_cache_hits"].inc(prompt.local_tokens)
        by_tier = "prompt_tokens_cached_by_source"
        self.labelled[by_tier, "device"].inc(prompt.local_tokens)
        if prompt.tier:
            self.counters["external_prefix_cache_queries"].inc(prompt.tokens - prompt.local_tokens)
            self.counters["external_prefix_cache_hits"].inc(prompt.taken_tokens)
            self.labelled[by_tier, prompt.tier].inc(prompt.taken_tokens)

    def count_first_token(self, ttft_s: float, prompt: Prompt) -> None:
        """Note the end of a prefill."""
        self.histograms["time_to_first_token_seconds"].observe(ttft_s)
        self.counters["prompt_tokens"].inc(prompt.tokens)
        self.counters["prompt_tokens_cached"].inc(prompt.taken_tokens + prompt.local_tokens)
        by_source = "prompt_tokens_by_source"
        self.labelled[by_source, "local_compute"].inc(prompt.computed_tokens)
        self.labelled[by_source, "local_cache_hit"].inc(prompt.local_tokens)
        self.labelled[by_source, "external_kv_transfer"].inc(prompt.taken_tokens)

    def count_later_tokens(self, latency_s: float) -> None:
        """Note what a step after the first token gave, several tokens as one."""
        self.histograms["inter_token_latency_seconds"].observe(latency_s)

    def count_abort(self) -> None:
        """Note a request whose client went away, or that a shutdown cut off."""
        self.labelled["request_success", "abort"].inc()

    def count_end(
        self, times: RequestTimes, prompt: Prompt, *, output_tokens: int, num_preemptions: int
    ) -> None:
        """Note a request that got all its tokens."""
        decode_s = times.last_token_s - times.first_token_s
        for name, value in {
            "e2e_request_latency_seconds": times.last_token_s - times.arrived_s,
            "request_queue_time_seconds": times.started_s - times.arrived_s,
            "request_inference_time_seconds": times.last_token_s - times.started_s,
            "request_prefill_time_seconds": times.first_token_s - times.started_s,
            "request_decode_time_seconds": decode_s,
            "request_time_per_output_token_seconds": decode_s / max(output_tokens - 1, 1),
            "request_prompt_tokens": prompt.tokens,
            "request_generation_tokens": output_tokens,
            "request_max_num_generation_tokens": output_tokens,
            "request_params_max_tokens": output_tokens,
            "request_params_n": 1,
            "request_num_preemptions": num_preemptions,
            "request_prefill_kv_computed_tokens": prompt.computed_tokens,
        }.items():
            self.histograms[name].observe(value)
        self.labelled["request_success", "length"].inc()
