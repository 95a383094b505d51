"""Why a container of a pod does not start, by the kubelet's words.

Short, printable, without what may be a secret, and the same for as long as nothing else is wrong:
the time of a back-off is left out, and what alternates while a container is tried again and again
has one name.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from tonnage.api.status import Reason
from tonnage.control.observe.capacity import CRASHES, why_not_started
from tonnage.redaction import REDACTED, names_in, names_said, names_secret_last, redacted_line

Object = Mapping[str, Any]
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


def message_of(condition: Object, of: Object) -> str:
    """Return what a condition of an object says, with names and without what may be a secret."""
    said = str(condition.get("message") or "")
    return redacted_line(said, MOST_MESSAGE, names_said(said).union(names_in(of)))


def _start_failure(container: Object) -> Reason | None:
    """Return why a container does not start, in its own words or the kubelet's."""
    state = container.get("state") or {}
    waiting, ended = state.get("waiting"), state.get("terminated")
    last = ended or (container.get("lastState") or {}).get("terminated") or {}
    if waiting:
        said = waiting.get("reason")
        return None if said in ON_ITS_WAY else _waits(why_not_started(said), waiting, last)
    is_ended = bool(ended) and last.get("reason") != "Completed"
    return Reason(CRASHES, _ending(last)) if is_ended or _is_in_a_loop(container, last) else None


def _waits(code: str, waiting: Object, last: Object) -> Reason:
    if code == CRASHES:
        return Reason(code, _ending(last))
    said = BACK_OFF.sub("", str(waiting.get("message") or ""))
    if code == "PodsFailing":
        said = f"{waiting.get('reason')}: {said}"
    return Reason(code, said)


def _is_in_a_loop(container: Object, last: Object) -> bool:
    """Tell whether a container that runs has ended so often that it is not expected to stay."""
    has_ended = bool(last) and container.get("restartCount", 0) > MOST_RESTARTS
    return has_ended and not container.get("ready")


def _ending(last: Object) -> str:
    """Say how a container ended, and its last line where it left one."""
    if not last:
        return ""
    why = last.get("reason") or "Error"
    code = f"exit code {last.get('exitCode')}"
    how = code if why in {"Error", "Completed"} else f"{why}, {code}"
    lines = str(last.get("message") or "").strip().splitlines()
    if lines[1:] and names_secret_last(lines[-2]):
        return f"{how}: {REDACTED}"
    return f"{how}: {MOMENT.sub('', lines[-1]).strip()}" if lines else how
