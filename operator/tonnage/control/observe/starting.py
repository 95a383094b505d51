"""Why pods of an object do not run, in the words of who keeps them from it, and the cure. Pure.

The last lines of vLLM about a start that failed are a tenant's: only which of vLLM's own texts they
contain is read, and its figures.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from tonnage.api.objects import ModelDeployment
from tonnage.api.status import Reason
from tonnage.control.input.memory import PodMemory
from tonnage.control.input.state import APPROVE, Crash, ModelState, PodView
from tonnage.manifests.names import CONTAINER
from tonnage.sizing.request import Flags

MOST_READ_CHARS: Final = 8192
"""Of a message, from its end: the kubelet keeps less."""
PERCENT: Final = 100


class _Kind(NamedTuple):
    pattern: str
    """A pattern; its group, if it has one, is the figure of both texts."""
    of_target: str
    of_ours: str
    beside: str = ""
    """What another line has, by a pattern."""
    value: Callable[[Sequence[str]], str] = "".join
    field: str = ""
    is_asked: bool = False
    """As of a ``Crash``."""


def _free_share(found: Sequence[str]) -> str:
    free, total = map(float, found)
    return f"{math.floor(PERCENT * min(free, total) / max(total, 1)) / PERCENT:g}"


_MORE_GPUS: Final = "raise hardware.gpusPerReplica"
_EAGER: Final = 'add "--enforce-eager" to engine.args'
_LENGTH: Final = _Kind(
    "",
    "set --max-model-len to at most {}",
    f"set contextLength to at most {{}}, or {_MORE_GPUS}",
    field="context_tokens",
    is_asked=True,
)
_OURS: Final = "wait for Tonnage to lower it (in mode Approve, until you approve that)"
_LEAST: Final = {"gpu_memory_utilization": 0.8}
"""Below, something else has the memory."""
_OUT_OF_MEMORY: Final = "CUDA out of memory|CUDA error: out of memory|OutOfMemoryError"
_FURTHER_UP: Final = "the cause is further up in its log, see kubectl logs --previous"
_SIZE: Final = r"(\d{1,5}(?:\.\d{1,3})?)"
_KINDS: Final = (
    _Kind(
        r"max_num_seqs \(\d{1,9}\) exceeds available Mamba cache blocks \((\d{1,9})\)",
        "set --max-num-seqs to at most {}",
        f"the KV cache has {{}} blocks for states: {_OURS}, {_EAGER}, or {_MORE_GPUS}",
        field="max_num_seqs",
    ),
    _LENGTH._replace(pattern=r"estimated maximum model length is (\d{1,9})"),
    _LENGTH._replace(
        pattern="larger than the maximum number of tokens that can be stored in KV cache "
        r"\((\d{1,9})\)"
    ),
    _Kind(
        "KV cache is needed, which is larger than the available KV cache memory",
        "lower --max-model-len, or raise --gpu-memory-utilization",
        f"lower contextLength, or {_MORE_GPUS}",
    ),
    _Kind(
        "No available memory for the cache blocks",
        "raise --gpu-memory-utilization or --tensor-parallel-size",
        f"{_MORE_GPUS}, or set model.weights to fp8",
    ),
    _Kind(
        rf"Free memory on device [^()]{{0,20}}\({_SIZE}/{_SIZE} GiB\) on startup is less than "
        "desired GPU memory utilization",
        "free the GPU of other processes, or set --gpu-memory-utilization to at most {}",
        "free the GPU of other processes: {} of its memory is free",
        value=_free_share,
        field="gpu_memory_utilization",
        is_asked=True,
    ),
    _Kind(
        "CUDA out of memory occurred when warming up (?:sampler|pooler)",
        "lower --max-num-seqs or --gpu-memory-utilization",
        f"{_OURS}, or {_MORE_GPUS}",
        field="max_num_seqs",
    ),
    _Kind(
        _OUT_OF_MEMORY,
        "the weights do not fit: raise --tensor-parallel-size",
        f"the weights do not fit: {_MORE_GPUS}",
        beside="load_model|create_weights|process_weights_after_loading",
    ),
    _Kind(
        _OUT_OF_MEMORY,
        "lower --gpu-memory-utilization by 0.02, or set --enforce-eager",
        f"{_OURS}, {_EAGER}, or {_MORE_GPUS}",
        field="gpu_memory_utilization",
    ),
    _Kind("See root cause above", _FURTHER_UP, _FURTHER_UP),
)
"""Of vLLM 0.10 to 0.33, what says most first.

Sources:
    [vllm-source] config/compilation.py, v1/core/kv_cache_utils.py (kv_cache_planning.py of 0.33),
    worker/worker.py of 0.10, v1/worker/utils.py, v1/worker/gpu_model_runner.py, v1/engine/utils.py.
"""
SILENT: Final = Crash(
    "", ("set terminationMessagePolicy: FallbackToLogsOnError on its container to read why", "")
)
"""Of a container that ended without a word, and whose log the kubelet does not read."""


def read_crash(message: str) -> Crash | None:
    """Return what a container's last lines say; None: nothing that vLLM says of a start.

    >>> read_crash("max_num_seqs (1024) exceeds available Mamba cache blocks (614).").cures[0]
    'set --max-num-seqs to at most 614'
    """
    text = message[-MOST_READ_CHARS:]
    lines = text.splitlines()
    for kind in _KINDS:
        if kind.beside and not re.search(kind.beside, text):
            continue
        for line in reversed(lines):
            if found := re.search(kind.pattern, line):
                value = kind.value(found.groups())
                cures = kind.of_target.format(value), kind.of_ours.format(value)
                most = float(value) if value and kind.field else None
                return Crash(line, cures, kind.field, most, kind.is_asked)
    return None


def arguments_of(pod_spec: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the arguments of the engine's container, as a manifest of ours has them."""
    named = (each for each in pod_spec.get("containers") or () if each.get("name") == CONTAINER)
    engine: Mapping[str, Any] = next(named, {})
    return tuple(engine.get("args") or ())


def lower(flags: Flags, crashes: Iterable[Crash], *, asked_tokens: int) -> Flags:
    """Return flags with which engines are expected to start that ended so with these.

    ``asked_tokens``: of a request at most, by the spec. The same flags: nothing is known to help.
    """
    known = dict.fromkeys((each.field, each.most) for each in crashes if each.field)
    for field, most in known:
        was = getattr(flags, field) or asked_tokens
        less = was // 2 if field == "max_num_seqs" else round(was - 0.02, 2)
        asked = less if most is None else most
        if _LEAST.get(field, 1) <= asked < was:
            lowered: dict[str, Any] = {field: type(was)(asked)}
            if field == "max_num_seqs":  # limits of the queue follow from it
                lowered |= {"max_num_queued_reqs": None, "max_num_queued_tokens": None}
            flags = replace(flags, is_cured=True, **lowered)
    return flags


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
    model, crash = state.model, pods[0].crash
    is_target = isinstance(model, ModelDeployment) and bool(model.spec.scale_target)
    of_target, of_ours = crash.cures if crash else ("", "")
    return Reason(
        code, "; ".join(filter(None, (": ".join(parts), of_target if is_target else of_ours)))
    )


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


def _first(marks: tuple[tuple[str, str], ...], message: str, other: str) -> str:
    folded = TAINT.sub("", message).casefold()
    return next((reason for mark, reason in marks if mark.casefold() in folded), other)
