"""What a user reads: the status. Observed, reconstructible, never an input to a decision."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from tonnage.api.base import ApiModel

Text = Annotated[str, Field(max_length=1024)]
Name = Annotated[str, Field(max_length=253)]


def _read(time: str) -> str:
    datetime.fromisoformat(time).timestamp()
    return time


Time = Annotated[
    str,
    Field(max_length=40, json_schema_extra={"format": "date-time"}),
    AfterValidator(_read),
]
"""The API server takes the year 0 and an offset of 99 hours too: whoever may write a status writes
what we read when we start."""
MAX_DECISIONS = 5


class Reason(ApiModel):
    """Why a number is what it is."""

    code: Annotated[str, Field(max_length=64)]
    message: Text


class ParallelismStatus(ApiModel):
    """How one replica is split over its GPUs."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    context: int | None = None
    """Decode context parallel, within the tensor-parallel ranks; absent: 1."""


class PlanStatus(ApiModel):
    """What Tonnage would run, and why."""

    replicas: int
    max_num_seqs: int
    max_num_batched_tokens: int
    gpus_per_replica: int
    parallelism: ParallelismStatus
    limited_by: Name
    """What stops the batch from growing: TimePerOutputToken, KVCache, BatchedTokens, ..."""
    reasons: Annotated[tuple[Reason, ...], Field(max_length=32)] = ()


class InputStatus(ApiModel):
    """One figure that the plan stands on, and where it comes from."""

    name: Name
    value: Text
    origin: Literal["given", "looked up", "guessed", "measured"]


class EstimateStatus(ApiModel):
    """What the arithmetic expects of one replica and of the fleet."""

    weights_bytes_per_gpu: int
    kv_bytes_per_token: int
    """On one GPU."""
    kv_tokens: int
    """That the cache of one replica holds."""
    kv_tokens_low: int | None = None
    """The truth lies between low and high nine times in ten; both are the truth once measured."""
    kv_tokens_high: int | None = None
    concurrency_at_context_length: float
    """Requests that the cache holds at the maximum length."""
    concurrency_at_typical_length: float
    """Requests that the cache holds at the lengths that occur."""
    slo_concurrency: float | None = None
    """Decoding requests at which TPOT meets its limit; absent offline."""
    requests_per_second: float
    """Goodput: that one replica sustains with every SLO target met."""
    tokens_per_second: float
    """Output tokens of one replica at that rate."""
    time_to_first_token_seconds: float
    time_per_output_token_seconds: float
    bottleneck: Name
    intensity_flop_per_byte: float
    ridge_flop_per_byte: float
    usd_per_hour: float | None = None
    """Of all planned replicas; absent when the class has no price."""
    usd_per_million_tokens: float | None = None
    inputs: Annotated[tuple[InputStatus, ...], Field(max_length=32)] = ()


class Figure(ApiModel):
    """One measured figure."""

    value: float
    source: Name
    changed_at: Time
    """When it last changed materially."""


class MeasuredStatus(ApiModel):
    """What Prometheus says about the pods of this object."""

    requests_per_second: Figure | None = None
    prompt_tokens: Figure | None = None
    output_tokens: Figure | None = None
    queue_depth: Figure | None = None
    running: Figure | None = None
    step_seconds: Figure | None = None
    memory_bandwidth_utilization: Figure | None = None
    """Bytes per step over step time over nominal bandwidth, in busy time."""
    model_flops_utilization: Figure | None = None
    """Work per step over step time over the dense peak, in busy time."""
    dram_active: Figure | None = None
    """Share of cycles in which DCGM saw the memory interface at work, idle time included."""
    engine_bandwidth_utilization: Figure | None = None
    """Of the nominal bandwidth, by the engine's own count of bytes, idle time included."""
    preemptions_per_request: Figure | None = None
    kv_tokens: Figure | None = None
    """Of one replica, as the engine reports it."""
    ttft_attainment: Figure | None = None
    """Share of requests within the TTFT limit."""
    tpot_attainment: Figure | None = None
    cold_start_seconds: Figure | None = None


