"""Pods that are not Ready: which no node takes, and which replace one that was lost."""

from dataclasses import replace
from itertools import takewhile

from tonnage.control.input.memory import PodMemory, UnschedulableBackoff
from tonnage.control.input.state import Fleet, ModelState, PodView
from tonnage.control.observe.starting import why_unschedulable
from tonnage.policy.situation import Decision
from tonnage.settings import Settings

NO_GPU = "InsufficientGPU"
MOST_DOUBLINGS = 2
"""Of the time until pods are asked for again that no node took: nobody tells when nodes come."""


def is_given_up(pod: PodView, fleet: Fleet) -> bool:
    """Tell whether no node has taken a pod for so long that none is expected to."""
    waited_s = fleet.now_s - pod.created_at_s
    is_stuck = pod.unschedulable is not None and not pod.is_deleting
    return is_stuck and waited_s > fleet.settings.pending_timeout_s


def num_unschedulable(state: ModelState, fleet: Fleet) -> int:
    """Return the pods that are given up, and go first where fewer are asked for.

    A ReplicaSet takes those away that are not Ready, a LeaderWorkerSet the highest index.
    """
    pods = state.pods
    if state.deployment and state.deployment.workload.is_group:
        from_highest = sorted(pods, key=_index_of, reverse=True)
        return sum(1 for _ in takewhile(lambda pod: is_given_up(pod, fleet), from_highest))
    return sum(is_given_up(pod, fleet) for pod in pods)


def _index_of(leader: PodView) -> int:
    index = leader.name.rpartition("-")[2]
    return int(index) if index.isdecimal() else -1


def num_placed(state: ModelState, fleet: Fleet) -> int:
    """Return the pods that stay and are not given up, those of a rollout too."""
    return sum(not pod.is_deleting and not is_given_up(pod, fleet) for pod in state.pods)


def is_replacing(state: ModelState, known: PodMemory, fleet: Fleet) -> bool:
    """Tell whether a pod that came when a replica was lost, or later, is still loading."""
    if known.lost_at_s is None:
        return False
    since_s = known.lost_at_s - fleet.settings.tick_s  # a loss shows at the tick after it
    return any(
        pod.created_at_s >= since_s
        and not (pod.is_ready or pod.is_deleting or pod.trouble or is_given_up(pod, fleet))
        for pod in state.pods
    )


def retry_at_s(back: UnschedulableBackoff, settings: Settings) -> float:
    """Return when pods are asked for again that no node took."""
    doublings = min(max(back.times - 1, 0), MOST_DOUBLINGS)
    return back.at_s + settings.pending_timeout_s * float(2**doublings)


def unplaced_reason(state: ModelState, back: UnschedulableBackoff | None, fleet: Fleet) -> str:
    """Return why no node takes pods that are given up, or took them when they were given back."""
    messages = (pod.unschedulable for pod in state.pods if is_given_up(pod, fleet))
    message = next(filter(None, messages), None)
    if message is not None:
        return why_unschedulable(message)
    return back.reason if back else NO_GPU


def given_back(
    back: UnschedulableBackoff | None, state: ModelState, decision: Decision, fleet: Fleet
) -> UnschedulableBackoff | None:
    """Count how often pods were asked for and given back, until a node takes one or none waits."""
    asked = state.replicas
    why = unplaced_reason(state, back, fleet)
    if back is not None:
        back = _carried_out(back, asked, fleet)
        back = None if _is_over(back, state, decision, fleet) else back
    is_reported = any(reason.code == why for reason in decision.reasons)
    if (
        is_reported
        and decision.replicas < asked
        and any(is_given_up(pod, fleet) for pod in state.pods)
    ):
        at_s, times = (back.at_s, back.times) if back else (fleet.now_s, 0)
        placed = sum(map(_has_node, state.pods))
        back = UnschedulableBackoff(at_s=at_s, times=times, placed=placed, reason=why, asked=asked)
    return back


def _carried_out(back: UnschedulableBackoff, asked: int, fleet: Fleet) -> UnschedulableBackoff:
    """Count pods as given back once fewer are asked for: once, until they are asked for again."""
    if back.asked is None or asked >= back.asked:
        return back
    is_again = back.times == 0 or fleet.now_s >= retry_at_s(back, fleet.settings)
    return replace(back, at_s=fleet.now_s, times=back.times + is_again, asked=None)


def _is_over(
    back: UnschedulableBackoff, state: ModelState, decision: Decision, fleet: Fleet
) -> bool:
    """Tell whether a node took one more pod than then, or none waits after they may be asked for.

    Where more are wanted than are asked for they wait, too.
    """
    placed = sum(map(_has_node, state.pods))
    may_ask = fleet.now_s >= retry_at_s(back, fleet.settings)
    return placed > back.placed or (may_ask and placed >= max(state.replicas, decision.replicas))


def _has_node(pod: PodView) -> bool:
    return pod.scheduled_at_s is not None and not pod.is_deleting
