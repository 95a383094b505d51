"""The step: worked examples, part by part."""

import math
from dataclasses import replace

import pytest

from builders import a_shard, some_speeds
from tonnage.catalog.engine_speed import TEXTBOOK_SPEED
from tonnage.catalog.models import built_in_model
from tonnage.sizing.parallelism.kv import KvShare
from tonnage.sizing.parallelism.shard import ExpertShare, shard_of
from tonnage.sizing.split import Parallelism
from tonnage.sizing.step_time.step import (
    NODE_LATENCY_S,
    Step,
    all_reduce_s,
    experts_touched,
    fullest_microbatch,
    step_time,
    weights_read_bytes,
)
from tonnage.units import GB


def a_step(**changes):
    """Ten sequences of 2,000 tokens."""
    return replace(Step(num_sequences=10, context_tokens=20_000), **changes)


def time_of(step=None, *, shard=None, speeds=None, **constants):
    return step_time(
        shard or a_shard(),
        speeds or some_speeds(),
        replace(TEXTBOOK_SPEED, **constants),
        step or a_step(),
    )


def test_a_decode_step_reads_the_weights_once_and_each_sequence_its_cache():
    time = time_of()

    assert time.decode_bytes == 16e9 + 20_000 * 131_072
    assert time.total_s == time.memory_s == pytest.approx((16e9 + 2.62144e9) / 3e12)


def test_efficiency_stretches_the_memory_part_alone():
    assert time_of(bandwidth_efficiency=0.8).memory_s == pytest.approx(time_of().memory_s / 0.8)


def test_a_batch_beyond_the_ridge_is_bound_by_its_products():
    time = time_of(Step(num_sequences=1000, context_tokens=0))

    assert not time.is_memory_bound
    assert time.total_s == pytest.approx(16e9 * 1000 / 1000e12)


def test_prefill_is_added_and_only_its_exposed_share():
    time = time_of(a_step(prefill_tokens=1000), prefill_exposed_fraction=0.9)

    assert time.prefill_s == pytest.approx(0.9 * 16e9 * 1000 / 1000e12)
    assert time.total_s == pytest.approx(time.memory_s + time.prefill_s)


def test_overheads_count_steps_layers_and_sequences():
    time = time_of(per_step_s=0.002, per_kernel_s=3e-6, per_sequence_s=25e-6)

    assert time.overhead_s == pytest.approx(0.002 + 320 * 3e-6 + 10 * 25e-6)


def test_window_layers_read_no_more_than_their_window():
    shard = a_shard(kv=(KvShare(bytes_per_token=1000, window_tokens=512),))

    assert time_of(shard=shard).decode_bytes == 16e9 + 10 * 512 * 1000


@pytest.mark.parametrize(
    ("num_tokens", "experts"), [(1, 8), (32, 128 * (1 - (1 - 8 / 128) ** 32)), (10_000, 128)]
)
def test_a_mixture_reads_the_experts_that_its_tokens_touch(num_tokens, experts):
    share = ExpertShare(num_experts=128, experts_per_token=8, resident_bytes=64 * GB)
    shard = a_shard(experts=(share,))

    assert weights_read_bytes(shard, num_tokens) == pytest.approx(16e9 + 0.5e9 * experts)


def test_in_the_mean_only_the_steps_with_a_chunk_of_prefill_touch_its_experts():
    share = ExpertShare(num_experts=128, experts_per_token=8, resident_bytes=64 * GB)
    shard = a_shard(experts=(share,), kv=())
    mean_step = a_step(prefill_tokens=40, prefill_chunk_tokens=2000)

    time = time_of(mean_step, shard=shard)

    # 40 tokens per step in chunks of 2,000: one step in fifty.
    without, within = weights_read_bytes(shard, 10), weights_read_bytes(shard, 10 + 2000)
    assert time.decode_bytes == pytest.approx(0.98 * without + 0.02 * within)


def touched(num_tokens, evenness):
    return experts_touched(
        num_experts=128, experts_per_token=8, num_tokens=num_tokens, evenness=evenness
    )


