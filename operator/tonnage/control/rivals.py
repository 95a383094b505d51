"""Other writers of an object's Deployment: what they own, and what Tonnage leaves to them. Pure."""

from tonnage.control.contest import (
    NOBODY,
    Contest,
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
from tonnage.control.state import Assessment, DeploymentView, ModelState, ObjectMemory
from tonnage.values import replace


def with_rivals(memory: ObjectMemory, state: ModelState, *, now_s: float) -> ObjectMemory:
    """Remember who else wrote to the Deployment since the last tick.

    Whose template cannot be judged is left as it is found at first: a new version of the operator
    would undo old edits with its own template, and so change what nobody edited.
    """
    deployment, generation = state.deployment, state.view.generation
    if deployment is None:
        return replace(memory, rivals=Rivals())
    known, found = memory.rivals, drift(state, memory)
    is_first = known.deployment_uid is None and not _is_judged(memory)
    if known.deployment_uid != deployment.uid:
        known = Rivals(deployment_uid=deployment.uid)
    template = watched(
        known.template, _template(deployment, memory), spec_generation=generation, now_s=now_s
    )
    if found not in {None, memory.drift_corrected}:
        template = given_way(template, spec_generation=generation, now_s=now_s)
    rivals = replace(
        known,
        replicas=watched(
            known.replicas, _replicas(deployment), spec_generation=generation, now_s=now_s
        ),
        template=template,
        parked_at=_parked_at(memory, known, deployment, generation),
    )
    # Seen without another's hand in it, the same edit is a new one when it comes back.
    dealt_with = found if is_first else memory.drift_corrected if found else None
    return replace(memory, rivals=rivals, drift_corrected=dealt_with)


def drift(state: ModelState, memory: ObjectMemory) -> tuple[str, str] | None:
    """Return (uid, what differs) of a Deployment whose pods somebody else wrote to.

    Where it is known what we wrote, what differs tells, whoever wrote that and whenever; else the
    digest of the template. The same is corrected once: what a webhook makes of each write of ours
    differs from it again.
    """
    deployment, departed = state.deployment, memory.departed
    if deployment is None or not _editors(deployment, memory):
        return None
    is_known = departed is not None and departed.is_known
    differs = "; ".join(map(str, departed.changes)) if departed and is_known else None
    return deployment.uid, differs or deployment.template_digest


def _is_judged(memory: ObjectMemory) -> bool:
    return memory.departed is not None and memory.departed.is_known


def _editors(deployment: DeploymentView, memory: ObjectMemory) -> frozenset[str]:
    """Return who made the template another than ours; who only added to it did not."""
    departed = memory.departed
    if departed is None or not departed.is_known:
        return deployment.template_managers
    return frozenset(name for each in departed.changes for name in each.by or (NOBODY,))


def _replicas(deployment: DeploymentView) -> Seen:
    return Seen(
        value=str(deployment.replicas),
        managers=deployment.replicas_managers,
        generation=deployment.generation,
        is_owned_whole=True,
    )


def _template(deployment: DeploymentView, memory: ObjectMemory) -> Seen:
    return Seen(
        value=deployment.template_digest,
        managers=tuple(sorted(_editors(deployment, memory))),
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
    was_up = known.parked_at is not None or bool(memory.last_replicas)
    if deployment.replicas or not (deployment.replicas_managers or was_up):
        return None
    return generation if known.parked_at is None else known.parked_at


def with_corrections(
    memory: ObjectMemory, found: Assessment, *, scaled: Scaled | None, applies: bool, now_s: float
) -> ObjectMemory:
    """Remember what is written over another's change. ``scaled`` None: replicas are not."""
    before, deployment = found.memory, found.state.deployment
    rivals = before.rivals
    if deployment is None:
        return memory
    written_at = deployment.generation
    if scaled is not None and scaled.fate is not Fate.UNDONE:
        written_at += 1
        replicas = _with_scaled(rivals.replicas, scaled, written_at, now_s)
        rivals = replace(rivals, replicas=replicas)
    if applies:
        awaited = (deployment.template_digest, written_at + 1)
        is_drift = drift(found.state, before) not in {None, before.drift_corrected}
        seen = _template(deployment, before) if is_drift else None
        template = corrected(rivals.template, seen, now_s=now_s)
        rivals = replace(rivals, template=replace(template, awaited=awaited))
    return replace(memory, rivals=rivals)


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
