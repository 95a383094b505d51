"""The fleet's GPU budget: what it leaves, who is asked first, and what it cannot count. Pure."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from tonnage.api.objects import ModelDeployment
from tonnage.control.state import Assessment, Fleet, ModelState, ObjectMemory
from tonnage.control.values import replace
from tonnage.control.writes import may_scale

BUDGET_LIMITS: Final = frozenset({"GPUBudget", "GPUsUncounted"})
"""Codes of the limits that keep an object from what it needs for the budget's sake."""


def free_gpus(fleet: Fleet) -> int | None:
    """Return what the budget leaves; a model without a Deployment uses none."""
    if fleet.settings.max_gpus is None:
        return None
    return fleet.settings.max_gpus - sum(_gpus_in_use(state) for state in fleet.models)


def _gpus_in_use(state: ModelState) -> int:
    deployment = state.deployment
    return deployment.replicas * deployment.gpus_per_replica if deployment else 0


def growth_gpus(found: Assessment, fleet: Fleet) -> int:
    """Return what an object is about to grow by."""
    if found.decision is None or found.sizing is None or not may_scale(found, fleet):
        return 0
    current = found.state.deployment.replicas if found.state.deployment else 0
    grown = max(0, found.decision.replicas - current)
    return grown * found.sizing.flags.parallelism.num_gpus


def in_turn(
    models: Sequence[ModelState], objects: Mapping[str, ObjectMemory]
) -> Sequence[ModelState]:
    """Return the objects in the order in which they get GPUs.

    1. The higher ``spec.scaling.priority``.
    2. Who was kept short by the budget for longest.
    3. Namespace and name.
    """

    def turn(state: ModelState) -> tuple[int, float, tuple[str, str]]:
        model, short_since_s = state.model, objects[state.view.uid].short_since_s
        priority = model.spec.scaling.priority if isinstance(model, ModelDeployment) else 0
        return -priority, math.inf if short_since_s is None else short_since_s, state.view.key

    return sorted(models, key=turn)


def with_shortage(found: Assessment, fleet: Fleet) -> Assessment:
    """Remember since when the budget keeps an object short; without a decision nothing is new."""
    decision, since_s = found.decision, found.memory.short_since_s
    if decision is None:
        return found
    codes = {reason.code for reason in decision.reasons}
    is_short = bool(codes & BUDGET_LIMITS) and may_scale(found, fleet)
    now_s = fleet.now_s if since_s is None else since_s
    return replace(found, memory=replace(found.memory, short_since_s=now_s if is_short else None))


def uncounted_gpus(fleet: Fleet) -> str | None:
    """Return the first thing in the fleet that takes GPUs which are not counted, if any."""
    if fleet.settings.max_gpus is None:
        return None
    return next((each for state in fleet.models for each in _uncounted(state)), None)


def _uncounted(state: ModelState) -> Iterator[str]:
    deployment, namespace = state.deployment, state.view.namespace
    for name in deployment.uncounted_gpus if deployment else ():
        yield f"{name} of Deployment {namespace}/{deployment.name if deployment else ''}"
    for pod in state.pods:
        yield from (f"{name} of pod {namespace}/{pod.name}" for name in pod.uncounted_gpus)
