"""What a user reads: the status. Observed, reconstructible, never an input to a decision."""

from datetime import datetime
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import AfterValidator, Field

from tonnage.api.base import ApiModel
from tonnage.units import KIB

MESSAGE_LENGTH: Final = KIB
Text = Annotated[str, Field(max_length=MESSAGE_LENGTH)]
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


class Reason(NamedTuple):
    """Why something is as it is, in whatever part of the operator that is found."""

    code: str
    """A word that is the same in every message of its kind."""
    message: str


class ReasonStatus(ApiModel):
    """Why a number is what it is."""

    code: Annotated[str, Field(max_length=64)]
    """A word that is the same in every message of its kind."""
    message: Text
    """Why, with the numbers."""


class ParallelismStatus(ApiModel):
    """How one replica is split over its GPUs."""

    tensor: int = 1
    """Tensor-parallel ranks."""
    pipeline: int = 1
    """Pipeline stages."""
    data: int = 1
    """Data-parallel ranks."""
    context: int | None = None
    """Decode context parallel, within the tensor-parallel ranks; absent: 1."""


class PlanStatus(ApiModel):
    """What Tonnage would run, and why."""

    replicas: int
    """Replicas that Tonnage would run now."""
    max_num_seqs: int
    """``--max-num-seqs``: requests that a replica, or data-parallel rank, runs at once."""
    max_num_batched_tokens: int
    """``--max-num-batched-tokens``: tokens of one step."""
    max_num_queued_tokens: int | None = None
    """``--max-num-queued-tokens``: prompt tokens without a first token, from which on an engine, or
    data-parallel rank, refuses who comes; absent: it refuses nobody."""
    gpus_per_replica: int
    """GPUs of one replica: tensor x pipeline x data."""
    parallelism: ParallelismStatus
    """How one replica is split over its GPUs."""
    limited_by: Name
    """What stops the batch from growing: TimePerOutputToken, KVCache, BatchedTokens, ..."""
    reasons: Annotated[tuple[ReasonStatus, ...], Field(max_length=32)] = ()
    """Why: first what moved the number of replicas, the last of it before the others."""


class InputStatus(ApiModel):
    """One figure that the plan stands on, and where it comes from."""

    name: Name
    """What the figure is about."""
    value: Text
    """The figure, with its unit."""
    origin: Literal["given", "looked up", "guessed", "measured"]
    """given: by the spec; looked up: in a catalogue; guessed: nobody gave it; measured: here."""


class EstimateStatus(ApiModel):
    """What the arithmetic expects of one replica and of the fleet."""

    weights_bytes_per_gpu: int
    """Weights on one GPU, in bytes."""
    kv_bytes_per_token: int
    """On one GPU."""
    kv_tokens: int
    """That the cache of one replica holds."""
    kv_tokens_low: int | None = None
    """The truth lies between low and high nine times in ten; both are the truth once measured."""
    kv_tokens_high: int | None = None
    """See kvTokensLow."""
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
    """TTFT at that rate of a mean prompt that waits for the step in progress only, in seconds."""
    time_per_output_token_seconds: float
    """TPOT at that rate, in the mean, in seconds."""
    bottleneck: Name
    """What a step spends most of its time on: MemoryBandwidth, Compute, Prefill, Overhead or
    Communication."""
    intensity_flop_per_byte: float
    """FLOP per byte that decode does."""
    ridge_flop_per_byte: float
    """FLOP per byte above which the GPU's compute is the bound, not its memory."""
    usd_per_hour: float | None = None
    """Of all planned replicas; absent when the class has no price."""
    usd_per_million_tokens: float | None = None
    """Output tokens, at that rate; absent when the class has no price."""
    inputs: Annotated[tuple[InputStatus, ...], Field(max_length=32)] = ()
    """Every figure that the plan stands on."""


class MeasuredFigure(ApiModel):
    """One measured figure."""

    value: float
    """The figure, in the unit that the field names."""
    source: Name
    """Where it was measured: the metrics or the component."""
    changed_at: Time
    """When it last changed materially."""


class MeasuredStatus(ApiModel):
    """What Prometheus says about the pods of this object."""

    requests_per_second: MeasuredFigure | None = None
    """Requests that arrive per second, on all pods."""
    prompt_tokens: MeasuredFigure | None = None
    """Tokens of a prompt, in the mean."""
    output_tokens: MeasuredFigure | None = None
    """Tokens of an answer, in the mean."""
    moved_prompt_fraction: MeasuredFigure | None = None
    """Share of prompt tokens whose KV cache came from host memory or from another engine."""
    queue_depth: MeasuredFigure | None = None
    """Requests that wait for a slot or for cache, on all pods."""
    refused_per_second: MeasuredFigure | None = None
    """Requests that ``engine.admission`` refuses per second, on all pods; they count as late."""
    running: MeasuredFigure | None = None
    """Requests that run, on all pods."""
    step_seconds: MeasuredFigure | None = None
    """Mean time of one engine step in busy time, in seconds."""
    memory_bandwidth_utilization: MeasuredFigure | None = None
    """Bytes per step over step time over nominal bandwidth, in busy time."""
    model_flops_utilization: MeasuredFigure | None = None
    """Work per step over step time over the dense peak, in busy time."""
    dram_active: MeasuredFigure | None = None
    """Share of cycles in which DCGM saw the memory interface at work, idle time included."""
    engine_bandwidth_utilization: MeasuredFigure | None = None
    """Of the nominal bandwidth, by the engine's own count of bytes, idle time included."""
    preemptions_per_request: MeasuredFigure | None = None
    """Times that a request lost its cache to others, in the mean."""
    kv_tokens: MeasuredFigure | None = None
    """Of one replica, as the engine reports it."""
    ttft_attainment: MeasuredFigure | None = None
    """Share of requests within the TTFT limit."""
    tpot_attainment: MeasuredFigure | None = None
    """Share of requests within the TPOT limit."""
    error_budget_left: MeasuredFigure | None = None
    """Share of the late requests that the SLO allows over its window, of the target that has least
    left; below 0 more were late."""
    cold_start_seconds: MeasuredFigure | None = None
    """From when a node took a pod until it was Ready, in seconds."""


