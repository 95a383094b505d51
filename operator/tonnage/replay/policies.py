"""What is compared, by name, and how one of them fares in a scenario."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Final

from tonnage.api.spec import Spec
from tonnage.catalog.gpu import UnsupportedEngineError
from tonnage.replay.drawn import Drawn
from tonnage.replay.fluid import Work, work_of
from tonnage.replay.hindsight import MOST_REPLICAS, StaticPeak, Tried, stages_of, static_peak
from tonnage.replay.hindsight import staircase as searched
from tonnage.replay.judge import LatencyLimits, RunFigures, fates, run_figures
from tonnage.replay.oracle import Oracle
from tonnage.replay.record import Record
from tonnage.replay.rivals.controller import Given, RivalController
from tonnage.replay.rivals.registry import RIVALS, Rival
from tonnage.replay.scenario import SETTINGS, Scenario
from tonnage.replay.scheduled import Scheduled, Stages
from tonnage.replay.series import SeriesPoint, series
from tonnage.replay.simulation import Controller
from tonnage.replay.truth import machine
from tonnage.sizing.expected import newest_first_s, refuses_late, slo_of
from tonnage.sizing.request import SizingRequest
from tonnage.units import count_of

TONNAGE, STATIC, STATIC_PEAK, STAIRCASE = "tonnage", "static", "static-peak", "staircase"
NEWEST_FIRST, IN_TIME = "newest-first", "in-time"
OWN: Final[Mapping[str, str]] = {
    TONNAGE: "the operator itself, with its default settings",
    NEWEST_FIRST: "tonnage with engine.queue: newestFirst, for all else the same",
    IN_TIME: "tonnage with engine.admission: inTime, for all else the same",
    STATIC: "static:N, so many replicas all the time",
    STATIC_PEAK: "in hindsight, the smallest constant number that meets the target",
    STAIRCASE: "in hindsight, replicas by 5 minutes, Ready in time: what there is to win",
}
OTHER_QUEUES: Final[Mapping[str, tuple[str, str]]] = {
    NEWEST_FIRST: ("queue", "newestFirst"),
    IN_TIME: ("admission", "inTime"),
}
"""By policy, the field of the engine and its value."""
DEFAULT: Final = (TONNAGE, *OTHER_QUEUES, STATIC_PEAK, STAIRCASE)


class UnknownPolicyError(ValueError):
    """No policy of that name, or it takes no such number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A policy, and the value of its knob; None: its default, or it has none."""

    name: str
    knob: float | None = None

    def __str__(self) -> str:
        return self.name if self.knob is None else f"{self.name}:{self.knob:g}"


def policy_of(text: str, rivals: Mapping[str, Rival] = RIVALS) -> Policy:
    """Read a name, or a name and a number with a colon between.

    Raises:
        UnknownPolicyError: with what is wrong.
    """
    name, colon, written = text.strip().partition(":")
    if name not in OWN and name not in rivals:
        known = ", ".join((*OWN, *rivals))
        raise UnknownPolicyError(f"{name[:40]!r} is no policy; known are {known}")
    if not colon:
        if name == STATIC:
            raise UnknownPolicyError("static needs a number of replicas: static:4")
        return Policy(name=name)
    if name in OWN and name != STATIC:
        raise UnknownPolicyError(f"{name} takes no number")
    return Policy(name=name, knob=_number(name, written))


def _number(name: str, written: str) -> float:
    try:
        knob = float(written)
    except ValueError:
        knob = math.nan
    is_number = math.isfinite(knob) and knob > 0
    if not is_number or (name == STATIC and (knob != int(knob) or knob > MOST_REPLICAS)):
        what = (
            f"a number of replicas up to {MOST_REPLICAS}" if name == STATIC else "a number above 0"
        )
        raise UnknownPolicyError(f"{name}:{written[:40]} is not {what}")
    return knob


def default_policies(spec: Spec) -> tuple[Policy, ...]:
    """Return what a replay compares where nothing is asked for: no other queue where none is."""
    runs = {NEWEST_FIRST} if newest_first_s(spec) else set()
    runs |= {IN_TIME} if refuses_late(spec) else set()
    left_out = runs if slo_of(spec).ttft else OTHER_QUEUES.keys()
    return tuple(Policy(name=name) for name in DEFAULT if name not in left_out)


def description_of(policy: Policy) -> str:
    """Return what a policy is with the number that it was given."""
    if policy.name == STATIC:
        return f"{count_of(int(policy.knob or 1), 'replica')} all the time"
    if rival := RIVALS.get(policy.name):
        number = rival.default if policy.knob is None else policy.knob
        return f"{rival.description} ({rival.knob}: {number:g})"
    return OWN[policy.name]


def descriptions() -> dict[str, str]:
    """Return what each policy is, in a line; ours first, a constant fleet among them."""
    rivals = {name: description_of(Policy(name=name)) for name in RIVALS}
    return {**OWN, **rivals}


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
        (record,) = scenario.simulation(drawn, nothing).records
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

    @cached_property
    def true_requests_per_s(self) -> float:
        """What a replica serves of the requests that come first."""
        flags = self.scenario.planned.flags
        kind = machine(self.request, flags, self.scenario.truth())
        oracle = Oracle(request=replace(self.request, flags=flags), machine=kind)
        return oracle.staffing(self.drawn.traffic.shape_at(0.0)).each(1)

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
        (record,) = simulation.run(self.drawn.duration_s)
        return record

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
        scenario, rival = self.scenario, self.rivals[policy.name]
        uid, plan = scenario.model.uid, scenario.planned
        true = self.true_requests_per_s if rival.knows_truth else math.nan
        knob = rival.default if policy.knob is None else policy.knob
        return RivalController(
            settings=SETTINGS,
            rules={uid: rival.factory(knob, SETTINGS.scrape_interval_s)},
            given={
                uid: Given(
                    flags=plan.flags,
                    replicas=plan.replicas,
                    believed_requests_per_s=plan.believed_requests_per_s,
                    true_requests_per_s=true,
                )
            },
        )
