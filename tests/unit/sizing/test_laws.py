"""Laws that sizing keeps whatever the numbers are."""

import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from strategies import (
    attentions,
    numbers,
    replicas,
    shards,
    speed_constants,
    speeds,
    splits,
    steps,
    workloads,
)
from tonnage.catalog.cache_types import CACHE_TYPES
from tonnage.sizing.memory.layout import cache_layout
from tonnage.sizing.parallelism.kv import kv_bytes_per_token
from tonnage.sizing.parallelism.shard import shard_of
from tonnage.sizing.serving.replica import steady_state
from tonnage.sizing.split import Parallelism, on_rank
from tonnage.sizing.step_time.step import step_time

ROUNDING = 1 + 1e-9
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
    layers = [(num_layers, on_rank(attention, tensor))]

    whole = kv_bytes_per_token(layers)
    half = kv_bytes_per_token(layers, cache_type=CACHE_TYPES["fp8"])

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
        return shard_of(shape, weights=shape.weight_format, parallelism=parallelism)

    whole, share = shard(Parallelism()), shard(parallelism)
    num_stage_ranks = parallelism.tensor * parallelism.pipeline

    assert share.weights_bytes * parallelism.num_gpus >= whole.weights_bytes / ROUNDING
    assert share.dense_read_bytes * num_stage_ranks >= whole.dense_read_bytes / ROUNDING
    assert share.flop_per_token * num_stage_ranks >= whole.flop_per_token / ROUNDING
    for rank, all_ranks in zip(share.kv, whole.kv, strict=True):
        assert rank.bytes_per_token * num_stage_ranks >= all_ranks.bytes_per_token / ROUNDING
        assert rank.flop_per_pair * num_stage_ranks >= all_ranks.flop_per_pair / ROUNDING
