"""What is remembered of an object between ticks, in parts: each part is written by one step.

Losing any of it costs patience, never safety. What is learned of an object (``posterior``) is
stored, and is there again after a restart.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tonnage.api.status import (
    CalibrationStatus,
    Condition,
    DecisionStatus,
    MeasuredFigure,
    PlanStatus,
)
from tonnage.control.input.sizing_cache import Answers
from tonnage.control.input.writers import Cause, Failure, FieldOwnership, WriteKind
from tonnage.estimate.attainment import AttainmentCounts
from tonnage.estimate.budget import Ledger
from tonnage.estimate.burstiness import BurstTally, Counted
from tonnage.estimate.calibration import Calibrations, Scope
from tonnage.estimate.demand import MeasuredLengths
from tonnage.estimate.forecast import History
from tonnage.estimate.past import Past
from tonnage.estimate.planning_constants import PlanningConstants
from tonnage.estimate.posterior import ObjectPosterior, Three
from tonnage.policy.need import CurrentTraffic
from tonnage.sizing.plan import Sizing
from tonnage.sizing.request import Flags
from tonnage.sizing.workload import Slo, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerLag:
    """What the controller of a workload has not seen."""

    generation: int
    """The last one that it has."""
    since_s: float
    is_long: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutProgress:
    """How far the pods of a Deployment have been replaced."""

    template: str
    """Digest of the newest."""
    updated: int
    ready: int
    """The most that were seen: what comes and goes again is no progress."""
    at_s: float
    """When there was last more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodMemory:
    """Pods and replicas as they were last observed. Written by ``measure``."""

    ready: frozenset[str] = frozenset()
    """Names, by which engines are known too."""
    loading: frozenset[str] = frozenset()
    """UIDs of those that have not been Ready since they were made: what is made anew in a group
    has the name of what it replaces."""
    present: frozenset[str] = frozenset()
    """UIDs."""
    last_pod_removed_at_s: float = 0.0
    """When a pod was last gone for good: what came to it is in no window any more."""
    lost_at_s: float | None = None
    """When a Ready replica was last lost without being scaled away."""
    lost: str = ""
    """Those that were lost then, and their nodes."""
    replicas: int | None = None
    """That the Deployment asked for; None: it was not observed yet."""
    stepped: tuple[float, int] | None = None
    """(time, replicas before) when they last changed."""
    window_start: tuple[float, int] | None = None
    """(time, replicas before) of the first change of the newest rate window with one."""
    rolling: RolloutProgress | None = None
    """While pods are being replaced."""
    template: tuple[str, str] | None = None
    """(uid, template digest) of the Deployment when its controller last knew all of it."""
    behind: ControllerLag | None = None
    """Where a later generation stands there than its controller has seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficMemory:
    """Demand and lengths of requests as they were last measured. Written by ``measure``."""

    measured: CurrentTraffic | None = None
    """Demand."""
    lengths: MeasuredLengths | None = None
    asked_lengths: MeasuredLengths | None = None
    """That plans are asked with: near the measured ones, and steady. None: those of the spec."""
    served_since_s: float | None = None
    """Since when requests were seen to come."""
    was_whole: bool = False
    """All its Ready pods told all of it at once, since this process watches it."""
    blind_since_s: float | None = None
    """Since when they do not any more; None: they do, never did, or there are none."""
    counted: Counted = ()
    """Arrivals by window, for their burstiness."""
    arrival_scv: float | None = None
    """That plans are asked with; None: that of the spec."""
    burst_at_s: float | None = None
    """When the newest window last held a burst."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagSearchResult:
    """Whether other flags of a batch would do better, and when it was asked."""

    at_s: float
    flags: Flags
    """That run."""
    asked: PlanningConstants
    """Of the engines that run."""
    sizing: Sizing | None
    """None: none would."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizingMemory:
    """What plans were last asked with. Written where an object is sized."""

    asked_speed: PlanningConstants | Three | None = None
    """Constants alone: those of the status, before this process plans."""
    better_asked: FlagSearchResult | None = None
    waiting_since_s: float | None = None
    """Since when the object waits for a search to end; None: it has its answer."""
    waiting_generation: int | None = None
    """Of the spec that waits."""
    generation: int | None = None
    """Of the last spec that had one; None: none did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaGoodput:
    """What a replica was believed to serve when a need was counted, and of what."""

    engine: str
    """Key of its speed."""
    workload: Workload
    slo: Slo
    requests_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GoodputMemory:
    """Evidence about what a replica serves, by requests in time and late. Written by ``learn``."""

    tally: AttainmentCounts = field(default_factory=AttainmentCounts)
    """Requests in time and late since the factor on goodput last moved."""
    judged_at_s: float = 0.0
    """When they were last counted: windows do not overlap."""
    ledger: Ledger = field(default_factory=Ledger)
    """Requests in time and late over the window of the SLO."""
    judged_goodput: tuple[float, object] | None = None
    """Requests/s that a replica was believed to serve then, without the factor, and under what."""
    reason: str = ""
    """Why the factor last moved."""
    overloaded_at_s: float | None = None
    """When more than the replicas are believed to serve last came."""
    drained_by_s: float | None = None
    """When the queue that an overload left should be served."""
    burst_tally: BurstTally = field(default_factory=dict)
    """Requests late in bursts since the factor on these last moved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandMemory:
    """History of demand and of its forecasts. Written by ``decide.outlook``."""

    history: History = field(default_factory=History)
    unit: str = ""
    """Memory key of the engines that ran when it was last noted."""
    most_requests_per_s: float | None = None
    """That a replica serves at most, at the lengths last measured: the unit of that demand."""
    past: Past | None = None
    """What Prometheus says of before this process, until its unit is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needed:
    """How many replicas were needed at a time."""

    at_s: float
    replicas: int
    served: ReplicaGoodput


