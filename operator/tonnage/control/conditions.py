"""Conditions as kstatus and people read them: one short rule each."""

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from tonnage.api.objects import ModelDeployment
from tonnage.api.status import Condition
from tonnage.control.assess import is_spec_ahead
from tonnage.control.state import Assessment
from tonnage.policy.situation import Metrics
from tonnage.units import KIB

State = Literal["True", "False", "Unknown"]
HYSTERESIS = 0.01
"""Attainment must miss its percentile by more than this before SLOMet turns False."""
LIMIT_CODES = frozenset({"MaxReplicas", "MinReplicas", "StepCap", "GPUBudget", "InsufficientGPU"})
MESSAGE_LENGTH = KIB
PENDING = "PlanPending"
OF_THE_PLAN = frozenset({"PlanValid", "CapacityAvailable", "ScalingLimited", "SLOMet"})
"""Conditions that stand on the plan: they stay as they were while it waits for its search."""


class Finding(NamedTuple):
    """A condition without its times. None as state: the condition is absent."""

    type: str
    state: State | None
    reason: str
    message: str


Rule = Callable[[Assessment], Finding]


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


def metrics_available(found: Assessment) -> Finding:
    traffics = found.traffics
    states: Mapping[Metrics, State] = {
        Metrics.COMPLETE: "True",
        Metrics.MISSING: "False",
        Metrics.NEVER: "Unknown",
    }
    return Finding(
        "MetricsAvailable",
        states[traffics.metrics],
        traffics.reason,
        traffics.message,
    )


def capacity_available(found: Assessment) -> Finding:
    stuck = [pod for pod in found.state.pods if pod.unschedulable is not None]
    deployment = found.state.deployment
    problems = dict(deployment.problems) if deployment else {}
    decision = found.decision
    if stuck:
        reason, message = "InsufficientGPU", f"{len(stuck)} pods wait: {stuck[0].unschedulable}"
    elif "ReplicaFailure" in problems:
        reason, message = "QuotaExceeded", problems["ReplicaFailure"]
    elif decision and decision.limited_by == "GPUBudget":
        reason, message = "BudgetExceeded", decision.reasons[-1].message
    else:
        return Finding(
            "CapacityAvailable",
            "True",
            "Scheduled",
            "no pod waits for a GPU",
        )
    return Finding("CapacityAvailable", "False", reason, message)


def scaling_active(found: Assessment) -> Finding:
    if found.refusal:
        state: tuple[State, str, str] = ("False", "PlanInvalid", "nothing is scaled without a plan")
    elif found.state.conflicting_autoscaler:
        other = found.state.conflicting_autoscaler
        message = f"{other} scales the same Deployment: Tonnage does not write"
        state = ("False", "ConflictingScaler", message)
    elif found.mode == "Auto":
        state = ("True", "Scaling", "replicas follow the plan")
    else:
        reasons = {"Recommend": "RecommendOnly", "Paused": "Paused"}
        state = ("False", reasons[found.mode], f"mode is {found.mode}: status only")
    return Finding("ScalingActive", state[0], state[1], state[2])


def scaling_limited(found: Assessment) -> Finding:
    decision = found.decision
    if decision and decision.limited_by in LIMIT_CODES:
        reason = next(r for r in reversed(decision.reasons) if r.code == decision.limited_by)
        return Finding("ScalingLimited", "True", reason.code, reason.message)
    return Finding(
        "ScalingLimited",
        "False",
        "WithinBounds",
        "the need is within every bound",
    )


def slo_met(found: Assessment) -> Finding:
    shares = found.observed.attainments if found.observed else ()
    before = found.memory.conditions.get("SLOMet")
    slack = HYSTERESIS if before and before.status == "True" else 0.0
    misses = [
        f"{each.name}: {each.fraction:.1%} within the limit, target {each.quantile:.0%}"
        for each in shares
        if each.fraction < each.quantile - slack
    ]
    if not shares:
        return Finding("SLOMet", "Unknown", "NoTraffic", "no finished requests to judge")
    if misses:
        return Finding("SLOMet", "False", "Missed", "; ".join(misses))
    return Finding("SLOMet", "True", "Met", "every SLO target is met")


