"""A cache in the host's memory behind that of the GPU: is it worth its copies?

Every block is copied there when it is full, so the host's memory holds what the GPU's does too.
That is lost on what the GPU's cache holds anyway, beside the requests that run; a working set
beyond the host's memory is gone before it is asked for again. What is left is worth it.

Each data-parallel rank has both caches of its own, and gets requests without a look at prefixes: it
meets the whole working set.

Where a spec says Auto, replicas have it if it is worth it by what is planned, and the plan with it
costs no more.

Sources:
    [llm-d-guides] random prompts, document questions and a working set of 1.32 times the cache.
    [vllm-source] config/vllm.py ``kv_offloading_size`` is of all tensor-parallel ranks, and each
    data-parallel rank takes as much; v1/kv_offload: a copy of a cache that all ranks have is kept
    once.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from tonnage.api.spec import KvOffload, Spec
from tonnage.sizing.errors import InvalidParallelismError, SizingError
from tonnage.sizing.expected import offload_refusals
from tonnage.sizing.plan import Sizing, requests_per_s_asked
from tonnage.sizing.request import SizingRequest, without_stages
from tonnage.sizing.search import cost_of, rank_of_sizing
from tonnage.sizing.serving.replica import own_prefill_s
from tonnage.sizing.split import kv_is_replicated
from tonnage.units import GIB, count_of, significant

RUNS_ON: Final = "what runs stays until the spec asks for other engines"
"""Why what runs is another than the verdict says."""


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
    return offload_of(sizing, held_fraction, given.working_set_tokens, _host_bytes(given, sizing))


def _host_bytes(given: KvOffload, sizing: Sizing) -> float:
    of_gpu_bytes = sizing.request.gpu.host_cache_bytes
    if given.gib is not None:
        return given.gib * GIB
    if given.is_auto and of_gpu_bytes is not None:
        return of_gpu_bytes * sizing.parallelism.num_gpus
    return math.inf


def auto_obstacle(spec: Spec, request: SizingRequest) -> str | None:
    """Return why replicas have no cache in host memory, whatever is worth it; None: they may.

    What is not given is no zero: neither is a cache sized by a guess.
    """
    given = spec.model.kv_offload
    if given is None:
        return None
    if given.working_set_tokens is None:
        return "model.kvOffload.workingSetTokens is not given"
    if given.gib is None and request.gpu.host_cache_bytes is None:
        return (
            "model.kvOffload.gib is not given, nor is host_cache_bytes of GPU class "
            f"{request.gpu.name}"
        )
    try:
        without_stages(request.sizes)
    except InvalidParallelismError as error:
        return str(error)
    return next(offload_refusals(spec, request.engine.minor, request.shape, request.gpu), None)


class Decided(NamedTuple):
    """What Auto chose."""

    sizing: Sizing
    why: str = ""
    """Why it is another than the verdict says."""


def decide_offload(spec: Spec, size: Callable[[bool], Sizing]) -> Decided:
    """Return the plan with the cache that Auto takes, else without; ``size``: with it, or without.

    Raises:
        SizingError, SearchAbandonedError: as ``size`` does without it.
    """
    without, given = size(False), spec.model.kv_offload
    if given is None or not given.is_auto or not _is_worth_it(given, without):
        return Decided(without)
    if auto_obstacle(spec, without.request):
        return Decided(without)
    try:
        with_cache = size(True)
    except SizingError as error:
        return Decided(without, f"no plan has it: {error}")
    if rank_of_sizing(with_cache)[:2] > rank_of_sizing(without)[:2]:
        return Decided(without, _why_dearer(with_cache, without))
    if not _is_worth_it(given, with_cache):
        return Decided(without, f"not worth it on {with_cache.parallelism}, as the plan with it")
    return Decided(with_cache)


def _why_dearer(with_cache: Sizing, without: Sizing) -> str:
    most = with_cache.request.max_replicas
    if most is not None and rank_of_sizing(with_cache)[0]:
        return (
            f"the plan with it needs {count_of(with_cache.replicas, 'replica')}, the plan without "
            f"it {without.replicas}, and maxReplicas allows {most}"
        )
    return (
        f"the plan with it costs {_cost_written(with_cache)}, the plan without it "
        f"{_cost_written(without)}"
    )


def _cost_written(sizing: Sizing) -> str:
    has_no_price, amount = cost_of(sizing)
    if requests_per_s_asked(sizing) is None:
        unit = "GPUs" if has_no_price else "USD per hour"
        return f"{significant(amount)} {unit} for a request per second"
    return count_of(round(amount), "GPU") if has_no_price else f"{amount:.2f} USD per hour"


def without_refused(spec: Spec, sizing: Sizing) -> Sizing:
    """Return what runs without the cache that Auto took, where it is to go with other changes."""
    given = spec.model.kv_offload
    if given is None or not given.is_auto or auto_obstacle(spec, sizing.request) is None:
        return sizing
    return replace(sizing, request=replace(sizing.request, has_host_cache=False))


def _is_worth_it(given: KvOffload, sizing: Sizing) -> bool:
    offload = asked_offload(given, sizing, held_as_planned(sizing))
    return offload is not None and offload.is_worth_it


def held_as_planned(sizing: Sizing) -> float:
    """Return what running requests hold of the cache of the replicas that are planned."""
    most = sizing.request.max_replicas or sizing.replicas
    return held_at(sizing, max(min(sizing.replicas, most), sizing.request.min_replicas))


def host_cache_gib(given: KvOffload, sizing: Sizing) -> int:
    """Return the host memory of a replica, all its ranks: as given, or for the working set."""
    if given.gib is not None and not given.is_auto:
        return given.gib
    return math.ceil((given.working_set_tokens or 0) * _host_bytes_per_token(sizing) / GIB)


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
