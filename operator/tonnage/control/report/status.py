"""The status of one object, and whether it is to be written."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from pydantic import ValidationError

from tonnage.api.status import (
    MAX_DECISIONS,
    MESSAGE_LENGTH,
    Condition,
    DecisionStatus,
    Display,
    MeasuredFigure,
    MeasuredStatus,
    PlanStatus,
    ReplicasStatus,
    Status,
)
from tonnage.control.decide.approval import NEEDED
from tonnage.control.input.finding import PENDING
from tonnage.control.input.memory import (
    DecisionMemory,
    ObjectMemory,
    ReportMemory,
    SizingMemory,
    WriteMemory,
)
from tonnage.control.input.state import Assessment, Fleet, ModelView
from tonnage.control.input.times import place_of, rfc3339
from tonnage.control.input.writers import Cause, Failure, WriteKind
from tonnage.control.measure.attained import BUDGET_FIGURE
from tonnage.control.measure.causes import Utilization, utilization
from tonnage.control.measure.traffic import INCOMPLETE, moved_prompt_fraction
from tonnage.control.observe.starting import has_started
from tonnage.control.report.calibrated import calibration_status, with_speeds
from tonnage.control.report.conditions import (
    CONDITION_TYPES,
    TOPOLOGY,
    conditions,
    has_roles,
    problem_cell,
    problem_of,
    roles_replicas,
    roles_slo,
)
from tonnage.control.report.event_records import bad_conditions
from tonnage.control.report.reasons import CONDITIONS
from tonnage.control.report.rules import NO_PATH
from tonnage.estimate.posterior import Three
from tonnage.explain.report import (
    assumption_reasons,
    batch_reasons,
    estimate_status,
    memory_reasons,
    offload_reasons,
    plan_status,
    round_estimate,
    start_reasons,
)
from tonnage.memoize import memoize
from tonnage.sizing.plan import Sizing
from tonnage.units import PETA

SLO_SOURCES = {
    "TTFT": "vllm:time_to_first_token_seconds",
    "TPOT": "vllm:request_time_per_output_token_seconds",
}
MOST_SHOWN = PETA
"""In a column of the table, which holds no more than 253 characters."""
SMOOTHING = 0.5
"""Weight of the last look in a gauge that is shown; decisions use what Prometheus says as it is."""


MATERIAL = 0.10
FLOORS = {
    "queueDepth": 2.0,
    "running": 2.0,
    "requestsPerSecond": 0.05,
    "refusedPerSecond": 0.05,
    "deviationFraction": 0.05,
    "coldStartDeviationSeconds": 10.0,
    "nodeWaitSeconds": 10.0,
    "errorBudgetLeft": 0.05,
    "movedPromptFraction": 0.02,
}
"""A gauge that differs by less than this has not changed, whatever the ratio."""
COUNTS = frozenset({"queueDepth", "running"})
"""Of requests that come and go at random: they waver by the root of what they are."""


def is_moved(name: str, before: float, after: float) -> bool:
    """Tell whether a shown gauge changed by 10 %, by more than its floor, and not by chance.

    >>> is_moved("queueDepth", 0, 1), is_moved("stepSeconds", 0.040, 0.045)
    (False, True)
    >>> is_moved("running", 18, 20.5), is_moved("running", 180, 205)
    (False, True)
    """
    change, larger = abs(after - before), max(abs(before), abs(after))
    chance = math.sqrt(larger) if name in COUNTS else 0.0
    return change > max(FLOORS.get(name, 0.0), MATERIAL * larger, chance)


def facts(status: Status) -> tuple[object, ...]:
    """Return the part of a status whose every change is written at once.

    Numbers of the plan and of replicas, and conditions of ours without messages and times. The rest
    goes along with the next write: two limits that nearly touch change places with every waver.
    """
    return (
        status.observed_generation,
        status.replicas,
        status.plan and status.plan.model_copy(update={"reasons": (), "limited_by": ""}),
        [each.time for each in status.decisions],
        [each.digest for each in status.proposals],
        sorted(
            (each.type, each.status, each.reason)
            for each in status.conditions
            if each.type in CONDITIONS
        ),
    )


GAUGE_SECTIONS = ("estimate", "measured", "calibration")
COUNTERS = frozenset(
    {
        "busySteps",
        "windows",
        "judgedRequests",
        "coldStarts",
        "corroboratingNamespaces",
        "deviationFraction",
    }
)
"""Grows for ever, or shrinks: goes along, asks for no write of its own."""
NUMBERS = frozenset({int, float})
"""A bool is none."""
Figures = Mapping[tuple[str, str, str], float]
"""By section, name and part; what is no object is its own ``value``."""


def figures(status: Mapping[str, Any]) -> Figures:
    """Return the numbers that a status shows, but counters."""
    return {
        (section, name, part): number
        for section in GAUGE_SECTIONS
        for name, shown in (status.get(section) or {}).items()
        if name not in COUNTERS
        for part, number in (shown if isinstance(shown, dict) else {"value": shown}).items()
        if part not in COUNTERS and type(number) in NUMBERS and math.isfinite(number)
    }


def figures_moved(before: Figures, after: Figures) -> bool:
    """Tell whether any number that a status shows changed materially, appeared or vanished."""
    if before.keys() != after.keys():
        return True
    changed = (key for key, number in after.items() if number != before[key])
    return any(
        is_moved(key[1] if key[2] == "value" else key[2], before[key], after[key])
        for key in changed
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """What is said of an object, and the memory that goes with it."""

    conditions: tuple[Condition, ...]
    memory: ReportMemory
    status: Status | None
    """To write; None: it says nothing that is new."""


def memory_from_status(view: ModelView, *, now_s: float) -> ObjectMemory:
    """Return the memory of an object that this process sees for the first time.

    What people read goes on from the status that is there. So do the constants of the plan, while
    they are within the band in which this process, too, would plan with them again.
    """
    status = _standing(view)
    shown = {
        field.alias or name: figure
        for name, field in MeasuredStatus.model_fields.items()
        if (figure := getattr(status.measured, name, None)) is not None
    }
    known = ReportMemory(
        gauges={name: each.value for name, each in shown.items()},
        shown=shown,
        decisions=status.decisions,
        conditions={each.type: each for each in status.conditions},
        bad=bad_conditions(status.conditions, {}, now_s=now_s),
        posted_decision=status.decisions[0].time if status.decisions else None,
    )
    no_path = next((each.message for each in status.conditions if each.reason == NO_PATH), None)
    failures = {}
    if no_path:
        failures[WriteKind.CHILDREN] = Failure(
            cause=Cause.NO_PATH, detail=no_path, generation=view.generation, times=0, at_s=0.0
        )
    return ObjectMemory(
        uid=view.uid,
        decided=DecisionMemory(since_s=now_s),
        reported=known,
        sizing=SizingMemory(
            asked_speed=_planned_constants(status, view), generation=status.observed_generation
        ),
        written=WriteMemory(failures=failures),
    )


def _planned_constants(status: Status, view: ModelView) -> Three | None:
    """Return what the plan for this spec was made with."""
    shown = status.calibration
    if shown is None or status.observed_generation != view.generation:
        return None
    planned = (
        shown.overhead_factor.planned,
        shown.bandwidth_efficiency.planned,
        shown.prefill_efficiency.planned,
    )
    return planned if all(math.isfinite(each) and each > 0 for each in planned) else None


def report(found: Assessment, fleet: Fleet) -> Reported:
    """Return what is said of an object, and its status where that materially differs.

    Figures for show are measured once in a status interval and for a write, not in each tick. While
    a quarter of an hour of its engines is awaited that it lacks, what hangs on it stays as it was.
    """
    now, before = rfc3339(fleet.now_s), found.memory.reported
    known = before if found.pending else _with_decision(found, now)
    every_s, looked_at_s = fleet.settings.status_interval_s, known.looked_at_s
    is_refresh_due = looked_at_s is None or fleet.now_s - looked_at_s >= every_s
    is_look = not found.pending and is_refresh_due
    if is_look:
        known = _looked(found, known, fleet)
        found = replace(found, memory=replace(found.memory, reported=known))
    met = conditions(found, fleet, now=now)
    is_asked = found.state.view.namespace in fleet.history_awaited
    is_awaited = is_asked and found.traffics.why.code == INCOMPLETE
    if is_awaited:
        met = tuple(
            before.conditions.get(each.type, each)
            if CONDITION_TYPES[each.type].needs_history
            else each
            for each in met
        )
    stated = _stated(found, known, met)
    facts_before, figures_before = _on_server(found.state.view)
    is_unsettled = is_awaited or found.pending is not None
    is_news = facts_before != facts(stated) or (before.is_provisional and not is_unsettled)
    if is_news and not (is_look or found.pending):  # figures go along
        is_look, known = True, _looked(found, known, fleet)
    whole = _whole(found, known, stated) if is_news or is_look else None
    status, written_at_s = None, before.gauges_written_at_s
    is_due = not is_awaited and fleet.now_s - written_at_s >= every_s
    if whole and (is_news or (is_due and figures_moved(figures_before, figures(whole.to_dict())))):
        status = whole
        written_at_s = (known.looked_at_s if is_look else None) or fleet.now_s
    frozen = before.frozen_plan or (whole.plan if whole else None)
    known = replace(
        known,
        conditions={each.type: each for each in met},
        is_provisional=is_unsettled
        and (before.is_provisional or (is_awaited and status is not None)),
        gauges_written_at_s=written_at_s,
        frozen_plan=frozen if found.mode == "Paused" else None,
    )
    return Reported(conditions=met, memory=known, status=status)


@memoize
def _on_server(view: ModelView) -> tuple[tuple[object, ...], Figures]:
    """Return the facts and the figures, which are ours, of the status on the API server."""
    status = _standing(view)
    return facts(status), figures(status.to_dict())


def _stated(found: Assessment, known: ReportMemory, met: tuple[Condition, ...]) -> Status:
    """Return what a status is written for at once; in a search what needs the plan stays."""
    stated = Status(
        observed_generation=found.state.view.generation,
        replicas=replicas_status(found),
        plan=_plan(found),
        decisions=known.decisions,
        conditions=met,
        proposals=found.proposals,
    )
    if not found.pending:
        return stated
    before, parts = _standing(found.state.view), ("observed_generation", "replicas", "conditions")
    return before.model_copy(update={each: getattr(stated, each) for each in parts})


def _whole(found: Assessment, known: ReportMemory, stated: Status) -> Status:
    """Return a status with words and figures, too."""
    if found.pending:
        display = {"problem": problem_cell(problem_of(stated.conditions))}
        if found.pending.is_told:
            display |= {"reason": PENDING}
        return stated.model_copy(
            update={"display": (stated.display or Display()).model_copy(update=display)}
        )
    sizing = None if found.uses_previous_spec else found.sizing
    replicas = found.decision.replicas if found.decision else None
    more = {
        "plan": _with_reasons(found, stated.plan),
        "estimate": sizing and estimate_status(sizing, replicas),
        "measured": MeasuredStatus.model_validate(known.shown) if known.shown else None,
        "calibration": known.calibration,
        "display": _display(found, known, stated.conditions),
    }
    return stated.model_copy(update=more)


def _standing(view: ModelView) -> Status:
    """Return the status on the API server, section by section: another version may have written it.

    What this version does not know is ignored, and a section that it cannot read is absent.
    """
    try:
        return Status.model_validate_json(view.status, extra="ignore")
    except ValidationError as error:
        unread = {each["loc"][0] for each in error.errors() if each["loc"]}
    sections = {name: each for name, each in json.loads(view.status).items() if name not in unread}
    return Status.model_validate_json(json.dumps(sections), extra="ignore")


def _plan(found: Assessment) -> PlanStatus | None:
    """Return the plan for the spec; a paused object keeps the one that it was paused with."""
    if found.mode == "Paused":
        frozen = found.memory.reported.frozen_plan or _standing(found.state.view).plan
        if frozen:
            return frozen
    if found.sizing is None or found.decision is None or found.uses_previous_spec:
        return None
    return _numbers(found.sizing, found.decision.replicas)


@memoize
def _numbers(sizing: Sizing, replicas: int) -> PlanStatus:
    return plan_status(sizing, replicas=replicas)


def _with_reasons(found: Assessment, plan: PlanStatus | None) -> PlanStatus | None:
    """Return the plan with why it is so; a frozen one says that already."""
    chosen, decision = found.chosen, found.decision
    if chosen is None or decision is None or plan is not _numbers(chosen.sizing, decision.replicas):
        return plan
    sizing, spec = chosen.sizing, chosen.model.spec
    usages = (each.kv_usage_fraction for each in found.state.engines)
    known = [each for each in usages if each is not None]
    held_fraction = fmean(known) if known else None
    reasons = (
        *decision.reasons,
        *decision.notes,
        *batch_reasons(sizing),
        *memory_reasons(sizing),
        *(() if has_started(found.state) else start_reasons(sizing)),
        *assumption_reasons(sizing),
        *offload_reasons(spec, sizing, held_fraction=held_fraction, why=chosen.why_offload),
    )
    return plan_status(sizing, replicas=decision.replicas, reasons=reasons)


def replicas_status(found: Assessment) -> ReplicasStatus:
    """Return the replicas of an object; those wanted where Tonnage may write them."""
    if has_roles(found):
        return roles_replicas(found)
    deployment, current = found.state.deployment, found.state.replicas
    desired = found.decision.replicas if found.decision and found.is_acting else current
    is_ready = deployment.ready if deployment else 0
    return ReplicasStatus(
        desired=desired, current=current, ready=is_ready, summary=f"{is_ready}/{desired}"
    )


def _with_decision(found: Assessment, now: str) -> ReportMemory:
    """Add a decision to the last five when it changes the number of replicas, or would."""
    known, decision, current = found.memory.reported, found.decision, found.state.replicas
    if decision is None or decision.replicas == current or found.mode == "Paused":
        return known
    last = known.decisions[0] if known.decisions else None
    if last and (last.from_replicas, last.to_replicas) == (current, decision.replicas):
        return known
    newest = DecisionStatus(
        time=now,
        from_replicas=current,
        to_replicas=decision.replicas,
        code=decision.reasons[0].code,
        message=decision.message[:MESSAGE_LENGTH],
    )
    return replace(known, decisions=(newest, *known.decisions)[:MAX_DECISIONS])


def newest_decision(before: ReportMemory, after: ReportMemory) -> DecisionStatus | None:
    """Return the decision that a tick added to the last five, if it did."""
    newest = after.decisions[0] if after.decisions else None
    return newest if after.decisions != before.decisions else None


def _gauges(
    found: Assessment, fleet: Fleet, used: Utilization
) -> Iterator[tuple[str, float | None, str]]:
    observed = found.observed
    if demand := found.traffics.demand:
        yield "requestsPerSecond", demand.requests_per_s, "completions and backlog"
        yield "preemptionsPerRequest", demand.preemptions_per_request, "vllm:num_preemptions"
        for_decode = sum(each.waiting_for_decode for each in found.state.engines)
        yield "queueDepth", demand.waiting + for_decode, "vllm:num_requests_waiting"
        yield "running", demand.running, "vllm:num_requests_running"
    if lengths := found.traffics.lengths:
        yield "promptTokens", lengths.prompt_tokens, "vllm:prompt_tokens"
        yield "outputTokens", lengths.output_tokens, "vllm:generation_tokens"
    if observed:
        request = found.sizing.request if found.sizing else None
        if request and (request.has_host_cache or request.role == "decode"):
            moved = moved_prompt_fraction(found.state.engines)
            yield "movedPromptFraction", moved, "vllm:prompt_tokens_by_source"
        yield "stepSeconds", used.step_s, "vllm:inter_token_latency_seconds"
        yield "memoryBandwidthUtilization", used.mbu, "step bytes over step time"
        yield "modelFlopsUtilization", used.mfu, "step work over step time"
        yield "dramActive", used.dram_active, "DCGM_FI_PROF_DRAM_ACTIVE"
        yield "engineBandwidthUtilization", used.engine_mbu, "vllm:estimated_*_bytes_per_gpu"
        if found.sizing and found.sizing.flags.refuse_requests:
            refused = sum(each.refused_per_s for each in found.state.engines)
            yield "refusedPerSecond", refused, "vllm:admission_rejections"
        yield "kvTokens", observed.kv_tokens, "vllm:cache_config_info"
        strictest = {each.name: each for each in observed.attainments}  # by rising quantile
        for each in strictest.values():
            yield f"{each.name.lower()}Attainment", each.fraction, SLO_SOURCES[each.name]
    remaining = found.budget.left if found.budget else None
    before = found.memory.reported.shown.get(BUDGET_FIGURE)
    if remaining is None and before and found.state.view.uid in fleet.past_awaited:
        remaining = before.value
    yield BUDGET_FIGURE, remaining, "late requests over slo.attainment.window"
    yield "coldStartSeconds", found.memory.posterior.cold_start_s, "scheduled to Ready of own pods"


def _looked(found: Assessment, known: ReportMemory, fleet: Fleet) -> ReportMemory:
    """Measure the figures for show; each keeps its value and time until it moves materially.

    What Prometheus said counts once.
    """
    now, said_at_s = rfc3339(fleet.now_s), fleet.windows_end_s
    is_first = known.looked_at_s is None  # the next looks at all objects are not at once
    early_s = place_of(found.memory.uid) * fleet.settings.status_interval_s if is_first else 0.0
    used = utilization(found, found.chosen, fleet) if found.chosen else Utilization()
    weight = SMOOTHING if said_at_s != known.gauges_said_at_s else 0.0
    gauges, shown = dict[str, float](), dict[str, MeasuredFigure]()
    for name, value, source in _gauges(found, fleet, used):
        if value is None:
            continue
        was = known.gauges.get(name, value)
        gauges[name] = smooth = was + weight * (value - was)
        before = known.shown.get(name)
        if before is None or is_moved(name, before.value, smooth):
            before = MeasuredFigure(value=round_estimate(smooth), source=source, changed_at=now)
        shown[name] = before
    return replace(
        known,
        looked_at_s=fleet.now_s - early_s,
        gauges=gauges,
        gauges_said_at_s=said_at_s,
        speeds=with_speeds(found, used.speeds, fleet.now_s),
        shown=shown,
        calibration=calibration_status(found, fleet),
    )


def _display(found: Assessment, known: ReportMemory, met: tuple[Condition, ...]) -> Display:
    mbu, queue = map(known.shown.get, ("memoryBandwidthUtilization", "queueDepth"))
    shares = found.observed.attainments if found.observed else ()
    missed = [
        f"{each.name} {each.fraction:.0%}" for each in shares if each.fraction < each.quantile
    ]
    problem = problem_of(met)
    reason = problem.reason if problem and CONDITION_TYPES[problem.type].is_cause else ""
    if found.decision and not reason:
        reason = NEEDED if found.proposals else found.decision.reasons[0].code
    if has_roles(found):
        return Display(
            slo=roles_slo(found), reason=reason or TOPOLOGY, problem=problem_cell(problem)
        )
    return Display(
        mbu=f"{min(mbu.value, MOST_SHOWN):.0%}" if mbu else "",
        queue=f"{min(queue.value, MOST_SHOWN):.0f}" if queue else "",
        slo=", ".join(missed) or ("met" if shares else ""),
        reason=reason,
        problem=problem_cell(problem),
    )
