"""Laws that sizing keeps whatever the numbers are."""

import math
from dataclasses import replace
from itertools import pairwise

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from builders import an_slo
from strategies import (
    attentions,
    numbers,
    quantiles,
    replicas,
    shards,
    speed_constants,
    speeds,
    splits,
    steps,
    teams,
    tpot_limits_s,
    workloads,
)
from tonnage.sizing.memory.layout import cache_layout
from tonnage.sizing.parallelism.kv import kv_bytes_per_token
from tonnage.sizing.parallelism.shard import shard_of
from tonnage.sizing.serving.load_line import limits, load_line, slots_for
from tonnage.sizing.serving.staffing import replicas_for
from tonnage.sizing.serving.steady import steady_state
from tonnage.sizing.split import Parallelism
from tonnage.sizing.step_time.step import step_time
from tonnage.sizing.workload import Routing, Target

ROUNDING = 1 + 1e-9
SEARCH = 1 + 1e-3
"""How far a load found by search may lie below the highest that keeps the promises."""
more = numbers(1, 10)


@given(shards, speeds, speed_constants, steps, more)
def test_a_faster_gpu_is_never_slower(shard, speed, constants, step, factor):
    before_s = step_time(shard, speed, constants, step).total_s

    for name in ("memory_bytes_per_s", "peak_flop_per_s", "interconnect_bytes_per_s"):
        faster = replace(speed, **{name: getattr(speed, name) * factor})
        assert step_time(shard, faster, constants, step).total_s <= before_s * ROUNDING, name


@given(shards, speeds, speed_constants, steps, more)
def test_more_load_is_never_faster(shard, speed, constants, step, factor):
    before_s = step_time(shard, speed, constants, step).total_s

    for name in ("context_tokens", "prefill_tokens", "prefill_context_tokens"):
        busier = replace(step, **{name: getattr(step, name) * factor})
        assert step_time(shard, speed, constants, busier).total_s >= before_s / ROUNDING, name


@given(replicas, workloads, numbers(0, 1024), more)
def test_more_sequences_of_the_same_length_make_a_longer_step_and_more_tokens_per_second(
    replica, workload, num_decoding, factor
):
    before = steady_state(replica, workload, num_decoding)
    after = steady_state(replica, workload, num_decoding * factor)

    assert after.step_s >= before.step_s / ROUNDING
    assert after.requests_per_s >= before.requests_per_s / ROUNDING


@given(shards, speeds, speed_constants, steps)
def test_twice_the_bytes_at_twice_the_bandwidth_takes_as_long(shard, speed, constants, step):
    doubled = replace(
        shard,
        dense_read_bytes=2 * shard.dense_read_bytes,
        experts=tuple(replace(e, resident_bytes=2 * e.resident_bytes) for e in shard.experts),
        kv=tuple(replace(kind, bytes_per_token=2 * kind.bytes_per_token) for kind in shard.kv),
    )
    twice = replace(speed, memory_bytes_per_s=2 * speed.memory_bytes_per_s)

    assert math.isclose(
        step_time(doubled, twice, constants, step).total_s,
        step_time(shard, speed, constants, step).total_s,
    )


@given(attentions, st.integers(1, 128), st.sampled_from([1, 2, 4, 8]))
def test_half_the_element_is_half_the_cache(attention, num_layers, tensor):
    layers = [(num_layers, attention)]

    whole = kv_bytes_per_token(layers, kv_element_bytes=2, tensor=tensor)
    half = kv_bytes_per_token(layers, kv_element_bytes=1, tensor=tensor)

    assert half == whole / 2


@given(shards, st.integers(0, 200_000), st.integers(1, 256))
def test_blocks_round_up_by_less_than_one_and_a_window_by_one_more(shard, context, block):
    layout = cache_layout(shard.kv[:1], block_tokens=block)

    exact = shard.kv[0].bytes_per_token * shard.kv[0].tokens_held(context)
    held = layout.bytes_of_sequence(context)
    is_window = shard.kv[0].window_tokens is not None
    assert exact / ROUNDING <= held <= exact + (1 + is_window) * layout.bytes_per_block


@given(splits())
def test_the_shares_of_all_ranks_add_up_to_at_least_the_whole(split):
    shape, parallelism = split

    def shard(parallelism):
        return shard_of(
            shape, weights=shape.weight_format, kv_element_bytes=2, parallelism=parallelism
        )

    whole, share = shard(Parallelism()), shard(parallelism)
    num_stage_ranks = parallelism.tensor * parallelism.pipeline

    assert share.weights_bytes * parallelism.num_gpus >= whole.weights_bytes / ROUNDING
    assert share.dense_read_bytes * num_stage_ranks >= whole.dense_read_bytes / ROUNDING
    assert share.flop_per_token * num_stage_ranks >= whole.flop_per_token / ROUNDING
    for rank, all_ranks in zip(share.kv, whole.kv, strict=True):
        assert rank.bytes_per_token * num_stage_ranks >= all_ranks.bytes_per_token / ROUNDING
        assert rank.flop_per_pair * num_stage_ranks >= all_ranks.flop_per_pair / ROUNDING


