"""How a policy fares in a scenario."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from tonnage.catalog.gpu import UnsupportedEngineError
from tonnage.replay.drawn import Drawn
from tonnage.replay.fluid import Work, work_of
from tonnage.replay.hindsight import StaticPeak, Tried, stages_of, static_peak
from tonnage.replay.hindsight import staircase as searched
from tonnage.replay.judge import LatencyLimits, RunFigures, fates, run_figures
from tonnage.replay.policy import (
    OTHER_QUEUES,
    STAIRCASE,
    STATIC,
    STATIC_PEAK,
    TONNAGE,
    Policy,
    rule_of,
)
from tonnage.replay.record import Record
from tonnage.replay.rivals.controller import RivalController
from tonnage.replay.rivals.registry import RIVALS, Rival
from tonnage.replay.scenario import SETTINGS, Scenario
from tonnage.replay.scheduled import Scheduled, Stages
from tonnage.replay.series import SeriesPoint, series
from tonnage.replay.simulation import Controller
from tonnage.sizing.request import SizingRequest
from tonnage.units import count_of


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


@dataclass(frozen=True, kw_only=True)
class DrawnScenario:
    """One scenario with its requests drawn, and what all policies in it share, made once."""

    scenario: Scenario
    drawn: Drawn
    request: SizingRequest
    limits: LatencyLimits
    rivals: Mapping[str, Rival]

    @classmethod
    def of(cls, scenario: Scenario, rivals: Mapping[str, Rival] = RIVALS) -> "DrawnScenario":
        drawn = scenario.draw()
        nothing = Scheduled(flags=scenario.planned.flags, stages=[(0.0, 0)])
        record = scenario.simulation(drawn, nothing).record
        return cls(
            scenario=scenario,
            drawn=drawn,
            request=record.cluster.request,
            limits=LatencyLimits.of(scenario.slo),
            rivals=rivals,
        )

    @cached_property
    def work(self) -> Work:
        found = self.scenario
        return work_of(self.drawn, self.request, found.planned.flags, found.truth())

    @cached_property
    def peak(self) -> StaticPeak:
        """The smallest constant fleet that keeps the target."""
        return static_peak(
            lambda number: self._try([(0.0, number)]).attainment,
            target=self.scenario.target,
            first=self.scenario.planned.replicas,
            least=self.work.mean(0.0, self.drawn.duration_s),
        )

    def outcome_of(self, policy: Policy) -> PolicyResult:
        """Run a policy; one of hindsight runs many fleets until it has its own."""
        if policy.name == TONNAGE:
            return self._outcome(policy, self._run(self.scenario.operator()))
        if policy.name in OTHER_QUEUES:
            return self._with_queue(policy, *OTHER_QUEUES[policy.name])
        if policy.name == STATIC:
            return self._outcome(policy, self._follow([(0.0, int(policy.knob or 1))]))
        if policy.name in {STATIC_PEAK, STAIRCASE}:
            return self._in_hindsight(policy)
        return self._outcome(policy, self._run(self._rival(policy)))

    def _in_hindsight(self, policy: Policy) -> PolicyResult:
        scenario, peak = self.scenario, self.peak
        if peak.replicas is None:
            return self._nothing(policy, self._no_peak(peak.best_attainment))
        most = scenario.model.spec.scaling.max_replicas
        notes = []
        if peak.replicas > most:
            notes.append(
                f"a constant fleet takes {count_of(peak.replicas, 'replica')}, maxReplicas allows "
                f"{most}: policies that scale are held to it, those of hindsight are not"
            )
        if policy.name == STATIC_PEAK:
            runs = count_of(peak.num_runs, "run")
            notes.insert(0, f"{count_of(peak.replicas, 'replica')}, found in {runs}")
            return self._outcome(policy, self._follow([(0.0, peak.replicas)]), notes)
        stages = partial(stages_of, longest_start_s=scenario.start.longest_s)
        found = searched(
            lambda wanted: self._try(stages(wanted)),
            self.work,
            target=scenario.target,
            peak=peak.replicas,
        )
        began = (
            "a constant fleet"
            if found.full is None
            else f"replicas at {found.full:.0%} of their bound"
        )
        notes.insert(0, f"began with {began}, {found.num_runs} runs")
        return self._outcome(policy, self._follow(stages(found.wanted)), notes)

    def _with_queue(self, policy: Policy, field: str, value: str) -> PolicyResult:
        if not self.scenario.slo.ttft:
            return self._nothing(policy, f"{value} needs slo.timeToFirstToken")
        scenario = self.scenario.with_engine(field, value)
        try:
            return self._outcome(policy, self._run(scenario.operator(), scenario))
        except UnsupportedEngineError as error:
            return self._nothing(policy, str(error))

    def _run(self, controller: Controller, scenario: Scenario | None = None) -> Record:
        simulation = (scenario or self.scenario).simulation(self.drawn, controller)
        return simulation.run(self.drawn.duration_s)

    def _follow(self, stages: Stages) -> Record:
        return self._run(Scheduled(flags=self.scenario.planned.flags, stages=stages))

    def _try(self, stages: Stages) -> Tried:
        record = self._follow(stages)
        return Tried(
            attainment=fates(record, self.drawn, self.limits).attainment,
            gpu_hours=record.gpu_s(0, self.drawn.duration_s),
        )

    def _outcome(self, policy: Policy, record: Record, notes: Sequence[str] = ()) -> PolicyResult:
        found = fates(record, self.drawn, self.limits)
        return PolicyResult(
            policy=policy,
            seed=self.scenario.seed,
            judged=run_figures(record, self.drawn, found),
            points=series(record, self.drawn, found, self.work),
            fluid_gpu_hours=self.work.gpu_hours,
            notes=tuple(notes),
            faults=tuple(map(repr, record.faults)),
        )

    def _nothing(self, policy: Policy, why: str) -> PolicyResult:
        return PolicyResult(
            policy=policy,
            seed=self.scenario.seed,
            judged=None,
            fluid_gpu_hours=self.work.gpu_hours,
            notes=(why,),
        )

    def _no_peak(self, best: float) -> str:
        drawn = self.drawn
        target = self.scenario.target
        why = f"no constant number meets {target:.4g} of the requests, at best {best:.4f}"
        if drawn.too_long_s:
            why += (
                f": {len(drawn.too_long_s)} of {drawn.num_requests} are longer than contextLength "
                "and count as missed"
            )
        return why

    def _rival(self, policy: Policy) -> RivalController:
        return RivalController(SETTINGS, rule_of(policy, self.rivals), self.scenario.planned)
