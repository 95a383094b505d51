"""The Deployment that is to be applied, if one is, and what of it makes pods roll."""

from tonnage.control.draining import drain_to_write_s
from tonnage.control.ownership import is_adopted
from tonnage.control.rivals import drift, leaves_template
from tonnage.control.state import Chosen, DeploymentView, Fleet, ModelState, ObjectMemory
from tonnage.manifests.changes import Change, template_changes
from tonnage.manifests.children import deployment, site_of
from tonnage.manifests.names import Manifest

MOST_NAMED = 8
"""Fields that are named in one message."""


def template_of(
    state: ModelState, fleet: Fleet, chosen: Chosen, memory: ObjectMemory
) -> Manifest | None:
    """Return the Deployment to apply; None: the live one stays."""
    has_drifted = drift(state, memory) not in {None, memory.drift_corrected}
    if leaves_template(memory):
        return None
    is_due = chosen.must_apply or has_drifted or is_adopted(state, state.deployment)
    if chosen.model.spec.scale_target or not is_due:
        return None
    site = site_of(fleet.settings, has_pod_monitors=fleet.has_pod_monitors)
    return deployment(chosen.model, chosen.sizing, site, drain_s=drain_to_write_s(state, chosen))


def roll_changes(live: DeploymentView | None, template: Manifest | None) -> tuple[Change, ...]:
    """Return what applying a Deployment changes of the pods that run; nothing: none rolls."""
    if live is None or template is None:
        return ()
    owned = live.template_fields.value
    return template_changes(live.template.value, template["spec"]["template"], owned=owned)


def roll_written(live: DeploymentView | None, changes: tuple[Change, ...]) -> str:
    """Say how many pods roll, and for which fields."""
    named = "; ".join(str(each) for each in changes[:MOST_NAMED])
    more = f"; and {len(changes) - MOST_NAMED} more" if len(changes) > MOST_NAMED else ""
    return f"{live.replicas if live else 0} pods are replaced for {named}{more}"
