"""What one tick takes, remembers and finds: immutable values, so that deciding is a function."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tonnage.api.objects import InvalidSpecError, ModelDeployment
from tonnage.api.status import Condition, DecisionStatus
from tonnage.catalog.gpu import CatalogError, Gpu
from tonnage.catalog.shape import ModelShape
from tonnage.control.input.answers import Answers
from tonnage.control.input.contest import Rivals
from tonnage.estimate.belief import Asked, Belief
from tonnage.estimate.burst_factor import BurstTally
from tonnage.estimate.burstiness import Counted
from tonnage.estimate.calibration import Calibrations, Scope
from tonnage.estimate.calibration_file import Identity, LoadTest
from tonnage.estimate.demand import MeasuredDemand
from tonnage.estimate.forecast import History
from tonnage.estimate.learner import PodWindow
from tonnage.estimate.lengths import MeasuredLengths
from tonnage.estimate.posterior import ObjectPosterior
from tonnage.estimate.promise import Tally
from tonnage.estimate.samples import EngineSamples
from tonnage.estimate.track import EngineKey, Readings
from tonnage.manifests.changes import Change
from tonnage.manifests.names import Manifest
from tonnage.packed import Packed
from tonnage.policy.need import Capacity, Traffic
from tonnage.policy.situation import Decision, Metrics, Need
from tonnage.settings import Settings
from tonnage.sizing.plan import Sizing
from tonnage.sizing.request import Flags
from tonnage.sizing.workload import Slo, Workload

AUTO: Final = "Auto"
APPROVE: Final = "Approve"
ACTING: Final = frozenset({AUTO, APPROVE})
"""Modes in which Deployments are written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelView:
    """A ModelDeployment: its manifest as text, so that equality is cheap and nothing is shared."""

    namespace: str
    name: str
    uid: str
    generation: int
    created: str
    manifest: str
    """JSON of the object without status and managedFields."""
    status: Packed
    """Compared before a write, never an input to a decision."""
    is_deleting: bool
    approve: str | None = None
    """The annotation by which somebody agrees to a plan, as it stands there."""
    operator_class: str | None = None
    """As it stands in the spec, which may be invalid."""

    @property
    def key(self) -> tuple[str, str]:
        return self.namespace, self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentView:
    """A Deployment of ours, or a scale target."""

    namespace: str
    name: str
    uid: str
    owner_uid: str | None
    """UID of its controller, if it has one."""
    is_opted_in: bool
    """Carries the label on itself and on its pod template."""
    replicas: int
    generation: int
    observed_generation: int
    ready: int
    updated: int
    total: int
    digest: str | None
    flags: str | None
    arguments: tuple[str, ...]
    image: str
    gpus_per_replica: int
    template_managers: frozenset[str]
    """Field managers other than ours with fields in the pod template's spec."""
    template_digest: str
    """Of the pod template as it stands."""
    pod_spec_digest: str
    """Without labels and annotations: ``kubectl rollout restart`` writes one."""
    problems: tuple[tuple[str, str], ...]
    """(type, message) of conditions that say what is wrong."""
    drain_s: int | None = None
    """As we recorded it: for its pods to finish what they answer."""
    grace_s: int | None = None
    """From a pod's deletion until it is killed."""
    replicas_managers: tuple[str, ...] = ()
    """Field managers other than ours that own the number of replicas, with their subresource."""
    uncounted_gpus: tuple[str, ...] = ()
    """What its pods take GPUs by that ``gpus_per_replica`` does not count."""
    template: Packed = Packed.of({})
    """The pod template as it stands."""
    template_fields: Packed = Packed.of(None)
    """What our field manager owns of it; None: nothing."""
    template_owners: Packed = Packed.of([])
    """[manager, what it owns of it] of those others."""
    owner: str | None = None
    """Kind and name of its controller."""
    adopt: str | None = None
    """UID of the ModelDeployment that it is handed over to."""
    selector: frozenset[tuple[str, str]] = frozenset()
    """Labels of the pods that it counts as its own; nobody can change them."""
    rendered: str | None = None
    """Digest of the pod template as we wrote it, as we recorded it."""
    made_from: str | None = None
    """JSON of the part of the spec that its template was made from, as we recorded it."""
    is_paused: bool = False
    """Somebody stopped its rollouts: pods are added and taken away, and none is replaced."""

    @property
    def is_rolling(self) -> bool:
        return self.observed_generation < self.generation or self.updated < self.total

    @property
    def is_rollout_held(self) -> bool:
        """Tell whether pods are to be replaced, and are not until somebody lets it go on."""
        return self.is_paused and self.updated < self.total


