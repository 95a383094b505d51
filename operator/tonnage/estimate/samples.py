"""What one engine reported over a window: figures that are there, or None."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSamples:
    """The figures of one engine (a data-parallel rank) of one pod. None: missing, never zero."""

    pod: str
    engine: str
    age_s: float | None = None
    """Since the newest scrape."""
    running: float | None = None
    waiting: float | None = None
    """For capacity; requests deferred for other reasons do not count."""
    mean_running: float | None = None
    kv_usage_fraction: float | None = None
    """Mean over the window."""
    completions_per_s: float | None = None
    backlog_growth_per_s: float | None = None
    """Growth of running + waiting."""
    rejections_per_s: float | None = None
    prompt_tokens_per_s: float | None = None
    computed_prompt_tokens_per_s: float | None = None
    """Without those that the prefix cache held."""
    output_tokens_per_s: float | None = None
    token_gap_s_per_s: float | None = None
    """Rate of the sum of inter-token latencies."""
    token_gaps_per_s: float | None = None
    """Rate of their count."""
    steps_per_s: float | None = None
    preemptions_per_s: float | None = None
    kv_tokens: float | None = None
    """Capacity of this rank in requests of the longest length, where the engine reports it."""
    num_gpu_blocks: float | None = None
    """Of all data-parallel ranks of the pod together; of whatever size the engine cut them."""
    ttft_within: Mapping[float, float] = field(default_factory=dict)
    """Rate of requests by upper bound of TTFT in seconds, infinity for all."""
    tpot_within: Mapping[float, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LongSamples:
    """Counters of one engine over a long window: the lengths of requests."""

    requests_per_s: float
    """Finished ones; the two below are theirs, so that a ramp does not skew the means."""
    prompt_tokens_per_s: float
    output_tokens_per_s: float
    started_prompt_tokens_per_s: float
    computed_prompt_tokens_per_s: float
    """Of those started, without what the prefix cache held."""
