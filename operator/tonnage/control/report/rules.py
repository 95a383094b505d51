"""Rules: each says one condition of an object, some as kstatus reads it: Argo CD, Flux, kubectl."""

from collections.abc import Mapping
from itertools import groupby
from statistics import median_low

from tonnage.api.objects import ModelDeployment
from tonnage.api.status import Reason
from tonnage.control.decide.budget import BUDGET_LIMITS
from tonnage.control.decide.template import MOST_NAMED, roll_written
from tonnage.control.input.finding import PENDING, UNREADABLE, Finding, State, is_false
from tonnage.control.input.state import APPROVE, Assessment, DeploymentView, Fleet
from tonnage.control.input.times import rfc3339
from tonnage.control.input.writers import SOMEBODY, Cause, WriteKind
from tonnage.control.learn.believed import (
    believable_range,
    estimated_kv_tokens,
    fits_memory,
    is_settled,
)
from tonnage.control.measure.attained import objectives
from tonnage.control.measure.causes import NOBODY
from tonnage.control.observe.starting import CRASHES, has_started, held_up, why_refused
from tonnage.control.size.chosen import FLAGS_UNKNOWN
from tonnage.control.size.question import is_spec_ahead
from tonnage.estimate.metrics import QUERIES
from tonnage.manifests.changes import Change
from tonnage.manifests.names import DEPLOYMENT
from tonnage.manifests.protection import DISRUPTION_BUDGET
from tonnage.policy.situation import Metrics
from tonnage.sizing.workload import PERCENT
from tonnage.units import HOUR_S, count_of

HYSTERESIS = 0.01
"""Attainment must miss its percentile by more than this before SLOMet turns False."""
BUDGET_HYSTERESIS = 0.1
"""Of an error budget that was burnt, that must be left for ErrorBudget to turn True."""
MOST_QUERIES = 4
"""That are named in one message."""


def plan_valid(found: Assessment, _: Fleet) -> Finding:
    if found.refusal:
        return Finding("False", *found.refusal)
    if found.chosen and found.chosen.problem:
        return Finding("False", "SLOInfeasible", found.chosen.problem)
    return Finding("True", "Planned", "the plan is in status.plan")


def metrics_available(found: Assessment, fleet: Fleet) -> Finding:
    """What failed without being needed for demand is named: the rest of it is as sure as ever."""
    traffics = found.traffics
    states: Mapping[Metrics, State] = {
        Metrics.COMPLETE: "True",
        Metrics.MISSING: "False",
        Metrics.NEVER: "Unknown",
    }
    reason, message = traffics.why
    failed = [
        f"{query} ({problem[0]}: {problem[1]})" if problem else f"{query} (partial)"
        for query, problem in fleet.unanswered(QUERIES, found.state.view.namespace)
    ]
    if traffics.metrics is Metrics.COMPLETE and failed:
        more = f" and {len(failed) - MOST_QUERIES} more" if len(failed) > MOST_QUERIES else ""
        reason = "MetricsDegraded"
        message = f"{message}; without answer: {', '.join(failed[:MOST_QUERIES])}{more}"
    return Finding(states[traffics.metrics], reason, message)


def capacity_available(found: Assessment, _: Fleet) -> Finding:
    deployment = found.state.deployment
    problems = dict(deployment.problems) if deployment else {}
    decision, refusal = found.decision, found.refusal
    if refusal and refusal.code == UNREADABLE:
        return Finding("Unknown", *refusal)
    if why := held_up(found.state):
        doubts = list[str]()  # why the plan does not let what crashes start, where it says so
        if why.code == CRASHES and found.sizing and not has_started(found.state):
            doubts = [doubt.message for doubt in found.sizing.start_doubts[:1]]
        return Finding("False", why.code, "; by the plan: ".join([why.message, *doubts]))
    if (refused := problems.get("ReplicaFailure")) is not None:
        return Finding("False", why_refused(refused), refused)
    if silent := _silent_controller(found):
        return Finding("False", "WorkloadControllerNotObserving", silent)
    if decision and decision.limited_by in BUDGET_LIMITS:
        return Finding("False", *decision.reasons[0])
    return Finding("True", "Scheduled", "no pod waits for a GPU, and none fails")


