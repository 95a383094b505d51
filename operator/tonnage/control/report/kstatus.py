"""Whether an object is there, on its way or stuck, as kstatus reads it: Argo CD, Flux, kubectl."""

from tonnage.api.objects import ModelDeployment
from tonnage.api.status import Reason
from tonnage.control.decide.template import roll_written
from tonnage.control.input.finding import PENDING, UNREADABLE, Finding
from tonnage.control.input.state import APPROVE, Assessment, DeploymentView, Fleet, ModelState
from tonnage.control.observe.starting import held_up
from tonnage.control.size.chosen import FLAGS_UNKNOWN
from tonnage.control.size.running import is_spec_ahead
from tonnage.manifests.workload import DEPLOYMENT
from tonnage.units import count_of

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
    refusal, no_path = found.refusal, found.memory.written.no_path
    is_unseen = refusal is not None and refusal.code == UNREADABLE
    if refusal and not is_unseen and _is_no_engine_of_it(found.state, refusal):
        return Finding("False", *refusal)
    if no_path:
        return Finding("False", NO_PATH, no_path)
    if refusal and is_unseen:
        return Finding("Unknown", *refusal)
    if refusal and found.state.deployment and _is_of_another_spec(found):
        return Finding("False", *refusal)
    return None


def _is_no_engine_of_it(state: ModelState, refusal: Reason) -> bool:
    is_unread = state.oversized_bytes is not None or refusal.code == FLAGS_UNKNOWN
    return state.name_conflict is not None or is_unread


def _is_of_another_spec(found: Assessment) -> bool:
    """Tell whether our Deployment was made for another spec: surely so, where this is none."""
    is_spec = isinstance(found.state.model, ModelDeployment)
    return not is_spec or is_spec_ahead(found.state)


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
    if fault := found.fault or found.memory.written.fault:
        return Reason("InternalError", fault)
    if problem := found.memory.written.problem:
        return Reason("WriteRefused", problem)
    if unsaid := found.memory.written.status_problem:  # an Event tells it, where no status can
        return Reason("WriteRefused", f"the status cannot be written: {unsaid}")
    deployment = found.state.deployment
    if deployment and deployment.is_rollout_held and deployment.owner_uid == found.state.view.uid:
        return Reason("RolloutPaused", _held_written(deployment))
    stuck = dict(deployment.problems).get("Progressing") if deployment else None
    return Reason("RolloutStuck", stuck) if stuck else None


def _held_written(live: DeploymentView) -> str:
    pods = count_of(live.total, "pod is", "pods are")
    return (
        f"{live.total - live.updated} of {pods} not replaced, since somebody set "
        f"spec.paused of Deployment {live.name}: kubectl rollout resume deployment/{live.name} "
        f"-n {live.namespace}"
    )