@given(replicas, workloads, tpot_limits_s, quantiles, numbers(0.2, 1))
def test_a_shorter_tpot_never_raises_capacity(replica, workload, limit_s, quantile, factor):
    loose = load_line(replica, workload, an_slo(tpot_s=limit_s, quantile=quantile))
    strict = load_line(replica, workload, an_slo(tpot_s=limit_s * factor, quantile=quantile))

    assert strict.requests_per_s <= loose.requests_per_s * SEARCH


@settings(max_examples=40)
@given(replicas, workloads, tpot_limits_s, quantiles, more)
def test_more_bandwidth_never_lowers_capacity(replica, workload, limit_s, quantile, factor):
    slo = an_slo(tpot_s=limit_s, quantile=quantile)
    faster = replace(
        replica,
        speeds=replace(
            replica.model.speeds,
            memory_bytes_per_s=factor * replica.model.speeds.memory_bytes_per_s,
        ),
    )

    before = load_line(replica, workload, slo).requests_per_s

    assert load_line(faster, workload, slo).requests_per_s >= before / SEARCH


@given(replicas, workloads, tpot_limits_s)
def test_a_promise_to_more_requests_never_raises_capacity(replica, workload, limit_s):
    capacities = [
        load_line(replica, workload, an_slo(tpot_s=limit_s, quantile=quantile)).requests_per_s
        for quantile in (0.5, 0.9, 0.95, 0.99)
    ]

    assert all(later <= earlier * SEARCH for earlier, later in pairwise(capacities))


@given(replicas, workloads, tpot_limits_s, quantiles, st.sampled_from([None, 1, 16, 256]))
def test_the_load_line_keeps_every_limit_and_touches_one(
    replica, workload, limit_s, quantile, max_num_seqs
):
    slo = an_slo(tpot_s=limit_s, quantile=quantile)
    replica = replace(replica, max_num_seqs=max_num_seqs)

    line = load_line(replica, workload, slo)

    num_decoding = line.state.num_decoding
    if num_decoding > 0:
        assert all(keeps(num_decoding) for _, keeps in limits(replica, workload, slo))
    binding = dict(limits(replica, workload, slo))[line.limited_by]
    assert not binding(num_decoding * 1.01 + 1e-6)


@given(replicas, workloads, tpot_limits_s, quantiles)
def test_slots_never_exceed_the_memory_ceiling(replica, workload, limit_s, quantile):
    slo = an_slo(tpot_s=limit_s, quantile=quantile)
    held = replica.sequences_held(workload.mean_context_tokens)
    assume(held >= replica.model.dp_size)

    slots = slots_for(
        load_line(replica, workload, slo), slo, ceiling=held, num_queues=replica.model.dp_size
    )

    assert 1 <= slots <= held / replica.model.dp_size


@settings(max_examples=40)
@given(teams(), numbers(0.01, 1000), more)
def test_more_demand_never_needs_fewer_replicas(team, requests_per_s, factor):
    assert replicas_for(team, requests_per_s * factor) >= replicas_for(team, requests_per_s)


@settings(max_examples=40)
@given(teams(routing=Routing.SERVICE), numbers(0.01, 1000))
def test_the_replicas_asked_for_sustain_the_rate_and_one_fewer_does_not(team, requests_per_s):
    assume(team.goodput_requests_per_s(1) > 0)
    num_replicas = replicas_for(team, requests_per_s)

    assert team.sustains(requests_per_s, num_replicas)
    assert team.goodput_requests_per_s(num_replicas) >= requests_per_s / SEARCH
    if num_replicas > 1:
        assert not team.sustains(requests_per_s, num_replicas - 1)


@settings(max_examples=40)
@given(teams(), numbers(0.2, 1))
def test_a_shorter_ttft_never_raises_what_a_replica_sustains(team, factor):
    (promise,) = team.slo.ttft
    shorter = Target(quantile=promise.quantile, limit_s=promise.limit_s * factor)
    strict = replace(team, slo=replace(team.slo, ttft=(shorter,)))

    sustained = strict.goodput_requests_per_s(1)

    assert sustained <= team.goodput_requests_per_s(1) * SEARCH


@settings(max_examples=25)
@given(teams(routing=Routing.LEAST_OUTSTANDING), st.integers(1, 20))
def test_replicas_that_share_a_queue_sustain_at_least_what_they_do_alone(team, num_replicas):
    alone = replace(team, routing=Routing.SERVICE)

    pooled = team.goodput_requests_per_s(num_replicas)

    assert pooled >= alone.goodput_requests_per_s(num_replicas) / SEARCH