class Trouble(NamedTuple):
    """Why a pod does not start."""

    reason: str
    words: str
    """Of the kubelet, or of the container that ended; short, and steady."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodView:
    """One pod with the managed label."""

    namespace: str
    name: str
    uid: str
    replica_set_uid: str | None
    is_ready: bool
    is_deleting: bool
    created_at_s: float
    scheduled_at_s: float | None
    """When a node took it."""
    was_ready: bool
    """It is not Ready, and was before; or its node's clock is another, which looks the same."""
    has_restarted: bool
    """A container of it began again."""
    ready_at_s: float | None
    unschedulable: str | None
    """The scheduler's message, if no node can take it."""
    trouble: Trouble | None
    """Why its containers do not start; None: they run, or are about to."""
    node_name: str | None = None
    deletion_cost: int = 0
    """Of pods that are as Ready as each other, those with the lowest go first."""
    uncounted_gpus: tuple[str, ...] = ()
    """What it takes GPUs by that no budget can count."""
    is_over: bool = False
    """Its containers ended for good, as an evicted pod's do: its ReplicaSet makes another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BadConfig:
    """Why a config.json says no shape."""

    kind: type[CatalogError]
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelState:
    """One ModelDeployment and everything in the cluster that is about it."""

    view: ModelView
    model: ModelDeployment | InvalidSpecError
    deployment: DeploymentView | None
    """Of its own name, or its scale target."""
    in_the_way: DeploymentView | None = None
    """Of that name, and not ours."""
    oversized_bytes: int | None = None
    """Of a Deployment of that name that is too large to be read; None: there is none."""
    pods: tuple[PodView, ...] = ()
    model_config: ModelShape | BadConfig | None = None
    """What the config.json says that the spec refers to."""
    config_problem: str | None = None
    claim_modes: tuple[str, ...] | None = None
    """Access modes of the claim that its pods mount; None: none, or they are not known."""
    conflicting_autoscaler: str | None = None
    """Kind and name of another one that scales the same Deployment."""
    older_claim: str | None = None
    """Name of an older ModelDeployment with the same scale target."""
    engines: tuple[EngineSamples, ...] = ()
    bug: Exception | None = None
    """Of ours, which kept the rest from being read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The world as one tick sees it."""

    now_s: float
    models: tuple[ModelState, ...]
    """In a fixed order, by namespace and name."""
    metrics_problem: tuple[str, str] | None
    """(reason, message) when Prometheus answered nothing that decides."""
    calibrations: Calibrations
    gpus: Mapping[str, Gpu]
    settings: Settings
    has_pod_monitors: bool
    problems: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """(reason, message) of each query that failed, by its name, or by query@namespace."""
    partial: frozenset[str] = frozenset()
    """Queries, named as above, whose answers are not whole: they may raise, never lower."""
    calibration_files: Mapping[Identity, LoadTest] = field(default_factory=dict)
    """What ``tonnage calibrate`` found, by the identity of its key: a better prior."""
    pace_s: float = 0.0
    """Between the last ticks, as a rule; 0: there were too few."""
    clock_skew_s: float | None = None
    """By how much Prometheus' clock is ahead of ours. For show: ages are Prometheus' own."""
    unlisted: Mapping[str, str] = field(default_factory=dict)
    """Namespaces of which pods and Deployments cannot be read, and why."""
    state_problem: tuple[str, str] | None = None
    """(reason, message) why what was learned is not all stored, or was not all read."""
    said_at_s: float | None = None
    """When Prometheus said what is known of engines; None: now."""

    @property
    def windows_end_s(self) -> float:
        """When the windows of engines' figures end: what is counted by window is counted once."""
        return self.now_s if self.said_at_s is None else self.said_at_s

    def problem_of(self, query: str, namespace: str) -> tuple[str, str] | None:
        """Return (reason, message) why a query lacks an answer for the pods of a namespace."""
        return self.problems.get(query) or self.problems.get(f"{query}@{namespace}")

    def is_partial(self, query: str, namespace: str) -> bool:
        """Tell whether a query's answer for the pods of a namespace is not whole."""
        return bool({query, f"{query}@{namespace}"} & self.partial)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSpeed:
    """How fast the engines of one pod step while they are busy, against what is expected."""

    node: str | None
    slower: float
    """Logarithm of the measured gap between tokens over the one believed in, in this state."""
    slower_than_prior: float
    """The same over that of the prior."""
    mbu: float
    mfu: float
    seen_at_s: float
    """When Prometheus said it."""
    windows: int = 1
    """Answers of Prometheus that this is the smoothed figure of."""


