"""A rank's share: parameters counted from the layers, and what the ranks share or repeat."""

from dataclasses import replace

import pytest

from builders import (
    a_latent_attention,
    a_layer_group,
    a_shape,
    a_sizing_request,
    an_attention,
    an_expert_ffn,
)
from tonnage.catalog.cache_types import CACHE_TYPES, StoredCache
from tonnage.catalog.config.formats.quantization import BF16
from tonnage.catalog.models import built_in_model
from tonnage.catalog.parameters import attention_parameters, num_parameters
from tonnage.catalog.shape import WeightFormat
from tonnage.sizing.errors import InvalidParallelismError
from tonnage.sizing.parallelism.kv import kv_bytes_per_layer
from tonnage.sizing.parallelism.rules import candidates, check_parallelism, explain_no_candidate
from tonnage.sizing.parallelism.shard import shard_of
from tonnage.sizing.split import Parallelism, on_rank
from tonnage.units import GIB


def share_of(shape, *, weights=BF16, cache="bf16", whole=False, **split):
    return shard_of(
        shape,
        weights=weights,
        cache=StoredCache(type=CACHE_TYPES[cache]),
        parallelism=Parallelism(**split),
        keeps_experts_whole=whole,
    )


def mixtral_8x7b():
    ffn = an_expert_ffn(num_experts=8, experts_per_token=2, expert_intermediate_size=14_336)
    return a_shape(groups=(a_layer_group(ffn=ffn),), vocab_size=32_000)


def latent_model():
    ffn = an_expert_ffn(num_experts=256)
    group = a_layer_group(attention=a_latent_attention(), ffn=ffn)
    return a_shape(groups=(group,))


def test_a_dense_model_has_the_parameters_that_its_authors_count():
    # Llama 3 8B: 8,030,261,248 in the published checkpoint.
    share = share_of(a_shape(rotary_elements=0))

    assert share.weights_bytes / 2 == pytest.approx(8.03026e9, rel=1e-4)


@pytest.mark.parametrize(
    ("model", "is_padded"),
    # 2,880 x 360 on a rank of eight, and 3,584 x 384: of multiples of 256 and of 128.
    [("openai/gpt-oss-20b", True), ("moonshotai/Kimi-K3", False)],
)
def test_experts_are_padded_where_their_sizes_are_not_those_of_the_kernels(model, is_padded):
    shape = built_in_model(model)
    shares = share_of(shape, weights=shape.weight_format, tensor=8).experts

    assert {each.is_padded for each in shares} == {is_padded}


def test_rotary_tables_lie_beside_the_weights_on_every_rank():
    # Start-up logs of Llama 3.1 8B: 14.99 GiB, 7.51 on each of two GPUs, 3.77 on each of four.
    shape = a_shape(rotary_elements=131_072 * 128)

    printed = [share_of(shape, tensor=tensor).weights_bytes / GIB for tensor in (1, 2, 4)]

    assert printed == pytest.approx([14.99, 7.51, 3.77], abs=0.005)


def test_keys_that_are_values_too_are_loaded_as_both():
    # Gemma 4 31B: 4 KV heads of 512 on 10 full layers, read by a model of width 5376.
    shape = built_in_model("google/gemma-4-31B")
    apart = replace(shape, groups=tuple(_with_values(group) for group in shape.groups))
    doubled = 10 * 4 * 512 * 5376

    assert share_of(shape).weights_bytes == share_of(apart).weights_bytes
    assert num_parameters(apart) - num_parameters(shape) == doubled


def _with_values(group):
    return replace(group, attention=replace(group.attention, values_are_keys=False))


def test_norms_outside_the_layers_are_on_every_rank():
    with_norms, without = a_shape(vector_parameters=4096), a_shape()

    more = share_of(with_norms, tensor=4).weights_bytes - share_of(without, tensor=4).weights_bytes

    assert more == 2 * 4096


def test_a_mixture_of_experts_has_the_parameters_that_its_authors_count():
    # Mixtral 8x7B: 46.7 billion, of which 12.9 are active; 0.13 of those are the embedding.
    share = share_of(mixtral_8x7b())

    assert share.weights_bytes / 2 == pytest.approx(46.7e9, rel=0.001)
    assert share.flop_per_token / 2 == pytest.approx(12.9e9 - 0.13e9, rel=0.002)


def test_the_embedding_table_is_resident_but_never_read_whole():
    share = share_of(a_shape(tied_embeddings=False, rotary_elements=0))

    assert share.weights_bytes - share.dense_read_bytes == 128_256 * 4096 * 2


def test_a_tied_table_is_there_once_and_read_as_the_head():
    share = share_of(a_shape(tied_embeddings=True, rotary_elements=0))

    assert share.weights_bytes == share.dense_read_bytes


