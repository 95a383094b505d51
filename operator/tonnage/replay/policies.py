"""How a policy fares in a scenario."""

from array import array
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from tonnage.api.objects import ModelDeployment
from tonnage.catalog.gpu import Gpu, UnsupportedEngineError, built_in_gpus
from tonnage.engine.chance import Chance
from tonnage.replay.baselines.rule import ObservedPod, Rule, Signals
from tonnage.replay.cluster import (
    EPOCH_S,
    FirstPlan,
    Pod,
    Record,
    ReplayedModel,
    SimulatedCluster,
    StartupTime,
    moment,
)
from tonnage.replay.evaluation import (
    LatencyLimits,
    RunFigures,
    SeriesPoint,
    fates,
    run_figures,
    series,
)
from tonnage.replay.ground_truth import GroundTruth, Work, work_of
from tonnage.replay.policy import (
    BEST_STATIC,
    IN_TIME,
    MOST_REPLICAS,
    RIVALS,
    STATIC,
    TONNAGE,
    Policy,
    Rival,
    rule_of,
)
from tonnage.replay.prometheus import Query, Series, SimulatedPrometheus, drop_scrapes
from tonnage.replay.simulation import (
    SETTINGS,
    Controller,
    Operator,
    Simulation,
    SyntheticWorkload,
    TraceWorkload,
)
from tonnage.replay.traces import drawn_from, times
from tonnage.replay.traffic import Traffic
from tonnage.sizing.expected import expected_workload
from tonnage.sizing.request import Flags, SizingRequest, ask, look_up
from tonnage.units import count_of

Answers = Mapping[str, Sequence[Series]]
LOST_SCRAPES: Final = 0.01
FACTORS: Final = (0.75, 1.25)
"""Of the prior's efficiencies, evenly, where the truth is drawn."""
OVERHEADS: Final = (0.5, 2.0)
KV_DOUBT: Final = 0.05
"""To either side, as a share of the blocks."""
SPEED_SPREAD: Final = 0.03
"""Of single replicas, where the truth is drawn."""
FIRST_SEED: Final = 13_000