def _silent_controller(found: Assessment) -> str | None:
    """Say that nobody acts on what was written: pods are neither made nor replaced.

    Of a workload that is being deleted nobody makes any.
    """
    live, behind = found.state.deployment, found.memory.pods.behind
    if live is None or live.is_deleting or behind is None or not behind.is_long:
        return None
    return (
        f"the controller of {live.kind} {live.name} has not acted on generation {live.generation} "
        f"for a minute, only on {behind.generation}: check that it runs, and its Events"
    )


def scaling_active(found: Assessment, fleet: Fleet) -> Finding:
    if found.refusal and not found.uses_previous_spec:
        return Finding("False", "PlanInvalid", "without a plan nothing is scaled: see PlanValid")
    if other := found.state.conflicting_autoscaler:
        message = f"{other} scales the same {workload_kind(found)}: remove one, Tonnage waits"
        return Finding("False", "ConflictingScaler", message)
    if found.is_acting:
        return _scaling(found)
    reasons = {"Recommend": "RecommendOnly", "Paused": "Paused"}
    message = f"mode is {found.mode}: status only"
    if fleet.settings.mode == "recommend":
        message += "; this operator acts on no object (settings.mode recommend)"
    return Finding("False", reasons[found.mode], message)


def _scaling(found: Assessment) -> Finding:
    if conflict := found.memory.writers.conflict:
        return Finding("False", *conflict)
    if found.blackout:
        state: State = "False" if found.traffics.is_blind else "True"
        return Finding(state, "MetricsOutage", found.blackout)
    is_deleted = found.state.view.is_deleting
    if found.refusal or is_deleted:
        end = "a finalizer lets the deleted object go" if is_deleted else "the spec can be applied"
        message = f"replicas follow a plan for the running pods until {end}"
        return Finding("True", "ScalingWhatRuns", message)
    return Finding("True", "Scaling", "replicas follow the plan")


def scaling_limited(found: Assessment, _: Fleet) -> Finding:
    decision = found.decision
    if decision is not None:
        if decision.limited_by and decision.is_limited:
            return Finding("True", decision.limited_by, decision.message)
        if reason := next((r for r in decision.notes if r.code == DISRUPTION_BUDGET), None):
            return Finding("True", *reason)
    return Finding("False", "WithinBounds", "no limit changes the number of replicas")


def slo_met(found: Assessment, _: Fleet) -> Finding:
    shares = found.observed.attainments if found.observed else ()
    before = found.memory.reported.conditions.get("SLOMet")
    slack = HYSTERESIS if before and before.status == "True" else 0.0
    missed = [each for each in shares if each.fraction < each.quantile - slack]
    if found.refusal and not found.observed:
        return Finding("Unknown", "PlanInvalid", "without a plan nothing is judged: see PlanValid")
    if not shares:
        return Finding("Unknown", "NoTraffic", "no finished requests to judge")
    if missed:
        worst = min(missed, key=lambda each: (1 - each.quantile) / (1 - each.fraction))
        cause = worst.cause or NOBODY
        messages = (
            f"{each.name}: {each.fraction:.1%} within the limit, target {each.quantile:.0%}"
            + (f" ({each.cause.message})" if each.cause else "")
            for each in missed
        )
        return Finding("False", cause.code, "; ".join(messages))
    return Finding("True", "TargetsMet", "every SLO target is met")


