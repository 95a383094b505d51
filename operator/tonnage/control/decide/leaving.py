"""Which replicas go: those with the least to do, marked for whoever takes pods away."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tonnage.control.input.state import ModelState, PodView
from tonnage.estimate.samples import EngineSamples


@dataclass(frozen=True, slots=True, kw_only=True)
class PodCost:
    """What a pod is to be marked with, so that it goes before others that are as Ready."""

    pod: str
    uid: str
    cost: int


def costs_to_go(state: ModelState, num_kept: int) -> tuple[PodCost, ...]:
    """Return the marks that let the pods with the least to do go, down to so many that are kept.

    Pods that are not Ready go first, marked or not. Of the others those with the fewest requests,
    and none that is not measured before one that is. Nothing is written where they already cost
    less than all who stay.
    """
    staying = [pod for pod in state.pods if not pod.is_deleting]
    ready = [pod for pod in staying if pod.is_ready]
    loads = pod_loads(state.engines)
    ranked = sorted(
        (pod for pod in ready if pod.name in loads), key=lambda pod: (loads[pod.name], pod.name)
    )
    going = ranked[: max(0, len(ready) - num_kept)]
    return _marks(going, [pod for pod in ready if pod not in going])


def _marks(going: Sequence[PodView], others: Sequence[PodView]) -> tuple[PodCost, ...]:
    """Return marks below whatever the others bear: it may be left of a step that was not made."""
    lowest = min((pod.deletion_cost for pod in others), default=None)
    if lowest is None:
        return ()
    below = min(0, lowest) - 1
    return tuple(
        PodCost(pod=pod.name, uid=pod.uid, cost=below)
        for pod in going
        if pod.deletion_cost >= lowest
    )


def pod_loads(engines: Sequence[EngineSamples]) -> Mapping[str, float]:
    """Return the requests that run and wait in each pod, of those whose engines all say it."""
    loads, unknown = dict[str, float](), set[str]()
    for each in engines:
        if not each.is_fresh or each.running is None or each.waiting is None:
            unknown.add(each.pod)
            continue
        loads[each.pod] = loads.get(each.pod, 0.0) + each.running + each.waiting
    return {pod: load for pod, load in loads.items() if pod not in unknown}