@pytest.mark.parametrize("evenness", [None, 0.5, 2.0, 50.0])
def test_one_token_touches_its_own_experts_and_many_touch_all(evenness):
    assert touched(1, evenness) == pytest.approx(8)
    assert touched(1e7, evenness) == pytest.approx(128, rel=0.01)


def test_a_batch_reads_fewer_experts_the_less_evenly_they_are_chosen():
    # By hand for two tokens and evenness 1: a = 1, b = 15, missed b (b + 1) / (16 * 17).
    assert touched(2, 1.0) == pytest.approx(128 * (1 - 15 * 16 / (16 * 17)))
    assert touched(32, 1.0) < touched(32, 4.0) < touched(32, None)
    assert touched(32, 1e6) == pytest.approx(touched(32, None), rel=1e-4)


def test_what_of_a_product_does_not_overlap_is_added():
    step = Step(num_sequences=100, context_tokens=0)

    time = time_of(step, overlap_power=1)

    assert time.serial_s == pytest.approx(min(time.memory_s, time.compute_s))
    assert time.total_s == pytest.approx(16e9 / 3e12 + 100 * 16e9 / 1000e12)


def test_the_cache_is_read_beside_the_products_and_not_behind_them():
    # Products take 16 ms, the weights 5.3 ms behind them; 100 * 2,000 tokens of cache 8.7 ms.
    time = time_of(Step(num_sequences=1000, context_tokens=200_000), overlap_power=50)

    assert time.total_s == pytest.approx(16e-3 + 200_000 * 131_072 / 3e12, rel=1e-3)


def test_experts_that_are_unpacked_are_read_more_slowly_and_the_rest_is_not():
    share = ExpertShare(num_experts=128, experts_per_token=128, resident_bytes=32 * GB)
    shard = a_shard(experts=(share,), kv=())

    time = time_of(shard=shard, experts_bandwidth_factor=0.5)

    assert time.decode_bytes == pytest.approx(48e9)
    assert time.memory_s == pytest.approx((16e9 + 32e9 / 0.5) / 3e12)


def test_each_layer_with_experts_has_the_floor_of_their_block():
    time = time_of(shard=a_shard(num_moe_layers=30), per_experts_block_s=40e-6)

    assert time.overhead_s == pytest.approx(30 * 40e-6)


@pytest.mark.parametrize(
    ("used_for", "num_ranks", "each_s"),
    [
        ("none", 1, 45e-6),
        ("none", 8, 45e-6),
        ("whole", 1, 45e-6),
        ("whole", 8, 20e-6 + 32 * 0.25e-6),
        ("all", 1, 20e-6 + 256 * 0.25e-6),
        ("all", 8, 20e-6 + 32 * 0.25e-6),
    ],
)
def test_cutlass_kernels_look_at_each_expert_that_a_rank_has(used_for, num_ranks, each_s):
    share = ExpertShare(
        num_experts=256, experts_per_token=8, resident_bytes=GB, num_ranks=num_ranks
    )

    time = time_of(
        shard=a_shard(num_moe_layers=62, experts=(share,)),
        per_experts_block_s=45e-6,
        cutlass_block_s=20e-6,
        cutlass_expert_s=0.25e-6,
        cutlass_experts=used_for,
    )

    assert time.overhead_s == pytest.approx(62 * each_s)


@pytest.mark.parametrize(("growth", "seconds"), [(0.0, 8e-6), (1.0, 32e-6)])
def test_the_latency_of_an_exchange_grows_with_the_group_as_far_as_it_is_said_to(growth, seconds):
    speeds = some_speeds(interconnect_bytes_per_s=float("inf"))
    shard = a_shard(parallelism=Parallelism(tensor=8))

    time = time_of(shard=shard, speeds=speeds, per_all_reduce_s=8e-6, all_reduce_growth=growth)

    assert time.communication_s == pytest.approx(32 * seconds)


def test_two_ranks_pay_two_all_reduces_per_layer():
    shard = a_shard(parallelism=Parallelism(tensor=2))

    time = time_of(shard=shard, per_all_reduce_s=8e-6)

    moved_bytes = 2 * (2 - 1) / 2 * (2 * 10 * 4096)
    assert time.communication_s == pytest.approx(32 * (8e-6 + 2 * moved_bytes / 450e9))


