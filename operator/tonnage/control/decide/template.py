"""The Deployment that is to be applied, if one is, and what of it makes pods roll."""

import json

from tonnage.control.decide.draining import drain_to_write_s
from tonnage.control.input.memory import ObjectMemory
from tonnage.control.input.state import Chosen, DeploymentView, Fleet, ModelState
from tonnage.control.observe.ownership import is_adopted
from tonnage.manifests.changes import Change, template_changes
from tonnage.manifests.children import deployment, site_of
from tonnage.manifests.names import Manifest
from tonnage.units import count_of

MOST_NAMED = 8
"""Fields that are named in one message."""


def template_of(
    state: ModelState, fleet: Fleet, chosen: Chosen, memory: ObjectMemory
) -> Manifest | None:
    """Return the Deployment to apply; None: the live one stays."""
    writers = memory.writers
    if writers.template.is_left or chosen.model.spec.scale_target:
        return None
    is_due = writers.template.edit or (chosen.must_apply and not writers.is_reverted)
    if not (is_due or is_adopted(state, state.deployment)):
        return None
    site = site_of(fleet.settings, has_pod_monitors=fleet.has_pod_monitors)
    return deployment(chosen.model, chosen.sizing, site, drain_s=drain_to_write_s(state, chosen))


def roll_changes(live: DeploymentView | None, template: Manifest | None) -> tuple[Change, ...]:
    """Return what applying a Deployment changes of the pods that run; nothing: none rolls."""
    if live is None or template is None:
        return ()
    owned = json.loads(live.template_fields)
    return template_changes(json.loads(live.template), template["spec"]["template"], owned=owned)


def roll_written(live: DeploymentView | None, changes: tuple[Change, ...]) -> str:
    """Say how many pods roll, and for which fields."""
    named = "; ".join(str(each) for each in changes[:MOST_NAMED])
    more = f"; and {len(changes) - MOST_NAMED} more" if len(changes) > MOST_NAMED else ""
    pods = count_of(live.replicas if live else 0, "pod is", "pods are")
    return f"{pods} replaced for {named}{more}"
