"""How a policy fares in a scenario."""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from tonnage.catalog.gpu import UnsupportedEngineError, built_in_gpus
from tonnage.replay.baselines.rule import ObservedPod, Rule, RuleInput, Signals
from tonnage.replay.cluster import EPOCH_S, FirstPlan, Pod, Record, SimulatedCluster, moment
from tonnage.replay.evaluation import (
    LatencyLimits,
    RunFigures,
    SeriesPoint,
    fates,
    run_figures,
    series,
)
from tonnage.replay.ground_truth import Work, work_of
from tonnage.replay.policy import (
    BEST_STATIC,
    MOST_REPLICAS,
    OTHER_QUEUES,
    RIVALS,
    STATIC,
    TONNAGE,
    Policy,
    Rival,
    rule_of,
)
from tonnage.replay.prometheus import Query, Series, SimulatedPrometheus
from tonnage.replay.simulation import SETTINGS, Controller, Scenario
from tonnage.replay.traffic import Traffic
from tonnage.settings import Settings
from tonnage.sizing.expected import slo_of
from tonnage.sizing.request import Flags, SizingRequest, ask, look_up
from tonnage.units import count_of

Answers = Mapping[str, Sequence[Series]]


@dataclass(slots=True)
class RivalController:
    """Scales the cluster of a simulation by a rule.

    Before the traffic begins the rule is not asked: it would see an idle fleet and take it away.
    """

    settings: Settings
    rule: Rule
    planned: FirstPlan
    """What it starts with: no rule chooses flags."""
    reads_scrapes: bool = False

    @property
    def interval_s(self) -> float:
        return self.rule.interval_s

    @property
    def table(self) -> Mapping[str, Query]:
        return self.rule.table

    def act(self, record: Record, prometheus: SimulatedPrometheus, at_s: float) -> None:
        """Deploy or scale the cluster, and note a moment of it."""
        if record.cluster.template is None:
            record.cluster.deploy(self.planned.flags, self.planned.replicas, at_s)
        elif at_s >= 0:
            self._scale(record, prometheus.ask(EPOCH_S + at_s), at_s)
        record.moments.append(moment(record, at_s))

    def _scale(self, record: Record, answers: Answers, at_s: float) -> None:
        cluster, told = record.cluster, _rule_input(record, self.planned)
        pods, in_flight = cluster.remaining_pods, _in_flight(cluster, at_s)
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
            answers=self._of(cluster, pods, answers),
            arrived=bisect_right(cluster.traffic.arrival_s, at_s),
            in_flight=in_flight,
            waiting_at_router=cluster.waiting_at_router(at_s),
            told=told,
            pod_label=self.settings.pod_label,
            cluster=cluster,
        )
        wanted = min(told.max_replicas, max(told.min_replicas, self.rule.replicas(signals)))
        if wanted != cluster.replicas:
            cluster.scale(wanted, at_s)

    def _of(self, cluster: SimulatedCluster, pods: Sequence[Pod], answers: Answers) -> Answers:
        """Return what was answered about these pods."""
        names, namespace = {pod.name for pod in pods}, cluster.model.namespace
        place, name = self.settings.namespace_label, self.settings.pod_label
        return {
            query: [
                each
                for each in found
                if each.labels[place] == namespace and each.labels[name] in names
            ]
            for query, found in answers.items()
        }


def _in_flight(cluster: SimulatedCluster, at_s: float) -> int:
    """Return the requests that are not done, those on pods that drain too."""
    for pod in cluster.live:
        pod.engine.advance(at_s)
    outstanding = sum(pod.engine.num_outstanding for pod in cluster.live)
    return outstanding + cluster.waiting_at_router(at_s)


def _rule_input(record: Record, planned: FirstPlan) -> RuleInput:
    model, machine = record.served.model, record.cluster.machine
    scaling = model.spec.scaling
    return RuleInput(
        flags=planned.flags,
        min_replicas=scaling.min_replicas,
        max_replicas=scaling.max_replicas,
        slo=slo_of(model.spec),
        kv_tokens=machine.kv_tokens,
        believed_requests_per_s=planned.believed_requests_per_s,
    )


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
    reads_scrapes: bool = False

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