@dataclass(slots=True)
class RivalController:
    """Scales the cluster of a simulation by a rule.

    Before the traffic begins the rule is not asked: it would see an idle fleet and take it away.
    """

    rule: Rule
    planned: FirstPlan
    """What it starts with: no rule chooses flags."""

    @property
    def interval_s(self) -> float:
        return self.rule.interval_s

    @property
    def table(self) -> Mapping[str, Query]:
        return self.rule.table

    def act(self, record: Record, prometheus: SimulatedPrometheus, at_s: float) -> None:
        if record.cluster.template is None:
            record.cluster.deploy(self.planned.flags, self.planned.replicas, at_s)
        elif at_s >= 0:
            self._scale(record, prometheus.ask(EPOCH_S + at_s), at_s)
        record.moments.append(moment(record, at_s))

    def _scale(self, record: Record, answers: Answers, at_s: float) -> None:
        cluster, scaling = record.cluster, record.cluster.model.spec.scaling
        pods, waiting = cluster.remaining_pods, cluster.waiting_at_router(at_s)
        for pod in cluster.live:
            pod.engine.advance(at_s)
        signals = Signals(
            at_s=at_s,
            asked=cluster.replicas,
            pods=tuple(
                ObservedPod(
                    name=pod.name,
                    age_s=at_s - pod.created_s,
                    ready_for_s=at_s - pod.ready_s if pod.ready_s <= at_s else None,
                )
                for pod in pods
            ),
            flags=self.planned.flags,
            min_replicas=scaling.min_replicas,
            max_replicas=scaling.max_replicas,
            slo=cluster.request.slo,
            kv_tokens=cluster.machine.kv_tokens,
            believed_requests_per_s=self.planned.believed_requests_per_s,
            answers=self._of(cluster, pods, answers),
            arrived=bisect_right(cluster.traffic.arrival_s, at_s),
            in_flight=sum(pod.engine.num_outstanding for pod in cluster.live) + waiting,
            waiting_at_router=waiting,
            pod_label=SETTINGS.pod_label,
            cluster=cluster,
        )
        wanted = signals.bounded(self.rule.replicas(signals))
        if wanted != cluster.replicas:
            cluster.scale(wanted, at_s)

    def _of(self, cluster: SimulatedCluster, pods: Sequence[Pod], answers: Answers) -> Answers:
        """Return what was answered about these pods."""
        names, namespace = {pod.name for pod in pods}, cluster.model.namespace
        place, name = SETTINGS.namespace_label, SETTINGS.pod_label
        return {
            query: [
                each
                for each in found
                if each.labels[place] == namespace and each.labels[name] in names
            ]
            for query, found in answers.items()
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyResult:
    """How a policy fared in one scenario."""

    policy: Policy
    seed: int
    judged: RunFigures | None
    """None: there is no such fleet; ``notes`` say why."""
    points: tuple[SeriesPoint, ...] = ()
    fluid_gpu_hours: float = 0.0
    """The least that the traffic takes, whatever scales."""
    notes: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    """Bugs of ours that ticks met."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantFleet:
    """Runs so many engines with these flags all the time."""

    flags: Flags
    replicas: int
    interval_s: float = 15.0
    table: Mapping[str, Query] = field(default_factory=dict)

    def act(self, record: Record, prometheus: SimulatedPrometheus, at_s: float) -> None:  # noqa: ARG002
        if record.cluster.template is None:
            record.cluster.deploy(self.flags, self.replicas, at_s)
        record.moments.append(moment(record, at_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class BestStaticFleet:
    """The smallest constant fleet that keeps the target; without ``replicas`` none was found."""

    replicas: int | None
    best_attainment: float
    num_runs: int


def static_peak(
    run: Callable[[int], float], *, target: float, first: int, least: float = 1.0
) -> BestStaticFleet:
    """Search the smallest constant number; ``run`` returns the attainment of one.

    ``first``: a guess. Doubled until it suffices, or twice as many do not better ``least``
    replicas, the work there is in the mean: with fewer all are as bad as each other.
    """
    known: dict[int, float] = {}

    def suffices(number: int) -> bool:
        if number not in known:
            known[number] = run(number)
        return known[number] >= target

    high = max(1, first)
    while not suffices(high):
        is_better = high // 2 < least or known.get(high // 2, -1.0) < known[high]
        if 2 * high > MOST_REPLICAS or not is_better:
            return BestStaticFleet(
                replicas=None, best_attainment=max(known.values()), num_runs=len(known)
            )
        high *= 2
    low = max((number for number in known if known[number] < target), default=0)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if suffices(middle) else (middle, high)
    return BestStaticFleet(replicas=high, best_attainment=max(known.values()), num_runs=len(known))


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One object, one draw of everything that chance decides; what policies share is made once."""

    model: ModelDeployment
    requests: TraceWorkload | SyntheticWorkload
    start: StartupTime = field(default_factory=StartupTime)
    planned: FirstPlan
    target: float
    """Share of requests to be kept."""
    speed: float | None = 1.0
    """Of engines, as a factor of what is believed; None: each constant is drawn."""
    seed: int = 0
    gpus: Mapping[str, Gpu] = field(default_factory=built_in_gpus, repr=False)
    """With the prices by which the operator chooses a split."""

    @cached_property
    def request(self) -> SizingRequest:
        return ask(self.model.spec, look_up(self.model.spec, built_in_gpus()))

    @cached_property
    def limits(self) -> LatencyLimits:
        return LatencyLimits.of(self.request.slo)

    @cached_property
    def truth(self) -> GroundTruth:
        if self.speed is not None:
            return GroundTruth(speed=self.speed)
        chance = Chance(FIRST_SEED + self.seed)

        def between(low: float, high: float) -> float:
            return low + (high - low) * chance.share()

        low, high = OVERHEADS
        return GroundTruth(
            bandwidth_factor=between(*FACTORS),
            compute_factor=between(*FACTORS),
            prefill_factor=between(*FACTORS),
            overhead_factor=low * (high / low) ** chance.share(),
            kv_factor=between(1 - KV_DOUBT, 1 + KV_DOUBT),
        )

    @cached_property
    def drawn(self) -> Traffic:
        """The requests, the same for every policy."""
        spec, requests = self.model.spec, self.requests
        workload = expected_workload(spec)
        if isinstance(requests, SyntheticWorkload):
            return requests.shape.draw(
                workload,
                requests.requests_per_s,
                context_tokens=spec.context_length,
                seed=self.seed,
            )
        duration_s, trace = requests.duration_s, requests.trace
        if spec.role == "prefill":
            trace = replace(trace, output_tokens=array("q", [1]) * len(trace))
        return drawn_from(
            times(trace, requests.times, duration_s=duration_s, seed=self.seed),
            duration_s=duration_s,
            context_tokens=spec.context_length,
            cached_fraction=workload.cached_fraction,
        )

    @cached_property
    def work(self) -> Work:
        return work_of(self.drawn, self.request, self.planned.flags, self.truth)

    @cached_property
    def peak(self) -> BestStaticFleet:
        """The smallest constant fleet that keeps the target."""

        def attainment(number: int) -> float:
            return fates(self.run(self._constant(number)), self.drawn, self.limits).attainment

        least = self.work.mean(0.0, self.drawn.duration_s)
        return static_peak(attainment, target=self.target, first=self.planned.replicas, least=least)

    def outcome_of(self, policy: Policy, rivals: Mapping[str, Rival] = RIVALS) -> PolicyResult:
        """Run a policy; one of hindsight runs many fleets until it has its own."""
        if policy.name == TONNAGE:
            return self._outcome(policy, self.run(self.operator()))
        if policy.name == IN_TIME:
            return self._in_time(policy)
        if policy.name == STATIC:
            return self._outcome(policy, self.run(self._constant(int(policy.knob or 1))))
        if policy.name == BEST_STATIC:
            return self._static_peak(policy)
        controller = RivalController(rule_of(policy, rivals), self.planned)
        return self._outcome(policy, self.run(controller))

    def _static_peak(self, policy: Policy) -> PolicyResult:
        peak, most = self.peak, self.model.spec.scaling.max_replicas
        if peak.replicas is None:
            return self._outcome(policy, None, [self._no_peak(peak.best_attainment)])
        replicas = count_of(peak.replicas, "replica")
        notes = [f"{replicas}, found in {count_of(peak.num_runs, 'run')}"]
        if peak.replicas > most:
            notes.append(
                f"a constant fleet takes {replicas}, maxReplicas allows {most}: policies that "
                "scale obey it, those of hindsight do not"
            )
        return self._outcome(policy, self.run(self._constant(peak.replicas)), notes)

    def _in_time(self, policy: Policy) -> PolicyResult:
        """Run the operator with engines that refuse what would be late."""
        if not self.request.slo.ttft:
            return self._outcome(policy, None, ["inTime needs slo.timeToFirstToken"])
        spec = self.model.spec
        if spec.engine is not None:
            engine = spec.engine.model_copy(update={"admission": "inTime"})
            spec = spec.model_copy(update={"engine": engine})
        try:
            record = self.run(self.operator(), replace(self.model, spec=spec))
        except UnsupportedEngineError as error:
            return self._outcome(policy, None, [str(error)])
        return self._outcome(policy, record)

    def operator(self) -> Operator:
        return Operator(SETTINGS, gpus=self.gpus, is_brought_up=True)

    def run(self, controller: Controller, model: ModelDeployment | None = None) -> Record:
        """Simulate a controller; ``model``: another than that of the scenario."""
        served = ReplayedModel(
            model=model or self.model,
            traffic=self.drawn,
            truth=self.truth,
            start=self.start,
            speed_spread=0.0 if self.speed is not None else SPEED_SPREAD,
            seed=self.seed,
        )
        faults = (drop_scrapes(LOST_SCRAPES, seed=self.seed),)
        simulation = Simulation(served, settings=SETTINGS, controller=controller, faults=faults)
        return simulation.run(self.drawn.duration_s)

    def _constant(self, replicas: int) -> ConstantFleet:
        return ConstantFleet(flags=self.planned.flags, replicas=replicas)

    def _outcome(
        self, policy: Policy, record: Record | None, notes: Sequence[str] = ()
    ) -> PolicyResult:
        """Return how a run was; without one the notes say why there is none."""
        found = fates(record, self.drawn, self.limits) if record else None
        return PolicyResult(
            policy=policy,
            seed=self.seed,
            judged=run_figures(record, self.drawn, found) if record and found else None,
            points=tuple(series(record, self.drawn, found, self.work)) if record and found else (),
            fluid_gpu_hours=self.work.gpu_hours,
            notes=tuple(notes),
            faults=tuple(map(repr, record.faults)) if record else (),
        )

    def _no_peak(self, best: float) -> str:
        drawn, target = self.drawn, self.target
        why = f"no constant number meets {target:.4g} of the requests, at best {best:.4f}"
        if drawn.too_long_s:
            why += (
                f": {len(drawn.too_long_s)} of {drawn.num_requests} are longer than contextLength "
                "and count as missed"
            )
        return why
