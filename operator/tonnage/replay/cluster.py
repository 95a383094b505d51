"""One ModelDeployment in a cluster: its pods with an engine each, and what routes to them."""

import math
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from tonnage.api.objects import ModelDeployment
from tonnage.catalog.gpu import built_in_gpus
from tonnage.control.input.state import Assessment
from tonnage.control.write.writes import Writes
from tonnage.engine.chance import Chance
from tonnage.engine.core import Engine
from tonnage.engine.table import RequestTable
from tonnage.estimate.calibration import Calibrations
from tonnage.estimate.metrics import LATENCY_BOUNDS_S
from tonnage.manifests.children import flags_from_annotation
from tonnage.manifests.names import DIGEST_ANNOTATION, FLAGS_ANNOTATION, SPEC_ANNOTATION
from tonnage.replay.ground_truth import GroundTruth, Machine, machine
from tonnage.replay.prometheus import EngineCounters, Ladders
from tonnage.replay.traffic import Traffic
from tonnage.sizing.request import Flags, SizingRequest, ask, look_up
from tonnage.sizing.workload import NORMAL, Routing

EPOCH_S: Final = 1_767_225_600.0
"""Unix time at which the traffic of a simulation begins: 2026-01-01T00:00:00Z."""
DRAIN_S: Final = 600.0
LEAST_SPEED: Final = 0.5
"""Of a replica's speed factor, however wide they spread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupTime:
    """How long a pod takes to be Ready, in seconds."""

    mean_s: float = 240.0
    jitter: float = 0.25
    """To either side, as a share of the mean, evenly."""

    @property
    def longest_s(self) -> float:
        return self.mean_s * (1 + self.jitter)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedModel:
    """One ModelDeployment: what comes, and what its engines really are."""

    model: ModelDeployment
    traffic: Traffic
    truth: GroundTruth = field(default_factory=GroundTruth)
    start: StartupTime = field(default_factory=StartupTime)
    speed_spread: float = 0.0
    """Standard deviation of the replicas' own speed factors."""
    seed: int = 0


@dataclass(slots=True, kw_only=True)
class Pod:
    """One replica: its life, its engine and what it says."""

    number: int
    """In order of creation."""
    name: str
    machine: Machine
    flags: Flags
    engine: Engine
    counters: EngineCounters
    speed: float
    """Of this replica, as a factor."""
    phase: float
    """Share of a scrape interval at which it is scraped."""
    created_s: float
    ready_s: float
    deleted_s: float = math.inf
    ended_s: float = math.inf

    def gpu_s(self, from_s: float, until_s: float) -> float:
        """Return the GPU-seconds that it took within a time, from creation to its end."""
        overlap_s = min(until_s, self.ended_s) - max(from_s, self.created_s)
        return max(0.0, overlap_s) * self.machine.num_gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """What the pods of a Deployment are made from."""

    flags: Flags
    flags_text: str
    digest: str
    made_from: str
    """The spec as recorded; empty: nobody did."""
    machine: Machine


