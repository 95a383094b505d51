"""Other writers of an object's Deployment: found, and remembered when ours is written. Pure.

The template is compared with what this version writes for the spec and the flags that are recorded
on the Deployment, whatever is planned now. That tells of edits only where it is what we did write:
its digest is there too. What another version of Tonnage wrote is left as it is found at first.
"""

import json
from collections.abc import Sequence
from dataclasses import replace

from tonnage.api.objects import ModelDeployment
from tonnage.api.status import Reason
from tonnage.catalog.gpu import CatalogError
from tonnage.control.decide.template import MOST_NAMED, recorded_drain_s
from tonnage.control.input.memory import ObjectMemory
from tonnage.control.input.state import Assessment, DeploymentView, Fleet, ModelState
from tonnage.control.input.writers import CONFLICT, PARKED, SOMEBODY, Drift, Fate, FieldOwnership
from tonnage.control.learn.believed import with_known_cache
from tonnage.control.observe.ownership import REMOVED
from tonnage.control.size.question import by_spec
from tonnage.manifests.changes import FieldOwners, list_differences
from tonnage.manifests.children import (
    NotServableError,
    deployment,
    flags_from_annotation,
    has_recorded_cache,
    running_model,
    spec_digest,
)
from tonnage.manifests.names import (
    DRAIN_ANNOTATION,
    RECORD,
    TEMPLATE_ANNOTATION,
    Manifest,
    template_in,
)
from tonnage.sizing.errors import SizingError
from tonnage.sizing.search import size
from tonnage.sizing.workload import Slo


def with_writers(found: Assessment, fleet: Fleet) -> ObjectMemory:
    """Remember how others changed the Deployment since the last tick."""
    live, memory = found.state.deployment, found.memory
    if live is None:
        return replace(memory, writers=FieldOwnership())
    known = memory.writers
    if known.deployment_uid != live.uid:
        known = FieldOwnership(deployment_uid=live.uid)
    known = _with_replicas(known, found, live, fleet.now_s)
    return replace(memory, writers=_with_template(known, found, live, fleet))


def _with_replicas(
    known: FieldOwnership, of: Assessment, live: DeploymentView, now_s: float
) -> FieldOwnership:
    generation = of.state.view.generation
    found, managers, edit = live.replicas, live.replicas_managers, None
    who, ours, seen_from = _who(managers), known.our_replicas, known.replicas_generation
    replicas, tried = known.replicas, known.tried_replicas
    if found == tried:  # it was carried out, though no answer said so
        replicas, ours, tried = replicas.count_reapply(now_s), found, None
    elif ours is None or not (managers or seen_from is not None):
        # The API server keeps no owner of replicas that were made without a number, as ours are.
        ours = ours if managers else found
    elif found != ours and live.generation >= (seen_from or 0):
        edit = f"{who} changed the replicas from {ours} to {found}"
    parked_generation = _parked_generation(known, of, live)
    is_parked = parked_generation == generation
    until = "until the spec changes or somebody scales it again"
    return replace(
        known,
        replicas=replicas.looked_at(edit, generation=generation, now_s=now_s),
        our_replicas=ours,
        tried_replicas=tried,
        parked=f"{who} scaled it to 0 replicas: it stays at 0 {until}" if is_parked else None,
        parked_generation=parked_generation,
    )


def _parked_generation(known: FieldOwnership, of: Assessment, live: DeploymentView) -> int | None:
    """Return since which spec somebody has asked for no replica: Tonnage asks for one at least.

    Where nobody owns the number and nobody was seen to change it, a write that was cut off left it.
    """
    since = known.parked_generation
    was_up = since is not None or bool(of.memory.pods.replicas)
    if live.replicas or not (live.replicas_managers or was_up):
        return None
    return of.state.view.generation if since is None else since


def _with_template(
    known: FieldOwnership, of: Assessment, live: DeploymentView, fleet: Fleet
) -> FieldOwnership:
    now_s, drift = fleet.now_s, _drift(live, of, fleet)
    is_seen = live.generation >= (known.template_generation or 0)
    found, record = _differences(drift, live), {str(each) for each in live.record_edits}
    acknowledged = _acknowledge(known, found, live, now_s)
    if of.memory.writers.deployment_uid is None and not (drift and drift.is_known):
        acknowledged = found - record
    # What a webhook makes of our write has no other owner.
    acknowledged -= {str(each) for each in live.record_edits if each.by}
    edit = _edit(drift, found - acknowledged, live)
    return replace(
        known,
        drift=drift,
        recorded=live.recorded,
        acknowledged=acknowledged,
        template_generation=None if is_seen else known.template_generation,
        template=known.template.looked_at(edit, generation=of.state.view.generation, now_s=now_s),
    )


def _acknowledge(
    known: FieldOwnership, found: frozenset[str], live: DeploymentView, now_s: float
) -> frozenset[str]:
    """Return the differences that are there although we wrote, or since we did.

    What our write came to is a webhook's work, and would be again. What was made after it is an
    edit, and so is what comes back after it was gone.
    """
    ours = known.template_generation
    if ours is not None and live.generation > ours:
        return frozenset()
    if live.generation == ours and known.is_template_awaited(now_s):
        return found
    return known.acknowledged & found


def _differences(drift: Drift | None, live: DeploymentView) -> frozenset[str]:
    """Return what is to be written over, of unknown pods a digest of their spec."""
    if drift is None:
        return frozenset()
    is_foreign = bool(live.template_managers) and not drift.is_known
    return frozenset([*map(str, drift.changes), *([live.pod_spec_digest] if is_foreign else [])])


