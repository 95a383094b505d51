"""A kind that no rule knows is counted by the keys that decoders share, or refused."""

from dataclasses import replace
from typing import Any

import pytest

from tonnage.catalog.config.keys.decoder import UnknownArchitectureError
from tonnage.catalog.config.read import shape_from_config
from tonnage.catalog.parameters import num_parameters
from tonnage.catalog.shape import GroupedAttention, LatentAttention, ModelShape, MoeFfn

UNKNOWN: dict[str, Any] = {
    "model_type": "unheard_of", "hidden_size": 1024, "num_hidden_layers": 4, "head_dim": 64,
    "num_attention_heads": 16, "num_key_value_heads": 4, "intermediate_size": 4096,
    "vocab_size": 32_000, "max_position_embeddings": 8192, "tie_word_embeddings": False,
}  # fmt: skip


def read(**changes: Any) -> ModelShape:
    return shape_from_config(UNKNOWN | changes, name="m")


def attention(shape: ModelShape) -> GroupedAttention:
    found = shape.groups[0].attention
    assert isinstance(found, GroupedAttention)
    return found


def test_every_layer_attends_to_all_tokens_with_the_heads_that_are_written() -> None:
    shape = read()

    assert [group.num_layers for group in shape.groups] == [4]
    assert (attention(shape).num_kv_heads, attention(shape).window_tokens) == (4, None)
    [assumption] = shape.assumptions
    assert assumption.effect == "memory and time"
    assert "model_type = 'unheard_of' has no rule here" in assumption.taken
    assert "4 layers that keep 4 KV heads of every token" in assumption.taken
    assert "--hub" in assumption.replaced_by


def test_no_fewer_parameters_are_counted_than_of_the_plainest_kind_with_these_keys() -> None:
    plain = shape_from_config(UNKNOWN | {"model_type": "llama"}, name="m")

    assert 1 <= num_parameters(read()) / num_parameters(plain) < 1.05  # a gate
    assert not plain.assumptions


@pytest.mark.parametrize(
    ("own", "usual"),
    [
        ("n_embd", "hidden_size"),
        ("n_layer", "num_hidden_layers"),
        ("num_kv_heads", "num_key_value_heads"),
        ("kv_channels", "head_dim"),
        ("ffn_hidden_size", "intermediate_size"),
        ("padded_vocab_size", "vocab_size"),
        ("seq_length", "max_position_embeddings"),
    ],
)
def test_a_key_may_have_the_name_that_another_family_gives_it(own: str, usual: str) -> None:
    renamed = {key: value for key, value in UNKNOWN.items() if key != usual}

    assert read().groups == shape_from_config(
        renamed | {own: UNKNOWN[usual]}, name="m"
    ).groups  # fmt: skip


def test_of_several_numbers_the_largest_counts() -> None:
    shape = read(
        intermediate_size=[2048, 4096, 4096, 2048],
        num_attention_heads=[16, 32, 16, 16],
        swa_num_key_value_heads=8,
    )

    assert (attention(shape).num_heads, attention(shape).num_kv_heads) == (32, 8)
    assert shape.groups[0].ffn == read().groups[0].ffn


def test_windows_count_only_where_the_layers_are_listed() -> None:
    listed = ["sliding_attention", "full_attention"] * 2

    assert not any(
        isinstance(each, GroupedAttention) and each.window_tokens
        for _, each in read(sliding_window=512).attentions()
    )
    windows = [
        each.window_tokens
        for _, each in read(sliding_window=512, layer_types=listed).attentions()
        if isinstance(each, GroupedAttention)
    ]
    assert windows == [512, None]


def test_experts_are_in_every_layer_that_no_mark_excepts() -> None:
    experts = {
        "n_routed_experts": 8, "moe_topk": 2, "moe_intermediate_size": 512,
        "num_shared_experts": 1,
    }  # fmt: skip

    [everywhere] = read(**experts).groups
    assert isinstance(everywhere.ffn, MoeFfn)
    assert (everywhere.ffn.num_experts, everywhere.ffn.shared_intermediate_size) == (8, 512)
    dense, sparse = read(**experts, mlp_layer_types=["dense"] + ["sparse"] * 3).groups
    assert (dense.num_layers, sparse.num_layers) == (1, 3)
    assert [group.num_layers for group in read(**experts, first_k_dense_replace=2).groups] == [2, 2]
    dense, sparse = read(**experts, first_k_dense_replace=3, num_dense_layers=1).groups
    assert (dense.num_layers, sparse.num_layers) == (1, 3)
    words = ["dense", "moe", "hash_moe", "sparse"]  # vLLM asks for "dense" alone
    dense, sparse = read(**experts, mlp_layer_types=words).groups
    assert (dense.num_layers, sparse.num_layers) == (1, 3)


