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
    """The reason as one word, listed in the reference of conditions and reasons."""
    message: str


class ReasonStatus(ApiModel):
    """Why a number is what it is."""

    code: Annotated[str, Field(max_length=64)]
    """The reason as one word, listed in the reference of conditions and reasons."""
    message: Text
    """The reason as a sentence with the numbers."""


class ParallelismStatus(ApiModel):
    """The parallelism of one replica over its GPUs."""

    tensor: int = 1
    """The number of tensor-parallel ranks."""
    pipeline: int = 1
    """The number of pipeline stages."""
    data: int = 1
    """The number of data-parallel ranks."""
    context: int | None = None
    """The decode context parallel size, within the tensor-parallel ranks. If absent, it is 1."""


class PlanStatus(ApiModel):
    """The replicas and flags that Tonnage would run, and why."""

    replicas: int
    """The number of replicas that Tonnage would run now."""
    max_num_seqs: int
    """``--max-num-seqs``: the requests that a replica, or data-parallel rank, runs at once."""
    max_num_batched_tokens: int
    """``--max-num-batched-tokens``: the maximum tokens of one engine step."""
    max_num_queued_reqs: int | None = None
    """``--max-num-queued-reqs``: the running and waiting requests above which a replica refuses new
    ones. If absent, it refuses none for that."""
    max_num_queued_tokens: int | None = None
    """``--max-num-queued-tokens``: the queued prompt tokens from which on an engine refuses new
    requests. If absent, it refuses none for that."""
    gpus_per_replica: int
    """The number of GPUs of one replica: tensor x pipeline x data."""
    parallelism: ParallelismStatus
    """The parallelism of one replica over its GPUs."""
    limited_by: Name
    """What limits the batch size: TimePerOutputToken, KVCache, BatchedTokens, ..."""
    reasons: Annotated[tuple[ReasonStatus, ...], Field(max_length=32)] = ()
    """The reasons of the plan. The first is the one that decided the number of replicas."""


class InputStatus(ApiModel):
    """One figure that the plan is computed from, and its source."""

    name: Name
    """The name of the figure, such as lengths, GPU H100 or bandwidth efficiency."""
    value: Text
    """The value of the figure with its unit."""
    origin: Literal["given", "looked up", "guessed", "assumed", "measured"]
    """Its source: the spec (given), the catalogue (looked up), a default (guessed), a bound on
    the safe side for what no rule knows (assumed), or measured."""
    effect: Text | None = None
    """The part of an assumed figure that may be too large: memory, time, or both."""
    replaced_by: Text | None = None
    """The file, the field or the report that replaces an assumed figure."""


class EstimateStatus(ApiModel):
    """What the arithmetic predicts for one replica and for the fleet."""

    weights_bytes_per_gpu: int
    """The bytes of the weights on one GPU."""
    kv_bytes_per_token: int
    """The bytes of one token in the KV cache on one GPU."""
    kv_tokens: int
    """The tokens that the KV cache of one replica has room for."""
    kv_tokens_low: int | None = None
    """The low end of the 90 % range of kvTokens; the measured value once engines report it."""
    kv_tokens_high: int | None = None
    """The high end of the 90 % range of kvTokens; the measured value once engines report it."""
    concurrency_at_context_length: float
    """The requests of the maximum length that fit into the KV cache of a replica."""
    concurrency_at_typical_length: float
    """The requests of mean length that fit into the KV cache of a replica."""
    slo_concurrency: float | None = None
    """The decoding requests at which the mean TPOT meets its limit. It is absent offline."""
    requests_per_second: float
    """The goodput: requests per second of one replica with every SLO target met."""
    tokens_per_second: float
    """The output tokens per second of one replica at the goodput."""
    time_to_first_token_seconds: float
    """The TTFT at the goodput of a mean prompt that waits only for the step in progress."""
    time_per_output_token_seconds: float
    """The mean TPOT at the goodput, in seconds."""
    bottleneck: Name
    """What an engine step spends most of its time on: MemoryBandwidth, Compute, Prefill, Overhead
    or Communication."""
    intensity_flop_per_byte: float
    """The FLOP that decode does for each byte it reads."""
    ridge_flop_per_byte: float
    """The FLOP per byte above which the GPU's compute limits, not its memory bandwidth."""
    usd_per_hour: float | None = None
    """The cost per hour of all planned replicas. It is absent if the GPU class has no price."""
    usd_per_million_tokens: float | None = None
    """The cost of a million output tokens at the goodput. It is absent without a price."""
    inputs: Annotated[tuple[InputStatus, ...], Field(max_length=32)] = ()
    """Every figure that the plan is computed from."""