def error_budget(found: Assessment, fleet: Fleet) -> Finding:
    """Say whether more requests were late over the window of the SLO than may be.

    What was burnt is left again with a tenth of it: late requests come and go.
    """
    budget = found.budget
    if budget is None:
        return _no_budget(found, fleet)
    window, objective = f"{budget.window_s / HOUR_S:.3g} h", budget.objective
    was_burnt = is_false(found, "ErrorBudget")
    if not budget.is_burnt and not (was_burnt and budget.left < BUDGET_HYSTERESIS):
        message = f"no SLO target had more late requests in the last {window} than it allows"
        return Finding("True", "BudgetAvailable", message)
    late_share = budget.num_late / budget.num_requests
    shares = (late_share, objective.allowed_share, budget.recent_share)
    late, allowed, lately = (f"{PERCENT * share:.3g}%" for share in shares)
    judged = count_of(f"{budget.num_requests:,.0f}", "request")
    message = (
        f"{objective.limit}: {late} of {judged} in the last {window} were late, {allowed} allowed; "
        f"recently {lately}"
    )
    return Finding("False", "BudgetExhausted", message)


def _no_budget(found: Assessment, fleet: Fleet) -> Finding:
    """Say why nothing is known; while Prometheus is asked what was before, it stays as it was."""
    before = found.memory.reported.conditions.get("ErrorBudget")
    ledger = found.memory.goodput.ledger
    if before and found.state.view.uid in fleet.past_awaited:
        return Finding(before.status, before.reason, before.message)
    if found.chosen and not ledger.is_whole(fleet.windows_end_s) and objectives(found.chosen):
        message = f"late requests are counted since {rfc3339(ledger.since_s)}, not over the window"
        return Finding("Unknown", "CountedInPart", message)
    return Finding("Unknown", "NotJudged", "no SLO, no plan or too few requests to judge")


def kv_capacity(found: Assessment, _: Fleet) -> Finding:
    """Hold what the object's own engines say of their pool against the estimate."""
    chosen, reported = found.chosen, found.observed.kv_reports if found.observed else ()
    if chosen is None or not reported:
        return Finding("Unknown", "NoReport", "no replica reports its KV cache")
    if not is_settled(found):
        return Finding("Unknown", "RollingOut", "some replicas still run other flags")
    tokens, estimate = median_low(reported), estimated_kv_tokens(chosen.sizing)
    low, high = believable_range(chosen.sizing)
    text = f"engines report {tokens:,.0f} KV tokens per rank, the estimate was {estimate:,.0f}"
    if not fits_memory(tokens, chosen.sizing):
        why = f"{text}: more than fit the memory of the GPU class, so it is not used"
        return Finding("False", "MoreThanMemory", why)
    if not low <= tokens <= high:
        why = (
            f"{text} (plausible are {low:,.0f} to {high:,.0f}): used for this object, not shared "
            "with others; look for --kv-cache-memory-bytes, --num-gpu-blocks-override, or another "
            "process on the GPU"
        )
        return Finding("False", "FarFromEstimate", why)
    return Finding("True", "AsPlanned", text)


def calibration_stored(found: Assessment, fleet: Fleet) -> Finding:
    if fleet.state_problem:
        return Finding("False", *fleet.state_problem)
    if found.state.view.uid in fleet.unstored:
        message = "the calibration ConfigMap is full: a restart loses what was learned here"
        return Finding("False", "NoRoom", message)
    return Finding("True", "Stored", "the calibration is saved for the next start")


