"""Whether a node with a replica can be drained, by the object's own disruption budget. Pure."""

from tonnage.api.objects import ModelDeployment
from tonnage.api.status import Reason
from tonnage.manifests.protection import evictable_from
from tonnage.units import count_of

DISRUPTION_BUDGET = "DisruptionBudget"


def evictable(model: ModelDeployment) -> tuple[int, str] | None:
    """Return the replicas from which on one may go, and what says so; None: any number, or none.

    Where that is more than maxReplicas no number helps.
    """
    rule = _eviction_rule(model)
    return None if rule is None or rule[0] > model.spec.scaling.max_replicas else rule


def pdb_blocks_eviction(model: ModelDeployment) -> tuple[Reason, ...]:
    """Say that a budget lets no replica go, however many there may be."""
    rule, most = _eviction_rule(model), model.spec.scaling.max_replicas
    if rule is None or rule[0] <= most:
        return ()
    message = f"no node with a replica can be drained: {rule[1]}, maxReplicas allows {most}"
    return (Reason(code=DISRUPTION_BUDGET, message=message),)


def _eviction_rule(model: ModelDeployment) -> tuple[int, str] | None:
    pods = model.spec.pods
    asked = pods.disruption_budget if pods else None
    if asked is None or asked.min_available is None:
        return None
    least = evictable_from(asked)
    field = f"pods.disruptionBudget.minAvailable {asked.min_available}"
    return least, f"{field} allows an eviction from {count_of(least, 'replica')} on"