class MeasuredFigure(ApiModel):
    """One measured figure."""

    value: float
    """The measured value, in the unit that the field names."""
    source: Name
    """The source of the value, such as vLLM's metrics or DCGM."""
    changed_at: Time
    """The time at which the value last changed by 10 % or more."""


class MeasuredStatus(ApiModel):
    """What Prometheus says about the pods of this object."""

    requests_per_second: MeasuredFigure | None = None
    """The requests that arrive per second, over all pods."""
    prompt_tokens: MeasuredFigure | None = None
    """The mean tokens of a prompt."""
    output_tokens: MeasuredFigure | None = None
    """The mean tokens of an output."""
    moved_prompt_fraction: MeasuredFigure | None = None
    """The share of prompt tokens whose KV cache was loaded from host memory or another engine."""
    queue_depth: MeasuredFigure | None = None
    """The requests that wait in the engines' queues, over all pods."""
    refused_per_second: MeasuredFigure | None = None
    """Requests refused by ``engine.admission`` per second, over all pods. They count as late."""
    running: MeasuredFigure | None = None
    """The requests that run, over all pods."""
    step_seconds: MeasuredFigure | None = None
    """The mean time of one engine step while the engine is busy, in seconds."""
    memory_bandwidth_utilization: MeasuredFigure | None = None
    """MBU: bytes per step over step time over nominal bandwidth, while the engine is busy."""
    model_flops_utilization: MeasuredFigure | None = None
    """MFU: FLOP per step over step time over the dense peak, while the engine is busy."""
    dram_active: MeasuredFigure | None = None
    """The share of cycles with an active memory interface, by DCGM, including idle time."""
    engine_bandwidth_utilization: MeasuredFigure | None = None
    """The share of the nominal bandwidth by the engine's own byte count, including idle time."""
    preemptions_per_request: MeasuredFigure | None = None
    """The mean number of preemptions of a request."""
    kv_tokens: MeasuredFigure | None = None
    """The KV cache tokens of one replica, as the engine reports them."""
    ttft_attainment: MeasuredFigure | None = None
    """The share of requests that met the TTFT limit."""
    tpot_attainment: MeasuredFigure | None = None
    """The share of requests that met the TPOT limit."""
    error_budget_left: MeasuredFigure | None = None
    """The remaining share of the late requests that the SLO allows over its window, for the target
    with the least remaining. Below 0 the budget is exceeded."""
    cold_start_seconds: MeasuredFigure | None = None
    """The seconds from the scheduling of a pod until it is Ready."""


class LearnedConstant(ApiModel):
    """One constant of the step time, before and after what was measured."""

    prior: float
    """The value before anything was measured."""
    learned: float
    """The learned value; the prior if nothing was measured."""
    planned: float
    """The value that the plan uses: the slow end of the learned range."""
    deviation_fraction: float
    """The standard deviation of the learned value, as a share of it."""


class CalibrationStatus(ApiModel):
    """A copy of what was learned: of this model on this GPU, and of this object alone."""

    evidence: Literal["Prior", "Namespace", "OtherNamespaces"]
    """The engines that the constants were learned from: those of this namespace (Namespace), of
    other namespaces (OtherNamespaces), or none (Prior)."""
    corroborating_namespaces: int
    """Other namespaces that learned constants of the same model, GPU, parallelism and version."""
    windows: int
    """The measurement windows that the constants were learned from. 0 means the prior is used."""
    busy_steps: int
    """The busy engine steps in these windows."""
    changed_at: Time | None = None
    """The time at which the constants were last learned."""
    overhead_factor: LearnedConstant
    """The host overheads, as a multiple of the prior's."""
    bandwidth_efficiency: LearnedConstant
    """The share of the nominal memory bandwidth that the memory reads of a step achieve."""
    prefill_efficiency: LearnedConstant
    """The share of the peak compute that prefill achieves."""
    step_time: LearnedConstant
    """The time of a typical engine step, as a multiple of what the prior predicts."""
    requests_per_second: float
    """The goodput of one replica, computed from everything that was learned."""
    prior_requests_per_second: float
    """A quick estimate of the goodput of one replica before anything was learned."""
    goodput_factor: float = 1.0
    """A factor that corrects the computed goodput. It is learned from SLO attainment; below 1 the
    requests were later than computed."""
    judged_requests: int = 0
    """The number of requests that goodputFactor was learned from."""
    judged_at: Time | None = None
    """The time of the last change of goodputFactor."""
    goodput_factor_reason: Text = ""
    """The reason of the last change of goodputFactor, with the numbers."""
    kv_tokens: int | None = None
    """The KV cache tokens of one rank that the object's own engines reported."""
    prior_kv_tokens: int
    """The KV cache tokens of one rank as estimated before any engine reported."""
    cold_start_seconds: float | None = None
    """The mean seconds from the scheduling of the object's pods until they are Ready."""
    cold_start_deviation_seconds: float | None = None
    """The standard deviation of single cold starts, in seconds."""
    node_wait_seconds: float | None = None
    """The mean seconds that pods were Pending before they had a node, each at most 900."""
    cold_starts: int = 0
    """The number of cold starts that these times were measured from."""