def test_quantization_halves_what_it_covers_and_leaves_embedding_and_head():
    tables_bytes = 2 * 128_256 * 4096 * 2
    fp8 = WeightFormat(name="fp8", bytes_per_parameter=1, compute="fp8")

    shape = a_shape(rotary_elements=0)
    whole, halved = share_of(shape), share_of(shape, weights=fp8)

    quantized_bytes = whole.weights_bytes - tables_bytes
    assert halved.weights_bytes - tables_bytes == pytest.approx(quantized_bytes / 2, rel=1e-4)


def test_a_part_that_the_checkpoint_leaves_alone_stays_at_two_bytes():
    fp8 = WeightFormat(name="fp8", bytes_per_parameter=1, compute="fp8")
    spared = WeightFormat(
        name="fp8", bytes_per_parameter=1, compute="fp8", own=(("attention", BF16),)
    )
    attention_bytes = 32 * attention_parameters(an_attention(), hidden_size=4096)

    extra = (
        share_of(a_shape(), weights=spared).weights_bytes
        - share_of(a_shape(), weights=fp8).weights_bytes
    )

    assert extra == attention_bytes


@pytest.mark.parametrize(
    ("tensor", "elements"),
    [(1, 8 * 256), (2, 4 * 256), (8, 256), (16, 256)],  # 16: two ranks keep the same head
)
def test_kv_heads_are_split_but_never_below_one(tensor, elements):
    attention = an_attention(num_heads=32, num_kv_heads=8, head_dim=128)

    assert kv_bytes_per_layer(on_rank(attention, tensor)) == 2 * elements


def test_latent_attention_keeps_its_whole_cache_on_every_rank():
    alone, one_of_eight = share_of(latent_model()), share_of(latent_model(), tensor=8)

    assert alone.kv[0].bytes_per_token == one_of_eight.kv[0].bytes_per_token == 32 * 576 * 2


def test_data_parallel_attention_repeats_attention_and_spreads_experts():
    alone, one_of_eight = share_of(latent_model()), share_of(latent_model(), data=8)

    assert one_of_eight.dense_read_bytes == alone.dense_read_bytes
    assert one_of_eight.experts[0].resident_bytes == alone.experts[0].resident_bytes / 8


def test_the_work_of_routed_experts_is_counted_apart():
    one_of_eight = share_of(latent_model(), data=8)

    # 32 layers, 8 experts of three matrices of 4,096 x 1,536, two operations for each weight.
    assert one_of_eight.expert_flop_per_token == 2 * 32 * 8 * 3 * 4096 * 1536
    assert share_of(a_shape()).expert_flop_per_token == 0


@pytest.mark.parametrize(
    ("split", "width"),
    [({"tensor": 4}, 1536 / 4), ({"data": 4}, 1536), ({"tensor": 2, "pipeline": 2}, 1536 / 2)],
)
def test_tensor_parallel_ranks_multiply_by_a_slice_of_each_expert(split, width):
    (experts,) = share_of(latent_model(), **split).experts

    assert experts.slice_width == width


def test_slices_of_experts_keep_the_blocks_of_their_own_format():
    blocks = WeightFormat(name="fp8", bytes_per_parameter=1, compute="fp8", block_size=1024)
    own, other = BF16.with_parts({"experts": blocks}), blocks.with_parts({"experts": BF16})
    (cut,) = share_of(latent_model(), weights=own, tensor=2).experts
    (sliced,) = share_of(latent_model(), weights=other, tensor=2).experts
    (alike,) = share_of(latent_model(), tensor=2).experts

    assert cut.slice_width == 2 * alike.slice_width
    assert sliced.slice_width == alike.slice_width


def test_ranks_multiply_by_whole_experts_where_a_slice_would_cut_a_block():
    blocks = WeightFormat(name="fp8", bytes_per_parameter=1, compute="fp8", block_size=1024)
    (experts,) = share_of(latent_model(), weights=blocks, tensor=2).experts
    (asked,) = share_of(latent_model(), tensor=2, whole=True).experts

    assert experts.slice_width == asked.slice_width == 1536


def test_what_is_in_16_bits_beside_quantized_matrices_is_counted_apart():
    spared = WeightFormat(
        name="fp8", bytes_per_parameter=1, compute="fp8", own=(("attention", BF16),)
    )
    share = share_of(a_shape(), weights=spared, tensor=2)

    attention = 32 * attention_parameters(on_rank(an_attention(), 2), hidden_size=4096)
    assert share.wide_flop_per_token == 2 * attention
    assert share.head_flop_per_token == 2 * 128_256 * 4096 / 2


@pytest.mark.parametrize(
    ("tensor", "words"),
    [(3, "TP 3 does not divide the 32 attention heads"), (64, "TP 64 does not divide the 32")],
)
def test_heads_that_do_not_divide_are_refused_with_the_numbers(tensor, words):
    with pytest.raises(InvalidParallelismError, match=words):
        check_parallelism(a_shape(), BF16, Parallelism(tensor=tensor))


