"""What a simulation tells: the moments of the operator, and how requests fared."""

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tonnage.api.objects import ModelDeployment
from tonnage.control.input.state import Assessment
from tonnage.estimate.calibration import Calibrations
from tonnage.replay.cluster import SimulatedCluster, StartupTime
from tonnage.replay.traffic import Traffic
from tonnage.replay.truth import Truth
from tonnage.sizing.expected import slo_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedModel:
    """One ModelDeployment: what comes, and what its engines really are."""

    model: ModelDeployment
    traffic: Traffic
    truth: Truth = field(default_factory=Truth)
    changes: Sequence[tuple[float, Truth]] = ()
    """When it becomes another one."""
    start: StartupTime = field(default_factory=StartupTime)
    speed_spread: float = 0.0
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """How one object stands after a controller acted."""

    at_s: float
    replicas: int
    """That the Deployment asks for after the tick."""
    ready: int
    live: int
    """Pods that are not gone."""
    true_requests_per_s: float
    waiting_at_router: int
    requests_per_s: float | None = None
    """Measured, as all that follows by the operator; rivals leave it out."""
    planned_requests_per_s: float | None = None
    """That the replicas are for, limits aside: what comes or is forecast, headroom, reserve and
    events."""
    waiting: float | None = None
    goodput_requests_per_s: float | None = None
    """Of one replica, as believed."""
    limited_by: str | None = None
    """Of the decision."""
    problem: str | None = None
    """Why nothing could be planned, or only for throughput."""
    calibrations: Calibrations = field(default_factory=Calibrations)


@dataclass(slots=True, kw_only=True)
class Record:
    """Everything that is known of one object after a simulation. Times since its start."""

    served: ReplayedModel
    cluster: SimulatedCluster
    moments: list[Moment] = field(default_factory=list)
    faults: list[Exception] = field(default_factory=list)
    """Bugs of ours that ticks met."""

    def gpu_s(self, from_s: float, until_s: float) -> float:
        """Return the GPU-seconds billed within a time."""
        return sum(pod.gpu_s(from_s, until_s) for pod in self.cluster.pods)


@dataclass(frozen=True, slots=True, kw_only=True)
class SloShares:
    """Shares of requests within the limit, by target of TTFT and of TPOT, in the spec's order."""

    num_requests: int
    ttft: tuple[float, ...]
    tpot: tuple[float, ...]
    worst_ratio: float
    """Late requests over those allowed, of the target that is missed most."""


def slo_shares(record: Record, from_s: float, until_s: float) -> SloShares:
    """Return how the requests that came within a time fared; those never served were late."""
    slo = slo_of(record.served.model.spec)
    arrival_s = record.served.traffic.arrival_s
    table = record.cluster.table
    first_s, ended_s = memoryview(table.first_token_s), memoryview(table.ended_s)
    output = table.output_tokens
    ttft, tpot = array("d"), array("d")
    for number, at_s in enumerate(arrival_s):
        if from_s <= at_s < until_s:
            ttft.append(first_s[number] - at_s if first_s[number] else math.inf)
            later = output[number] - 1
            if later and ended_s[number]:
                tpot.append((ended_s[number] - first_s[number]) / later)
            elif later:
                tpot.append(math.inf)
    shares = [
        tuple(_share(values, target.limit_s) for target in targets)
        for values, targets in ((ttft, slo.ttft), (tpot, slo.tpot))
    ]
    allowed = [1 - target.quantile for target in (*slo.ttft, *slo.tpot)]
    found = [*shares[0], *shares[1]]
    ratios = [(1 - share) / most for share, most in zip(found, allowed, strict=True)]
    return SloShares(
        num_requests=len(ttft),
        ttft=shares[0],
        tpot=shares[1],
        worst_ratio=max(ratios, default=0.0),
    )


def _share(values: Sequence[float], limit_s: float) -> float:
    return sum(value <= limit_s for value in values) / len(values) if values else 1.0


def moment(record: Record, at_s: float) -> Moment:
    """Return how a cluster stands; what was to be done at this time has been done."""
    cluster = record.cluster
    return Moment(
        at_s=at_s,
        replicas=cluster.replicas,
        ready=cluster.num_ready(at_s),
        live=len(cluster.live),
        true_requests_per_s=record.served.traffic.source.rate(at_s) if at_s >= 0 else 0.0,
        waiting_at_router=cluster.waiting_at_router(at_s),
    )


def moment_of_tick(
    record: Record, found: Assessment, calibrations: Calibrations, at_s: float
) -> Moment:
    """Return the same with what a tick of the operator found; its writes have been done."""
    demand, sizing = found.traffics.demand, found.sizing
    problem = found.chosen.problem if found.chosen else None
    if found.refusal:
        problem = f"{found.refusal.reason}: {found.refusal.message}"
    elif found.pending:
        problem = found.pending.message
    return replace(
        moment(record, at_s),
        requests_per_s=demand.requests_per_s if demand else None,
        planned_requests_per_s=found.need.planned_requests_per_s if found.need else None,
        waiting=demand.waiting if demand else None,
        goodput_requests_per_s=sizing.goodput_requests_per_s if sizing else None,
        limited_by=found.decision.limited_by if found.decision else None,
        problem=problem,
        calibrations=calibrations,
    )
