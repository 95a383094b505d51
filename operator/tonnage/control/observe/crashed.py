"""What the last lines of vLLM say about a start that failed, and what to change for it. Pure.

The lines are a tenant's: only which of vLLM's own texts they contain is read, and its figures.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from tonnage.control.input.state import Crash
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
        r"\((\d{1,9})\)",
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
            flags = replace(flags, is_cured=True, **lowered)
    return flags