@dataclass(frozen=True, slots=True, kw_only=True)
class UnschedulableBackoff:
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
class DecisionMemory:
    """What was decided before, as far as the next decision depends on it. Written by ``decide``."""

    since_s: float
    """Since when the object is watched without a gap."""
    recent_needs: tuple[Needed, ...] = ()
    """The stabilization window."""
    given_back: UnschedulableBackoff | None = None
    short_since_s: float | None = None
    """Since when the fleet's GPU budget keeps it from what it needs."""
    better_since_s: float | None = None
    """Since when other flags of a batch have gained enough for a rollout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteMemory:
    """What became of our writes. Written by ``write``."""

    failures: Mapping[WriteKind, Failure] = field(default_factory=dict)
    """Of the last attempts, where they failed for what they are."""
    children_checked_at_s: float | None = None
    children_generation: int | None = None
    """Of the spec that they were checked for."""

    @property
    def problem(self) -> str | None:
        """What the API server said to a write, where it refuses it."""
        made = map(self.failures.get, (WriteKind.TEMPLATE, WriteKind.CHILDREN, WriteKind.SCALE))
        return next((each.problem for each in made if each and each.problem), None)

    def said_of(self, cause: Cause) -> str | None:
        """Return what is said of a write that failed for this cause; None: none did."""
        return next((each.detail for each in self.failures.values() if each.cause is cause), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSpeed:
    """How fast the engines of one pod step while they are busy, against what is expected."""

    node: str | None
    slower: float
    """Logarithm of the measured gap between tokens over the one believed in, in this state."""
    mbu: float
    mfu: float
    seen_at_s: float
    """When Prometheus said it."""
    windows: int = 1
    """Answers of Prometheus that this is the smoothed figure of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportMemory:
    """What status and Events said. Written by ``report``."""

    gauges: Mapping[str, float] = field(default_factory=dict)
    """Smoothed figures for show."""
    looked_at_s: float | None = None
    """When figures for show were last measured."""
    gauges_said_at_s: float | None = None
    """When Prometheus said what they were smoothed with last."""
    speeds: Mapping[str, PodSpeed] = field(default_factory=dict)
    """Of its pods, by name, smoothed: for show."""
    shown: Mapping[str, MeasuredFigure] = field(default_factory=dict)
    """The gauges in the status, as of when they last moved."""
    calibration: CalibrationStatus | None = None
    """What was learned, at the last look."""
    conditions: Mapping[str, Condition] = field(default_factory=dict)
    decisions: tuple[DecisionStatus, ...] = ()
    frozen_plan: PlanStatus | None = None
    """While the object is paused."""
    gauges_written_at_s: float = 0.0
    is_provisional: bool = False
    """A status was written while a quarter of an hour of its engines was awaited."""
    posted: Mapping[str, float] = field(default_factory=dict)
    """When an Event of each reason was last posted."""
    bad: Mapping[str, str] = field(default_factory=dict)
    """The reason of each condition that is bad, as an Event last said."""
    posted_decision: str | None = None
    """Time of the last decision of which an Event said that it was carried out."""
    posted_roll: str | None = None
    """For what pods are replaced, as an Event said; None: no template was written just now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectMemory:
    """What is remembered of one object between ticks."""

    uid: str
    decided: DecisionMemory
    posterior: ObjectPosterior = field(default_factory=ObjectPosterior)
    """What was learned of this object alone; stored where constants are stored."""
    pods: PodMemory = PodMemory()
    traffic: TrafficMemory = TrafficMemory()
    sizing: SizingMemory = SizingMemory()
    goodput: GoodputMemory = GoodputMemory()
    demand: DemandMemory = DemandMemory()
    written: WriteMemory = WriteMemory()
    reported: ReportMemory = ReportMemory()
    writers: FieldOwnership = field(default_factory=FieldOwnership)


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What is remembered of all objects, by UID, and what was learned."""

    objects: Mapping[str, ObjectMemory] = field(default_factory=dict)
    calibrations: Calibrations = field(default_factory=Calibrations)
    learned_at_s: Mapping[Scope, float] = field(default_factory=dict)
    """When each speed was last asked for evidence: windows do not overlap."""
    at_s: float = 0.0
    """When the tick that left it began: no time in it is later."""
    answers: Answers = field(default_factory=dict)
    """Of sizing, to what was asked of late."""
