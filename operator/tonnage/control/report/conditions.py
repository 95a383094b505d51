"""Conditions as people read them: one short rule each."""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from statistics import median_low

from tonnage.api.status import Condition
from tonnage.control.decide.approval import NEEDED, approval
from tonnage.control.input.finding import PENDING, UNREADABLE, Finding, State
from tonnage.control.input.memory import PodSpeed
from tonnage.control.input.state import Assessment, Attainment, Fleet
from tonnage.control.learn.learning import (
    believable_range,
    estimated_kv_tokens,
    fits_memory,
    is_settled,
)
from tonnage.control.measure.traffic import is_blind
from tonnage.control.observe.capacity import WHY_NO_POD, why_refused
from tonnage.control.observe.evicted import DISRUPTION_BUDGET
from tonnage.control.observe.starting import held_up
from tonnage.control.report.drift import template_drift
from tonnage.control.report.kstatus import ready, reconciling, stall, workload_kind
from tonnage.control.report.plausible import speed_plausible
from tonnage.control.report.roles import has_roles, role_findings
from tonnage.estimate.metrics import TABLE
from tonnage.policy.situation import Metrics
from tonnage.sizing.workload import PERCENT
from tonnage.units import HOUR_S, KIB, count_of

HYSTERESIS = 0.01
"""Attainment must miss its percentile by more than this before SLOMet turns False."""
BUDGET_HYSTERESIS = 0.1
"""Of an error budget that was burnt, that must be left for ErrorBudget to turn True."""
BUDGET_CODES = {"GPUBudget": "BudgetExceeded", "GPUsUncounted": "BudgetUncounted"}
"""Reason of CapacityAvailable for what a limit of the budget is called."""
OTHER_LIMITS = {"MaxReplicas", "MinReplicas", "StepCap", NEEDED, DISRUPTION_BUDGET}
LIMIT_CODES = frozenset(OTHER_LIMITS | WHY_NO_POD | BUDGET_CODES.keys())
MESSAGE_LENGTH = KIB
SHARED = 4096
"""Conditions that are one for all objects of which the same is said: each takes 1 KB."""
MOST_NAMED = 4
"""Queries that are named in one message."""
OF_THE_PLAN = frozenset(
    {
        "PlanValid",
        "CapacityAvailable",
        "ScalingLimited",
        "SLOMet",
        "ErrorBudget",
        "SpeedPlausible",
        "KVCapacityAsPlanned",
        "Approved",
    }
)
"""Conditions that stand on the plan: they stay as they were while it waits for its search."""


def plan_valid(found: Assessment) -> Finding:
    if found.refusal:
        return Finding(
            "PlanValid",
            "False",
            found.refusal.reason,
            found.refusal.message,
        )
    if found.chosen and found.chosen.problem:
        return Finding("PlanValid", "False", "SLOInfeasible", found.chosen.problem)
    return Finding("PlanValid", "True", "Planned", "the plan is in status.plan")


def metrics_available(found: Assessment, fleet: Fleet) -> Finding:
    """What failed without being needed for demand is named: the rest of it is as sure as ever."""
    traffics = found.traffics
    states: Mapping[Metrics, State] = {
        Metrics.COMPLETE: "True",
        Metrics.MISSING: "False",
        Metrics.NEVER: "Unknown",
    }
    reason, message = traffics.reason, traffics.message
    failed = list(_failed_queries(found, fleet))
    if traffics.metrics is Metrics.COMPLETE and failed:
        more = f" and {len(failed) - MOST_NAMED} more" if len(failed) > MOST_NAMED else ""
        reason = "ScrapedInPart"
        message = f"{message}; without answer: {', '.join(failed[:MOST_NAMED])}{more}"
    return Finding("MetricsAvailable", states[traffics.metrics], reason, message)


def _failed_queries(found: Assessment, fleet: Fleet) -> Iterator[str]:
    """Yield the queries that lack an answer, or a part of one, for the pods of an object."""
    namespace = found.state.view.namespace
    if not (fleet.problems or fleet.partial):
        return
    for query in TABLE:
        if problem := fleet.problem_of(query, namespace):
            yield f"{query} ({problem[0]}: {problem[1]})"
        elif fleet.is_partial(query, namespace):
            yield f"{query} (partial)"


