"""Other writers of an object's Deployment: what they own, and what Tonnage leaves to them. Pure."""

from dataclasses import replace
from typing import Final

from tonnage.api.objects import ModelDeployment
from tonnage.control.input.contest import (
    NOBODY,
    Contest,
    Differences,
    Fate,
    Rivals,
    Scaled,
    Seen,
    corrected,
    given_way,
    overwritten,
    told,
    watched,
)
from tonnage.control.input.memory import Departed, ObjectMemory
from tonnage.control.input.state import Assessment, DeploymentView, ModelState
from tonnage.manifests.children import spec_digest

REVERTED: Final = "the record of the spec"
"""A difference: the Deployment says that it was made for another spec than it stood for."""
UNSEEN_S: Final = 60.0
"""For which a write of ours may not be seen yet; what is not seen then has changed nothing."""


def with_rivals(memory: ObjectMemory, state: ModelState, *, now_s: float) -> ObjectMemory:
    """Remember who else wrote to the Deployment since the last tick.

    Whose template cannot be judged is left as it is found at first: a new version of the operator
    would undo old edits with its own template, and so change what nobody edited.
    """
    deployment, generation = state.deployment, state.view.generation
    if deployment is None:
        return replace(memory, rivals=Rivals())
    is_first = memory.rivals.deployment_uid is None and judged(memory) is None
    memory = replace(memory, rivals=_standing(memory.rivals, state, deployment))
    found = drift(state, memory)
    known = _looked_at(memory.rivals, found, deployment)
    known = replace(known, dealt_with=found) if is_first else known
    template = watched(
        known.template,
        _template(state, deployment, memory),
        spec_generation=generation,
        now_s=now_s,
    )
    if found - known.dealt_with:
        template = given_way(template, spec_generation=generation, now_s=now_s)
    rivals = replace(
        known,
        replicas=watched(
            known.replicas, _replicas(deployment), spec_generation=generation, now_s=now_s
        ),
        template=template,
        parked_at=_parked_at(memory, known, deployment, generation),
    )
    return replace(memory, rivals=rivals)


def _standing(known: Rivals, state: ModelState, deployment: DeploymentView) -> Rivals:
    """Return what is remembered of this Deployment, which may stand for the spec by now."""
    if known.deployment_uid != deployment.uid:
        known = Rivals(deployment_uid=deployment.uid)
    wanted = _wanted(state)
    is_for_spec = wanted is not None and deployment.digest == wanted
    return replace(known, stood_for=wanted) if is_for_spec else known


def _wanted(state: ModelState) -> str | None:
    """Return the digest of the spec that our template is to be made from."""
    model = state.model
    if not isinstance(model, ModelDeployment) or model.spec.scale_target:
        return None
    return spec_digest(model)


def _looked_at(known: Rivals, found: Differences, deployment: DeploymentView) -> Rivals:
    """Return it with the differences that stand although we wrote over them.

    A webhook makes the same of each write of ours. What was made after our write is an edit again,
    and so is what comes back after it was gone.
    """
    written_at, seen_at = known.template_written_at, deployment.generation
    if written_at is not None and seen_at > written_at:
        return replace(known, dealt_with=frozenset(), template_written_at=None)
    awaited = written_at if written_at is not None and seen_at < written_at else None
    return replace(known, dealt_with=known.dealt_with & found, template_written_at=awaited)


def drift(state: ModelState, memory: ObjectMemory) -> Differences:
    """Return what another made of the pod template that we wrote, if anything.

    Where it is known what we wrote, what differs tells, whoever wrote that and whenever; else a
    digest of the pods' spec. A whole Deployment of before that was put back differs in its record.
    """
    deployment, departed = state.deployment, judged(memory)
    if deployment is None:
        return frozenset()
    others = {deployment.pod_spec_digest} if deployment.template_managers else set[str]()
    if departed is not None:
        others = set(map(str, departed.changes))
    return frozenset(others | ({REVERTED} if is_reverted(state, memory) else set()))


def is_drift_due(state: ModelState, memory: ObjectMemory) -> bool:
    """Tell whether the template is to be written over what another made of it."""
    return bool(drift(state, memory) - memory.rivals.dealt_with)


def is_correction_awaited(memory: ObjectMemory, *, now_s: float) -> bool:
    """Tell whether what we wrote over another's template is yet to be seen, and may be so soon."""
    known = memory.rivals
    if known.template_written_at is None or known.template_tried_at_s is None:
        return False
    return 0 <= now_s - known.template_tried_at_s < UNSEEN_S


def is_reverted(state: ModelState, memory: ObjectMemory) -> bool:
    """Tell whether the Deployment stood for this spec, and is seen to stand for another again."""
    deployment, wanted, known = state.deployment, _wanted(state), memory.rivals
    if deployment is None or wanted is None or deployment.owner_uid != state.view.uid:
        return False
    is_seen = deployment.generation >= (known.template_written_at or 0)
    return is_seen and known.stood_for == wanted != deployment.digest


