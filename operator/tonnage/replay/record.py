"""What a simulation tells: the moments of the operator, and how requests fared."""

from dataclasses import dataclass, field, replace

from tonnage.control.input.state import Assessment
from tonnage.estimate.calibration import Calibrations
from tonnage.replay.cluster import ReplayedModel, SimulatedCluster
from tonnage.sizing.request import Flags


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstPlan:
    """What Tonnage runs first, for the demand of the spec; others begin with it too."""

    flags: Flags
    replicas: int
    believed_requests_per_s: float
    """Of a replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSnapshot:
    """How one object stands after a controller acted."""

    at_s: float
    replicas: int
    """That the Deployment asks for after the tick."""
    ready: int
    requests_per_s: float | None = None
    """Measured, as all that follows by the operator; rivals leave it out."""
    planned_requests_per_s: float | None = None
    """That the replicas are for, limits aside: what comes or is forecast, headroom, reserve and
    events."""
    goodput_requests_per_s: float | None = None
    """Of one replica, as believed."""
    problem: str | None = None
    """Why nothing could be planned, or only for throughput."""
    calibrations: Calibrations = field(default_factory=Calibrations)


@dataclass(slots=True, kw_only=True)
class Record:
    """Everything that is known of one object after a simulation. Times since its start."""

    cluster: SimulatedCluster
    moments: list[RunSnapshot] = field(default_factory=list)
    faults: list[Exception] = field(default_factory=list)
    """Bugs of ours that ticks met."""

    @property
    def served(self) -> ReplayedModel:
        return self.cluster.served

    def gpu_s(self, from_s: float, until_s: float) -> float:
        """Return the GPU-seconds billed within a time."""
        return sum(pod.gpu_s(from_s, until_s) for pod in self.cluster.pods)


def moment(record: Record, at_s: float) -> RunSnapshot:
    """Return how a cluster stands; what was to be done at this time has been done."""
    cluster = record.cluster
    return RunSnapshot(
        at_s=at_s,
        replicas=cluster.replicas,
        ready=cluster.num_ready(at_s),
    )


def moment_of_tick(
    record: Record, found: Assessment, calibrations: Calibrations, at_s: float
) -> RunSnapshot:
    """Return the same with what a tick of the operator found; its writes have been done."""
    demand, sizing = found.traffics.demand, found.sizing
    problem = found.chosen.problem if found.chosen else None
    if found.refusal:
        problem = f"{found.refusal.code}: {found.refusal.message}"
    elif found.pending:
        problem = found.pending.message
    return replace(
        moment(record, at_s),
        requests_per_s=demand.requests_per_s if demand else None,
        planned_requests_per_s=found.need.planned_requests_per_s if found.need else None,
        goodput_requests_per_s=sizing.goodput_requests_per_s if sizing else None,
        problem=problem,
        calibrations=calibrations,
    )
