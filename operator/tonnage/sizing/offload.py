"""A cache in the host's memory behind that of the GPU: is it worth its copies?

Every block is copied there when it is full, so the host's memory holds what the GPU's does too.
That is lost on what the GPU's cache holds anyway, beside the requests that run; a working set
beyond the host's memory is gone before it is asked for again. What is left is worth it.

Each data-parallel rank has both caches of its own, and gets requests without a look at prefixes: it
meets the whole working set.

Sources:
    [llm-d-guides] random prompts, document questions and a working set of 1.32 times the cache.
    [vllm-source] config/vllm.py ``kv_offloading_size`` is of all tensor-parallel ranks, and each
    data-parallel rank takes as much; v1/kv_offload: a copy of a cache that all ranks have is kept
    once.
"""

import math
from dataclasses import dataclass

from tonnage.api.spec import KvOffload
from tonnage.sizing.plan import Sizing, requests_per_s_asked
from tonnage.sizing.serving.ttft import own_prefill_s
from tonnage.sizing.split import kv_is_replicated
from tonnage.units import GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """Of one replica: the working set between two limits."""

    working_set_tokens: float
    """Of different prompts that later requests begin with again. 0: they come back to nothing."""
    gpu_tokens: float
    """That the GPU cache of a data-parallel rank holds beside the requests that run."""
    host_bytes_per_token: float
    """Of all ranks together."""
    host_bytes: float = math.inf
    """Infinity: as much as the working set takes."""

    @property
    def needed_bytes(self) -> float:
        """Of host memory, for the working set."""
        return self.working_set_tokens * self.host_bytes_per_token

    @property
    def fits_gpu(self) -> bool:
        return self.working_set_tokens <= self.gpu_tokens

    @property
    def is_worth_it(self) -> bool:
        return not self.fits_gpu and self.needed_bytes <= self.host_bytes


def offload_of(
    sizing: Sizing, held_fraction: float, working_set_tokens: float, host_bytes: float
) -> Offload:
    """Return the caches of a replica; ``held_fraction``: of the GPU cache, by running requests."""
    pool_tokens = sizing.replica.kv_pool_bytes / _bytes_per_token(sizing)
    return Offload(
        working_set_tokens=working_set_tokens,
        gpu_tokens=pool_tokens * (1 - held_fraction),
        host_bytes_per_token=_host_bytes_per_token(sizing),
        host_bytes=host_bytes,
    )


def asked_offload(given: KvOffload, sizing: Sizing, held_fraction: float) -> Offload | None:
    """Return the caches of a replica as a spec asks for them; None: it says no working set."""
    if given.working_set_tokens is None:
        return None
    host_bytes = math.inf if given.gib is None else given.gib * GIB
    return offload_of(sizing, held_fraction, given.working_set_tokens, host_bytes)


def host_cache_gib(given: KvOffload, sizing: Sizing) -> int:
    """Return the host memory of a replica, all its ranks: as given, or for the working set."""
    if given.gib is not None:
        return given.gib
    needed_bytes = (given.working_set_tokens or 0) * _host_bytes_per_token(sizing)
    return math.ceil(needed_bytes / GIB)


def _bytes_per_token(sizing: Sizing) -> float:
    """Return what a token takes of the cache of a rank."""
    return sizing.replica.bytes_per_reported_token(sizing.request.context_tokens)


def _host_bytes_per_token(sizing: Sizing) -> float:
    """Return what a token takes of host memory: in each rank's each part of its cache once."""
    split = sizing.parallelism
    is_one_copy = kv_is_replicated(sizing.request.shape, split.tensor)
    parts = split.pipeline * (1 if is_one_copy else split.tensor)
    return _bytes_per_token(sizing) * parts * sizing.replica.model.dp_size


def held_at(sizing: Sizing, replicas: int) -> float:
    """Return what running requests hold of the cache: at the demand, without one at capacity."""
    rate = requests_per_s_asked(sizing)
    if rate and not sizing.request.slo.is_offline:
        return min(1.0, sizing.at(rate, replicas).kv_usage)
    return min(1.0, sizing.at_capacity.num_running / sizing.memory_ceiling_typical)


def break_even_bytes_per_s(sizing: Sizing) -> float:
    """Return what a GPU has to read from the host's memory for that to be faster than prefill."""
    replica, workload = sizing.replica, sizing.request.workload
    tokens = workload.prompt.mean_tokens
    prefill_s = own_prefill_s(replica, workload, sizing.idle, tokens)
    computed_bytes = replica.layout.bytes_of_sequence(tokens) * (1 - workload.cached_fraction)
    return computed_bytes / prefill_s
