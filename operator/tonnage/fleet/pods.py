"""Pods, by what their objects say: GPUs asked for, what keeps them from starting, groups as one.

Why a container does not start is told by the kubelet's words: short, printable, without what may be
a secret, and the same for as long as nothing else is wrong. The time of a back-off is left out, and
what alternates while a container is tried again and again has one name.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from tonnage.api.status import Reason
from tonnage.control.input.state import Crash, PodView
from tonnage.control.observe.starting import (
    CRASHES,
    NOT_STARTED,
    POD_CREATE_FAILED,
    SILENT,
    arguments_of,
    read_crash,
)
from tonnage.manifests.names import DELETION_COST_ANNOTATION
from tonnage.redaction import REDACTED, names_in, names_said, names_secret_last, redacted_line
from tonnage.units import count_of

Object = Mapping[str, Any]
COUNTED: Final = "nvidia.com/gpu"
OTHER_MARKS: Final = (
    *("gpu", "/mig-", "amd.com/", "/tpu", "/neuron", "/gaudi", "/npu", "/ascend"),
    "deviceclass.resource.kubernetes.io/",
)
"""What the names of other resources of accelerators contain, in lower case.

Slices of NVIDIA GPUs (mig-1g.10gb, gpu.shared, gpumem), GPUs of AMD and Intel, what is none but
takes the place of one, and a class of devices, of which Kubernetes makes a claim.
"""
ON_ITS_WAY: Final = frozenset({None, "", "ContainerCreating", "PodInitializing"})
"""What a container waits for that is about to start.

