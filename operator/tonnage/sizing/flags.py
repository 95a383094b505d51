"""The flags that a split of the model runs best with, and the engine group that they make."""

from dataclasses import replace

from tonnage.catalog.engine import default_batched_tokens
from tonnage.sizing.budget import memory_budget, speeds
from tonnage.sizing.kv import default_block_tokens
from tonnage.sizing.memory import check_fits
from tonnage.sizing.parallelism import Parallelism
from tonnage.sizing.question import Flags, Question
from tonnage.sizing.shard import Shard
from tonnage.sizing.steady import LoadLine, Replica, load_line, slots_for, tpot_ceiling

FIRST_GUESS_SEQS = 256
MAX_ROUNDS = 8


def settle(question: Question, shard: Shard, parallelism: Parallelism) -> tuple[Flags, str]:
    """Return flags and what limits the batch.

    ``--max-num-seqs`` and the cache decide one another (each slot costs sampler memory), so both
    are settled in rounds; the flag never falls below what keeps both.
    """
    seqs = FIRST_GUESS_SEQS
    for _ in range(MAX_ROUNDS):
        flags = _flags(question, parallelism, seqs)
        replica = replace(replica_under(question, shard, flags), max_num_seqs=None)
        line = load_line(replica, question.workload, question.slo)
        wanted = _slots(question, replica, line)
        if wanted == seqs:
            break
        seqs = wanted
    return _flags(question, parallelism, min(flags.max_num_seqs, wanted)), line.limited_by


def _slots(question: Question, replica: Replica, line: LoadLine) -> int:
    """Return the slots that the load line asks for; the engine refuses more than its budget."""
    ceilings = [
        replica.sequences_held(question.workload.mean_context_tokens),
        tpot_ceiling(replica, question.workload, question.slo),
    ]
    wanted = slots_for(
        line,
        question.slo,
        ceiling=min(ceiling for ceiling in ceilings if ceiling is not None),
        num_queues=replica.num_queues,
    )
    return min(wanted, replica.max_batched_tokens)


def _flags(question: Question, parallelism: Parallelism, max_num_seqs: int) -> Flags:
    utilization = question.engine.constants.gpu_memory_utilization
    return Flags(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=default_batched_tokens(question.gpu),
        gpu_memory_utilization=1.0 if question.is_textbook else utilization,
        parallelism=parallelism,
    )


def replica_under(question: Question, shard: Shard, flags: Flags) -> Replica:
    """Return the engine group under these flags.

    Raises:
        DoesNotFitError: the cache does not hold one request of the promised length.
    """
    replica = Replica(
        shard=shard,
        speeds=speeds(question.gpu, question.weights.compute),
        constants=question.speed,
        kv_pool_bytes=0.0,
        max_batched_tokens=flags.max_num_batched_tokens,
        max_num_seqs=flags.max_num_seqs,
        block_tokens=default_block_tokens(question.shape),
        cache_rules=question.engine.constants.cache,
    )
    return replace(replica, kv_pool_bytes=_pool_bytes(question, replica, flags))


def _pool_bytes(question: Question, replica: Replica, flags: Flags) -> float:
    """Return the cache of one rank: as a running engine reports it, else what the budget leaves."""
    context, measured = question.context_tokens, question.measured_kv_tokens
    if measured is not None:
        return measured * replica.bytes_per_reported_token(context)
    budget = memory_budget(question, replica.shard, flags)
    request_bytes = replica.blocks_reserved(context) * replica.layout.bytes_per_block
    check_fits(budget, request_bytes=request_bytes, context_tokens=context)
    return budget.kv_pool_bytes