def judged(memory: ObjectMemory) -> Departed | None:
    """Return how the template departs from what we wrote, where that is known."""
    departed = memory.departed
    return departed if departed is not None and departed.is_known else None


def _editors(state: ModelState, deployment: DeploymentView, memory: ObjectMemory) -> frozenset[str]:
    """Return who made the template another than ours; who only added to it did not."""
    departed, managers = judged(memory), deployment.template_managers
    if is_reverted(state, memory):
        return managers or frozenset({NOBODY})
    if departed is None:
        return managers
    return frozenset(name for each in departed.changes for name in each.by or (NOBODY,))


def _replicas(deployment: DeploymentView) -> Seen:
    return Seen(
        value=str(deployment.replicas),
        managers=deployment.replicas_managers,
        generation=deployment.generation,
        is_owned_whole=True,
    )


def _template(state: ModelState, deployment: DeploymentView, memory: ObjectMemory) -> Seen:
    return Seen(
        value=deployment.template_digest,
        managers=tuple(sorted(_editors(state, deployment, memory))),
        generation=deployment.generation,
        is_owned_whole=False,
    )


def _parked_at(
    memory: ObjectMemory, known: Rivals, deployment: DeploymentView, generation: int
) -> int | None:
    """Return since which spec somebody has asked for no replica: Tonnage asks for one at least.

    Where nobody owns the number and nobody was seen to change it, it was left so by a write that
    was cut off.
    """
    was_up = known.parked_at is not None or bool(memory.pods.replicas)
    if deployment.replicas or not (deployment.replicas_managers or was_up):
        return None
    return generation if known.parked_at is None else known.parked_at


def with_corrections(
    memory: ObjectMemory,
    found: Assessment,
    *,
    scaled: Scaled | None,
    template: Fate | None,
    now_s: float,
) -> ObjectMemory:
    """Remember what is written over another's change.

    ``scaled`` None: replicas are not; ``template``: what became of its write, None if none is made.
    """
    before, deployment = found.memory, found.state.deployment
    rivals = before.rivals
    if deployment is None:
        return memory
    written_at = deployment.generation
    if scaled is not None and scaled.fate is not Fate.UNDONE:
        written_at += 1
        replicas = _with_scaled(rivals.replicas, scaled, written_at, now_s)
        rivals = replace(rivals, replicas=replicas)
    if template not in {None, Fate.UNDONE}:
        rivals = _with_template(rivals, found, deployment, written_at + 1, now_s)
    if template is Fate.DONE:  # else it may stand for the last spec still
        rivals = replace(rivals, stood_for=_wanted(found.state))
    return replace(memory, rivals=rivals)


def _with_template(
    rivals: Rivals, found: Assessment, deployment: DeploymentView, written_at: int, now_s: float
) -> Rivals:
    state, before = found.state, found.memory
    seen = _template(state, deployment, before) if is_drift_due(state, before) else None
    template = corrected(rivals.template, seen, now_s=now_s)
    return replace(
        rivals,
        template=replace(template, awaited=(deployment.template_digest, written_at)),
        template_written_at=written_at,
        template_tried_at_s=now_s,
        dealt_with=drift(state, before) | {REVERTED},
    )


def _with_scaled(contest: Contest, scaled: Scaled, written_at: int, now_s: float) -> Contest:
    ours = str(scaled.replicas)
    if scaled.fate is Fate.UNKNOWN:
        return replace(contest, tried=ours)
    corrected = overwritten(contest, now_s=now_s)
    return replace(corrected, ours=ours, written_at=written_at, tried=None)


def leaves_template(memory: ObjectMemory) -> bool:
    """Tell whether the template is left to another writer."""
    return memory.rivals.template.held_at is not None


def left_replicas(found: Assessment) -> tuple[str, str] | None:
    """Return (reason, message) why replicas are left as another writer set them, if they are."""
    rivals, deployment = found.memory.rivals, found.state.deployment
    if deployment is None:
        return None
    if rivals.parked_at == found.state.view.generation:
        who = " and ".join(deployment.replicas_managers) or NOBODY
        until = "until the spec changes or somebody asks for another number"
        message = f"{who} asked for 0 replicas: it stays at 0 {until}"
        return "ParkedAtZero", message
    contest = told(rivals.replicas, "replicas")
    return ("ConflictingWriter", contest) if contest else None


def left_to_others(found: Assessment) -> tuple[str, str] | None:
    """Return (reason, message) of what is left to another writer: replicas first, else template."""
    contest = told(found.memory.rivals.template, "template")
    return left_replicas(found) or (("ConflictingWriter", contest) if contest else None)
