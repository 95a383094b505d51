"""What lets an engine admit the newest class of arrivals first: flags, and a module beside it.

vLLM admits by priority, which somebody must give each request when it comes. The module does, in
vLLM's own server. It travels in an annotation of the pod, which the downward API writes to a file:
no object beside the Deployment, and no right to write one.
"""

from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Final

from tonnage.api.spec import Spec
from tonnage.manifests.names import (
    CLASS_VARIABLE,
    MIDDLEWARE,
    QUEUE_ANNOTATION,
    QUEUE_MODULE,
    Manifest,
    field_of_pod,
)
from tonnage.sizing.expected import newest_first_s

FOLDER: Final = "/etc/tonnage"
VOLUME: Final = "queue"


def queue_arguments(spec: Spec, max_queued_tokens: int | None) -> Iterator[str]:
    """Yield the flags: who goes first, and when who comes is refused.

    Sources:
        [vllm-source] v1/core/sched/request_queue.py PriorityRequestQueue; ``--middleware`` in
        entrypoints/openai/api_server.py, since 0.29 entrypoints/serve/middleware/register.py;
        v1/engine/async_llm.py check_admission.
    """
    if newest_first_s(spec):
        yield from ("--scheduling-policy", "priority", "--middleware", MIDDLEWARE)
    if max_queued_tokens is not None:
        yield from ("--max-num-queued-tokens", str(max_queued_tokens))


def queue_environment(spec: Spec) -> dict[str, str]:
    """Return the variables: where the module is, and how long arrivals make a class."""
    class_s = newest_first_s(spec)
    return {"PYTHONPATH": FOLDER, CLASS_VARIABLE: f"{class_s:g}"} if class_s else {}


def queue_annotations(spec: Spec) -> dict[str, str]:
    """Return the annotation of the pod that holds the module."""
    return {QUEUE_ANNOTATION: _module()} if newest_first_s(spec) else {}


def queue_volumes(spec: Spec) -> list[Manifest]:
    """Return the volume that makes a file of the annotation."""
    field = field_of_pod(f"metadata.annotations['{QUEUE_ANNOTATION}']")
    items = [{"path": f"{QUEUE_MODULE}.py", "fieldRef": field}]
    return [{"name": VOLUME, "downwardAPI": {"items": items}}] if newest_first_s(spec) else []


def queue_mounts(spec: Spec) -> list[Manifest]:
    """Return where the container sees it."""
    mount = {"name": VOLUME, "mountPath": FOLDER, "readOnly": True}
    return [mount] if newest_first_s(spec) else []


@cache
def _module() -> str:
    return files("tonnage.manifests").joinpath("in_pod", f"{QUEUE_MODULE}.py").read_text()