class LearnedConstant(ApiModel):
    """One constant of the step time, before and after what was measured."""

    prior: float
    """Before anything was measured."""
    learned: float
    """The prior where nothing was measured."""
    planned: float
    """That the plan stands on: the slow end of what is in doubt."""
    deviation_fraction: float
    """Doubt of the learned one: one standard deviation, as a share of it."""


class CalibrationStatus(ApiModel):
    """A copy of what was learned: of this model on this GPU, and of this object alone."""

    evidence: Literal["Prior", "Namespace", "OtherNamespaces"]
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
    """Share of the nominal memory bandwidth that the memory part of a step achieves."""
    prefill_efficiency: LearnedConstant
    """Share of the peak compute that prefill achieves."""
    step_time: LearnedConstant
    """Of a typical step, over that of the prior."""
    requests_per_second: float
    """That one replica serves within the SLO, by the plan and everything that was learned."""
    prior_requests_per_second: float
    """The same before anything was learned: a quick estimate."""
    goodput_factor: float = 1.0
    """Learned from SLO attainment: multiplies the goodput that the step time allows."""
    judged_requests: int = 0
    """Requests that the factor was learned from."""
    judged_at: Time | None = None
    """When the factor last moved."""
    goodput_factor_reason: Text = ""
    """Why the factor last moved, with the numbers."""
    kv_tokens: int | None = None
    """Of one rank, that its own engines reported."""
    prior_kv_tokens: int
    """Of one rank, as estimated before any engine reported."""
    cold_start_seconds: float | None = None
    """Mean from when a node took its own pods until they were Ready, beside what was expected."""
    cold_start_deviation_seconds: float | None = None
    """Of single starts: one standard deviation, in seconds."""
    node_wait_seconds: float | None = None
    """Mean for which they waited for a node before, each for a quarter of an hour at most."""
    cold_starts: int = 0
    """That this stands on."""


class DecisionStatus(ApiModel):
    """One change that Tonnage made or would have made."""

    time: Time
    """When it was made."""
    from_replicas: int
    """Replicas before it."""
    to_replicas: int
    """Replicas after it."""
    code: Annotated[str, Field(max_length=64)]
    """The rule that decided."""
    message: Text
    """Why, with the numbers."""


class ReplicasStatus(ApiModel):
    """Replicas as the cluster has them."""

    desired: int
    """Replicas that Tonnage wants; where it may not write, those that there are."""
    current: int
    """Replicas of the Deployment."""
    ready: int
    """Replicas that are Ready."""
    summary: Name
    """ready/desired, for the table."""


class Condition(ApiModel):
    """A condition as kstatus and ``kubectl wait`` read it."""

    type: Annotated[str, Field(max_length=316)]
    """What it is about, such as Ready or PlanValid."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    reason: Annotated[str, Field(max_length=1024, pattern="^[A-Za-z][A-Za-z0-9_,:]*$")]
    """Why, in a word; several are joined by commas."""
    message: Annotated[str, Field(max_length=32768)]
    """Why, with the numbers."""
    last_transition_time: Time
    """When its status last changed."""
    observed_generation: int | None = None
    """Generation of the spec that it is about."""


class ProposalStatus(ApiModel):
    """A plan that waits for somebody to agree to it: mode Approve."""

    digest: Annotated[str, Field(max_length=64)]
    """What the annotation ``tonnage.dev/approve`` must say."""
    reason: Annotated[str, Field(max_length=64)]
    """What waits: what replaces pods, or what passes the stated cost."""
    message: Text
    """What would be done, and why, with the numbers."""


class Display(ApiModel):
    """Strings made for the columns of ``kubectl get``."""

    mbu: Name = ""
    """Memory bandwidth utilization, as a share."""
    queue: Name = ""
    """Requests that wait."""
    slo: Name = ""
    """Whether the SLO targets are met."""
    reason: Name = ""
    """Rule of the last decision."""
    problem: Name = ""
    """Message of the first condition that says what is wrong; empty: none does."""


class Status(ApiModel):
    """Everything observed and planned for one ModelDeployment."""

    observed_generation: int | None = None
    """Generation of the spec that the status is about."""
    replicas: ReplicasStatus | None = None
    """Replicas as the cluster has them."""
    plan: PlanStatus | None = None
    """What Tonnage would run, and why."""
    estimate: EstimateStatus | None = None
    """What the arithmetic expects of one replica and of the fleet."""
    measured: MeasuredStatus | None = None
    """What Prometheus says about the pods."""
    calibration: CalibrationStatus | None = None
    decisions: Annotated[tuple[DecisionStatus, ...], Field(max_length=MAX_DECISIONS)] = ()
    """The last five changes, the newest first."""
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
    """Ready, Reconciling and Stalled as kstatus reads them, and what Tonnage says beside."""
    display: Display | None = None
    """What the columns of ``kubectl get`` show."""
    proposals: Annotated[tuple[ProposalStatus, ...], Field(max_length=4)] = ()
    """What waits in mode Approve; one annotation agrees to one of them."""
