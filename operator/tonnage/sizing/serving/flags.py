"""The flags that a split of the model runs best with, and the engine group that they make."""

import math
from dataclasses import replace

from tonnage.catalog.engine import default_batched_tokens
from tonnage.sizing.errors import DoesNotFitError
from tonnage.sizing.memory.budget import memory_budget
from tonnage.sizing.memory.ceiling import check_fits, shortfall
from tonnage.sizing.memory.layout import default_block_tokens
from tonnage.sizing.parallelism.shard import Shard
from tonnage.sizing.request import Flags, SizingRequest
from tonnage.sizing.serving.load_line import LoadLine, load_line, slots_for, tpot_ceiling
from tonnage.sizing.serving.steady import Replica
from tonnage.sizing.split import Parallelism
from tonnage.sizing.step_time.speeds import speeds

FIRST_GUESS_SEQS = 256
MAX_ROUNDS = 8


def settle(request: SizingRequest, shard: Shard, parallelism: Parallelism) -> tuple[Flags, str]:
    """Return flags and what limits the batch.

    ``--max-num-seqs`` and the cache decide one another (each slot costs sampler memory), so both
    are settled in rounds; the flag never falls below what keeps both.

    Raises:
        DoesNotFitError: not even with a single slot.
    """
    seqs, too_many = FIRST_GUESS_SEQS, math.inf
    for _ in range(MAX_ROUNDS):
        flags, replica = _largest_fitting(request, shard, parallelism, seqs)
        tried = flags.max_num_seqs
        too_many = min(too_many, math.inf if tried == seqs else 2 * tried)
        unlimited = replace(replica, max_num_seqs=None)
        line = load_line(unlimited, request.workload, request.slo, arrival_scv=request.arrival_scv)
        wanted = _slots(request, replica, line)
        seqs = wanted if wanted < too_many else int(tried + too_many) // 2
        if seqs == tried:
            break
    return _flags(request, parallelism, min(tried, wanted)), line.limited_by


def _largest_fitting(
    request: SizingRequest, shard: Shard, parallelism: Parallelism, seqs: int
) -> tuple[Flags, Replica]:
    """Return the flags and the engine group with so many slots, or as often half as it takes.

    Raises:
        DoesNotFitError: not even with a single slot.
    """
    flags = _flags(request, parallelism, seqs)
    try:
        return flags, replica_under(request, shard, flags)
    except DoesNotFitError:
        replica_under(request, shard, _flags(request, parallelism, 1))
    return _largest_fitting(request, shard, parallelism, seqs // 2)


def _slots(request: SizingRequest, replica: Replica, line: LoadLine) -> int:
    """Return the slots that the load line asks for; the engine refuses more than its budget."""
    wanted = slots_for(
        line,
        request.slo,
        ceiling=_ceiling(request, replica),
        num_queues=replica.num_queues,
    )
    return min(wanted, replica.max_batched_tokens // replica.tokens_judged)


def _ceiling(request: SizingRequest, replica: Replica) -> float:
    """Return the decoding sequences that memory and TPOT allow: slots are never more."""
    held = replica.sequences_held(request.workload.mean_context_tokens)
    allowed = tpot_ceiling(replica, request.workload, request.slo) if held else None
    return held if allowed is None else min(held, allowed)


def most_places(request: SizingRequest, shard: Shard, parallelism: Parallelism) -> Replica:
    """Return the engine group with no less cache and no fewer slots than ``settle`` finds.

    The cache is largest beside a single slot, and the slots never exceed their ceiling with it.
    """
    flags = _flags(request, parallelism, 1)
    replica = _without_cache(request, shard, flags)
    pool_bytes = memory_budget(request, shard, flags).kv_pool_bytes
    if request.measured_kv_tokens is not None:
        pool_bytes = _pool_bytes(request, replica, flags)
    widest = replace(replica, kv_pool_bytes=max(0.0, pool_bytes))
    slots = math.floor(_ceiling(request, widest) / widest.num_queues)
    return replace(widest, max_num_seqs=max(1, slots))


def _flags(request: SizingRequest, parallelism: Parallelism, max_num_seqs: int) -> Flags:
    utilization = request.engine.constants.gpu_memory_utilization
    return Flags(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=default_batched_tokens(request.gpu),
        gpu_memory_utilization=1.0 if request.is_textbook else utilization,
        parallelism=parallelism,
    )


def replica_under(request: SizingRequest, shard: Shard, flags: Flags) -> Replica:
    """Return the engine group under these flags.

    Raises:
        DoesNotFitError: the cache does not hold one request of the promised length, by an
            estimate for flags that nothing runs with yet.
    """
    replica = _without_cache(request, shard, flags)
    return replace(replica, kv_pool_bytes=_pool_bytes(request, replica, flags))


def _without_cache(request: SizingRequest, shard: Shard, flags: Flags) -> Replica:
    return Replica(
        shard=shard,
        speeds=speeds(request.gpu, request.weights.compute),
        constants=request.speed,
        kv_pool_bytes=0.0,
        max_batched_tokens=flags.max_num_batched_tokens,
        max_num_seqs=flags.max_num_seqs,
        block_tokens=default_block_tokens(request.shape),
        cache_rules=request.cache_rules,
        speculation=request.speculation,
    )


def _pool_bytes(request: SizingRequest, replica: Replica, flags: Flags) -> float:
    """Return the cache of one rank: as a running engine reports it, else what the budget leaves.

    An engine that runs has shown that it holds one request: it would not have started.
    """
    context, measured = request.context_tokens, request.measured_kv_tokens
    if measured is not None:
        return measured * replica.bytes_per_reported_token(context)
    budget, needed = memory_budget(request, replica.shard, flags), request_bytes(request, replica)
    if request.flags:
        return max(budget.kv_pool_bytes, needed)
    check_fits(budget, request_bytes=needed, context_tokens=context)
    return budget.kv_pool_bytes


def request_bytes(request: SizingRequest, replica: Replica) -> float:
    """Return the cache of one rank that one request of the promised length may need."""
    return replica.blocks_reserved(request.context_tokens) * replica.layout.bytes_per_block


def memory_doubt(request: SizingRequest, replica: Replica, flags: Flags) -> str | None:
    """Say why the estimate would refuse flags that run; None: it would not, or it is measured."""
    if request.flags is None or request.measured_kv_tokens is not None:
        return None
    return shortfall(
        memory_budget(request, replica.shard, flags),
        request_bytes=request_bytes(request, replica),
        context_tokens=request.context_tokens,
    )
