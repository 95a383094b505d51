"""Why pods of an object do not run, in the words of who keeps them from it. Pure."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Final

from tonnage.api.objects import ModelDeployment
from tonnage.api.status import Reason
from tonnage.control.input.memory import PodMemory
from tonnage.control.input.state import APPROVE, ModelState, PodView
from tonnage.control.observe.crashed import arguments_of, lower
from tonnage.sizing.request import Flags

WELL_PER_FAILING = 4
"""Replicas that are Ready for each fault beside them that does not keep the fleet from growing. The
first of them may be whatever the number."""


def held_up(state: ModelState) -> Reason | None:
    """Return why pods do not run: what does not start before what has no node."""
    failing = [pod for pod in state.pods if pod.trouble]
    if failing:
        return failing_reason(state, failing)
    waiting = [pod for pod in state.pods if pod.unschedulable is not None]
    if not waiting:
        return None
    kubelet_message = str(waiting[0].unschedulable)
    verb = "waits for a node" if len(waiting) == 1 else "wait for nodes"
    return Reason(
        why_unschedulable(kubelet_message), f"{_pod_name(waiting)} {verb}: {kubelet_message}"
    )


def has_started(state: ModelState) -> bool:
    """Tell whether engines were seen Ready with the flags that run."""
    return any(pod.is_ready or pod.was_ready for pod in state.pods)


def failing_reason(state: ModelState, pods: Sequence[PodView]) -> Reason:
    """Return the same of pods of which none starts, with what to change where that is known."""
    code, words = pods[0].trouble or ("", "")
    verb = "does not start" if len(pods) == 1 else "do not start"
    parts = [f"{_pod_name(pods)} {verb}: {code}"] + ([words] if words else [])
    return Reason(code, "; ".join([": ".join(parts), *_cures(state, pods[0])]))


def _cures(state: ModelState, pod: PodView) -> Iterator[str]:
    """Yield what to change, of a workload that is somebody else's or of the spec of ours."""
    model = state.model
    is_target = isinstance(model, ModelDeployment) and bool(model.spec.scale_target)
    of_target, of_ours = pod.crash.cures if pod.crash else ("", "")
    if cure := of_target if is_target else of_ours:
        yield cure


def lowered_flags(state: ModelState, flags: Flags, model: ModelDeployment) -> Flags | None:
    """Return flags with which pods are expected to start; None: some do, or nobody knows any.

    In mode Auto only those that take nothing that a spec asks for, or that is another process'.
    """
    live, is_approved = state.deployment, model.spec.scaling.mode == APPROVE
    if live is None or model.spec.scale_target:
        return None
    sound = {pod.replica_set_uid for pod in state.pods if pod.is_ready or pod.was_ready}
    crashes = [
        pod.crash
        for pod in state.pods
        if pod.crash
        and pod.replica_set_uid not in sound
        and (is_approved or not pod.crash.is_asked)
    ]
    templates = live.workload.templates(json.loads(live.template)) if crashes else ()
    run = {arguments_of(each.get("spec") or {}) for each in templates}
    ended = [each for each in crashes if each.arguments in run]
    lowered = lower(flags, ended, asked_tokens=model.spec.context_length)
    return None if lowered == flags else lowered


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
    return failing_reason(state, failing) if len(_faults(failing, ready)) > most else None


def _faults(failing: Sequence[PodView], ready: Sequence[PodView]) -> set[str]:
    """Return what may be at fault: a node where none is Ready, once, else each pod by itself.

    The pods that fail on a node hold no replica up, and the next one comes to what it has free.
    """
    sound = {None, *(pod.node_name for pod in ready)}
    return {pod.name if pod.node_name in sound else f"node {pod.node_name}" for pod in failing}


TAINT: Final = re.compile(r"\{[^}]*\}")
"""Somebody's own words in a message of the scheduler."""
UNSCHEDULABLE: Final = (
    ("Insufficient nvidia.com/", "InsufficientGPU"),
    ("persistentvolumeclaim", "VolumeUnavailable"),
    ("volume", "VolumeUnavailable"),
    ("Insufficient ", "InsufficientResources"),
)
"""What a message of the scheduler contains, and the reason: the first that is there counts.

Where a part of the nodes lack GPUs and others something else, GPUs are what is missing. A claim
that is lacking keeps the scheduler from looking at nodes at all.
"""
REFUSED: Final = (
    ("exceeded quota", "QuotaExceeded"),
    ("failed quota", "QuotaExceeded"),
    ("violates PodSecurity", "PodSecurityRefused"),
    ("PriorityClass", "PriorityClassMissing"),
    ("RuntimeClass", "RuntimeClassMissing"),
)
"""The same of the API server's word on a pod that a ReplicaSet wants to make."""
NO_NODE, POD_CREATE_FAILED = "NoNodeFits", "PodsRefused"
CRASHES: Final = "CrashLoopBackOff"
IMAGE: Final = "ImagePullBackOff"
NOT_STARTED: Final = {
    "ErrImagePull": IMAGE,
    "RunContainerError": CRASHES,
    **{
        each: each
        for each in (
            IMAGE,
            CRASHES,
            "ErrImageNeverPull",
            "InvalidImageName",
            "CreateContainerConfigError",
            "CreateContainerError",
        )
    },
}
"""What the kubelet says of a container that waits, and the reason: two that take turns are one."""
WHY_NO_POD: Final = frozenset(
    {
        NO_NODE,
        POD_CREATE_FAILED,
        "PodsFailing",
        *(why for _, why in (*UNSCHEDULABLE, *REFUSED)),
        *NOT_STARTED.values(),
    }
)


def why_unschedulable(message: str) -> str:
    """Return the reason why no node takes a pod.

    >>> why_unschedulable("0/2 nodes: 1 Insufficient cpu, 1 Insufficient nvidia.com/gpu.")
    'InsufficientGPU'
    >>> why_unschedulable("0/2 nodes: 2 node(s) had untolerated taint {a: b}.")
    'NoNodeFits'
    >>> why_unschedulable("0/2 nodes: 2 node(s) had untolerated taint {volume-maintenance: true}.")
    'NoNodeFits'
    """
    return _first(UNSCHEDULABLE, message, NO_NODE)


def why_refused(message: str) -> str:
    """Return the reason why a pod is not even made.

    >>> why_refused('pods "a" is forbidden: violates PodSecurity "restricted:latest"')
    'PodSecurityRefused'
    """
    return _first(REFUSED, message, POD_CREATE_FAILED)


def why_not_started(kubelet_message: str) -> str:
    """Return the reason why a container does not start, by the kubelet's.

    >>> why_not_started("ErrImagePull"), why_not_started("PostStartHookError")
    ('ImagePullBackOff', 'PodsFailing')
    """
    return NOT_STARTED.get(kubelet_message, "PodsFailing")


def _first(marks: tuple[tuple[str, str], ...], message: str, other: str) -> str:
    folded = TAINT.sub("", message).casefold()
    return next((reason for mark, reason in marks if mark.casefold() in folded), other)