Sources: kubernetes pkg/kubelet/kubelet_pods.go; the other reasons are those of
pkg/kubelet/images/types.go and pkg/kubelet/container/sync_result.go.
"""
MOST_RESTARTS: Final = 1
"""After which a container that runs and is not Ready counts as on its way: it may be the last."""
MOST_WORDS: Final = 200
"""Characters of what the kubelet says."""
MOST_MESSAGE: Final = 800
"""Of a condition: a scheduler goes through its nodes, and why each of them does not do."""
BACK_OFF: Final = re.compile(r'^Back-off pulling image "[^"]*": ErrImagePull: ')
"""Before the cause, from Kubernetes 1.32 on: with it, and without, it is the same cause."""
MOMENT: Final = re.compile(
    r"[IWEF]?(?:\d{4}-)?\d\d-?\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\s*"
)
"""Of a line of a log, as vLLM and torch write it: another in each start that ends the same."""
MADE_S: Final = 60.0
"""Within which the workers of a leader are made, as a rule."""
SEEN_S: Final = 60.0
"""Within which a kubelet says of a pod that a node took that it is not Ready."""


def unix_s(timestamp: str | None) -> float | None:
    return datetime.fromisoformat(timestamp).timestamp() if timestamp else None


def controller_uid(metadata: Object) -> str | None:
    owners = metadata.get("ownerReferences") or ()
    return next((owner["uid"] for owner in owners if owner.get("controller")), None)


def integer(text: str | None) -> int | None:
    try:
        return int(text or "")
    except ValueError:
        return None


def pod_view(body: Object) -> PodView:
    metadata, spec, status = body["metadata"], body.get("spec") or {}, body.get("status") or {}
    conditions = {each["type"]: each for each in status.get("conditions") or ()}
    ready = conditions.get("Ready", {})
    scheduled = conditions.get("PodScheduled", {})
    annotations = metadata.get("annotations") or {}
    containers = status.get("containerStatuses") or ()
    is_stuck = scheduled.get("reason") == "Unschedulable" and scheduled.get("status") == "False"
    is_ready, is_deleting = ready.get("status") == "True", "deletionTimestamp" in metadata
    scheduled_at_s = _since_s(scheduled) if scheduled.get("status") == "True" else None
    return PodView(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        replica_set_uid=controller_uid(metadata),
        is_ready=is_ready,
        is_deleting=is_deleting,
        created_at_s=unix_s(metadata.get("creationTimestamp")) or 0.0,
        scheduled_at_s=scheduled_at_s,
        was_ready=not is_ready and _was_ready(_since_s(ready), scheduled_at_s),
        has_restarted=any(each.get("restartCount") for each in containers),
        ready_at_s=_since_s(ready) if is_ready else None,
        unschedulable=message_of(scheduled, spec) if is_stuck else None,
        trouble=None if is_deleting else trouble_of(status, spec),
        crash=None if is_deleting else crash_of(status, spec),
        node_name=spec.get("nodeName"),
        uncounted_gpus=uncounted_gpus(spec),
        deletion_cost=integer(annotations.get(DELETION_COST_ANNOTATION)) or 0,
        is_over=status.get("phase") in {"Failed", "Succeeded"},
    )


def _since_s(condition: Object) -> float | None:
    return unix_s(condition.get("lastTransitionTime"))


def _was_ready(changed_s: float | None, scheduled_at_s: float | None) -> bool:
    """Tell whether a pod that is not Ready was so before.

    A kubelet says at once of a pod that a node took that it is not Ready. Where it said so much
    later the pod was Ready meanwhile; where much earlier its clock is not the API server's.
    """
    if scheduled_at_s is None or changed_s is None:
        return False
    return abs(changed_s - scheduled_at_s) > SEEN_S


def num_gpus(pod_spec: Object) -> int:
    """Return the GPUs of all containers of a pod; init containers run before them, one by one.

    >>> num_gpus({"containers": [{"resources": {"limits": {"nvidia.com/gpu": "2"}}}, {}]})
    2
    """
    running = sum(_amount(limits) for limits in _limits(pod_spec, "containers"))
    return max([running, *(_amount(limits) for limits in _limits(pod_spec, "initContainers"))])


def uncounted_gpus(pod_spec: Object) -> tuple[str, ...]:
    """Return what a pod takes GPUs by that is not counted, by name.

    >>> uncounted_gpus({"containers": [{"resources": {"limits": {"amd.com/gpu": "1"}}}]})
    ('amd.com/gpu',)
    """
    kinds = ("containers", "initContainers")
    each = (limits for kind in kinds for limits in _limits(pod_spec, kind))
    names = {name for limits in each for name in _unclear(limits)}
    claims = pod_spec.get("resourceClaims") or ()
    return tuple(sorted(names | {f"resourceClaim {claim.get('name', '')}" for claim in claims}))


def _limits(pod_spec: Object, kind: str) -> Iterator[Object]:
    for container in pod_spec.get(kind) or ():
        yield (container.get("resources") or {}).get("limits") or {}


def _amount(limits: Object) -> int:
    amount = str(limits.get(COUNTED, "0"))
    return int(amount) if amount.isdecimal() else 0


def _unclear(limits: Object) -> Iterator[str]:
    """Yield resources that are GPUs by their name, and amounts that are no plain number."""
    for name, amount in limits.items():
        if name == COUNTED:
            if not str(amount).isdecimal():
                yield f"{name} {amount}"
        elif "/" in name and any(mark in name.lower() for mark in OTHER_MARKS):
            yield name


def trouble_of(status: Object, spec: Object) -> Reason | None:
    """Return what keeps the first container of a pod that does not start from it.

    Of what a container or the kubelet says, names that stand in the spec can be read.
    """
    for key, kind in (("initContainerStatuses", "init container "), ("containerStatuses", "")):
        for each in status.get(key) or ():
            if found := _start_failure(each):
                code, words = found
                told = f"{kind}{each.get('name')}: {words}" if kind else words
                known = frozenset(names_in([status, spec]))
                return Reason(code, redacted_line(told, MOST_WORDS, known))
    return None


def crash_of(status: Object, spec: Object) -> Crash | None:
    """Return what the last words of a container that does not stay say."""
    for each in status.get("containerStatuses") or ():
        found, last = _start_failure(each), _last_end(each)
        if not found or found.code != CRASHES or not last:
            continue
        message = str(last.get("message") or "")
        if crash := read_crash(message):
            return crash._replace(arguments=arguments_of(spec))
        is_silent = not message.strip() and last.get("reason") == "Error"
        reading = {  # whose last lines of a log the kubelet takes for its last words
            container.get("name")
            for container in spec.get("containers") or ()
            if container.get("terminationMessagePolicy") == "FallbackToLogsOnError"
        }
        return SILENT if is_silent and each.get("name") not in reading else None
    return None


def message_of(condition: Object, of: Object) -> str:
    """Return what a condition of an object says, with names and without what may be a secret."""
    detail = str(condition.get("message") or "")
    return redacted_line(detail, MOST_MESSAGE, names_said(detail).union(names_in(of)))


def _start_failure(container: Object) -> Reason | None:
    """Return why a container does not start, in its own words or the kubelet's."""
    state, last = container.get("state") or {}, _last_end(container)
    waiting, ended = state.get("waiting"), state.get("terminated")
    if waiting:
        return None if waiting.get("reason") in ON_ITS_WAY else _waits(waiting, last)
    is_ended = bool(ended) and last.get("reason") != "Completed"
    # One that runs has ended so often that it is not expected to stay.
    is_in_a_loop = bool(last) and container.get("restartCount", 0) > MOST_RESTARTS
    is_failing = is_ended or (is_in_a_loop and not container.get("ready"))
    return Reason(CRASHES, _ending(last)) if is_failing else None