class ShownFigure(NamedTuple):
    """A figure of the status, in a tenth of the memory that the status' own type takes."""

    value: float
    source: str
    changed_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenBack:
    """Pods that no node took: they are to be given back, or were."""

    at_s: float
    """When they last were."""
    times: int
    """That they were asked for in a row until they were; 0: they are yet to be given back."""
    placed: int
    """Pods that had a node then."""
    reason: str = "InsufficientGPU"
    """Why no node took them."""
    asked: int | None = None
    """Replicas of the Deployment when they were to be; None: it asks for fewer since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rolling:
    """How far the pods of a Deployment have been replaced."""

    template: str
    """Digest of the newest."""
    updated: int
    ready: int
    """The most that were seen: what comes and goes again is no progress."""
    at_s: float
    """When there was last more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BetterAsked:
    """Whether other flags of a batch would serve more than what runs, and when that was asked."""

    at_s: float
    flags: Flags
    """That run."""
    asked: Asked
    """Of the engines that run."""
    sizing: Sizing | None
    """None: none would."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Departed:
    """How a pod template that stands departs from what we wrote."""

    seen: tuple[object, ...]
    """What it was found by."""
    is_known: bool = False
    """What we would write now, for the spec and the flags that are recorded, is what we wrote."""
    changes: tuple[Change, ...] = ()
    """That would bring it back."""
    added: tuple[Change, ...] = ()
    """What stands beside it: applying ours leaves it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """When what the API server did not take is tried again."""

    generation: int
    """Of the spec: another one is tried at once."""
    times: int
    """That it failed, in a row."""
    at_s: float
    is_of_template: bool
    """Else the Deployment was taken, and a child was refused: that holds back no template."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What a replica was believed to serve when a need was counted, and of what."""

    engine: str
    """Key of its speed."""
    workload: Workload
    slo: Slo
    requests_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Needed:
    """How many replicas were needed at a time."""

    at_s: float
    replicas: int
    served: Served


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectMemory:
    """What is remembered of one object between ticks. Losing it costs patience, never safety."""

    uid: str
    since_s: float
    recent_needs: tuple[Needed, ...] = ()
    ready_pods: frozenset[str] = frozenset()
    lost_at_s: float | None = None
    lost_pods: str = ""
    """That were then, and their nodes."""
    loading_pods: frozenset[str] = frozenset()
    """That have not been Ready since they were made."""
    present_pods: frozenset[str] = frozenset()
    vanished_at_s: float = 0.0
    """When a pod was last gone for good: what came to it is in no window any more."""
    given_back: GivenBack | None = None
    served_since_s: float | None = None
    """Since when requests were seen to come."""
    last_replicas: int | None = None
    """That the Deployment asked for at the last tick."""
    stepped: tuple[float, int] | None = None
    """(time, replicas before) when they last changed."""
    window_began: tuple[float, int] | None = None
    """(time, replicas before) of the first change of the newest rate window with one."""
    tracks: Mapping[EngineKey, Readings] = field(default_factory=dict)
    """What came to each engine, by pod and engine, as its pages of a quarter of an hour say."""
    traffic: Traffic | None = None
    """Last measured demand."""
    was_whole: bool = False
    """All its Ready pods told all of it at once, since this process watches it."""
    blind_since_s: float | None = None
    """Since when they do not any more; None: they do, never did, or there are none."""
    lengths: MeasuredLengths | None = None
    """Last measured."""
    asked_lengths: MeasuredLengths | None = None
    """That plans are asked with: near the measured ones, and steady. None: those of the spec."""
    waiting_since_s: float | None = None
    """Since when it waits for a search to end; None: it has its answer."""
    gauges: Mapping[str, float] = field(default_factory=dict)
    """Smoothed figures for show."""
    gauges_said_at_s: float | None = None
    """When Prometheus said what they were smoothed with last."""
    speeds: Mapping[str, PodSpeed] = field(default_factory=dict)
    """Of its pods, by name, smoothed: for show."""
    shown: Mapping[str, ShownFigure] = field(default_factory=dict)
    """Those of them that the status tells, as of when they last moved."""
    conditions: Mapping[str, Condition] = field(default_factory=dict)
    decisions: tuple[DecisionStatus, ...] = ()
    frozen_plan: str | None = None
    """JSON of the plan while the object is paused."""
    posterior: ObjectPosterior = field(default_factory=ObjectPosterior)
    """What was learned of this object alone; kept where constants are kept."""
    asked_speed: Asked | None = None
    """That plans are asked with."""
    tally: Tally = field(default_factory=Tally)
    """Promises kept and broken since the factor on goodput last moved."""
    judged_at_s: float = 0.0
    """When promises were last counted: windows do not overlap."""
    judged_goodput: float | None = None
    """Requests/s of one replica without that factor, when they were."""
    factor_reason: str = ""
    """Why the factor last moved."""
    overloaded_at_s: float | None = None
    """When more than the replicas are believed to serve last came."""
    drained_by_s: float | None = None
    """When the queue that an overload left should be served."""
    queued_since_s: float | None = None
    """Since when requests have waited at every tick."""
    history: History = field(default_factory=History)
    """Of demand, and of what was forecast of it."""
    history_unit: str = ""
    """Memory key of the engines that ran when it was last noted."""
    most_requests_per_s: float | None = None
    """That a replica serves at most, at the lengths last measured: the unit of that demand."""
    counted: Counted = ()
    """Arrivals by window, for their burstiness."""
    burst_at_s: float | None = None
    """When the newest window last held a burst."""
    burst_tally: BurstTally = field(default_factory=BurstTally)
    """Requests late in bursts since the factor on these last moved."""
    arrival_scv: float | None = None
    """That plans are asked with; None: that of the spec."""
    better_asked: BetterAsked | None = None
    better_since_s: float | None = None
    """Since when other flags of a batch have gained enough for a rollout."""
    rolling: Rolling | None = None
    """While pods are being replaced."""
    seen_template: tuple[str, str] | None = None
    """(uid, template digest) of the Deployment when its controller last knew all of it."""
    departed: Departed | None = None
    """From the template that we wrote; None: there is none of ours."""
    rivals: Rivals = field(default_factory=Rivals)
    """Other writers of the Deployment, and what was done about them."""
    short_since_s: float | None = None
    """Since when the fleet's GPU budget keeps it from what it needs."""
    write_problem: str | None = None
    """What the API server said to the last write of the template, if it refused it."""
    write_fault: str | None = None
    """A bug of ours that its last writes met."""
    no_path: str | None = None
    """Why no request comes to the replicas, whatever they can serve."""
    retry: Retry | None = None
    """Of template and children; None: they did not fail."""
    status_retry: Retry | None = None
    """Of the status and of Events."""
    children_checked_at_s: float | None = None
    children_generation: int | None = None
    """Of the spec that they were checked for."""
    gauges_written_at_s: float = 0.0
    posted: Mapping[str, float] = field(default_factory=dict)
    """When an Event of each reason was last posted."""
    told: Mapping[str, str] = field(default_factory=dict)
    """The reason of each condition that is bad, as it was last told."""
    told_decision: str | None = None
    """Time of the last decision that was told when it was carried out."""
    told_roll: str | None = None
    """For what pods are replaced, as it was last told; None: no template was written just now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What is remembered of all objects, by UID, and what was learned."""

    objects: Mapping[str, ObjectMemory] = field(default_factory=dict)
    calibrations: Calibrations = field(default_factory=Calibrations)
    learned_at_s: Mapping[Scope, float] = field(default_factory=dict)
    """When each speed was last asked for evidence: windows do not overlap."""
    answers: Answers = field(default_factory=dict)
    """Of sizing, to what was asked of late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffics:
    """Demand as far as it could be measured in this tick."""

    metrics: Metrics
    reason: str
    message: str
    demand: MeasuredDemand | None
    lengths: MeasuredLengths | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attainment:
    """How one SLO target is kept: the share of requests within its limit."""

    name: str
    quantile: float
    fraction: float
    requests_per_s: float
    """That were judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What busy engines and histograms say in this tick."""

    step_s: float | None = None
    mbu: float | None = None
    dram_active: float | None = None
    """As DCGM says, over all time."""
    engine_mbu: float | None = None
    """By the engine's own count of bytes, over all time."""
    pods: tuple[PodWindow, ...] = ()
    """What the engines of each warm and busy pod did over the last window."""
    kv_tokens: float | None = None
    kv_reports: tuple[float, ...] = ()
    """Tokens of one rank that each pod reports."""
    mfu: float | None = None
    attainments: tuple[Attainment, ...] = ()
    speeds: Mapping[str, PodSpeed] = field(default_factory=dict)
    """Of the pods that were busy, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The sizing in force, and whether the live template must move to it."""

    model: ModelDeployment
    sizing: Sizing
    belief: Belief
    goodput_factor: float
    """By promises kept and broken: times what the step time says is served."""
    must_apply: bool
    problem: str | None = None
    """Why no rate keeps the SLO on what runs: it is then scaled for throughput, and learns on."""
    better_asked: BetterAsked | None = None
    """Where measured constants suffice to ask."""

    @property
    def served(self) -> Served:
        """What one of its replicas is believed to serve, and of what."""
        request = self.sizing.request
        return Served(
            engine=self.belief.asked.key,
            workload=request.workload,
            slo=request.slo,
            requests_per_s=self.capacity.each_requests_per_s(1),
        )

    @property
    def capacity(self) -> Capacity:
        """What its replicas are believed to serve."""
        return Capacity(sizing=self.sizing, goodput_factor=self.goodput_factor)

    def gain_of(self, other: Sizing) -> float:
        """Return what a replica serves more by another sizing, as a share."""
        return other.goodput_requests_per_s / self.sizing.goodput_requests_per_s - 1

    @property
    def better_slots(self) -> Sizing | None:
        """The plan with other flags of a batch that gains."""
        return self.better_asked.sizing if self.better_asked else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why nothing is planned for an object."""

    reason: str
    message: str
    error: Exception | None = None
    """The bug of ours that it is due to, for the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A plan that waits for somebody to agree to it."""

    digest: str
    reason: str
    """Of the condition, while nobody said anything."""
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A search that the time of this tick did not suffice for: what runs stays until it ends."""

    message: str
    is_told: bool
    """It lasts, or nothing was planned before. A shorter wait writes no status."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """Everything that was found out about one object, and what should be."""

    state: ModelState
    memory: ObjectMemory
    traffics: Traffics
    refusal: Refusal | None = None
    pending: Pending | None = None
    chosen: Chosen | None = None
    observed: Observed | None = None
    need: Need | None = None
    """That the decision began with."""
    decision: Decision | None = None
    template: Manifest | None = None
    """The Deployment to apply; None: the live one stays."""
    changes: tuple[Change, ...] = ()
    """What that changes of the pods that run: without any none of them rolls."""
    proposals: tuple[Proposal, ...] = ()
    """What waits for somebody to agree to it."""
    blackout: str | None = None
    """What much of the fleet lost at once: then nothing is taken away."""
    fault: str | None = None
    """A bug of ours that a part of the tick met: the object goes on without that part."""
    is_of_before: bool = False
    """The spec is refused, and ``chosen`` is what runs, sized by the spec that it was made from."""

    @property
    def is_due(self) -> bool:
        """Tell whether a template is to be applied that makes pods."""
        return self.template is not None and (self.state.deployment is None or bool(self.changes))

    @property
    def sizing(self) -> Sizing | None:
        return self.chosen.sizing if self.chosen else None

    @property
    def mode(self) -> str:
        model = self.state.model
        return model.spec.scaling.mode if isinstance(model, ModelDeployment) else "Paused"

    @property
    def is_acting(self) -> bool:
        """Tell whether its mode lets Tonnage write more than status."""
        return self.mode in ACTING