class LearnedConstant(ApiModel):
    """One constant of the step time, before and after what was measured."""

    prior: float
    learned: float
    """The prior where nothing was measured."""
    planned: float
    """That the plan stands on: the slow end of what is in doubt."""
    deviation_fraction: float
    """Doubt of the learned one: one standard deviation, as a share of it."""


class CalibrationStatus(ApiModel):
    """A copy of what was learned: of this model on this GPU, and of this object alone."""

    evidence: Literal["Prior", "Namespace", "OtherNamespaces", "Everyone"]
    """Whose engines were measured: this namespace's, those of others that agree, or nobody's."""
    corroborating_namespaces: int
    """Others that have learned constants of the same model, GPU, split and engine version."""
    windows: int
    """Of evidence that the constants stand on; 0: nothing measured, the prior holds."""
    busy_steps: int
    """In these windows."""
    changed_at: Time | None = None
    """When the constants were last learned."""
    overhead_factor: LearnedConstant
    """Times the overheads of the prior."""
    bandwidth_efficiency: LearnedConstant
    prefill_efficiency: LearnedConstant
    step_time: LearnedConstant
    """Of a typical step, over that of the prior."""
    requests_per_second: float
    """That one replica is planned to serve now, by everything that was learned."""
    prior_requests_per_second: float
    """The same, were nothing learned: a quick estimate."""
    goodput_factor: float = 1.0
    """What kept and broken promises say beside the step time: times its goodput."""
    judged_requests: int = 0
    """That the factor stands on."""
    judged_at: Time | None = None
    """When the factor last moved."""
    goodput_factor_reason: Text = ""
    kv_tokens: int | None = None
    """Of one rank, that its own engines reported."""
    prior_kv_tokens: int
    """Of one rank, as estimated before any engine reported."""
    cold_start_seconds: float | None = None
    """Mean from when a node took its own pods until they were Ready, beside what was expected."""
    cold_start_deviation_seconds: float | None = None
    node_wait_seconds: float | None = None
    """Mean for which they waited for a node before, each for a quarter of an hour at most."""
    cold_starts: int = 0
    """That this stands on."""


class DecisionStatus(ApiModel):
    """One change that Tonnage made or would have made."""

    time: Time
    from_replicas: int
    to_replicas: int
    code: Annotated[str, Field(max_length=64)]
    message: Text


class ReplicasStatus(ApiModel):
    """Replicas as the cluster has them."""

    desired: int
    current: int
    ready: int
    summary: Name
    """ready/desired, for the table."""


class Condition(ApiModel):
    """A condition as kstatus and ``kubectl wait`` read it."""

    type: Annotated[str, Field(max_length=316)]
    status: Literal["True", "False", "Unknown"]
    reason: Annotated[str, Field(max_length=1024, pattern="^[A-Za-z][A-Za-z0-9_,:]*$")]
    message: Annotated[str, Field(max_length=32768)]
    last_transition_time: Time
    observed_generation: int | None = None


class ProposalStatus(ApiModel):
    """A plan that waits for somebody to agree to it: mode Approve."""

    digest: Annotated[str, Field(max_length=64)]
    """What the annotation ``tonnage.dev/approve`` must say."""
    reason: Annotated[str, Field(max_length=64)]
    message: Text


class Display(ApiModel):
    """Strings made for the columns of ``kubectl get``."""

    mbu: Name = ""
    queue: Name = ""
    slo: Name = ""
    reason: Name = ""
    problem: Name = ""
    """Message of the first condition that says what is wrong; empty: none does."""


class Status(ApiModel):
    """Everything observed and planned for one ModelDeployment."""

    observed_generation: int | None = None
    replicas: ReplicasStatus | None = None
    plan: PlanStatus | None = None
    estimate: EstimateStatus | None = None
    measured: MeasuredStatus | None = None
    calibration: CalibrationStatus | None = None
    decisions: Annotated[tuple[DecisionStatus, ...], Field(max_length=MAX_DECISIONS)] = ()
    conditions: Annotated[
        tuple[Condition, ...],
        Field(
            max_length=16,
            json_schema_extra={
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
            },
        ),
    ] = ()
    display: Display | None = None
    proposals: Annotated[tuple[ProposalStatus, ...], Field(max_length=4)] = ()
    """What waits in mode Approve; one annotation agrees to one of them."""
