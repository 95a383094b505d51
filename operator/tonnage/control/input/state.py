"""What one tick takes, remembers and finds: immutable values, so that deciding is a function."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple, Self

from tonnage.api.hardware import Role
from tonnage.api.objects import InvalidSpecError, ModelDeployment
from tonnage.api.status import ProposalStatus, Reason
from tonnage.catalog.gpu import Gpu
from tonnage.catalog.shape import ModelShape
from tonnage.control.input.memory import FlagSearchResult, ObjectMemory, ReplicaGoodput
from tonnage.control.input.writers import WriteKind
from tonnage.estimate.budget import ErrorBudget
from tonnage.estimate.calibration import Calibrations
from tonnage.estimate.calibration_file import Identity, LoadTest
from tonnage.estimate.demand import MeasuredDemand, MeasuredLengths
from tonnage.estimate.learner import PodWindow
from tonnage.estimate.past import Past
from tonnage.estimate.planning_constants import Belief
from tonnage.estimate.samples import EngineSamples
from tonnage.manifests.changes import Change
from tonnage.manifests.children import Site, has_recorded_cache
from tonnage.manifests.names import DEPLOYMENT, RECORD, WORKLOADS, Manifest, Workload
from tonnage.manifests.roles import RoleManifest
from tonnage.manifests.target import UNREAD, TargetEngine
from tonnage.policy.need import Capacity
from tonnage.policy.situation import Decision, Metrics, Need
from tonnage.settings import Settings
from tonnage.sizing.plan import Sizing

AUTO: Final = "Auto"
APPROVE: Final = "Approve"
NO_REPLICA: Final = "NoReadyReplica"
"""Reason of metrics that no replica is there for."""
NO_CONFIG: Final = "ModelConfigMissing"
"""Reason of a config.json that is not there."""
ACTING: Final = frozenset({AUTO, APPROVE})
"""Modes in which Deployments are written."""


@dataclass(frozen=True, kw_only=True)
class ModelView:
    """A ModelDeployment: its manifest as text, so that equality is cheap and nothing is shared."""

    namespace: str
    name: str
    uid: str
    generation: int
    created: str
    manifest: str
    """JSON of the object without status and managedFields."""
    status: str
    """JSON; compared before a write, never an input to a decision."""
    deleted_at_s: float | None = None
    """Since when somebody wants it gone; None: nobody does."""
    approve: str | None = None
    """The annotation by which somebody agrees to a plan, as it stands there."""
    operator_class: str | None = None
    """As it stands in the spec, which may be invalid."""
    owner_uid: str | None = None
    """UID of its controller: the ModelDeployment whose role it is."""
    digest: str | None = None
    """Of the spec, as it was written for that one."""
    is_oversized: bool = False
    """It has more bytes than are read of one."""

    @property
    def is_deleting(self) -> bool:
        return self.deleted_at_s is not None

    @property
    def key(self) -> tuple[str, str]:
        return self.namespace, self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentView:
    """A Deployment of ours, a LeaderWorkerSet in its place, or a scale target."""

    namespace: str
    name: str
    uid: str
    kind: str = DEPLOYMENT.kind
    num_nodes: int = 1
    """Of a replica, which has a pod on each."""
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
    gpus_per_replica: int
    template_managers: frozenset[str]
    """Field managers other than ours with fields in the pod template's spec."""
    template_digest: str
    """Of the pod template as it stands."""
    pod_spec_digest: str
    """Without labels and annotations: ``kubectl rollout restart`` writes one."""
    problems: tuple[tuple[str, str], ...]
    """(type, message) of conditions that say what is wrong."""
    engine: TargetEngine = UNREAD
    """What its container starts."""
    drain_s: int | None = None
    """As we recorded it: for its pods to finish what they answer."""
    grace_s: int | None = None
    """From a pod's deletion until it is killed."""
    replicas_managers: tuple[str, ...] = ()
    """Field managers other than ours that own the number of replicas, with their subresource."""
    uncounted_gpus: tuple[str, ...] = ()
    """What its pods take GPUs by that ``gpus_per_replica`` does not count."""
    template: str = "{}"
    """JSON of the pod template, or of those of a group, as it is."""
    template_fields: str = "null"
    """JSON of what our field manager owns of it; null: nothing."""
    template_owners: str = "[]"
    """JSON of [manager, what it owns of it] of those others."""
    owner: str | None = None
    """Kind and name of its controller."""
    adopt: str | None = None
    """UID of the ModelDeployment that it is handed over to."""
    selector: frozenset[tuple[str, str]] = frozenset()
    """Labels of the pods that it counts as its own, which nobody can change."""
    rendered: str | None = None
    """Digest of the pod template as we wrote it, as we recorded it."""
    made_from: str | None = None
    """JSON of the part of the spec that its template was made from, as we recorded it."""
    record_edits: tuple[Change, ...] = ()
    """Annotations of that record that are not as we applied them."""
    is_paused: bool = False
    """Somebody stopped its rollouts: pods are added and taken away, and none is replaced."""
    is_deleting: bool = False

    @property
    def workload(self) -> Workload:
        return WORKLOADS[self.kind]

    @property
    def recorded(self) -> tuple[str | int | None, ...]:
        """What we recorded on it, in the order of ``RECORD``; None: it is not as we applied it."""
        return tuple(getattr(self, name) for name in RECORD)

    @property
    def is_of_a_model(self) -> bool:
        return (self.owner or "").startswith("ModelDeployment ")

    @property
    def is_rolling(self) -> bool:
        return self.observed_generation < self.generation or self.updated < self.total

    @property
    def is_rollout_held(self) -> bool:
        """Tell whether pods are to be replaced, and are not until somebody lets it go on."""
        return self.is_paused and self.updated < self.total


