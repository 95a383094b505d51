"""Whose Deployment has the name, and what of an object may be written. Pure.

Our own counts, and what was handed over to us. Anybody may make a Deployment of an object's name,
or take the owner off ours: what it runs is then not what the object says, so nothing of it is
shown, measured or counted as the object's.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from tonnage.api.objects import ModelDeployment
from tonnage.control.input.memory import ObjectMemory
from tonnage.control.input.state import ACTING, Assessment, DeploymentView, Fleet, ModelState
from tonnage.control.input.writers import FieldOwnership
from tonnage.manifests.changes import Change
from tonnage.manifests.names import ADOPT_LABEL, CONTAINER, RECORD, selector

HOST: Final = ("hostNetwork", "hostPID", "hostIPC")
"""What gives a pod its node's."""
GONE_S: Final = 30.0
"""From a deletion until what goes with the object has gone."""
REMOVED: Final = {
    field: Change(field=f"annotation {name}", before=None, after="")
    for field, name in RECORD.items()
}
"""By field of ``RECORD``: the annotation is there no more."""


def own_only(state: ModelState, *, may_adopt: bool = True) -> ModelState:
    """Return an object with its own Deployment and pods alone; others only stand in the way."""
    live = state.deployment
    if live is None or _is_own(state, live) or (may_adopt and is_adopted(state, live)):
        return state
    return replace(
        state, deployment=None, name_conflict=live, pods=(), engines=(), conflicting_autoscaler=None
    )


def _is_own(state: ModelState, live: DeploymentView) -> bool:
    model = state.model
    if isinstance(model, ModelDeployment) and model.spec.scale_target:
        return live.is_opted_in and not live.is_of_a_model and state.earlier_owner is None
    return live.owner_uid == state.view.uid


def with_own_record(state: ModelState, known: ObjectMemory | None) -> ModelState:
    """Return an object with what we recorded on its Deployment, whatever others made of that.

    ``known``: of before. A process that just began has nothing but what is there.
    """
    live, writers = state.deployment, known.writers if known else FieldOwnership()
    if live is None or live.uid != writers.deployment_uid:
        return state
    pairs = zip(RECORD, writers.recorded, live.recorded, strict=False)
    lost: dict[str, Any] = {field: was for field, was, value in pairs if was and value is None}
    if not lost:
        return state
    edited = {each.field for each in live.record_edits}
    removed = (REMOVED[field] for field in lost if REMOVED[field].field not in edited)
    edits = (*live.record_edits, *removed)
    return replace(state, deployment=replace(live, **lost, record_edits=edits))


def is_adopted(state: ModelState, live: DeploymentView | None) -> bool:
    """Tell whether a Deployment that nobody controls was handed over, to an object that acts.

    One with other labels in its selector can never be ours: that cannot be changed. Neither can one
    whose pods would keep what is not ours: applied to it, our template takes nothing away.
    """
    model = state.model
    if live is None or not isinstance(model, ModelDeployment) or model.spec.scale_target:
        return False
    is_free = live.owner_uid is None and live.adopt == state.view.uid and _selects(live)
    return is_free and model.spec.scaling.mode in ACTING and not _would_stay(live)


def _would_stay(live: DeploymentView) -> Sequence[str]:
    """Return what of a Deployment's pods would go on beside our container."""
    pod = json.loads(live.template).get("spec") or {}
    kinds = (("containers", "container"), ("initContainers", "init container"))
    others = [
        f"{kind} {each.get('name')}"
        for key, kind in kinds
        for each in pod.get(key) or ()
        if (key, each.get("name")) != ("containers", CONTAINER)
    ]
    return [*others, *(key for key in HOST if pod.get(key))]


def _selects(live: DeploymentView) -> bool:
    return live.selector == frozenset(selector(live.name).items())


def conflict_written(live: DeploymentView, uid: str) -> str:
    """Say whose Deployment stands in the way, and how it could become ours."""
    if live.owner is not None:
        return f"{live.kind} {live.name} is controlled by {live.owner}, not by this ModelDeployment"
    message = f"{live.kind} {live.name} exists and is not owned by this ModelDeployment"
    if live.workload.is_group:
        return f"{message}; a {live.kind} cannot be handed over: delete it"
    scaled = "scale it by spec.scaleTarget, "
    if not _selects(live):
        wanted = ",".join(f"{key}={value}" for key, value in selector(live.name).items())
        return (
            f"{message}; it cannot be handed over, since its selector is not {wanted}: {scaled}"
            "or delete it"
        )
    if others := _would_stay(live):
        return (
            f"{message}; it cannot be handed over while its pods have {', '.join(others)}, which "
            f"would stay beside ours: take that out, {scaled}or delete it"
        )
    return f"{message}; to hand it over, label that {live.kind} {ADOPT_LABEL}={uid}"


def may_act(found: Assessment, fleet: Fleet) -> bool:
    """Tell whether the Deployment of this object may be touched at all."""
    has_plan = found.refusal is None and not found.state.view.is_deleting
    return has_plan and _is_ours(found, fleet)


def may_scale(found: Assessment, fleet: Fleet) -> bool:
    """Tell whether its replicas may be written: of what runs, where the spec is refused."""
    has_plan = found.refusal is None or found.uses_previous_spec
    return has_plan and is_there(found, fleet) and _is_ours(found, fleet)


def is_there(found: Assessment, fleet: Fleet) -> bool:
    """Tell whether an object is there to stay, or deleted and kept by a finalizer with its pods.

    What the garbage collector takes, or the namespace, goes soon after: what stays serves on. A
    target of a deleted object is its owner's alone.
    """
    deleted_at_s, live = found.state.view.deleted_at_s, found.state.deployment
    if deleted_at_s is None or live is None:
        return deleted_at_s is None and (live is None or not live.is_deleting)
    is_new = abs(fleet.now_s - deleted_at_s) < GONE_S
    return owns_children(found) and not (live.is_deleting or is_new)


def _is_ours(found: Assessment, fleet: Fleet) -> bool:
    """Tell whether Tonnage acts for this object, nobody beside it, and the chart lets it."""
    is_alone = found.state.conflicting_autoscaler is None
    has_right = fleet.settings.mode == "full" or not owns_children(found)
    return found.is_acting and is_alone and has_right


def owns_children(found: Assessment) -> bool:
    """Tell whether Tonnage makes the Deployment, and what is beside it."""
    return found.chosen is not None and found.chosen.model.spec.scale_target is None
