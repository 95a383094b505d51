"""Why pods do not run, by the words of those who refuse them: each calls for another remedy."""

import re
from typing import Final

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
NO_NODE, NOT_MADE = "NoNodeFits", "PodsRefused"
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
        NOT_MADE,
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
    return _first(REFUSED, message, NOT_MADE)


def why_not_started(said: str) -> str:
    """Return the reason why a container does not start, by the kubelet's.

    >>> why_not_started("ErrImagePull"), why_not_started("PostStartHookError")
    ('ImagePullBackOff', 'PodsFailing')
    """
    return NOT_STARTED.get(said, "PodsFailing")


def _first(marks: tuple[tuple[str, str], ...], message: str, other: str) -> str:
    folded = TAINT.sub("", message).casefold()
    return next((reason for mark, reason in marks if mark.casefold() in folded), other)
