"""Pods that are not Ready: which no node takes, and which replace one that was lost."""

from tonnage.control.capacity import why_unschedulable
from tonnage.control.state import Fleet, GivenBack, ModelState, ObjectMemory, PodView
from tonnage.policy.situation import Decision
from tonnage.settings import Settings
from tonnage.values import replace

NO_GPU = "InsufficientGPU"
MOST_DOUBLINGS = 4
"""Of the time until pods are asked for again that no node took."""


def is_given_up(pod: PodView, fleet: Fleet) -> bool:
    """Tell whether no node has taken a pod for so long that none is expected to."""
    waited_s = fleet.now_s - pod.created_at_s
    is_stuck = pod.unschedulable is not None and not pod.is_deleting
    return is_stuck and waited_s > fleet.settings.pending_timeout_s


def num_placed(state: ModelState, fleet: Fleet) -> int:
    """Return the pods that stay and are not given up, those of a rollout too."""
    return sum(not pod.is_deleting and not is_given_up(pod, fleet) for pod in state.pods)


def is_replacing(state: ModelState, memory: ObjectMemory, fleet: Fleet) -> bool:
    """Tell whether a pod that came when a replica was lost, or later, is still loading."""
    if memory.lost_at_s is None:
        return False
    since_s = memory.lost_at_s - fleet.settings.tick_s  # a loss shows at the tick after it
    return any(
        pod.created_at_s >= since_s
        and not (pod.is_ready or pod.is_deleting or pod.trouble or is_given_up(pod, fleet))
        for pod in state.pods
    )


def retry_at_s(memory: ObjectMemory, settings: Settings) -> float | None:
    """Return when pods are asked for again that no node took."""
    back = memory.given_back
    if back is None:
        return None
    doublings = min(back.times - 1, MOST_DOUBLINGS)
    return back.at_s + settings.pending_timeout_s * float(2**doublings)


def unplaced_reason(state: ModelState, memory: ObjectMemory, fleet: Fleet) -> str:
    """Return why no node takes pods that are given up, or took them when they were given back."""
    messages = (pod.unschedulable for pod in state.pods if is_given_up(pod, fleet))
    said = next(filter(None, messages), None)
    if said is not None:
        return why_unschedulable(said)
    return memory.given_back.reason if memory.given_back else NO_GPU


def remembered_giving_back(
    state: ModelState, memory: ObjectMemory, decision: Decision, fleet: Fleet
) -> ObjectMemory:
    """Count how often pods were given back, until a node takes one more than then."""
    ready, back = len(memory.ready_pods), memory.given_back
    if back is not None and ready > back.ready:
        memory, back = replace(memory, given_back=None), None
    why = unplaced_reason(state, memory, fleet)
    is_back = any(reason.code == why for reason in decision.reasons)
    if not (is_back and any(is_given_up(pod, fleet) for pod in state.pods)):
        return memory
    times = 1 if back is None else back.times + 1
    given_back = GivenBack(at_s=fleet.now_s, times=times, ready=ready, reason=why)
    return replace(memory, given_back=given_back)