def test_norms_over_split_heads_pay_an_exchange_more():
    shard = a_shard(parallelism=Parallelism(tensor=2), num_split_norms=32)
    speeds = some_speeds(interconnect_bytes_per_s=float("inf"))

    time = time_of(shard=shard, speeds=speeds, per_all_reduce_s=8e-6)

    assert time.communication_s == pytest.approx(32 * (8e-6 + 4e-6))  # half of what two take


def between_ranks_s(*, data, tensor=1, **speeds):
    share = ExpertShare(
        num_experts=256, experts_per_token=8, resident_bytes=1.0, slice_width=2048,
        flop_per_token=0.0, num_ranks=data * tensor,
    )  # fmt: skip
    split = Parallelism(data=data, tensor=tensor)
    shard = a_shard(parallelism=split, num_layers=0, num_moe_layers=10, experts=(share,))
    step = a_step(num_sequences=100 * data)
    return time_of(step, shard=shard, speeds=some_speeds(**speeds)).communication_s


def test_data_parallel_ranks_gather_the_tokens_of_all_others_and_scatter_their_sums():
    # 100 tokens of 4,096 elements of two bytes from each of seven others, there and back.
    each_s = 2 * 7 * 100 * 2 * 4096 / 450e9

    assert between_ranks_s(data=8) == pytest.approx(10 * each_s)


@pytest.mark.parametrize(
    ("data", "tensor", "node_link", "bytes_per_s"),
    [
        (16, 1, 100e9, 450e9),  # eight links of a node together move more than one within it
        (16, 1, 12.5e9, 8 * 12.5e9),
        (4, 4, 12.5e9, 2 * 12.5e9),
        (2, 8, 12.5e9, 12.5e9),
    ],
)
def test_a_ring_over_nodes_has_a_link_of_each_rank_of_a_node(data, tensor, node_link, bytes_per_s):
    within_s = between_ranks_s(data=data, tensor=tensor, gpus_per_node=64)

    over_s = between_ranks_s(
        data=data, tensor=tensor, gpus_per_node=8, node_link_bytes_per_s=node_link
    )

    moved_bytes = 2 * (data - 1) * 100 * 2 * 4096
    slower_s = moved_bytes / bytes_per_s - moved_bytes / 450e9
    assert over_s - within_s == pytest.approx(10 * (slower_s + 2 * NODE_LATENCY_S))


def all_reduce_of(num_bytes):
    constants = replace(
        TEXTBOOK_SPEED, link_efficiency=0.8, one_shot_efficiency=0.5, bulk_extra_s=5e-6
    )
    return all_reduce_s(
        num_bytes=num_bytes, num_ranks=8, link_bytes_per_s=400e9, constants=constants
    )


def test_few_bytes_are_summed_in_one_shot_and_many_in_a_ring():
    # One shot: 7 x 0.1 MB at 200 GB/s; ring: 5 us and 1.75 x 10 MB at 320 GB/s.
    assert all_reduce_of(0.1e6) == pytest.approx(3.5e-6)
    assert all_reduce_of(10e6) == pytest.approx(5e-6 + 17.5e6 / 320e9)


def test_sequences_beyond_those_that_were_measured_take_no_longer():
    step = a_step(num_sequences=600, context_tokens=0)

    bounded = time_of(step, per_sequence_s=25e-6, per_sequence_limit=512)

    assert bounded.overhead_s == pytest.approx(512 * 25e-6)


def test_attention_begins_anew_for_each_sequence_and_head():
    time = time_of(shard=a_shard(num_cached_heads=256), per_cached_head_s=10e-9)

    assert time.overhead_s == pytest.approx(10 * 256 * 10e-9)


def test_a_cache_that_is_unpacked_is_read_more_slowly_than_weights():
    time = time_of(cache_bandwidth_factor=0.5)

    assert time.memory_s == pytest.approx((16e9 + 20_000 * 131_072 / 0.5) / 3e12)