@dataclass(frozen=True)
class PreparedScenario:
    """One scenario with its requests drawn, and what all policies in it share, made once."""

    scenario: Scenario
    rivals: Mapping[str, Rival] = field(default_factory=lambda: RIVALS)

    @cached_property
    def drawn(self) -> Traffic:
        return self.scenario.draw()

    @cached_property
    def request(self) -> SizingRequest:
        spec = self.scenario.model.spec
        return ask(spec, look_up(spec, built_in_gpus()))

    @cached_property
    def limits(self) -> LatencyLimits:
        return LatencyLimits.of(self.scenario.slo)

    @cached_property
    def work(self) -> Work:
        found = self.scenario
        return work_of(self.drawn, self.request, found.planned.flags, found.truth())

    @cached_property
    def peak(self) -> BestStaticFleet:
        """The smallest constant fleet that keeps the target."""

        def run(number: int) -> float:
            return fates(self._run(self._constant(number)), self.drawn, self.limits).attainment

        return static_peak(
            run,
            target=self.scenario.target,
            first=self.scenario.planned.replicas,
            least=self.work.mean(0.0, self.drawn.duration_s),
        )

    def outcome_of(self, policy: Policy) -> PolicyResult:
        """Run a policy; one of hindsight runs many fleets until it has its own."""
        scenario = self.scenario
        if policy.name == TONNAGE:
            return self._outcome(policy, self._run(scenario.operator()))
        if policy.name in OTHER_QUEUES:
            return self._with_queue(policy, *OTHER_QUEUES[policy.name])
        if policy.name == STATIC:
            return self._outcome(policy, self._run(self._constant(int(policy.knob or 1))))
        if policy.name == BEST_STATIC:
            return self._static_peak(policy)
        rule = rule_of(policy, self.rivals)
        return self._outcome(policy, self._run(RivalController(SETTINGS, rule, scenario.planned)))

    def _static_peak(self, policy: Policy) -> PolicyResult:
        peak, most = self.peak, self.scenario.model.spec.scaling.max_replicas
        if peak.replicas is None:
            return self._outcome(policy, None, [self._no_peak(peak.best_attainment)])
        replicas = count_of(peak.replicas, "replica")
        notes = [f"{replicas}, found in {count_of(peak.num_runs, 'run')}"]
        if peak.replicas > most:
            notes.append(
                f"a constant fleet takes {replicas}, maxReplicas allows {most}: policies that "
                "scale obey it, those of hindsight do not"
            )
        return self._outcome(policy, self._run(self._constant(peak.replicas)), notes)

    def _with_queue(self, policy: Policy, field: str, value: str) -> PolicyResult:
        if not self.scenario.slo.ttft:
            return self._outcome(policy, None, [f"{value} needs slo.timeToFirstToken"])
        scenario = self.scenario.with_engine(field, value)
        try:
            return self._outcome(policy, self._run(scenario.operator(), scenario))
        except UnsupportedEngineError as error:
            return self._outcome(policy, None, [str(error)])

    def _run(self, controller: Controller, scenario: Scenario | None = None) -> Record:
        simulation = (scenario or self.scenario).simulation(self.drawn, controller)
        return simulation.run(self.drawn.duration_s)

    def _constant(self, replicas: int) -> ConstantFleet:
        return ConstantFleet(flags=self.scenario.planned.flags, replicas=replicas)

    def _outcome(
        self, policy: Policy, record: Record | None, notes: Sequence[str] = ()
    ) -> PolicyResult:
        """Return how a run was; without one the notes say why there is none."""
        found = fates(record, self.drawn, self.limits) if record else None
        return PolicyResult(
            policy=policy,
            seed=self.scenario.seed,
            judged=run_figures(record, self.drawn, found) if record and found else None,
            points=tuple(series(record, self.drawn, found, self.work)) if record and found else (),
            fluid_gpu_hours=self.work.gpu_hours,
            notes=tuple(notes),
            faults=tuple(map(repr, record.faults)) if record else (),
        )

    def _no_peak(self, best: float) -> str:
        drawn, target = self.drawn, self.scenario.target
        why = f"no constant number meets {target:.4g} of the requests, at best {best:.4f}"
        if drawn.too_long_s:
            why += (
                f": {len(drawn.too_long_s)} of {drawn.num_requests} are longer than contextLength "
                "and count as missed"
            )
        return why
