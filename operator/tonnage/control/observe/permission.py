"""Whether an object's Deployment, or its replicas alone, may be written. Pure."""

from tonnage.control.input.state import Assessment, Fleet


def may_act(found: Assessment, fleet: Fleet) -> bool:
    """Tell whether the Deployment of this object may be touched at all."""
    return found.refusal is None and _is_ours(found, fleet)


def may_scale(found: Assessment, fleet: Fleet) -> bool:
    """Tell whether its replicas may be written: of what runs, where the spec is refused."""
    return (found.refusal is None or found.is_of_before) and _is_ours(found, fleet)


def _is_ours(found: Assessment, fleet: Fleet) -> bool:
    """Tell whether Tonnage acts for this object, nobody beside it, and the chart lets it."""
    is_alone = found.state.conflicting_autoscaler is None and not found.state.view.is_deleting
    has_right = fleet.settings.mode == "full" or not owns_children(found)
    return found.is_acting and is_alone and has_right


def owns_children(found: Assessment) -> bool:
    """Tell whether Tonnage makes the Deployment, and what is beside it."""
    return found.chosen is not None and found.chosen.model.spec.scale_target is None