def capacity_available(found: Assessment) -> Finding:
    deployment = found.state.deployment
    problems = dict(deployment.problems) if deployment else {}
    decision, refusal = found.decision, found.refusal
    if refusal and refusal.reason == UNREADABLE:
        return Finding("CapacityAvailable", "Unknown", refusal.reason, refusal.message)
    if why := held_up(found.state):
        reason, message = why
    elif "ReplicaFailure" in problems:
        message = problems["ReplicaFailure"]
        reason = why_refused(message)
    elif silent := _silent_controller(found):
        reason, message = "ControllerSilent", silent
    elif decision and decision.limited_by in BUDGET_CODES:
        reason, message = BUDGET_CODES[decision.limited_by], decision.reasons[-1].message
    else:
        return Finding(
            "CapacityAvailable",
            "True",
            "Scheduled",
            "no pod waits for a GPU, and none fails",
        )
    return Finding("CapacityAvailable", "False", reason, message)


def _silent_controller(found: Assessment) -> str | None:
    """Say that nobody acts on what was written: pods are neither made nor replaced.

    Of a workload that is being deleted nobody makes any.
    """
    live, behind = found.state.deployment, found.memory.pods.behind
    if live is None or live.is_deleting or behind is None or not behind.is_long:
        return None
    return (
        f"the controller of {live.kind} {live.name} has not acted on generation {live.generation} "
        f"for a minute, only on {behind.generation}: it does not run, or its Events say why"
    )


def scaling_active(found: Assessment) -> Finding:
    if found.refusal and not found.is_of_before:
        state: tuple[State, str, str] = ("False", "PlanInvalid", "nothing is scaled without a plan")
    elif found.state.conflicting_autoscaler:
        other = found.state.conflicting_autoscaler
        message = f"{other} scales the same {workload_kind(found)}: Tonnage does not write"
        state = ("False", "ConflictingScaler", message)
    elif found.is_acting and (conflict := found.memory.writers.conflict):
        state = ("False", *conflict)
    elif found.is_acting and found.blackout:
        state = ("False" if is_blind(found.traffics) else "True", "FleetBlind", found.blackout)
    elif found.is_acting and found.refusal:
        message = "replicas follow a plan for what runs, until the spec can be carried out"
        state = ("True", "ScalingWhatRuns", message)
    elif found.is_acting:
        state = ("True", "Scaling", "replicas follow the plan")
    else:
        reasons = {"Recommend": "RecommendOnly", "Paused": "Paused"}
        state = ("False", reasons[found.mode], f"mode is {found.mode}: status only")
    return Finding("ScalingActive", state[0], state[1], state[2])


def scaling_limited(found: Assessment) -> Finding:
    decision = found.decision
    if decision is not None:
        code = decision.limited_by if decision.limited_by in LIMIT_CODES else DISRUPTION_BUDGET
        if reason := next((r for r in reversed(decision.reasons) if r.code == code), None):
            return Finding("ScalingLimited", "True", reason.code, reason.message)
    return Finding(
        "ScalingLimited",
        "False",
        "WithinBounds",
        "the need is within every bound",
    )


def slo_met(found: Assessment) -> Finding:
    shares = found.observed.attainments if found.observed else ()
    before = found.memory.reported.conditions.get("SLOMet")
    slack = HYSTERESIS if before and before.status == "True" else 0.0
    misses = [
        f"{each.name}: {each.fraction:.1%} within the limit, target {each.quantile:.0%}"
        f"{_because(each)}"
        for each in shares
        if each.fraction < each.quantile - slack
    ]
    if not shares:
        return Finding("SLOMet", "Unknown", "NoTraffic", "no finished requests to judge")
    if misses:
        return Finding("SLOMet", "False", "Missed", "; ".join(misses))
    return Finding("SLOMet", "True", "Met", "every SLO target is met")


def _because(each: Attainment) -> str:
    if each.other_cause:
        return f" ({each.other_cause}: more replicas do not help)"
    return f" ({each.refused_fraction:.1%} were refused)" if each.refused_fraction else ""


def error_budget(found: Assessment) -> Finding:
    """Say whether more requests were late over the window of the SLO than may be.

    What was burnt is left again with a tenth of it: late requests come and go.
    """
    kind, budget = "ErrorBudget", found.budget
    before = found.memory.reported.conditions.get(kind)
    if budget is None:
        return Finding(kind, "Unknown", "NotJudged", "no SLO, no plan or too few requests to judge")
    window, objective = f"{budget.window_s / HOUR_S:.3g} h", budget.objective
    was_burnt = before is not None and before.status == "False"
    if not budget.is_burnt and not (was_burnt and budget.left < BUDGET_HYSTERESIS):
        message = f"within {window} no more requests are late than every SLO target allows"
        return Finding(kind, "True", "Left", message)
    late_share = budget.num_late / budget.num_requests
    shares = (late_share, objective.allowed_share, budget.recent_share)
    late, allowed, lately = (f"{PERCENT * share:.3g}%" for share in shares)
    judged = count_of(f"{budget.num_requests:,.0f}", "request")
    message = (
        f"{objective.limit}: {late} of {judged} within {window} were late, {allowed} may be; "
        f"lately {lately}"
    )
    return Finding(kind, "False", "Burnt", message)