def ready(found: Assessment) -> Finding:
    deployment, model = found.state.deployment, found.state.model
    minimum = model.spec.scaling.min_replicas if isinstance(model, ModelDeployment) else 1
    if deployment is None:
        is_passive = found.mode != "Auto" and found.refusal is None
        return Finding(
            "Ready",
            "True" if is_passive else "False",
            "StatusOnly" if is_passive else "NotDeployed",
            f"mode is {found.mode}, no Deployment exists",
        )
    up_to_date = deployment.ready - max(0, deployment.total - deployment.updated)
    trouble = sorted({pod.trouble for pod in found.state.pods if pod.trouble})
    counts = f"{deployment.ready} replicas ready, minReplicas {minimum}"
    if _is_due(found) and found.mode == "Auto":
        return Finding(
            "Ready", "False", "SpecPending", "the Deployment does not yet follow the spec"
        )
    if up_to_date >= minimum:
        return Finding("Ready", "True", "MinimumReady", counts)
    if trouble:
        message = f"{counts}; containers: {', '.join(trouble)}"
        return Finding("Ready", "False", "PodsFailing", message)
    return Finding("Ready", "False", "WaitingForReplicas", counts)


def reconciling(found: Assessment) -> Finding:
    """Present only while a change of spec is carried out; autoscaling never sets it."""
    deployment = found.state.deployment
    is_alone = found.state.conflicting_autoscaler is None
    is_waiting = found.mode == "Auto" and found.refusal is None and is_alone
    is_changing = deployment is None or _is_due(found) or _is_rolling_out(found)
    state: State | None = "True" if is_waiting and is_changing else None
    if found.pending and _is_due(found):
        return Finding("Reconciling", state, PENDING, found.pending.message)
    return Finding("Reconciling", state, "RollingOut", "the Deployment is brought to the spec")


def _is_due(found: Assessment) -> bool:
    """Tell whether a template is to be applied, or will be when its search has ended."""
    return found.template is not None or (found.pending is not None and is_spec_ahead(found.state))


def _is_rolling_out(found: Assessment) -> bool:
    """Tell whether a template change is under way, or its replicas are still awaited.

    Once a change is through, a replica that fails or is added later is no change of spec.
    """
    deployment, known = found.state.deployment, found.memory.conditions
    if deployment is None or deployment.updated < deployment.total:
        return True
    is_under_way = not known or "Reconciling" in known
    return is_under_way and ready(found).state != "True"


def stalled(found: Assessment) -> Finding:
    """Present only while nothing goes on without a person."""
    if found.refusal:
        return Finding("Stalled", "True", found.refusal.reason, found.refusal.message)
    if found.memory.write_problem:
        return Finding("Stalled", "True", "WriteRefused", found.memory.write_problem)
    deployment = found.state.deployment
    stuck = dict(deployment.problems).get("Progressing") if deployment else None
    return Finding("Stalled", "True" if stuck else None, "RolloutStuck", stuck or "")


RULES: tuple[Rule, ...] = (
    ready,
    reconciling,
    stalled,
    plan_valid,
    metrics_available,
    capacity_available,
    scaling_active,
    scaling_limited,
    slo_met,
)


def conditions(found: Assessment, *, now: str) -> tuple[Condition, ...]:
    """Return every condition that is present; a transition time moves only with its status."""
    generation = found.state.view.generation
    present = []
    for finding in (_as_planned(rule(found), found) for rule in RULES):
        if finding.state is None:
            continue
        condition = Condition(
            type=finding.type,
            status=finding.state,
            reason=finding.reason,
            message=finding.message[:MESSAGE_LENGTH],
            last_transition_time=now,
            observed_generation=generation,
        )
        present.append(_since(condition, found.memory.conditions.get(finding.type)))
    return tuple(present)


def _as_planned(finding: Finding, found: Assessment) -> Finding:
    """Leave what stands on the plan as it was while a search is awaited, and say so if it lasts."""
    pending = found.pending
    if pending is None or finding.type not in OF_THE_PLAN:
        return finding
    before = found.memory.conditions.get(finding.type)
    if before is None:
        return Finding(finding.type, "Unknown", PENDING, pending.message)
    if finding.type == "PlanValid" and pending.is_told:
        return Finding(finding.type, before.status, PENDING, pending.message)
    return Finding(finding.type, before.status, before.reason, before.message)


def _since(condition: Condition, before: Condition | None) -> Condition:
    if before is None or before.status != condition.status:
        return condition
    return condition.model_copy(update={"last_transition_time": before.last_transition_time})