def test_of_two_widths_of_shared_experts_the_larger_counts() -> None:
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 512}
    both = experts | {"num_shared_experts": 3, "shared_expert_intermediate_size": 1024}

    [group] = read(**both).groups
    assert isinstance(group.ffn, MoeFfn)
    assert group.ffn.shared_intermediate_size == 3 * 512


def test_experts_of_which_none_is_chosen_are_not_dense() -> None:
    with pytest.raises(UnknownArchitectureError, match="num_experts_per_tok = 0 is not between"):
        read(num_experts=8, num_experts_per_tok=0, moe_intermediate_size=512)


def test_a_latent_rank_means_a_latent_vector() -> None:
    ranks = {
        "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
    }  # fmt: skip

    [(_, latent)] = read(**ranks).attentions()

    assert isinstance(latent, LatentAttention)
    assert latent.kv_lora_rank == 512


def test_a_wrapper_that_is_unknown_has_a_text_part_that_may_be_known() -> None:
    text = UNKNOWN | {"model_type": "llama"}
    wrapped = shape_from_config(
        {"model_type": "new_vl", "text_config": text, "vision_config": {}}, name="m"
    )

    assert wrapped.groups == shape_from_config(text, name="m").groups
    [assumption] = wrapped.assumptions
    assert "'new_vl' has no rule here" in assumption.taken
    assert "its text part counts as llama" in assumption.taken


def test_the_text_part_may_be_two_blocks_deep() -> None:
    config = {"model_type": "new_omni", "thinker_config": {"text_config": UNKNOWN}}

    assert shape_from_config(config, name="m").groups == read().groups


def test_a_window_that_no_layer_is_named_for_is_said() -> None:
    [assumption] = read(sliding_window=512).assumptions

    assert "its window of 512 tokens is of no layer that is named" in assumption.taken


def test_keys_that_no_reader_uses_do_no_harm() -> None:
    odd = {"no_rope_layers": "all", "window_pattern": 1.5, "rotary_dim": "auto"}

    assert replace(read(**odd), digest="") == replace(read(), digest="")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"architectures": ["RWKV7ForCausalLM"]}, "vLLM 0.33 has no class RWKV7ForCausalLM"),
        (
            {"architectures": ["NewForCausalLM"], "auto_map": {"AutoModel": "m.New"}},
            "with --trust-remote-code",
        ),
        ({"ssm_state_size": 128}, "layers with a state per sequence (ssm_state_size = 128)"),
        ({"num_kv_shared_layers": 2}, "layers that share a cache"),
        ({"intermediate_size": None}, "their keys give no bound: intermediate_size is missing"),
        ({"layer_types": ["retrieval"] * 4}, "layers of this kind (layer_types[0] = 'retrieval')"),
    ],
)
def test_what_has_no_bound_is_refused_by_name(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UnknownArchitectureError) as refusal:
        read(**changes)

    assert said in str(refusal.value)


def test_a_class_that_is_served_needs_no_rule() -> None:
    assert read(architectures=["FlintForCausalLM"]).assumptions


def test_the_class_decides_what_an_unknown_kind_is_as_in_vllm() -> None:
    known = read(architectures=["LlamaForCausalLM"])

    assert known.groups == shape_from_config(UNKNOWN | {"model_type": "llama"}, name="m").groups
    assert not known.assumptions


def test_a_window_of_no_layer_that_is_named_may_be_of_all() -> None:
    [assumption] = read(sliding_window=1024, max_position_embeddings=16_384).assumptions

    assert assumption.times == 16


def test_a_chunk_of_no_layer_that_is_named_may_be_of_all() -> None:
    [assumption] = read(attention_chunk_size=512).assumptions

    assert assumption.times == 16
    assert "512 tokens is of no layer" in assumption.taken


def test_kv_heads_under_no_name_that_is_known_may_be_one() -> None:
    [assumption] = read(num_key_value_heads=None, kv_heads=1).assumptions

    assert assumption.times == 16
