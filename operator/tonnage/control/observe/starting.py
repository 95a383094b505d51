"""Why pods of an object do not run, with the name of one, in the words of who keeps it from it."""

from collections.abc import Sequence

from tonnage.api.status import Reason
from tonnage.control.input.memory import PodMemory
from tonnage.control.input.state import ModelState, PodView
from tonnage.control.observe.capacity import why_unschedulable

WELL_PER_FAILING = 4
"""Replicas that are Ready for each fault beside them that does not keep the fleet from growing. The
first of them may be whatever the number."""


def held_up(state: ModelState) -> Reason | None:
    """Return why pods do not run: what does not start before what has no node."""
    failing = [pod for pod in state.pods if pod.trouble]
    if failing:
        return failing_told(failing)
    waiting = [pod for pod in state.pods if pod.unschedulable is not None]
    if not waiting:
        return None
    said = str(waiting[0].unschedulable)
    verb = "waits for a node" if len(waiting) == 1 else "wait for nodes"
    return Reason(why_unschedulable(said), f"{_pod_name(waiting)} {verb}: {said}")


def failing_told(pods: Sequence[PodView]) -> Reason:
    """Return the same of pods of which none starts."""
    code, words = pods[0].trouble or ("", "")
    verb = "does not start" if len(pods) == 1 else "do not start"
    told = f"{_pod_name(pods)} {verb}: {code}"
    return Reason(code, f"{told}: {words}" if words else told)


def _pod_name(pods: Sequence[PodView]) -> str:
    more = f" and {len(pods) - 1} more" if len(pods) > 1 else ""
    return f"pod {pods[0].name}{more}"


def no_more_start(state: ModelState, known: PodMemory) -> Reason | None:
    """Return why more pods are not expected to start either, if so.

    Those that were Ready before and failed since are no sign of it.
    """
    failing = [pod for pod in state.pods if pod.trouble and pod.uid in known.loading]
    ready = [pod for pod in state.pods if pod.is_ready]
    most = max(1, len(ready) // WELL_PER_FAILING) if ready else 0
    return failing_told(failing) if len(_faults(failing, ready)) > most else None


def _faults(failing: Sequence[PodView], ready: Sequence[PodView]) -> set[str]:
    """Return what may be at fault: a node where none is Ready, once, else each pod by itself.

    The pods that fail on a node hold no replica up, and the next one comes to what it has free.
    """
    sound = {None, *(pod.node_name for pod in ready)}
    return {pod.name if pod.node_name in sound else f"node {pod.node_name}" for pod in failing}
