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
    Reason,
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
from tonnage.control.input.results import Cause, Failure, WriteKind
from tonnage.control.input.state import Assessment, Fleet, ModelView
from tonnage.control.input.times import rfc3339
from tonnage.control.measure.attained import BUDGET_FIGURE
from tonnage.control.measure.traffic import moved_prompt_fraction
from tonnage.control.report.calibrated import calibration_status
from tonnage.control.report.condition_types import CONDITION_TYPES
from tonnage.control.report.conditions import conditions, problem_cell, problem_of
from tonnage.control.report.differing import Figures, facts, figures, figures_moved, is_moved
from tonnage.control.report.happenings import bad_conditions
from tonnage.control.report.kstatus import NO_PATH
from tonnage.control.report.plausible import with_speeds
from tonnage.control.report.roles import TOPOLOGY, has_roles, roles_replicas, roles_slo
from tonnage.estimate.posterior import Three
from tonnage.explain.offload import offload_reasons
from tonnage.explain.report import (
    batch_reasons,
    estimate_status,
    memory_reasons,
    plan_status,
    round_estimate,
)
from tonnage.memoize import memoize
from tonnage.sizing.request import SizingRequest
from tonnage.units import PETA

SLO_SOURCES = {
    "TTFT": "vllm:time_to_first_token_seconds",
    "TPOT": "vllm:request_time_per_output_token_seconds",
}
MOST_SHOWN = PETA
"""In a column of the table, which holds no more than 253 characters."""
SMOOTHING = 0.3
"""Weight of what Prometheus said last in a gauge that is shown; decisions use it as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """A status, the memory that goes with it, and whether it must be written now."""

    status: Status
    memory: ReportMemory
    must_write: bool


def memory_from_status(view: ModelView, *, now_s: float) -> ObjectMemory:
    """Return the memory of an object that this process sees for the first time.

    What people read goes on from the status that stands there: the last decisions, and since
    when each condition holds. So do the constants of the plan, while they are within the band in
    which this process, too, would plan with them again.
    """
    status = _standing(view)
    budget_left = status.measured.error_budget_left if status.measured else None
    known = ReportMemory(
        shown={BUDGET_FIGURE: budget_left} if budget_left else {},
        decisions=status.decisions,
        conditions={each.type: each for each in status.conditions},
        bad=bad_conditions(status.conditions, {}, now_s=now_s),
        posted_decision=status.decisions[0].time if status.decisions else None,
    )
    no_path = next((each.message for each in status.conditions if each.reason == NO_PATH), None)
    return ObjectMemory(
        uid=view.uid,
        decided=DecisionMemory(since_s=now_s),
        reported=known,
        sizing=SizingMemory(asked_speed=_planned_constants(status, view)),
        written=_without_path(view, no_path) if no_path else WriteMemory(),
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


def _without_path(view: ModelView, said: str) -> WriteMemory:
    known = Failure(cause=Cause.NO_PATH, said=said, generation=view.generation, times=0, at_s=0.0)
    return WriteMemory(failures={WriteKind.CHILDREN: known})


def report(found: Assessment, fleet: Fleet) -> Reported:
    """Return the status of an object, and whether it materially differs from what stands there."""
    status, known = (
        _pending_status(found, fleet) if found.pending else _planned_status(found, fleet)
    )
    (facts_before, before), after = _on_server(found.state.view), status.to_dict()
    gauges_due = fleet.now_s - known.gauges_written_at_s >= fleet.settings.status_interval_s
    must_write = facts_before != facts(after) or (
        gauges_due and figures_moved(before, figures(after))
    )
    frozen_plan = known.frozen_plan
    if found.mode != "Paused":
        frozen_plan = None
    elif status.plan:
        frozen_plan = status.plan.model_dump_json()
    known = replace(
        known,
        conditions={each.type: each for each in status.conditions},
        gauges_written_at_s=fleet.now_s if must_write else known.gauges_written_at_s,
        frozen_plan=frozen_plan,
    )
    return Reported(status=status, memory=known, must_write=must_write)


@memoize
def _on_server(view: ModelView) -> tuple[Mapping[str, Any], Figures]:
    """Return the facts and the figures of the status that the API server has."""
    status = json.loads(view.status)
    return facts(status), figures(status)


def _planned_status(found: Assessment, fleet: Fleet) -> tuple[Status, ReportMemory]:
    now = rfc3339(fleet.now_s)
    known, measured = _measured_status(found, _with_decision(found, now), fleet)
    met = conditions(replace(found, memory=replace(found.memory, reported=known)), fleet, now=now)
    status = Status(
        observed_generation=found.state.view.generation,
        replicas=replicas_status(found),
        plan=_plan(found),
        estimate=None
        if found.sizing is None or found.is_of_before
        else estimate_status(found.sizing, replicas=_decided_replicas(found)),
        measured=measured,
        calibration=calibration_status(found, fleet),
        decisions=known.decisions,
        conditions=met,
        display=_display(found, known, met),
        proposals=found.proposals,
    )
    return status, known


def _pending_status(found: Assessment, fleet: Fleet) -> tuple[Status, ReportMemory]:
    """Return the status that stands there, with what is known without the plan."""
    before, pending = _standing(found.state.view), found.pending
    known = conditions(found, fleet, now=rfc3339(fleet.now_s))
    display = {"problem": problem_cell(problem_of(known))}
    if pending and pending.is_told:
        display |= {"reason": PENDING}
    changes = {
        "observed_generation": found.state.view.generation,
        "replicas": replicas_status(found),
        "conditions": known,
        "display": (before.display or Display()).model_copy(update=display),
    }
    return before.model_copy(update=changes), found.memory.reported


def _standing(view: ModelView) -> Status:
    """Return the status on the API server; an empty one where another version wrote it."""
    try:
        return Status.model_validate_json(view.status)
    except ValidationError:
        return Status()


def _decided_replicas(found: Assessment) -> int | None:
    return found.decision.replicas if found.decision else None


def _plan(found: Assessment) -> PlanStatus | None:
    """Return the plan for the spec; a paused object keeps the one that it was paused with."""
    if found.mode == "Paused" and (frozen := _frozen_plan(found)):
        return frozen
    if found.sizing is None or found.decision is None or found.is_of_before:
        return None
    own = (
        *batch_reasons(found.sizing),
        *memory_reasons(found.sizing),
        *_offload_reasons(found),
    )
    reasons = (*found.decision.reasons, *found.decision.notes, *own)
    return plan_status(found.sizing, replicas=found.decision.replicas, reasons=reasons)


def _offload_reasons(found: Assessment) -> Iterator[Reason]:
    """Say whether the KV cache in host memory is worth it, by what running requests hold now."""
    if found.chosen is None or found.sizing is None:
        return
    spec = found.chosen.model.spec
    usages = (each.kv_usage_fraction for each in found.state.engines)
    known = [each for each in usages if each is not None]
    yield from offload_reasons(
        spec,
        found.sizing,
        held_fraction=fmean(known) if known else None,
        why=found.chosen.why_offload,
    )


def _frozen_plan(found: Assessment) -> PlanStatus | None:
    text = found.memory.reported.frozen_plan or json.dumps(
        json.loads(found.state.view.status).get("plan")
    )
    try:
        return PlanStatus.model_validate_json(text)
    except ValidationError:
        return None  # there is none, or another version wrote it


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


def _takes_caches(request: SizingRequest) -> bool:
    """Tell whether caches of prompts come from host memory or from another engine."""
    return request.has_host_cache or request.role == "decode"


def _gauges(found: Assessment, fleet: Fleet) -> Iterator[tuple[str, float | None, str]]:
    traffics, observed = found.traffics, found.observed
    demand, lengths = traffics.demand, traffics.lengths
    yield "requestsPerSecond", demand.requests_per_s if demand else None, "completions and backlog"
    preemptions = demand.preemptions_per_request if demand else None
    yield "preemptionsPerRequest", preemptions, "vllm:num_preemptions"
    for_decode = sum(each.waiting_for_decode for each in found.state.engines)
    waiting = demand.waiting + for_decode if demand else None
    yield "queueDepth", waiting, "vllm:num_requests_waiting"
    yield "running", demand.running if demand else None, "vllm:num_requests_running"
    yield "promptTokens", lengths.prompt_tokens if lengths else None, "vllm:prompt_tokens"
    yield "outputTokens", lengths.output_tokens if lengths else None, "vllm:generation_tokens"
    if observed:
        if found.sizing and _takes_caches(found.sizing.request):
            moved = moved_prompt_fraction(found.state.engines)
            yield "movedPromptFraction", moved, "vllm:prompt_tokens_by_source"
        yield "stepSeconds", observed.step_s, "vllm:inter_token_latency_seconds"
        yield "memoryBandwidthUtilization", observed.mbu, "step bytes over step time"
        yield "modelFlopsUtilization", observed.mfu, "step work over step time"
        yield "dramActive", observed.dram_active, "DCGM_FI_PROF_DRAM_ACTIVE"
        yield "engineBandwidthUtilization", observed.engine_mbu, "vllm:estimated_*_bytes_per_gpu"
        if found.sizing and found.sizing.flags.max_num_queued_tokens:
            refused = sum(each.refused_per_s for each in found.state.engines)
            yield "refusedPerSecond", refused, "vllm:admission_rejections"
        yield "kvTokens", observed.kv_tokens, "vllm:cache_config_info"
        strictest = {each.name: each for each in observed.attainments}  # by rising quantile
        for each in strictest.values():
            yield f"{each.name.lower()}Attainment", each.fraction, SLO_SOURCES[each.name]
    left = found.budget.left if found.budget else None
    before = found.memory.reported.shown.get(BUDGET_FIGURE)
    if left is None and before and found.state.view.uid in fleet.past_awaited:
        left = before.value
    yield BUDGET_FIGURE, left, "late requests over slo.attainment.window"
    yield "coldStartSeconds", found.memory.posterior.cold_start_s, "scheduled to Ready of own pods"


def _measured_status(
    found: Assessment, known: ReportMemory, fleet: Fleet
) -> tuple[ReportMemory, MeasuredStatus | None]:
    """Smooth the gauges; each keeps its value and time until it moves materially.

    What Prometheus said counts once, in however many ticks it is decided by.
    """
    now, said_at_s = rfc3339(fleet.now_s), fleet.windows_end_s
    weight = SMOOTHING if said_at_s != known.gauges_said_at_s else 0.0
    gauges, shown = dict(known.gauges), dict[str, MeasuredFigure]()
    for name, value, source in _gauges(found, fleet):
        if value is None:
            gauges.pop(name, None)
            continue
        smooth = value if name not in gauges else gauges[name] + weight * (value - gauges[name])
        gauges[name] = smooth
        before = known.shown.get(name)
        is_same = before is not None and not is_moved(name, before.value, smooth)
        shown[name] = (
            before
            if before and is_same
            else MeasuredFigure(value=round_estimate(smooth), source=source, changed_at=now)
        )
    measured = MeasuredStatus.model_validate(shown) if shown else None
    known = replace(
        known,
        gauges=gauges,
        gauges_said_at_s=said_at_s,
        speeds=with_speeds(found, fleet.now_s),
        shown=shown,
    )
    return known, measured


def _display(found: Assessment, known: ReportMemory, met: tuple[Condition, ...]) -> Display:
    mbu, queue = (
        known.shown.get("memoryBandwidthUtilization"),
        known.shown.get("queueDepth"),
    )
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
