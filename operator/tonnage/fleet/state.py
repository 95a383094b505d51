"""What one tick sees and remembers: immutable values, so that deciding is a pure function."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tonnage.api.objects import InvalidSpecError, ModelDeployment
from tonnage.api.status import Condition, DecisionStatus, Figure
from tonnage.catalog.gpu import Gpu
from tonnage.estimate.calibration import Calibrations
from tonnage.estimate.demand import MeasuredLengths
from tonnage.estimate.samples import EngineSamples, LongSamples
from tonnage.fleet.views import DeploymentView, ModelView, PodView
from tonnage.policy.need import Traffic
from tonnage.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelState:
    """One ModelDeployment and everything in the cluster that is about it."""

    view: ModelView
    model: ModelDeployment | InvalidSpecError
    deployment: DeploymentView | None
    """Of its own name, or its scale target."""
    pods: tuple[PodView, ...] = ()
    model_config: str | None = None
    """Text of the config.json that the spec refers to."""
    config_problem: str | None = None
    rival_scaler: str | None = None
    older_claim: str | None = None
    """Name of an older ModelDeployment with the same scale target."""
    engines: tuple[EngineSamples, ...] = ()
    long: tuple[LongSamples, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The world as one tick sees it."""

    now_s: float
    models: tuple[ModelState, ...]
    """In a fixed order, by namespace and name."""
    metrics_problem: tuple[str, str] | None
    """(reason, message) when Prometheus gave no answer."""
    calibrations: Calibrations
    gpus: Mapping[str, Gpu]
    settings: Settings
    has_pod_monitors: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectMemory:
    """What is remembered of one object between ticks. Losing it costs patience, never safety."""

    uid: str
    since_s: float
    recent_needs: tuple[tuple[float, int], ...] = ()
    ready_pods: frozenset[str] = frozenset()
    lost_at_s: float | None = None
    last_replicas: int | None = None
    """That the Deployment asked for at the last tick."""
    stepped: tuple[float, int] | None = None
    """(time, replicas before) when they last changed."""
    traffic: Traffic | None = None
    """Last measured demand."""
    lengths: MeasuredLengths | None = None
    gauges: Mapping[str, float] = field(default_factory=dict)
    """Smoothed figures for show."""
    shown: Mapping[str, Figure] = field(default_factory=dict)
    conditions: Mapping[str, Condition] = field(default_factory=dict)
    decisions: tuple[DecisionStatus, ...] = ()
    frozen_plan: str | None = None
    """JSON of the plan while the object is paused."""
    cold_start_s: float | None = None
    healed: tuple[str, str] | None = None
    """(uid, template digest) of the Deployment when a foreign edit was last undone."""
    write_problem: str | None = None
    """What the API server said to the last write of the template, if it refused it."""
    children_checked_at_s: float | None = None
    gauges_written_at_s: float = 0.0
    posted: Mapping[str, float] = field(default_factory=dict)
    """When an Event of each reason was last posted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What the loop remembers of all objects, by UID, and what was learned."""

    objects: Mapping[str, ObjectMemory] = field(default_factory=dict)
    calibrations: Calibrations = field(default_factory=Calibrations)
    learned_at_s: Mapping[str, float] = field(default_factory=dict)
    """When each speed key last moved."""
    written: Calibrations = field(default_factory=Calibrations)
    """As the ConfigMap holds it."""
    written_at_s: float = 0.0
