"""From an assessment to the writes that it asks for: what differs, and only in the right mode."""

from dataclasses import dataclass, replace

from tonnage.api.objects import ModelDeployment
from tonnage.api.status import Status
from tonnage.control.assess import drift
from tonnage.control.happenings import Happening, happenings
from tonnage.control.leaving import PodCost, costs_to_go
from tonnage.control.rivals import left_replicas, with_corrections
from tonnage.control.state import Assessment, Fleet, ObjectMemory
from tonnage.control.status import Reported
from tonnage.manifests.pod import Manifest

CHILDREN_CHECK_S = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Replicas to write, if the Deployment still asks for what the decision was made on."""

    deployment: str
    uid: str
    """Of the Deployment: a namesake is left alone."""
    seen: int
    replicas: int
    costs: tuple[PodCost, ...] = ()
    """To write first: they let the pods with the least to do go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Writes:
    """Everything that one tick writes for one object."""

    namespace: str
    name: str
    uid: str
    model: ModelDeployment | None = None
    scale: Scale | None = None
    template: Manifest | None = None
    creates: bool = False
    """No Deployment was seen when this was decided."""
    first_replicas: int | None = None
    """For a Deployment that does not exist yet."""
    check_children: bool = False
    status: Status | None = None
    happenings: tuple[Happening, ...] = ()

    @property
    def label(self) -> str:
        return f"{self.namespace}/{self.name}"


def writes_for(found: Assessment, reported: Reported, fleet: Fleet) -> tuple[Writes, ObjectMemory]:
    """Return what is to be written for one object, and the memory of it."""
    view, memory = found.state.view, reported.memory
    acts = may_act(found, fleet)
    scale = _scale(found, fleet) if may_scale(found, fleet) else None
    template = _template(found, fleet) if acts else None
    check_children = acts and _owns_children(found) and _is_check_due(found, memory, fleet)
    is_scaling = scale is not None or (template is not None and found.state.deployment is None)
    carried_out = memory.decisions[:1] if is_scaling else ()
    told, memory = happenings(
        memory,
        reported.status.conditions,
        scaling=next(iter(carried_out), None),
        now_s=fleet.now_s,
    )
    writes = Writes(
        namespace=view.namespace,
        name=view.name,
        uid=view.uid,
        model=found.state.model if isinstance(found.state.model, ModelDeployment) else None,
        scale=scale,
        template=template,
        creates=found.state.deployment is None,
        first_replicas=found.decision.replicas if found.decision else None,
        check_children=check_children,
        status=reported.status if reported.must_write and not view.is_deleting else None,
        happenings=() if view.is_deleting else told,
    )
    memory = replace(
        memory,
        children_checked_at_s=fleet.now_s if check_children else memory.children_checked_at_s,
        drift_corrected=drift(found.state) if template is not None else memory.drift_corrected,
    )
    memory = with_corrections(
        memory,
        found.state,
        scaled_to=scale.replicas if scale else None,
        applies=template is not None,
        now_s=fleet.now_s,
    )
    return writes, memory


def unwritten(memory: ObjectMemory, *, refused: str | None) -> ObjectMemory:
    """Return the memory of an object whose writes failed: what was to be done is due again.

    ``refused``: what the API server said, if it will say so again. A server that is down for a
    moment is no reason to call for a person.
    """
    return replace(
        memory,
        drift_corrected=None,
        children_checked_at_s=None,
        gauges_written_at_s=0.0,
        write_problem=refused or memory.write_problem,
    )


def _template(found: Assessment, fleet: Fleet) -> Manifest | None:
    """Return the Deployment to apply; none is made for no replica, since it asks for one."""
    is_for_nothing = found.decision is not None and found.decision.replicas < 1
    is_new = found.state.deployment is None
    if fleet.settings.mode != "full" or (is_new and is_for_nothing):
        return None
    return found.template


def _is_check_due(found: Assessment, memory: ObjectMemory, fleet: Fleet) -> bool:
    checked_at_s = memory.children_checked_at_s
    is_due = checked_at_s is None or fleet.now_s - checked_at_s > CHILDREN_CHECK_S
    return is_due or found.template is not None


def may_act(found: Assessment, fleet: Fleet) -> bool:
    """Tell whether the Deployment of this object may be touched at all."""
    is_wanted = found.mode == "Auto" and found.refusal is None
    is_ours_alone = found.state.conflicting_autoscaler is None and not found.state.view.is_deleting
    has_right = fleet.settings.mode == "full" or not _owns_children(found)
    return is_wanted and is_ours_alone and has_right


def may_scale(found: Assessment, fleet: Fleet) -> bool:
    """Tell whether its replicas may be written: nobody else is given way to."""
    return may_act(found, fleet) and left_replicas(found) is None


def _owns_children(found: Assessment) -> bool:
    return found.chosen is not None and found.chosen.model.spec.scale_target is None


def _scale(found: Assessment, fleet: Fleet) -> Scale | None:
    deployment, decision = found.state.deployment, found.decision
    if deployment is None or decision is None or decision.replicas == deployment.replicas:
        return None
    is_down, is_stuck = decision.replicas < deployment.replicas, _is_stuck(found)
    if is_down and not is_stuck and (found.template is not None or deployment.is_rolling):
        return None  # no scale-down during a rollout
    return Scale(
        deployment=deployment.name,
        uid=deployment.uid,
        seen=deployment.replicas,
        replicas=decision.replicas,
        costs=_costs(found, fleet) if is_down and _owns_children(found) else (),
    )


def _costs(found: Assessment, fleet: Fleet) -> tuple[PodCost, ...]:
    kept = found.decision.replicas if found.decision else 0
    interval_s = fleet.settings.scrape_interval_s
    return costs_to_go(found.state, kept, scrape_interval_s=interval_s)


def _is_stuck(found: Assessment) -> bool:
    """Tell whether pods wait for GPUs: what is taken away may be what a rollout waits for."""
    return any(pod.unschedulable is not None for pod in found.state.pods)