def test_kv_heads_that_do_not_divide_are_refused_with_the_numbers():
    attention = an_attention(num_heads=24, num_kv_heads=6)
    shape = a_shape(groups=(a_layer_group(attention=attention),))

    message = "TP 4 neither divides nor is a multiple of the 6 KV heads"
    with pytest.raises(InvalidParallelismError, match=message):
        check_parallelism(shape, BF16, Parallelism(tensor=4))


def test_more_stages_than_layers_are_refused():
    with pytest.raises(InvalidParallelismError, match="PP 33 exceeds the 32 layers"):
        check_parallelism(a_shape(), BF16, Parallelism(pipeline=33))


def test_splits_come_smallest_first_and_tensor_parallel_first():
    splits = list(candidates(a_sizing_request()))

    assert [str(split) for split in splits[:5]] == ["TP1", "TP2", "PP2", "PP3", "TP4"]
    assert "TP2 x PP3" in {str(split) for split in splits}
    assert [split.num_gpus for split in splits] == sorted(split.num_gpus for split in splits)
    assert str(splits[-1]) == "TP8 x PP4"


def test_a_replicated_cache_is_also_tried_with_data_parallel_attention():
    splits = [str(s) for s in candidates(a_sizing_request(shape=latent_model(), num_gpus=8))]

    assert splits[:2] == ["TP8", "DP8"]


def test_data_parallel_ranks_hold_as_many_experts_each():
    splits = candidates(a_sizing_request(shape=latent_model()))

    assert {split.data for split in splits} == {1, 2, 4, 8}


@pytest.mark.parametrize(
    ("num_gpus", "words"), [(3, "TP 3 does not divide"), (12, "no whole number of nodes of 8")]
)
def test_a_number_of_gpus_that_will_not_do_is_explained(num_gpus, words):
    assert words in explain_no_candidate(a_sizing_request(num_gpus=num_gpus))


class TestChosenTokens:
    """A sparse layer keeps every token, reads the keys of all to choose, and then a few."""

    @staticmethod
    def read_bytes(model, context, *, cache="bf16"):
        share = share_of(built_in_model(model), cache=cache, tensor=8)
        return sum(kind.read_bytes(context) for kind in share.kv)

    def test_of_deepseek_v32_are_2048_beside_a_key_of_each_token(self):
        # 61 layers of 576 elements of two bytes, and keys of 128 bytes and a scale.
        assert self.read_bytes("DeepSeek-V3.2", 1000) == 61 * 1000 * (1152 + 132)
        assert self.read_bytes("DeepSeek-V3.2", 32_000) == 61 * (2048 * 1152 + 32_000 * 132)

    def test_of_shared_choices_need_no_keys(self):
        # GLM 5.2: 78 layers, of which 21 choose.
        assert self.read_bytes("GLM-5.2", 32_000) == 78 * 2048 * 1152 + 21 * 32_000 * 132

    def test_of_minimax_m3_are_16_blocks_of_128_on_all_but_three_layers(self):
        # Half a KV head on each of eight ranks is a whole one: 2 x 128 elements of two bytes.
        chosen, whole = 57 * (2048 * 512 + 32_000 * 256), 3 * 32_000 * 512

        assert self.read_bytes("MiniMax-M3", 32_000) == chosen + whole

    def test_of_deepseek_v4_are_entries_for_four_tokens_each(self):
        # 512 entries of 584 bytes on 21 layers; the windows, and the entries for 128 tokens on 20.
        chosen = 21 * (512 * 584 + 100_000 / 4 * 132)
        rest = 43 * 128 * 584 + 20 * 100_000 / 128 * 584

        assert self.read_bytes("DeepSeek-V4-Flash", 100_000) == pytest.approx(chosen + rest)

    def test_save_the_work_on_all_others_but_not_the_choice(self):
        share = share_of(built_in_model("DeepSeek-V3.2"), tensor=8)
        flop = sum(kind.decode_flop(32_000) for kind in share.kv)

        # 16 of 128 heads score 576 and sum up 512 elements; all 64 heads of the indexer score 128.
        pair, key = 2 * 16 * (576 + 512), 2 * 64 * 128
        assert flop == 61 * (2048 * pair + 32_000 * key)

    def test_leave_the_cache_as_large_as_it_is(self):
        share = share_of(built_in_model("DeepSeek-V3.2"), tensor=8)

        assert sum(kind.bytes_per_token for kind in share.kv) == 61 * (1152 + 132)


def test_experts_and_exchanges_are_launched_too():
    dense, split = (share_of(a_shape(), tensor=tensor) for tensor in (1, 2))
    experts = share_of(latent_model(), tensor=2)

    assert split.num_launches - dense.num_launches == 2 * dense.num_layers
    assert experts.num_launches > 8 * experts.num_moe_layers