def template_drift(found: Assessment, _: Fleet) -> Finding | None:
    """Present while there is a Deployment of ours, whatever becomes of the plan."""
    drift, live = found.memory.writers.drift, found.state.deployment
    if drift is None or live is None:
        return None
    if not drift.is_known and not drift.changes:
        why = "drift is unknown: another version or other settings of Tonnage wrote the template"
        if not isinstance(found.state.model, ModelDeployment):
            why = "drift is unknown: the spec is invalid"
        who = " and ".join(sorted(live.template_managers))
        message = f"{why}; {who} wrote fields of it" if who else why
        return Finding("Unknown", "UnknownBaseline", message)
    if not drift.changes and not drift.added:
        return Finding("False", "AsWritten", "the pod template is as Tonnage wrote it")
    changes = (*drift.changes, *drift.added)
    messages = [
        f"{who} {verb} {', '.join(map(_field, some))}"  # who removed a field is recorded nowhere
        for (who, verb), some in groupby(changes[:MOST_NAMED], key=_manager)
    ]
    if len(changes) > MOST_NAMED:
        messages.append(f"and {len(changes) - MOST_NAMED} more")
    return Finding("True", "TemplateEdited", "; ".join(messages))


def _manager(change: Change) -> tuple[str, str]:
    verb = "added" if change.is_added else "wrote" if change.before else "removed"
    return " and ".join(change.by) or SOMEBODY, verb


def _field(change: Change) -> str:
    if change.is_added or change.after == "":
        value = "" if change.before in {None, "there"} else f" {change.before}"
        return f"{change.field}{value}"
    became = f" {change.before}" if change.before else ""
    return f"{change.field}{became}, ours: {change.after or 'none'}"


NO_PATH = "NoTrafficPath"


def ready(found: Assessment, _: Fleet) -> Finding:
    if text := _in_spite_of_pods(found):
        return text
    if found.state.deployment is None:
        message = f"mode is {found.mode}, no {workload_kind(found)} exists"
        if not found.is_acting and found.refusal is None:
            return Finding("True", "StatusOnly", message)
        return Finding("False", "NotDeployed", message)
    if _is_due(found) and found.is_acting:
        message = f"the {workload_kind(found)} does not yet follow the spec"
        return Finding("False", "SpecPending", message)
    return _by_pods(found, found.state.deployment)


def _by_pods(found: Assessment, live: DeploymentView) -> Finding:
    """Say it by the pods that are of the template that is there."""
    model = found.state.model
    minimum = model.spec.scaling.min_replicas if isinstance(model, ModelDeployment) else 1
    pods = count_of(live.num_nodes, "pod")
    group = f", each a group of {pods}" if live.num_nodes > 1 else ""
    counts = f"{count_of(live.ready, 'replica')} ready{group}, minReplicas {minimum}"
    if _is_template_unseen(found):
        seen = f"generation {live.observed_generation} of {live.generation}"
        message = f"{counts}, of an earlier template: its controller has acted on {seen}"
        return Finding("False", "WaitingForReplicas", message)
    up_to_date = live.ready - max(0, live.total - live.updated)
    if up_to_date >= minimum:
        return Finding("True", "MinimumReady", counts)
    if why := held_up(found.state):
        is_failing = any(pod.trouble for pod in found.state.pods)
        reason = "PodsFailing" if is_failing else "WaitingForReplicas"
        return Finding("False", reason, f"{counts}; {why.message}")
    return Finding("False", "WaitingForReplicas", counts)


def _in_spite_of_pods(found: Assessment) -> Finding | None:
    """Say it where pods that are Ready are no sign of the object.

    They are another's or no engine as far as we can read, nobody comes to them, nobody sees them,
    or they are of the spec before.
    """
    refusal, state = found.refusal, found.state
    is_unseen = refusal is not None and refusal.code == UNREADABLE
    is_unread = state.oversized_bytes is not None or state.name_conflict is not None
    if refusal and not is_unseen and (is_unread or refusal.code == FLAGS_UNKNOWN):
        return Finding("False", *refusal)
    if no_path := found.memory.written.said_of(Cause.NO_PATH):
        return Finding("False", NO_PATH, no_path)
    if refusal and is_unseen:
        return Finding("Unknown", *refusal)
    if refusal is None or state.deployment is None:
        return None
    # Our Deployment was made for another spec: surely so, where this is none.
    is_other = not isinstance(state.model, ModelDeployment) or is_spec_ahead(state)
    return Finding("False", *refusal) if is_other else None


