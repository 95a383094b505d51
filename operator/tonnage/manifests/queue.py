"""What lets an engine admit the newest class of arrivals first: flags, and a module beside it.

vLLM admits by priority, which somebody must give each request when it comes. The module does, in
vLLM's own server. It travels in a variable of the container and its digest in the command, which
nobody can change once a pod is there: no object beside the Deployment, and no right to write one.
"""

import hashlib
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Final

from tonnage.manifests.names import CLASS_VARIABLE, MIDDLEWARE, MODULE_VARIABLE, QUEUE_MODULE

COMMAND: Final = ("vllm", "serve")
"""Said for every image: the entrypoint of 0.11.0 is another server, which takes no model by its
place and would serve its own default."""
FOLDER: Final = "/dev/shm/tonnage"  # noqa: S108 - a volume of the pod's own, which any user may write


def queue_arguments(class_s: float, max_queued_tokens: int | None) -> Iterator[str]:
    """Yield the flags: who goes first, and when who comes is refused.

    ``class_s``: the age of who is served last from which those who come are a class of their own,
    which starts first. 0: in order.

    Sources:
        [vllm-source] v1/core/sched/request_queue.py PriorityRequestQueue; ``--middleware`` in
        entrypoints/openai/api_server.py, since 0.29 entrypoints/serve/middleware/register.py;
        v1/engine/async_llm.py check_admission.
    """
    if class_s:
        yield from ("--scheduling-policy", "priority", "--middleware", MIDDLEWARE)
    if max_queued_tokens is not None:
        yield from ("--max-num-queued-tokens", str(max_queued_tokens))


def queue_command(class_s: float) -> list[str]:
    """Return what is run: vLLM, or what checks and writes the module and becomes vLLM."""
    if not class_s:
        return list(COMMAND)
    digest = hashlib.sha256(_in_pod(QUEUE_MODULE).encode()).hexdigest()
    return ["python3", "-I", "-c", _in_pod("start"), digest, *COMMAND]


def queue_environment(class_s: float) -> dict[str, str]:
    """Return the variables: the module, where it is to be, and when a class begins."""
    if not class_s:
        return {}
    return {
        "PYTHONPATH": FOLDER,
        MODULE_VARIABLE: _in_pod(QUEUE_MODULE),
        CLASS_VARIABLE: f"{class_s:g}",
    }


@cache
def _in_pod(name: str) -> str:
    return files("tonnage.manifests").joinpath("in_pod", f"{name}.py").read_text()
