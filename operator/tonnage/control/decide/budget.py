"""The fleet's GPU budget: what it leaves, who is asked first, and what it cannot count. Pure."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

from tonnage.api.objects import ModelDeployment
from tonnage.control.input.memory import ObjectMemory
from tonnage.control.input.state import (
    ACTING,
    Assessment,
    Chosen,
    DeploymentView,
    Fleet,
    ModelState,
    PodView,
)
from tonnage.control.observe.ownership import may_act, may_scale
from tonnage.manifests.target import RefusedError
from tonnage.policy.situation import Decision
from tonnage.units import count_of

BUDGET_LIMITS: Final = frozenset({"GPUBudget", "GPUsUncounted"})
"""Codes of the limits that keep an object from what it needs for the budget's sake."""
MOST_GPUS_OF_POD: Final = 64
"""A template may ask for any number, which no node has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemainingBudget:
    """What the rest of the fleet leaves to one object."""

    gpus: int | None
    """None: there is no budget. Negative: the fleet has more than it."""
    uncounted: str | None = None
    """What the budget cannot count, if there is any: then nothing grows."""
    is_rolling: bool = False
    """Pods are being replaced already that a rollout for better flags has to wait for."""


def free_gpus(fleet: Fleet) -> int | None:
    """Return what the budget leaves; a model without a Deployment uses none."""
    if fleet.settings.max_gpus is None:
        return None
    return fleet.settings.max_gpus - sum(_gpus_in_use(state) for state in fleet.models)


def _gpus_in_use(state: ModelState) -> int:
    """Return the GPUs of the pods that exist, and of those that we may have asked for.

    Who may write a Deployment may ask for any number, which a quota keeps from becoming pods.
    """
    live, most_of_ours = state.deployment, 0
    if live is None:
        return 0
    if isinstance(state.model, ModelDeployment):
        scaling = state.model.spec.scaling
        # What nobody else wrote was asked for by us, in whatever mode the object is by now.
        is_ours = scaling.mode in ACTING or not live.replicas_managers
        most_of_ours = scaling.max_replicas if is_ours else 0
    gpus_each = min(live.gpus_per_replica, MOST_GPUS_OF_POD)
    return max(live.total, min(live.replicas, most_of_ours)) * gpus_each


def growth_gpus(found: Assessment, fleet: Fleet) -> int:
    """Return what an object is about to grow by, in replicas and in each of them."""
    if found.decision is None or found.chosen is None or not may_scale(found, fleet):
        return template_gpus(found, fleet)
    grown = max(0, found.decision.replicas - found.state.replicas)
    return grown * gpus_of_replica(found, found.chosen) + template_gpus(found, fleet)


def gpus_of_replica(found: Assessment, chosen: Chosen) -> int:
    """Return what one more replica takes: at least what the template that stands asks for.

    Replicas are written before a template, which may be refused or have to wait.
    """
    live, asked = found.state.deployment, chosen.sizing.flags.parallelism.num_gpus
    return asked if live is None else max(asked, live.gpus_per_replica)


def template_gpus(found: Assessment, fleet: Fleet) -> int:
    """Return what the replicas that run grow by, with the template that is to be applied."""
    live, chosen = found.state.deployment, found.chosen
    if live is None or chosen is None or found.template is None or not may_act(found, fleet):
        return 0
    return replaced_gpus(live, chosen)


def replaced_gpus(live: DeploymentView, chosen: Chosen) -> int:
    """Return how many more GPUs the replicas that run take once they are replaced."""
    grown = chosen.sizing.flags.parallelism.num_gpus - live.gpus_per_replica
    return live.replicas * max(0, grown)


def by_priority(
    models: Sequence[ModelState], objects: Mapping[str, ObjectMemory]
) -> Sequence[ModelState]:
    """Return the objects in the order in which they get GPUs.

    1. The higher ``spec.scaling.priority``.
    2. Who was kept short by the budget for longest.
    3. Namespace and name.
    """

    def turn(state: ModelState) -> tuple[int, float, tuple[str, str]]:
        model, short_since_s = state.model, objects[state.view.uid].decided.short_since_s
        priority = model.spec.scaling.priority if isinstance(model, ModelDeployment) else 0
        return -priority, math.inf if short_since_s is None else short_since_s, state.view.key

    return sorted(models, key=turn)


def over_budget(
    state: ModelState, chosen: Chosen, remaining: RemainingBudget
) -> RefusedError | None:
    """Return why the fleet's budget does not leave the GPUs that replicas would take, if so."""
    live = state.deployment
    if remaining.gpus is None or live is None:
        return None
    grown = replaced_gpus(live, chosen)
    taking = f"{count_of(live.replicas, 'replica')} would take {count_of(grown, 'more GPU')}"
    if grown > 0 and remaining.uncounted:
        return RefusedError(
            "GPUsUncounted", f"{taking}, and the GPU budget cannot count {remaining.uncounted}"
        )
    if grown > max(0, remaining.gpus):
        return RefusedError(
            "GPUBudget", f"{taking}, and the GPU budget has {max(0, remaining.gpus)} free"
        )
    return None


def short_since_s(found: Assessment, decision: Decision, fleet: Fleet) -> float | None:
    """Return since when the budget keeps an object from what it needs; None: it does not."""
    if decision.limited_by not in BUDGET_LIMITS or not may_scale(found, fleet):
        return None
    since_s = found.memory.decided.short_since_s
    return fleet.now_s if since_s is None else since_s


def uncounted_gpus(fleet: Fleet) -> str | None:
    """Return the first pod in the fleet that holds GPUs which are not counted, if any.

    What no node has taken holds none: else one that asks for what there is not stops everybody.
    """
    if fleet.settings.max_gpus is None:
        return None
    pods = (pod for state in fleet.models for pod in state.pods if pod.is_ready or pod.node_name)
    return next((each for pod in pods for each in _uncounted_gpus(pod)), None)


def uncounted_by(state: ModelState, fleet: Fleet) -> str | None:
    """Return the first thing by which an object would take GPUs that are not counted, if any."""
    if fleet.settings.max_gpus is None or state.deployment is None:
        return None
    live = state.deployment
    of_template = (
        f"{name} of {live.kind} {live.namespace}/{live.name}" for name in live.uncounted_gpus
    )
    return next(chain(of_template, *map(_uncounted_gpus, state.pods)), None)


def _uncounted_gpus(pod: PodView) -> Iterator[str]:
    return (f"{name} of pod {pod.namespace}/{pod.name}" for name in pod.uncounted_gpus)