def kv_capacity(found: Assessment) -> Finding:
    """Hold what the object's own engines say of their pool against the estimate."""
    kind = "KVCapacityAsPlanned"
    chosen, reported = found.chosen, found.observed.kv_reports if found.observed else ()
    if chosen is None or not reported:
        return Finding(kind, "Unknown", "NoReport", "no replica reports its KV cache")
    if not is_settled(found):
        return Finding(kind, "Unknown", "RollingOut", "some replicas still run other flags")
    tokens, estimate = median_low(reported), estimated_kv_tokens(chosen.sizing)
    low, high = believable_range(chosen.sizing)
    told = f"{tokens:,.0f} KV tokens of a rank are reported, estimated were {estimate:,.0f}"
    if not fits_memory(tokens, chosen.sizing):
        why = f"{told}: more than the memory of the GPU class holds, so the report is not used"
        return Finding(kind, "False", "MoreThanMemory", why)
    if not low <= tokens <= high:
        why = (
            f"{told} (believable are {low:,.0f} to {high:,.0f}): used for this object, not shared "
            "with others; look for --kv-cache-memory-bytes, --num-gpu-blocks-override, or another "
            "process on the GPU"
        )
        return Finding(kind, "False", "FarFromEstimate", why)
    return Finding(kind, "True", "AsPlanned", told)


def calibration_stored(fleet: Fleet) -> Finding:
    kind = "CalibrationStored"
    if fleet.state_problem:
        return Finding(kind, "False", *fleet.state_problem)
    return Finding(kind, "True", "Stored", "what is learned is saved for the next start")


def conditions(
    found: Assessment, speeds: Mapping[str, PodSpeed], fleet: Fleet, *, now: str
) -> tuple[Condition, ...]:
    """Return every condition that is present; a transition time moves only with its status.

    ``speeds``: of its pods, as of this tick.
    """
    generation, before = found.state.view.generation, found.memory.reported.conditions
    said = _said(found, speeds, fleet)
    return tuple(
        _condition(finding, finding.state, before.get(finding.type), generation, now)
        for finding in (_as_planned(each, found) for each in said)
        if finding.state is not None
    )


def _said(found: Assessment, speeds: Mapping[str, PodSpeed], fleet: Fleet) -> tuple[Finding, ...]:
    if has_roles(found):
        return tuple(role_findings(found, plan_valid(found)))
    is_ready, stalled = ready(found), stall(found)
    return (
        is_ready,
        reconciling(found, is_ready, stalled),
        stalled,
        plan_valid(found),
        capacity_available(found),
        scaling_active(found),
        scaling_limited(found),
        slo_met(found),
        error_budget(found),
        speed_plausible(found, speeds),
        kv_capacity(found),
        approval(found),
        template_drift(found),
        metrics_available(found, fleet),
        calibration_stored(fleet),
    )


def _as_planned(finding: Finding, found: Assessment) -> Finding:
    """Leave what stands on the plan as it was while a search is awaited, and say so if it lasts."""
    pending = found.pending
    if pending is None or finding.state is None or finding.type not in OF_THE_PLAN:
        return finding
    before = found.memory.reported.conditions.get(finding.type)
    if before is None:
        return Finding(finding.type, "Unknown", PENDING, pending.message)
    if finding.type == "PlanValid" and pending.is_told:
        return Finding(finding.type, before.status, PENDING, pending.message)
    return Finding(finding.type, before.status, before.reason, before.message)


def _condition(
    finding: Finding, state: State, before: Condition | None, generation: int, now: str
) -> Condition:
    """Return a condition: the one that stands, where it would say the same."""
    message = finding.message[:MESSAGE_LENGTH]
    since = now
    if before is not None and before.status == state:
        since = before.last_transition_time
        stands = (before.reason, before.message, before.observed_generation)
        if stands == (finding.reason, message, generation):
            return before
    return _memoized_condition((finding.type, state, finding.reason, message), since, generation)


@lru_cache(maxsize=SHARED)
def _memoized_condition(
    said: tuple[str, State, str, str], since: str, generation: int
) -> Condition:
    kind, status, reason, message = said
    return Condition(
        type=kind,
        status=status,
        reason=reason,
        message=message,
        last_transition_time=since,
        observed_generation=generation,
    )
