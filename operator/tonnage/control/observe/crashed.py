"""What the last lines of vLLM say about a start that failed, and the field to change. Pure.

The lines are a tenant's: only which of vLLM's own texts they contain is read, and its figures.
"""

import math
import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

MOST_READ_CHARS: Final = 8192
"""Of a message, from its end: the kubelet keeps less."""
PERCENT: Final = 100


class Crash(NamedTuple):
    """What a container's message says of its end."""

    line: str
    """Of the message, which says it."""
    cures: tuple[str, str]
    """What to change of somebody else's workload, and of a spec."""


class _Kind(NamedTuple):
    pattern: str
    """A pattern; its group, if it has one, is the figure of both texts."""
    of_target: str
    of_ours: str
    beside: str = ""
    """What another line has, by a pattern."""
    value: Callable[[Sequence[str]], str] = "".join


def _free_share(found: Sequence[str]) -> str:
    free, total = map(float, found)
    return f"{math.floor(PERCENT * min(free, total) / max(total, 1)) / PERCENT:g}"


_MORE_GPUS: Final = "raise hardware.gpusPerReplica"
_EAGER: Final = 'add "--enforce-eager" to engine.args'
_LENGTH: Final = (
    "set --max-model-len to at most {}",
    f"set contextLength to at most {{}}, or {_MORE_GPUS}",
)
_OUT_OF_MEMORY: Final = "CUDA out of memory|CUDA error: out of memory|OutOfMemoryError"
_FURTHER_UP: Final = "the cause is further up in its log, see kubectl logs --previous"
_SIZE: Final = r"(\d{1,5}(?:\.\d{1,3})?)"
_KINDS: Final = (
    _Kind(
        r"max_num_seqs \(\d{1,9}\) exceeds available Mamba cache blocks \((\d{1,9})\)",
        "set --max-num-seqs to at most {}",
        f"the KV cache has {{}} blocks for states: {_EAGER}, or {_MORE_GPUS}",
    ),
    _Kind(r"estimated maximum model length is (\d{1,9})", *_LENGTH),
    _Kind(
        "larger than the maximum number of tokens that can be stored in KV cache "
        r"\((\d{1,9})\)",
        *_LENGTH,
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
    ),
    _Kind(
        "CUDA out of memory occurred when warming up (?:sampler|pooler)",
        "lower --max-num-seqs or --gpu-memory-utilization",
        _MORE_GPUS,
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
        f"{_EAGER}, or {_MORE_GPUS}",
    ),
    _Kind("See root cause above", _FURTHER_UP, _FURTHER_UP),
)
"""Of vLLM 0.10 to 0.33, what says most first.

Sources:
    [vllm-source] config/compilation.py, v1/core/kv_cache_utils.py (kv_cache_planning.py of 0.33),
    worker/worker.py of 0.10, v1/worker/utils.py, v1/worker/gpu_model_runner.py, v1/engine/utils.py.
"""
SILENT: Final = (
    "set terminationMessagePolicy: FallbackToLogsOnError on its container to read why",
    "",
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
                return Crash(line, (kind.of_target.format(value), kind.of_ours.format(value)))
    return None
