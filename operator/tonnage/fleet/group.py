"""A group of pods as the one replica that it is: its leader, with what keeps the others away."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from tonnage.api.status import Reason
from tonnage.control.input.state import PodView
from tonnage.control.observe.capacity import NOT_MADE
from tonnage.units import count_of

MADE_S: Final = 60.0
"""Within which the workers of a leader are made, as a rule."""


def as_group(
    leader: PodView, workers: Sequence[PodView], *, num_nodes: int, now_s: float
) -> PodView:
    """Return the leader of a group: where a worker waits, fails or is missing, so does it."""
    group = (leader, *workers)
    scheduled_s = [pod.scheduled_at_s for pod in group if pod.scheduled_at_s is not None]
    is_whole = len(group) >= num_nodes
    is_placed = is_whole and len(scheduled_s) == len(group)
    return replace(
        leader,
        is_ready=leader.is_ready and is_placed and not any(pod.trouble for pod in workers),
        unschedulable=leader.unschedulable or _waits(workers),
        trouble=leader.trouble or _fails(workers) or _lacks(leader, len(group), num_nodes, now_s),
        scheduled_at_s=max(scheduled_s) if is_placed else None,
        has_restarted=any(pod.has_restarted for pod in group),
        uncounted_gpus=tuple(dict.fromkeys(each for pod in group for each in pod.uncounted_gpus)),
    )


def _waits(workers: Sequence[PodView]) -> str | None:
    waiting = (pod for pod in workers if pod.unschedulable is not None)
    return next((f"worker {pod.name}: {pod.unschedulable}" for pod in waiting), None)


def _fails(workers: Sequence[PodView]) -> Reason | None:
    failing = ((pod.name, pod.trouble) for pod in workers if pod.trouble)
    return next(
        (each._replace(message=f"worker {name}: {each.message}") for name, each in failing), None
    )


def _lacks(leader: PodView, num_pods: int, num_nodes: int, now_s: float) -> Reason | None:
    """Return what a group lacks whose workers are not made, as where a quota is used up."""
    if num_pods >= num_nodes or leader.is_deleting or now_s - leader.created_at_s < MADE_S:
        return None
    return Reason(NOT_MADE, f"its group has {count_of(num_pods, 'pod')} of {num_nodes}")