def test_a_step_with_prompts_takes_as_long_as_the_host_needs_to_launch_it():
    # 320 kernels of 0.1 ms; the GPU would need 6.2 ms for the step and 1.6 ms for 100 tokens.
    shard = a_shard(num_launches=320)

    with_prompt = time_of(a_step(prefill_tokens=100), shard=shard, prefill_launch_s=1e-4)

    assert with_prompt.total_s == pytest.approx(32e-3)
    assert time_of(shard=shard, prefill_launch_s=1e-4).launch_s == 0


def test_of_a_mean_step_only_the_share_with_prompts_waits_for_the_host():
    step = a_step(prefill_tokens=10, prefill_chunk_tokens=100)

    mean = time_of(step, shard=a_shard(num_launches=320), prefill_launch_s=1e-4)
    without = time_of(step)

    busy_s = without.total_s - without.prefill_s + 10 * without.prefill_s
    assert mean.launch_s == pytest.approx(0.1 * (32e-3 - busy_s))


def test_a_pipeline_does_not_speed_up_one_request():
    half = a_shard(dense_read_bytes=8 * GB, kv=(KvShare(bytes_per_token=65_536),))
    one = Step(num_sequences=1, context_tokens=2000)

    whole_s = time_of(one).total_s
    staged_s = time_of(one, shard=replace(half, parallelism=Parallelism(pipeline=2))).total_s

    assert staged_s == pytest.approx(whole_s)


def test_each_microbatch_of_a_pipeline_reads_the_weights_of_its_stage_again():
    half = a_shard(
        dense_read_bytes=8 * GB,
        kv=(KvShare(bytes_per_token=65_536),),
        parallelism=Parallelism(pipeline=2),
    )

    # Of ten sequences by chance 5 + 0.557 * sqrt(5 / 2) in the fullest: twice 8 GB and their half
    # cache.
    fullest = 5.881
    assert fullest_microbatch(10, 2) == pytest.approx(fullest, abs=1e-3)
    expected_s = 2 * (8e9 + fullest * 2000 * 65_536) / 3e12
    assert time_of(shard=half).memory_s == pytest.approx(expected_s, rel=1e-4)


def test_data_parallel_ranks_hold_their_share_and_experts_see_the_tokens_of_all():
    share = ExpertShare(num_experts=128, experts_per_token=8, resident_bytes=64 * GB)
    shard = a_shard(experts=(share,), parallelism=Parallelism(data=2))

    time = time_of(shard=shard)

    experts_bytes = weights_read_bytes(shard, 10)
    assert time.decode_bytes == pytest.approx(experts_bytes + 5 * 2000 * 131_072)


@pytest.mark.parametrize(
    ("ranks", "own_tokens"),
    [(None, 1000 / 8), (8, 1000 / 8), (2, 1000 / 2), (1, 1000)],
)
def test_a_prompt_on_some_ranks_shares_out_the_work_of_its_experts_alone(ranks, own_tokens):
    share = ExpertShare(
        num_experts=128, experts_per_token=8, resident_bytes=8 * GB, flop_per_token=10e9
    )
    shard = a_shard(experts=(share,), parallelism=Parallelism(data=8))
    prompt = a_step(prefill_tokens=1000, prefill_context_tokens=4000, prefill_ranks=ranks)

    # 6 of 16 GFLOP per token and no pairs on its own rank; 10 GFLOP on all eight, 1,000 tokens.
    by_hand_s = (own_tokens * 6e9 + 1000 / 8 * 10e9) / 1e15
    assert time_of(prompt, shard=shard).prefill_s == pytest.approx(by_hand_s)