@dataclass(slots=True, kw_only=True)
class SimulatedCluster:
    """The pods of one ModelDeployment, its traffic and the truth about its engines.

    A router knows who is Ready at once; where nobody is, requests wait at it. Pods that are taken
    away get nothing more, finish what they have, and are gone when that is done, or killed.
    """

    served: ReplayedModel
    drain_s: float = DRAIN_S
    """After which a pod that is taken away is killed, with what it has."""
    replicas: int = 0
    """That the Deployment asks for."""
    template: Template | None = None
    generation: int = 0
    pods: list[Pod] = field(default_factory=list)
    """All there ever were, in order of creation."""
    _open: list[Pod] = field(default_factory=list)
    """To which is routed."""
    _next: int = 0
    _open_since_s: float = -math.inf
    request: SizingRequest = field(init=False)
    """Of the spec, with the priors."""
    table: RequestTable = field(init=False)
    _chance: Chance = field(init=False)
    _routes: "array[float]" = field(init=False)
    _is_pooled: bool = field(init=False)

    def __post_init__(self) -> None:
        spec, first = self.model.spec, 10 * self.served.seed
        self.request = ask(spec, look_up(spec, built_in_gpus()))
        self.table = self.traffic.table()
        self._chance = Chance(first + 1)
        self._routes = Chance(first + 2).shares(len(self.traffic.arrival_s))
        self._is_pooled = self.request.routing is Routing.LEAST_OUTSTANDING

    @property
    def model(self) -> ModelDeployment:
        return self.served.model

    @property
    def traffic(self) -> Traffic:
        return self.served.traffic

    @property
    def ladders(self) -> Ladders:
        """Of the two latencies those with a promise."""
        slo = self.request.slo
        return Ladders(
            ttft_s=LATENCY_BOUNDS_S if slo.ttft else (),
            tpot_s=LATENCY_BOUNDS_S if slo.tpot else (),
            server_s=self.served.truth.server_s,
        )

    @property
    def live(self) -> list[Pod]:
        """Pods that are not gone."""
        return [pod for pod in self.pods if pod.ended_s == math.inf]

    @property
    def remaining_pods(self) -> list[Pod]:
        """Pods that are neither gone nor being deleted."""
        return [pod for pod in self.pods if pod.deleted_s == math.inf]

    @property
    def machine(self) -> Machine:
        """What the pods of the newest template run, before each one's own speed."""
        if self.template is None:
            raise ValueError(f"{self.model.name}: no template was applied yet")
        return self.template.machine

    def apply(self, writes: Writes, at_s: float) -> None:
        """Do what a tick wants written to the Deployment."""
        if writes.template is not None:
            annotations = writes.template["metadata"]["annotations"]
            flags = flags_from_annotation(annotations[FLAGS_ANNOTATION])
            if flags is None:
                raise ValueError(f"the template's flags are {annotations[FLAGS_ANNOTATION]}")
            self._take(flags, annotations)
            if writes.creates:
                self.replicas = writes.first_replicas or 0
        if writes.scale is not None:
            self.replicas = writes.scale.replicas
            self.generation += 1
        if self.template is not None:
            self._reconcile(self.template, at_s)

    def deploy(self, flags: Flags, replicas: int, at_s: float) -> None:
        self._take(flags)
        self.scale(replicas, at_s)

    def scale(self, replicas: int, at_s: float) -> None:
        if self.template is None:
            raise ValueError(f"{self.model.name}: nothing was deployed yet")
        self.replicas = replicas
        self.generation += 1
        self._reconcile(self.template, at_s)

    def _take(self, flags: Flags, annotations: Mapping[str, str] = MappingProxyType({})) -> None:
        self.template = Template(
            flags=flags,
            flags_text=annotations.get(FLAGS_ANNOTATION, ""),
            digest=annotations.get(DIGEST_ANNOTATION, ""),
            made_from=annotations.get(SPEC_ANNOTATION, ""),
            machine=machine(self.request, flags, self.served.truth),
        )
        self.generation += 1

    def _reconcile(self, template: Template, at_s: float) -> None:
        """Create pods that are missing; take away the newest, those that are not Ready first.

        Pods of an older template are replaced one by one: one more is created, and one of them
        goes when it is Ready.
        """
        kept = self.remaining_pods
        old = [pod for pod in kept if pod.flags != template.flags]
        are_ready = all(pod.ready_s <= at_s for pod in kept)
        surge = 1 if old and (are_ready or len(kept) > self.replicas) else 0
        if surge and are_ready and len(kept) > self.replicas:
            self._delete(old[0], at_s)
            return
        for _ in range(self.replicas + surge - len(kept)):
            self._create(template, at_s)
        ranked = sorted(kept, key=lambda pod: (pod.ready_s <= at_s, -pod.number))
        for pod in ranked[: max(0, len(kept) - self.replicas - surge)]:
            self._delete(pod, at_s)

    def _delete(self, pod: Pod, at_s: float) -> None:
        pod.deleted_s = at_s
        if pod in self._open:
            self._open.remove(pod)

    def _create(self, template: Template, at_s: float) -> None:
        number, chance, start = len(self.pods), self._chance, self.served.start
        spread = NORMAL.inv_cdf(max(chance.share(), 1e-9)) * self.served.speed_spread
        truth = self.served.truth
        speed = max(LEAST_SPEED, 1 + spread) * (1.0 if number else truth.first_pod_speed)
        kind = template.machine if speed == 1 else template.machine.times(speed)
        engine = Engine(kind.limits, kind.costs, self.table, number)
        pod = Pod(
            number=number,
            name=f"{self.model.name}-{number}",
            machine=kind,
            flags=template.flags,
            engine=engine,
            counters=EngineCounters(
                engine,
                kind.limits,
                model_name=self.model.name,
                kv_tokens=kind.kv_tokens,
                ladders=self.ladders,
            ),
            speed=speed,
            phase=chance.share(),
            created_s=at_s,
            ready_s=at_s + start.mean_s * (1 + start.jitter * (2 * chance.share() - 1)),
        )
        self.pods.append(pod)

    def open(self, pod: Pod) -> None:
        """Route to a pod that is Ready now, unless it was taken away meanwhile."""
        if pod.deleted_s < math.inf:
            return
        if not self._open:
            self._open_since_s = pod.ready_s
        self._open.append(pod)

    def dispatch(self, until_s: float) -> None:
        """Route all requests that come before a time, in order."""
        arrival_s, first, pods = self.traffic.arrival_s, self._next, self._open
        last = bisect_left(arrival_s, until_s, first) if pods else first
        if last == first:
            return
        routed_s: memoryview[float] = memoryview(self.table.arrival_s)
        routes, sticky = self._routes, self.served.truth.sticky_share
        for number in range(first, last):
            at_s, share = max(arrival_s[number], self._open_since_s), routes[number]
            routed_s[number] = at_s
            if share < sticky:
                pod = pods[0]
            else:
                share = (share - sticky) / (1 - sticky)
                pod = self._least(at_s, share) if self._is_pooled else pods[int(share * len(pods))]
            pod.engine.advance(at_s)
            if pod.engine.submit(number) < 0:
                pod.counters.num_refused += 1
            else:
                pod.counters.note_request(number)
        self._next = last

    def _least(self, at_s: float, share: float) -> Pod:
        held = []
        for pod in self._open:
            pod.engine.advance(at_s)
            held.append(pod.engine.num_outstanding)
        fewest = min(held)
        tied = [pod for pod, number in zip(self._open, held, strict=True) if number == fewest]
        return tied[int(share * len(tied))]

    def end_drained(self, at_s: float) -> Iterator[Pod]:
        """Let pods go that were taken away and are done, or out of time; yield them."""
        for pod in self.live:
            if pod.deleted_s <= at_s:
                killed_s = pod.deleted_s + self.drain_s
                pod.engine.advance(min(at_s, killed_s))
                if not pod.engine.num_outstanding:
                    pod.ended_s = max(pod.deleted_s, pod.engine.now_s)
                elif killed_s <= at_s:
                    pod.ended_s = killed_s
                if pod.ended_s < math.inf:
                    yield pod

    def finish(self) -> None:
        """Serve all that was routed to the end; nothing more comes."""
        for pod in self.live:
            pod.engine.advance(math.inf)

    def num_ready(self, at_s: float) -> int:
        return sum(pod.ready_s <= at_s for pod in self.remaining_pods)

    def waiting_at_router(self, at_s: float) -> int:
        """Return the requests that have come while nobody was Ready."""
        number, arrival_s = self._next, self.traffic.arrival_s
        while number < len(arrival_s) and arrival_s[number] <= at_s:
            number += 1
        return number - self._next


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

    def gpu_s(self, from_s: float, until_s: float) -> float:
        return sum(pod.gpu_s(from_s, until_s) for pod in self.cluster.pods)


def moment(record: Record, at_s: float) -> RunSnapshot:
    """Return how a cluster stands; what was to be done at this time has been done."""
    cluster = record.cluster
    return RunSnapshot(at_s=at_s, replicas=cluster.replicas, ready=cluster.num_ready(at_s))


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