def _edit(drift: Drift | None, due: frozenset[str], live: DeploymentView) -> str | None:
    """Say who changed what of the template; None: nothing of it is to be written over."""
    if not due or drift is None:
        return None
    changes = [each for each in drift.changes if str(each) in due]
    managers = {name for each in changes for name in each.by or (SOMEBODY,)}
    what = [each.field for each in changes[:MOST_NAMED]]
    if live.pod_spec_digest in due:
        managers, what = managers | live.template_managers, [*what, "the pod template"]
    return f"{_who(sorted(managers))} changed {', '.join(what)}"


def _who(managers: Sequence[str]) -> str:
    return " and ".join(managers) or SOMEBODY


def _drift(live: DeploymentView, of: Assessment, fleet: Fleet) -> Drift | None:
    """Return how the template differs from ours; found anew when either is another."""
    state, before = of.state, of.memory.writers.drift
    if live.owner_uid != state.view.uid:
        return None
    around = (state.view.generation, state.model_config, fleet.site)
    there = (live.template_digest, live.template_managers, live.record_edits)
    compared = (live.uid, *there, *live.recorded, *around)
    if before is not None and before.compared == compared:
        return before
    written = _as_recorded(live, of, fleet)
    if written is None:
        return Drift(compared=compared, changes=live.record_edits)
    owners = tuple((name, fields) for name, fields in json.loads(live.template_owners))
    hands = FieldOwners(ours=json.loads(live.template_fields), others=owners)
    found = list_differences(json.loads(live.template), template_in(written[0]), hands)
    return Drift(
        compared=compared,
        is_known=True,
        has_pod_monitors=written[1],
        changes=(*(each for each in found if not each.is_added), *live.record_edits),
        added=tuple(each for each in found if each.is_added),
    )


def _as_recorded(
    live: DeploymentView, of: Assessment, fleet: Fleet
) -> tuple[Manifest, bool] | None:
    """Return the Deployment as we wrote it, and whether PodMonitors were served then.

    None: this version does not write it so.
    """
    model, flags = _recorded_model(live, of.state), flags_from_annotation(live.flags or "")
    if live.rendered is None or model is None or flags is None:
        return None
    shape = of.state.model_config if model.spec.model and model.spec.model.config else None
    if isinstance(shape, Reason):
        return None
    try:
        has_cache = has_recorded_cache(live.flags)
        asked = by_spec(model.spec, fleet.gpus, shape, None, has_cache)
        request = replace(asked, slo=Slo())
        sizing = size(with_known_cache(request, flags, of, fleet))
        drain_s = recorded_drain_s(live)
        for has_pod_monitors in (fleet.site.has_pod_monitors, not fleet.site.has_pod_monitors):
            site = replace(fleet.site, has_pod_monitors=has_pod_monitors)
            made = deployment(model, sizing, site, drain_s=drain_s)
            if made["metadata"]["annotations"][TEMPLATE_ANNOTATION] == live.rendered:
                return made, has_pod_monitors
    except (CatalogError, SizingError, NotServableError):
        return None
    return None


def _recorded_model(live: DeploymentView, state: ModelState) -> ModelDeployment | None:
    """Return the object as its template was made from it; None: that cannot be read."""
    if not isinstance(state.model, ModelDeployment):
        return None
    if live.digest == spec_digest(state.model):
        return state.model
    return running_model(state.model, live.made_from)


def _recorded_in(found: Assessment) -> tuple[str | int | None, ...]:
    """Return what a template that was written says of itself."""
    if found.template is None:
        return ()
    ours = found.template["metadata"]["annotations"]
    return tuple(
        int(ours[name]) if name == DRAIN_ANNOTATION else ours[name] for name in RECORD.values()
    )


def with_written(
    memory: ObjectMemory,
    found: Assessment,
    *,
    scaled: tuple[int, Fate] | None,
    template: Fate | None,
    now_s: float,
) -> ObjectMemory:
    """Remember what is written; ``scaled``, ``template``: None where no such write is made.

    ``scaled``: replicas, and whether they were written. Replicas that another wrote and that are
    wanted are ours from then on.
    """
    known, live, decision = found.memory.writers, found.state.deployment, found.decision
    if live is None:
        return memory
    generation = live.generation
    if scaled is not None and scaled[1] is not Fate.NOT_APPLIED:
        generation += 1
        known = (
            replace(known, tried_replicas=scaled[0])
            if scaled[1] is Fate.UNKNOWN
            else replace(
                known,
                replicas=known.replicas.count_reapply(now_s),
                our_replicas=scaled[0],
                tried_replicas=None,
                replicas_generation=generation,
            )
        )
    elif (
        known.replicas.edit
        and decision
        and decision.replicas == live.replicas
        and decision.limited_by not in {PARKED, CONFLICT}
    ):
        replicas = replace(known.replicas, edit=None, in_backoff=False)
        known = replace(known, our_replicas=live.replicas, replicas=replicas)
    if template not in {None, Fate.NOT_APPLIED}:
        is_done = template is Fate.DONE  # else it may be for the last spec still, and edited
        differences = _differences(known.drift, live)
        record = {str(each) for each in live.record_edits}
        known = replace(
            known,
            template=known.template.count_reapply(now_s),
            acknowledged=differences | set(map(str, REMOVED.values())) if is_done else frozenset(),
            # The API server counts no write that changes annotations alone.
            template_generation=generation + bool(found.changes or differences - record),
            template_at_s=now_s if is_done else None,
            recorded=_recorded_in(found) if is_done else known.recorded,
        )
    return memory if known is memory.writers else replace(memory, writers=known)