def test_experts_multiply_prompts_at_a_rate_that_falls_with_their_slice():
    def prefill_s(slice_width):
        share = ExpertShare(
            num_experts=128,
            experts_per_token=8,
            resident_bytes=8 * GB,
            flop_per_token=10e9,
            slice_width=slice_width,
        )
        factors = {"experts_prefill_factor": 0.5, "experts_half_width": 192}
        prompt = a_step(prefill_tokens=1000)
        time = time_of(prompt, shard=a_shard(experts=(share,)), **factors)
        assert time.prefill_flop == 1000 * 16e9  # the work is the same, however long it takes
        return time.prefill_s

    # Of 16 GFLOP per token 10 are of experts: at half the peak, and a slice of 192 at a quarter.
    assert prefill_s(math.inf) == pytest.approx(1000 * (6e9 + 10e9 / 0.5) / 1e15)
    assert prefill_s(192) == pytest.approx(1000 * (6e9 + 10e9 / 0.25) / 1e15)


def test_prompts_multiply_wide_matrices_and_attend_at_the_rate_of_16_bits():
    shard = a_shard(wide_flop_per_token=4e9, kv=(KvShare(flop_per_pair=1e6),))

    prompt = a_step(prefill_tokens=1000, prefill_context_tokens=2000)
    time = time_of(prompt, shard=shard, wide_prefill_factor=0.5)

    # 12 GFLOP per token at the peak; 4, and 2,000 pairs of 1 MFLOP, at half of it.
    assert time.prefill_s == pytest.approx(1000 * (12e9 + (4e9 + 2000 * 1e6) / 0.5) / 1e15)


def test_a_prompt_makes_logits_for_its_last_token_only():
    with_head = a_shard(head_flop_per_token=1e9)
    prompt = a_step(prefill_tokens=1000)

    spared_s = time_of(prompt).prefill_s - time_of(prompt, shard=with_head).prefill_s
    assert spared_s == pytest.approx(1000 * 1e9 / 1e15)


def test_a_prompt_on_one_rank_is_gathered_by_all_others_once():
    experts = ExpertShare(num_experts=128, experts_per_token=8, resident_bytes=8 * GB)
    shard = a_shard(experts=(experts,), num_moe_layers=30, parallelism=Parallelism(data=8))
    step = Step(num_sequences=8, context_tokens=0, prefill_tokens=1000, prefill_ranks=1)

    # 7/8 of 1,000 tokens of a prompt and of a token of each rank, of 4,096 numbers of 2 bytes.
    by_hand_s = 30 * 2 * (1000 + 8) * 7 / 8 * 4096 * 2 / 450e9
    assert time_of(step, shard=shard).communication_s == pytest.approx(by_hand_s)


def test_an_idle_replica_is_evaluated_at_one_sequence():
    idle = time_of(Step(num_sequences=0, context_tokens=0))

    assert idle.memory_s == pytest.approx(16e9 / 3e12)


GPT_OSS_LAYER_BYTES = 2 * (2 * 2880 * 4096 + 2 * 2880 * 512 + 4096 + 2 * 512 + 2880 + 64)
"""Attention of gpt-oss in 16 bits: queries, output, keys and values, their biases, sinks."""
GPT_OSS_HEAD_BYTES = 2 * 201_088 * 2880


@pytest.mark.parametrize(
    ("model", "num_layers", "num_experts"),
    [("openai/gpt-oss-120b", 36, 128), ("openai/gpt-oss-20b", 24, 32)],
)
@pytest.mark.parametrize("num_tokens", [1, 2, 8, 64])
def test_gpt_oss_reads_what_its_config_says(model, num_layers, num_experts, num_tokens):
    shape = built_in_model(model)
    shard = shard_of(shape, weights=shape.weight_format, parallelism=Parallelism())

    # Routers and norms in 16 bits; an expert's 3 matrices in 4.25 bits, 2880 x 2880 padded to
    # 3072 x 2944, its biases in 16. Chosen evenly, a layer reads E * (1 - (1 - 4/E) ** tokens).
    beside = 2 * (num_experts * 2881 + 2 * 2880)
    expert = 3 * 3072 * 2944 * 4.25 / 8 + 2 * 3 * 2880
    touched = num_experts * (1 - (1 - 4 / num_experts) ** num_tokens)
    by_hand = num_layers * (GPT_OSS_LAYER_BYTES + beside + touched * expert) + GPT_OSS_HEAD_BYTES
    assert weights_read_bytes(shard, num_tokens) == pytest.approx(by_hand, rel=1e-6)