def _last_end(container: Object) -> Object:
    states = (container.get(key) or {} for key in ("state", "lastState"))
    return next((each["terminated"] for each in states if each.get("terminated")), {})


def _waits(waiting: Object, last: Object) -> Reason:
    code = NOT_STARTED.get(str(waiting.get("reason")), "PodsFailing")
    if code == CRASHES:
        return Reason(code, _ending(last))
    detail = BACK_OFF.sub("", str(waiting.get("message") or ""))
    if code == "PodsFailing":
        detail = f"{waiting.get('reason')}: {detail}"
    return Reason(code, detail)


def _ending(last: Object) -> str:
    """Say how a container ended, and its last line where it left one."""
    if not last:
        return ""
    why = last.get("reason") or "Error"
    code = f"exit code {last.get('exitCode')}"
    how = code if why in {"Error", "Completed"} else f"{why}, {code}"
    message = str(last.get("message") or "")
    if crash := read_crash(message):
        return f"{how}: {MOMENT.sub('', crash.line).strip()}"
    lines = message.strip().splitlines()
    if lines[1:] and names_secret_last(lines[-2]):
        return f"{how}: {REDACTED}"
    return f"{how}: {MOMENT.sub('', lines[-1]).strip()}" if lines else how


def as_group(
    leader: PodView, workers: Sequence[PodView], *, num_nodes: int, now_s: float
) -> PodView:
    """Return the leader of a group: where a worker waits, fails or is missing, so does it."""
    group = (leader, *workers)
    scheduled_s = [pod.scheduled_at_s for pod in group if pod.scheduled_at_s is not None]
    is_whole = len(group) >= num_nodes
    is_placed = is_whole and len(scheduled_s) == len(group)
    waiting = [
        f"worker {pod.name}: {pod.unschedulable}"
        for pod in workers
        if pod.unschedulable is not None
    ]
    failing = [
        each._replace(message=f"worker {pod.name}: {each.message}")
        for pod in workers
        if (each := pod.trouble)
    ]
    return replace(
        leader,
        is_ready=leader.is_ready and is_placed and not any(pod.trouble for pod in workers),
        unschedulable=leader.unschedulable or next(iter(waiting), None),
        crash=next((pod.crash for pod in group if pod.crash), None),
        trouble=leader.trouble
        or next(iter(failing), None)
        or _lacks(leader, len(group), num_nodes, now_s),
        scheduled_at_s=max(scheduled_s) if is_placed else None,
        has_restarted=any(pod.has_restarted for pod in group),
        uncounted_gpus=tuple(dict.fromkeys(each for pod in group for each in pod.uncounted_gpus)),
    )


def _lacks(leader: PodView, num_pods: int, num_nodes: int, now_s: float) -> Reason | None:
    """Return what a group lacks whose workers are not made, as where a quota is used up."""
    if num_pods >= num_nodes or leader.is_deleting or now_s - leader.created_at_s < MADE_S:
        return None
    return Reason(POD_CREATE_FAILED, f"its group has {count_of(num_pods, 'pod')} of {num_nodes}")