class Crash(NamedTuple):
    """What a container's message says of its end."""

    line: str
    """Of the message, which says it."""
    cures: tuple[str, str]
    """What to change of somebody else's workload, and of a spec."""
    field: str = ""
    """Of ``Flags``, that is too high; empty: none is."""
    most: float | None = None
    """Of that field; None: less than the engine had."""
    is_asked: bool = False
    """Only a person lowers it: a spec asks for it, or another process may give it back."""
    arguments: tuple[str, ...] = ()
    """Of the container."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodView:
    """One pod with the managed label; the leader's of a group, with what its workers wait for."""

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
    trouble: Reason | None
    """Why its containers do not start, in the words of the kubelet or of the container that ended;
    None: they run, or are about to."""
    node_name: str | None = None
    deletion_cost: int = 0
    """Of pods that are as Ready as each other, those with the lowest go first."""
    uncounted_gpus: tuple[str, ...] = ()
    """What it takes GPUs by that no budget can count."""
    crash: Crash | None = None
    """How its container ended, by what that said at its end."""
    is_over: bool = False
    """Its containers ended for good, as an evicted pod's do: its ReplicaSet makes another."""


def settled_pods(pods: Iterable[PodView], *, now_s: float, after_s: float) -> frozenset[str]:
    """Return the names of pods that have been Ready for so long, or are by a clock so far ahead."""
    return frozenset(
        pod.name
        for pod in pods
        if pod.ready_at_s is not None
        and not pod.is_deleting
        and abs(now_s - pod.ready_at_s) >= after_s
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelState:
    """One ModelDeployment and everything in the cluster that is about it."""

    view: ModelView
    model: ModelDeployment | InvalidSpecError
    deployment: DeploymentView | None = None
    """Of its own name, or its scale target."""
    name_conflict: DeploymentView | None = None
    """Of that name, and not ours."""
    oversized_bytes: int | None = None
    """Of a Deployment of that name that is too large to be read; None: there is none."""
    pods: tuple[PodView, ...] = ()
    model_config: ModelShape | Reason | None = None
    """What the config.json says that the spec refers to, or why it says no shape."""
    claim_modes: tuple[str, ...] | None = None
    """Access modes of the claim that its pods mount; None: none, or they are not known."""
    conflicting_autoscaler: str | None = None
    """Kind and name of another one that scales the same Deployment."""
    earlier_owner: str | None = None
    """Name of an older ModelDeployment with the same scale target."""
    numbered: tuple[str, ...] = ()
    """Names of other ModelDeployments with a Service: this one's, a hyphen and a number."""
    engines: tuple[EngineSamples, ...] = ()
    roles: Mapping[Role, Self] = field(default_factory=dict)
    """Of an object with a topology: the objects that have the names of roles, and no more."""
    bug: Exception | None = None
    """Of ours, which kept the rest from being read, or the object from being decided."""

    @property
    def own_roles(self) -> Mapping[Role, Self]:
        """Those that were made for it."""
        uid = self.view.uid
        return {role: each for role, each in self.roles.items() if each.view.owner_uid == uid}

    @property
    def has_host_cache(self) -> bool:
        """Whether what runs of ours has a KV cache in host memory, as we recorded it."""
        live = self.deployment
        is_ours = live is not None and live.owner_uid == self.view.uid
        return live is not None and is_ours and has_recorded_cache(live.flags)

    @property
    def replicas(self) -> int:
        """That its Deployment asks for; 0: there is none."""
        return self.deployment.replicas if self.deployment else 0


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
    site: Site
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
    state_problem: Reason | None = None
    """Why what was learned is not all stored, or was not all read."""
    unstored: frozenset[str] = frozenset()
    """UIDs of the objects for whose entry there is no room where constants are stored."""
    pasts: Mapping[str, Past] = field(default_factory=dict)
    """By UID, what Prometheus just said of before this process."""
    past_awaited: frozenset[str] = frozenset()
    """UIDs of which it is yet to say it."""
    history_awaited: Set[str] = frozenset()
    """Namespaces of whose engines Prometheus is yet to say what was before this process."""
    said_at_s: float | None = None
    """When Prometheus said what is known of engines; None: now."""

    @property
    def windows_end_s(self) -> float:
        """When the windows of engines' figures end: what is counted by window is counted once."""
        return self.now_s if self.said_at_s is None else self.said_at_s

    @property
    def shared(self) -> tuple[object, ...]:
        """What is about no object alone, but the time, and what was learned by the same answers."""
        learned = self.past_awaited, self.state_problem, self.unstored
        return self.said_at_s, *learned, self.unlisted, self.site.has_groups

    def unanswered(
        self, queries: Iterable[str], namespace: str
    ) -> Iterator[tuple[str, tuple[str, str] | None]]:
        """Yield (query, (reason, message)) of those without an answer for the pods of a namespace.

        None in place of why: the answer is not whole.
        """
        for query in queries:
            keys = (query, f"{query}@{namespace}")
            problem = self.problems.get(keys[0]) or self.problems.get(keys[1])
            if problem or not self.partial.isdisjoint(keys):
                yield query, problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffics:
    """Demand as far as it could be measured in this tick."""

    metrics: Metrics
    why: Reason
    demand: MeasuredDemand | None
    lengths: MeasuredLengths | None

    @property
    def is_blind(self) -> bool:
        """Tell whether an object's own pods lack series that they should have.

        One that waits for its first replica lacks none, nor does one of which all pods told
        everything, whatever else a query left out.
        """
        is_whole = self.demand is not None and self.demand.is_complete
        return self.metrics is Metrics.MISSING and self.why.code != NO_REPLICA and not is_whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Attainment:
    """How one SLO target is kept: the share of requests within its limit."""

    name: str
    quantile: float
    limit_s: float
    fraction: float
    requests_per_s: float
    """That were judged."""
    refused_fraction: float = 0.0
    """Of these: they got no first token at all."""
    cause: Reason | None = None
    """Of most of what is late."""
    late_alone: float = 0.0
    """Share of these whose prompts certainly take longer than the limit on an idle replica."""
    late_by_load: float = 0.0
    """Share of these that fewer requests for each replica would have in time."""


@dataclass(frozen=True, kw_only=True)
class Observed:
    """What busy engines and histograms say in this tick."""

    windows: Callable[[], tuple[PodWindow, ...]] = field(compare=False)
    """Asked for the pods below: they are read once a minute."""
    kv_tokens: float | None = None
    kv_reports: tuple[float, ...] = ()
    """Tokens of one rank that each pod reports."""
    attainments: tuple[Attainment, ...] = ()

    @cached_property
    def pods(self) -> tuple[PodWindow, ...]:
        """What the engines of each warm and busy pod did over the last window."""
        return self.windows()


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """The sizing in force, and whether the live template must move to it."""

    model: ModelDeployment
    sizing: Sizing
    belief: Belief
    goodput_factor: float
    """By promises kept and broken: times what the step time says is served."""
    needs_apply: bool
    problem: str | None = None
    """Why no rate keeps the SLO on what runs: it is then scaled for throughput, and learns on."""
    better_asked: FlagSearchResult | None = None
    """Where measured constants suffice to ask."""
    cured: Sizing | None = None
    """With lower flags, where no engine starts with those that run."""
    why_offload: str = ""
    """Why Auto chose another KV cache in host memory than the verdict says."""

    @cached_property
    def replica_goodput(self) -> ReplicaGoodput:
        """What one of its replicas is believed to serve, and of what."""
        request = self.sizing.request
        return ReplicaGoodput(
            engine=self.belief.asked.key,
            workload=request.workload,
            slo=request.slo,
            requests_per_s=self.capacity.each_requests_per_s(1),
        )

    @cached_property
    def capacity(self) -> Capacity:
        """What its replicas are believed to serve."""
        return Capacity(sizing=self.sizing, goodput_factor=self.goodput_factor)

    def gain_of(self, other: Sizing) -> float:
        """Return what a replica serves more by another sizing, as a share."""
        return other.goodput_requests_per_s / self.sizing.goodput_requests_per_s - 1

    @property
    def better_max_num_seqs(self) -> Sizing | None:
        """The plan with other flags of a batch that gains."""
        return self.better_asked.sizing if self.better_asked else None


@dataclass(frozen=True, slots=True, kw_only=True)
class DisaggregatedPlan:
    """Both roles of an object as they should be, each a ModelDeployment of its own."""

    manifests: tuple[RoleManifest, ...]
    message: str
    """How TTFT is divided."""


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
    refusal: Reason | None = None
    """Why nothing is planned for it."""
    pending: Pending | None = None
    chosen: Chosen | None = None
    apart: DisaggregatedPlan | None = None
    """Two objects in place of one; nothing is chosen for this one then."""
    observed: Observed | None = None
    budgets: tuple[ErrorBudget, ...] = ()
    """Of the SLO targets of which enough requests were judged."""
    need: Need | None = None
    """That the decision began with."""
    hold_s: float = 0.0
    """For which a lower need must have held before replicas are taken away."""
    decision: Decision | None = None
    template: Manifest | None = None
    """The Deployment to apply; None: the live one stays."""
    changes: tuple[Change, ...] = ()
    """What that changes of the pods that run: without any none of them rolls."""
    proposals: tuple[ProposalStatus, ...] = ()
    """What waits for somebody to agree to it."""
    blackout: str | None = None
    """What much of the fleet lost at once: then nothing is taken away."""
    fault: str | None = None
    """A bug of ours that a part of the tick met: the object goes on without that part."""
    uses_previous_spec: bool = False
    """The spec is refused, and ``chosen`` is what runs, sized by the spec that it was made from."""

    @property
    def budget(self) -> ErrorBudget | None:
        """That of the SLO target which has least left of its own."""
        return min(self.budgets, key=lambda each: each.left, default=None)

    @property
    def is_due(self) -> bool:
        """Tell whether a template is to be applied that makes pods."""
        return self.template is not None and (self.state.deployment is None or bool(self.changes))

    @property
    def sizing(self) -> Sizing | None:
        return self.chosen.sizing if self.chosen else None

    def waiting_kinds(self, now_s: float) -> Set[WriteKind]:
        """Return the writes of the object that failed and are not to be tried again yet."""
        failures, generation = self.memory.written.failures, self.state.view.generation
        return {kind for kind, each in failures.items() if each.is_waiting(generation, now_s)}

    @property
    def mode(self) -> str:
        model = self.state.model
        return model.spec.scaling.mode if isinstance(model, ModelDeployment) else "Paused"

    @property
    def is_acting(self) -> bool:
        """Tell whether its mode lets Tonnage write more than status."""
        return self.mode in ACTING
