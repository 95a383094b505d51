"""What stands in a Deployment's pod template that we did not put there, and who did. Pure.

Compared is with what this version writes for the spec and the flags that are recorded on the
Deployment, whatever is planned now. That tells of edits only where it is what we did write: its
digest stands there too. What another version of Tonnage wrote is not judged.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby

from tonnage.api.objects import ModelDeployment
from tonnage.catalog.gpu import CatalogError
from tonnage.control.decide.draining import recorded_drain_s
from tonnage.control.decide.template import MOST_NAMED
from tonnage.control.input.contest import NOBODY
from tonnage.control.input.finding import Finding
from tonnage.control.input.memory import Departed, ObjectMemory
from tonnage.control.input.state import Assessment, BadConfig, DeploymentView, Fleet, ModelState
from tonnage.control.learn.believed import with_known_cache
from tonnage.control.size.question import by_spec
from tonnage.manifests.changes import Change, Hands, departures
from tonnage.manifests.children import (
    NotServableError,
    deployment,
    flags_from_annotation,
    running_model,
    site_of,
    spec_digest,
)
from tonnage.manifests.names import TEMPLATE_ANNOTATION, Manifest
from tonnage.sizing.errors import SizingError
from tonnage.sizing.plan import size
from tonnage.sizing.workload import Slo


def with_departed(memory: ObjectMemory, state: ModelState, fleet: Fleet) -> ObjectMemory:
    """Remember how the template that stands departs from ours; found anew when it is another."""
    live = state.deployment
    if live is None or live.owner_uid != state.view.uid:
        return replace(memory, departed=None)
    recorded = (live.rendered, live.digest, live.flags, live.drain_s, live.made_from)
    around = (state.view.generation, state.model_config, fleet.has_pod_monitors)
    seen = (live.uid, live.template_digest, live.template_managers, *recorded, *around)
    if memory.departed is not None and memory.departed.seen == seen:
        return memory
    ours = _as_recorded(live, state, fleet, memory)
    if ours is None:
        return replace(memory, departed=Departed(seen=seen))
    owners = tuple((name, fields) for name, fields in json.loads(live.template_owners))
    hands = Hands(ours=json.loads(live.template_fields), others=owners)
    found = departures(json.loads(live.template), ours["spec"]["template"], hands)
    departed = Departed(
        seen=seen,
        is_known=True,
        changes=tuple(each for each in found if not each.is_added),
        added=tuple(each for each in found if each.is_added),
    )
    return replace(memory, departed=departed)


def _as_recorded(
    live: DeploymentView, state: ModelState, fleet: Fleet, memory: ObjectMemory
) -> Manifest | None:
    """Return the Deployment as we wrote it; None: this version does not write it so."""
    model, flags = _recorded_model(live, state), flags_from_annotation(live.flags or "")
    if live.rendered is None or model is None or flags is None:
        return None
    shape = state.model_config if model.spec.model and model.spec.model.config else None
    if isinstance(shape, BadConfig):
        return None
    site = site_of(fleet.settings, has_pod_monitors=fleet.has_pod_monitors)
    try:
        request = replace(by_spec(model.spec, fleet.gpus, shape, None), slo=Slo())
        sizing = size(with_known_cache(request, flags, state, fleet, memory))
        made = deployment(model, sizing, site, drain_s=recorded_drain_s(live))
    except (CatalogError, SizingError, NotServableError):
        return None
    return made if made["metadata"]["annotations"][TEMPLATE_ANNOTATION] == live.rendered else None


def _recorded_model(live: DeploymentView, state: ModelState) -> ModelDeployment | None:
    """Return the object as its template was made from it; None: that cannot be read."""
    if not isinstance(state.model, ModelDeployment):
        return None
    if live.digest == spec_digest(state.model):
        return state.model
    return running_model(state.model, live.made_from)


def drifted(found: Assessment) -> Finding:
    """Present while a Deployment of ours stands, whatever becomes of the plan."""
    kind, departed, live = "Drifted", found.memory.departed, found.state.deployment
    if departed is None or live is None:
        return Finding(kind, None, "", "")
    if not departed.is_known:
        return Finding(kind, "Unknown", "WrittenOtherwise", _unjudged(found, live))
    if not departed.changes and not departed.added:
        return Finding(kind, "False", "AsWritten", "the pod template is as Tonnage wrote it")
    message = "; ".join(_written((*departed.changes, *departed.added)))
    return Finding(kind, "True", "TemplateEdited", message)


def _unjudged(found: Assessment, live: DeploymentView) -> str:
    why = "drift is unknown: another version or other settings of Tonnage wrote the template"
    if not isinstance(found.state.model, ModelDeployment):
        why = "drift is unknown: the spec is invalid"
    who = " and ".join(sorted(live.template_managers))
    return f"{why}; {who} wrote fields of it" if who else why


def _written(changes: tuple[Change, ...]) -> Iterator[str]:
    """Say who did what: who took a field away is recorded nowhere."""
    for (who, is_added), some in groupby(changes[:MOST_NAMED], key=_hand):
        named = ", ".join(_named(each) for each in some)
        yield f"{who} {'added' if is_added else 'wrote'} {named}"
    if len(changes) > MOST_NAMED:
        yield f"and {len(changes) - MOST_NAMED} more"


def _hand(change: Change) -> tuple[str, bool]:
    return " and ".join(change.by) or NOBODY, change.is_added


def _named(change: Change) -> str:
    if change.is_added:
        return change.field if change.before == "there" else f"{change.field} {change.before}"
    return f"{change.field} {change.before or 'away'}, ours: {change.after or 'none'}"
