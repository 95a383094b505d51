"""Trials whose answer is known by hand: an engine of plain seconds."""

from builders import a_replica, a_shard, a_workload, an_slo, some_speeds
from tonnage.sizing.parallelism.kv import KvShare
from tonnage.sizing.serving.trial import Trial
from tonnage.sizing.workload import Lengths


def a_trial(*, replica=None, workload=None, slo=None, **changes):
    """``a_replica`` with 64 slots under ``a_workload``, TTFT 2 s and TPOT 20 ms at p95."""
    fields = {
        "replica": replica or a_replica(max_num_seqs=64),
        "workload": workload or a_workload(),
        "slo": slo or an_slo(ttft_s=2, tpot_s=0.020),
        "context_tokens": 8192,
    }
    return Trial(**fields | changes)


def a_server_of(seconds, *, slots=1, **changes):
    """Requests of one output token whose only step takes so long: a queue with one server.

    Weights of as many times 3 TB, no cache reads, and no work for the prompt of one token.
    """
    shard = a_shard(
        dense_read_bytes=seconds * some_speeds().memory_bytes_per_s,
        kv=(KvShare(bytes_per_token=1),),
        flop_per_token=0,
    )
    return a_trial(
        replica=a_replica(shard=shard, max_num_seqs=slots),
        workload=a_workload(
            prompt=Lengths(mean_tokens=1), output_tokens=1, output_second_moment=1.0
        ),
        **changes,
    )