def reconciling(found: Assessment, fleet: Fleet) -> Finding | None:
    """Present only while a change of spec is carried out; autoscaling never sets it."""
    deployment = found.state.deployment
    is_alone = found.state.conflicting_autoscaler is None
    is_ours = is_alone and not found.memory.writers.template.in_backoff
    if not (found.is_acting and is_ours and why_stalled(found) is None):
        return None
    if not (deployment is None or _is_due(found) or _is_rolling_out(found, fleet)):
        return None
    if found.pending and _is_due(found):
        return Finding("True", PENDING, found.pending.message)
    message = f"the {workload_kind(found)} is being updated to the spec"
    if found.changes:
        message = f"{message}: {roll_written(deployment, found.changes)}"
    return Finding("True", "RollingOut", message)


def workload_kind(found: Assessment) -> str:
    """Return the kind of what runs, or will."""
    live, made = found.state.deployment, found.template
    if live is None:
        return str(made["kind"]) if made else DEPLOYMENT.kind
    return live.kind


def _is_due(found: Assessment) -> bool:
    """Tell whether a template is to be applied that makes pods, or its search is awaited.

    What was recorded with a template is brought to a spec that asks for the same pods by the way.
    What somebody has to agree to is not due before.
    """
    is_sought = found.pending is not None and found.mode != APPROVE
    return found.is_due or (is_sought and is_spec_ahead(found.state))


def _is_rolling_out(found: Assessment, fleet: Fleet) -> bool:
    """Tell whether a template change is under way, or its replicas are still awaited.

    Once a change is through, a replica that fails or is added later is no change of spec.
    """
    deployment, known = found.state.deployment, found.memory.reported.conditions
    if deployment is None or deployment.updated < deployment.total or _is_template_unseen(found):
        return True
    is_under_way = not known or "Reconciling" in known
    is_awaited = is_under_way and found.memory.writers.left is None
    return is_awaited and ready(found, fleet).state != "True"


def _is_template_unseen(found: Assessment) -> bool:
    """Tell whether the Deployment's controller has yet to see the pod template that stands there.

    What it counts as updated is of the template before. Replicas are another generation too, and
    leave its counts true. A process that has just begun goes by what the status said of it.
    """
    live, seen = found.state.deployment, found.memory.pods.template
    if live is None or live.observed_generation >= live.generation:
        return False
    if seen is None:
        return "Reconciling" in found.memory.reported.conditions
    return seen != (live.uid, live.template_digest)


def stalled(found: Assessment, _: Fleet) -> Finding | None:
    why = why_stalled(found)
    return Finding("True", *why) if why else None


def why_stalled(found: Assessment) -> Reason | None:
    """Return why nothing goes on without a person; None: something does."""
    if found.refusal:
        return found.refusal
    written = found.memory.written
    if fault := found.fault or written.said_of(Cause.BUG):
        return Reason("InternalError", fault)
    if written.problem:
        return Reason("WriteRefused", written.problem)
    unsaid = written.failures.get(WriteKind.STATUS)  # an Event tells it, where no status can
    if unsaid and unsaid.cause is Cause.REFUSED:
        return Reason("WriteRefused", f"the status cannot be written: {unsaid.detail}")
    deployment = found.state.deployment
    if deployment and deployment.is_rollout_held and deployment.owner_uid == found.state.view.uid:
        pods = count_of(deployment.total, "pod is", "pods are")
        message = (
            f"{deployment.total - deployment.updated} of {pods} not replaced, since somebody set "
            f"spec.paused of Deployment {deployment.name}: kubectl rollout resume "
            f"deployment/{deployment.name} -n {deployment.namespace}"
        )
        return Reason("RolloutPaused", message)
    stuck = dict(deployment.problems).get("Progressing") if deployment else None
    return Reason("RolloutStuck", stuck) if stuck else None
