"""The status of one object, and whether it is to be written."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import ValidationError

from tonnage.api.status import (
    MAX_DECISIONS,
    Condition,
    DecisionStatus,
    Display,
    Figure,
    MeasuredStatus,
    PlanStatus,
    ProposalStatus,
    ReplicasStatus,
    Status,
)
from tonnage.control.decide.approval import NEEDED
from tonnage.control.input.finding import PENDING
from tonnage.control.input.state import Assessment, Fleet, ModelView, ObjectMemory, ShownFigure
from tonnage.control.input.times import rfc3339
from tonnage.control.observe.rivals import left_replicas
from tonnage.control.report.calibrated import calibration_status
from tonnage.control.report.conditions import conditions
from tonnage.control.report.differing import gauges_moved, is_moved, said
from tonnage.control.report.happenings import told_of
from tonnage.control.report.kstatus import NO_PATH
from tonnage.control.report.plausible import remembered_speeds
from tonnage.control.report.problem import CAUSES, problem_of, shown
from tonnage.explain.report import (
    batch_reasons,
    estimate_status,
    memory_reasons,
    plan_status,
    rounded,
)
from tonnage.units import PETA
from tonnage.values import replace

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
    memory: ObjectMemory
    must_write: bool


def recalled(view: ModelView, *, now_s: float) -> ObjectMemory:
    """Return the memory of an object that this process sees for the first time.

    What people read goes on from the status that stands there: the last decisions, and since
    when each condition holds. Nothing is decided by it.
    """
    status = _standing(view)
    return ObjectMemory(
        uid=view.uid,
        since_s=now_s,
        decisions=status.decisions,
        conditions={each.type: each for each in status.conditions},
        told=told_of(status.conditions, {}, now_s=now_s),
        told_decision=status.decisions[0].time if status.decisions else None,
        no_path=next((each.message for each in status.conditions if each.reason == NO_PATH), None),
    )


def report(found: Assessment, fleet: Fleet) -> Reported:
    """Return the status of an object, and whether it materially differs from what stands there."""
    status, memory = _awaited(found, fleet) if found.pending else _found(found, fleet)
    memory = replace(memory, conditions={each.type: each for each in status.conditions})
    before, after = said(found.state.view.status.value), said(status.to_dict())
    gauges_due = fleet.now_s - memory.gauges_written_at_s >= fleet.settings.status_interval_s
    differs = after.facts != before.facts
    moved = gauges_due and gauges_moved(before, after)
    if differs or moved:
        memory = replace(memory, gauges_written_at_s=fleet.now_s)
    if found.mode == "Paused" and status.plan:
        memory = replace(memory, frozen_plan=status.plan.model_dump_json())
    elif found.mode != "Paused":
        memory = replace(memory, frozen_plan=None)
    return Reported(status=status, memory=memory, must_write=differs or moved)


def _found(found: Assessment, fleet: Fleet) -> tuple[Status, ObjectMemory]:
    now = rfc3339(fleet.now_s)
    found = replace(found, memory=remembered_speeds(found, fleet.now_s))
    memory = _remember_decision(found, now)
    memory, measured = _measured(found, memory, now, said_at_s=fleet.windows_end_s)
    known = conditions(found, fleet, now=now)
    status = Status(
        observed_generation=found.state.view.generation,
        replicas=replicas_status(found),
        plan=_plan(found, memory),
        estimate=None
        if found.sizing is None or found.is_of_before
        else estimate_status(found.sizing, replicas=_planned(found)),
        measured=measured,
        calibration=calibration_status(found, fleet),
        decisions=memory.decisions,
        conditions=known,
        display=_display(found, memory, known),
        proposals=tuple(
            ProposalStatus(digest=each.digest, reason=each.reason, message=each.message[:1024])
            for each in found.proposals
        ),
    )
    return status, memory


def _awaited(found: Assessment, fleet: Fleet) -> tuple[Status, ObjectMemory]:
    """Return the status that stands there, with what is known without the plan."""
    before, pending = _standing(found.state.view), found.pending
    known = conditions(found, fleet, now=rfc3339(fleet.now_s))
    display = {"problem": shown(problem_of(known))}
    if pending and pending.is_told:
        display |= {"reason": PENDING}
    changes = {
        "observed_generation": found.state.view.generation,
        "replicas": replicas_status(found),
        "conditions": known,
        "display": (before.display or Display()).model_copy(update=display),
    }
    return before.model_copy(update=changes), found.memory


def _standing(view: ModelView) -> Status:
    """Return the status on the API server; an empty one where another version wrote it."""
    try:
        return Status.model_validate_json(view.status.text)
    except ValidationError:
        return Status()


def _planned(found: Assessment) -> int | None:
    return found.decision.replicas if found.decision else None


def _plan(found: Assessment, memory: ObjectMemory) -> PlanStatus | None:
    """Return the plan for the spec; a paused object keeps the one that it was paused with."""
    if found.mode == "Paused" and (frozen := _frozen_plan(found, memory)):
        return frozen
    if found.sizing is None or found.decision is None or found.is_of_before:
        return None
    own = (*batch_reasons(found.sizing), *memory_reasons(found.sizing))
    reasons = (*own, *found.decision.reasons)
    return plan_status(found.sizing, replicas=found.decision.replicas, reasons=reasons)


def _frozen_plan(found: Assessment, memory: ObjectMemory) -> PlanStatus | None:
    text = memory.frozen_plan or json.dumps(found.state.view.status.value.get("plan"))
    try:
        return PlanStatus.model_validate_json(text)
    except ValidationError:
        return None  # there is none, or another version wrote it


def replicas_status(found: Assessment) -> ReplicasStatus:
    """Return the replicas of an object; those wanted where Tonnage may write them."""
    deployment = found.state.deployment
    current = deployment.replicas if deployment else 0
    is_left = left_replicas(found) is not None
    is_acting = found.is_acting and found.decision is not None and not is_left
    desired = found.decision.replicas if found.decision and is_acting else current
    is_ready = deployment.ready if deployment else 0
    return ReplicasStatus(
        desired=desired, current=current, ready=is_ready, summary=f"{is_ready}/{desired}"
    )


def _remember_decision(found: Assessment, now: str) -> ObjectMemory:
    """Add a decision to the last five when it changes the number of replicas, or would."""
    memory, decision, deployment = found.memory, found.decision, found.state.deployment
    current = deployment.replicas if deployment else 0
    if decision is None or decision.replicas == current or found.mode == "Paused":
        return memory
    if left_replicas(found) is not None:
        return memory
    last = memory.decisions[0] if memory.decisions else None
    if last and (last.from_replicas, last.to_replicas) == (current, decision.replicas):
        return memory
    newest = DecisionStatus(
        time=now,
        from_replicas=current,
        to_replicas=decision.replicas,
        code=decision.reasons[-1].code,
        message="; ".join(reason.message for reason in decision.reasons)[:1024],
    )
    return replace(memory, decisions=(newest, *memory.decisions)[:MAX_DECISIONS])


def newest_decision(before: ObjectMemory, after: ObjectMemory) -> DecisionStatus | None:
    """Return the decision that a tick added to the last five, if it did."""
    newest = after.decisions[0] if after.decisions else None
    return newest if after.decisions != before.decisions else None


def _gauges(found: Assessment) -> Iterator[tuple[str, float | None, str]]:
    traffics, observed = found.traffics, found.observed
    demand, lengths = traffics.demand, traffics.lengths
    yield "requestsPerSecond", demand.requests_per_s if demand else None, "completions and backlog"
    preemptions = demand.preemptions_per_request if demand else None
    yield "preemptionsPerRequest", preemptions, "vllm:num_preemptions"
    yield "queueDepth", demand.waiting if demand else None, "vllm:num_requests_waiting"
    yield "running", demand.running if demand else None, "vllm:num_requests_running"
    yield "promptTokens", lengths.prompt_tokens if lengths else None, "vllm:prompt_tokens"
    yield "outputTokens", lengths.output_tokens if lengths else None, "vllm:generation_tokens"
    if observed:
        yield "stepSeconds", observed.step_s, "vllm:inter_token_latency_seconds"
        yield "memoryBandwidthUtilization", observed.mbu, "step bytes over step time"
        yield "modelFlopsUtilization", observed.mfu, "step work over step time"
        yield "dramActive", observed.dram_active, "DCGM_FI_PROF_DRAM_ACTIVE"
        yield "engineBandwidthUtilization", observed.engine_mbu, "vllm:estimated_*_bytes_per_gpu"
        yield "kvTokens", observed.kv_tokens, "vllm:cache_config_info"
        strictest = {each.name: each for each in observed.attainments}  # by rising quantile
        for each in strictest.values():
            yield f"{each.name.lower()}Attainment", each.fraction, SLO_SOURCES[each.name]
    yield "coldStartSeconds", found.memory.posterior.cold_start_s, "scheduled to Ready of own pods"


def _measured(
    found: Assessment, memory: ObjectMemory, now: str, *, said_at_s: float
) -> tuple[ObjectMemory, MeasuredStatus | None]:
    """Smooth the gauges; each keeps its value and time until it moves materially.

    What Prometheus said counts once, in however many ticks it is decided by.
    """
    weight = SMOOTHING if said_at_s != memory.gauges_said_at_s else 0.0
    gauges, shown = dict(memory.gauges), dict[str, ShownFigure]()
    for name, value, source in _gauges(found):
        if value is None:
            gauges.pop(name, None)
            continue
        smooth = value if name not in gauges else gauges[name] + weight * (value - gauges[name])
        gauges[name] = smooth
        before = memory.shown.get(name)
        kept = before and not is_moved(name, before.value, smooth)
        shown[name] = before if before and kept else ShownFigure(rounded(smooth), source, now)
    figures = {
        name: Figure(value=each.value, source=each.source, changed_at=each.changed_at)
        for name, each in shown.items()
    }
    measured = MeasuredStatus.model_validate(figures) if figures else None
    return replace(memory, gauges=gauges, gauges_said_at_s=said_at_s, shown=shown), measured


def _display(found: Assessment, memory: ObjectMemory, known: tuple[Condition, ...]) -> Display:
    mbu, queue = memory.shown.get("memoryBandwidthUtilization"), memory.shown.get("queueDepth")
    shares = found.observed.attainments if found.observed else ()
    missed = [
        f"{each.name} {each.fraction:.0%}" for each in shares if each.fraction < each.quantile
    ]
    problem = problem_of(known)
    reason = problem.reason if problem and problem.type in CAUSES else ""
    if found.decision and not reason:
        reason = NEEDED if found.proposals else found.decision.reasons[-1].code
    return Display(
        mbu=f"{min(mbu.value, MOST_SHOWN):.0%}" if mbu else "",
        queue=f"{min(queue.value, MOST_SHOWN):.0f}" if queue else "",
        slo=", ".join(missed) or ("met" if shares else ""),
        reason=reason,
        problem=shown(problem),
    )