class DecisionStatus(ApiModel):
    """One change that Tonnage made or would have made."""

    time: Time
    """The time of the change."""
    from_replicas: int
    """The number of replicas before the change."""
    to_replicas: int
    """The number of replicas after the change."""
    code: Annotated[str, Field(max_length=64)]
    """The reason that decided, as one word."""
    message: Text
    """The reason as a sentence with the numbers."""


class ReplicasStatus(ApiModel):
    """The replicas that the cluster has and that Tonnage wants."""

    desired: int
    """The replicas that Tonnage sets; in the modes Recommend and Paused the current ones."""
    current: int
    """The replicas of the Deployment or LeaderWorkerSet."""
    ready: int
    """The replicas that are Ready."""
    summary: Name
    """Ready and desired replicas as one text, such as 2/3, for ``kubectl get``."""


class Condition(ApiModel):
    """A condition as kstatus and ``kubectl wait`` read it."""

    type: Annotated[str, Field(max_length=316)]
    """The type of the condition, such as Ready or PlanValid."""
    status: Literal["True", "False", "Unknown"]
    """The status of the condition."""
    reason: Annotated[str, Field(max_length=1024, pattern="^[A-Za-z][A-Za-z0-9_,:]*$")]
    """The reason as one word; several are joined by commas."""
    message: Annotated[str, Field(max_length=32768)]
    """The reason as a sentence with the numbers."""
    last_transition_time: Time
    """The time of the last change of its status."""
    observed_generation: int | None = None
    """The generation of the spec that the condition is about."""


class ProposalStatus(ApiModel):
    """A plan that waits for somebody to agree to it: mode Approve."""

    digest: Annotated[str, Field(max_length=64)]
    """The value of the annotation ``tonnage.dev/approve`` that approves the proposal."""
    reason: Annotated[str, Field(max_length=64)]
    """Why it waits: it replaces pods, or costs more than approvalAboveUsdPerHour."""
    message: Text
    """What Tonnage would do, and why, with the numbers."""


class Display(ApiModel):
    """Strings made for the columns of ``kubectl get``."""

    mbu: Name = ""
    """The memory bandwidth utilization."""
    queue: Name = ""
    """The number of queued requests."""
    slo: Name = ""
    """``met``, or the SLO targets that measured requests miss."""
    reason: Name = ""
    """The reason of the last decision."""
    problem: Name = ""
    """The message of the most important condition that reports a problem. Empty if none does."""


class Status(ApiModel):
    """Everything observed and planned for one ModelDeployment."""

    observed_generation: int | None = None
    """The generation of the spec that the status is about."""
    replicas: ReplicasStatus | None = None
    """The replicas that the cluster has and that Tonnage wants."""
    plan: PlanStatus | None = None
    """The replicas and flags that Tonnage would run, and why."""
    estimate: EstimateStatus | None = None
    """What the arithmetic predicts for one replica and for the fleet."""
    measured: MeasuredStatus | None = None
    """What Prometheus measured on the pods."""
    calibration: CalibrationStatus | None = None
    decisions: Annotated[tuple[DecisionStatus, ...], Field(max_length=MAX_DECISIONS)] = ()
    """The last five changes of the number of replicas, newest first."""
    conditions: Annotated[
        tuple[Condition, ...],
        Field(
            max_length=32,
            json_schema_extra={
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
            },
        ),
    ] = ()
    """The conditions: Ready, Reconciling and Stalled as kstatus reads them, and Tonnage's own."""
    display: Display | None = None
    """The texts of the columns of ``kubectl get``."""
    proposals: Annotated[tuple[ProposalStatus, ...], Field(max_length=4)] = ()
    """The plans that wait for approval in mode Approve. The annotation tonnage.dev/approve, with
    the digest of one of them, approves it."""
