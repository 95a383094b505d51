"""Kinds that are read by the keys that decoders share, and what their classes add.

The numbers of parameters of whole architectures are vLLM's own: ``tests/proof/test_oracle.py``.
"""

from typing import Any

import pytest

from tonnage.catalog.config.keys.decoder import ModelConfigError
from tonnage.catalog.config.read import shape_from_config
from tonnage.catalog.models import built_in_config
from tonnage.catalog.parameters import num_parameters
from tonnage.catalog.shape import DenseFfn, GroupedAttention, MoeFfn

LAGUNA: dict[str, Any] = {
    "architectures": ["LagunaForCausalLM"], "model_type": "laguna", "vocab_size": 100_352,
    "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 4, "head_dim": 128,
    "num_attention_heads": 48, "num_key_value_heads": 8, "max_position_embeddings": 262_144,
    "num_attention_heads_per_layer": [48, 64, 64, 64], "sliding_window": 512, "gating": True,
    "layer_types": ["full_attention"] + ["sliding_attention"] * 3, "num_experts": 256,
    "mlp_layer_types": ["dense"] + ["sparse"] * 3, "num_experts_per_tok": 8,
    "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
    "tie_word_embeddings": False,
}  # fmt: skip
"""The first four of the 40 layers of poolside/Laguna-XS.2."""
WITHOUT = {"no_op": True}


def nas(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {
        "architectures": ["DeciLMForCausalLM"], "model_type": "nemotron-nas", "hidden_size": 8192,
        "intermediate_size": None, "num_attention_heads": 64, "num_key_value_heads": None,
        "num_hidden_layers": len(blocks), "vocab_size": 128_256, "block_configs": list(blocks),
        "max_position_embeddings": 131_072, "tie_word_embeddings": False,
    }  # fmt: skip


def test_laguna_has_heads_by_layer_windows_and_experts_where_they_are_listed() -> None:
    first, others = shape_from_config(LAGUNA, name="m").groups

    assert isinstance(first.attention, GroupedAttention)
    assert isinstance(others.attention, GroupedAttention)
    assert (first.attention.num_heads, first.attention.window_tokens) == (48, None)
    assert (others.attention.num_heads, others.attention.window_tokens) == (64, 512)
    assert isinstance(first.ffn, DenseFfn)
    assert isinstance(others.ffn, MoeFfn)
    # a gate per head; a bias per expert; two norms and those of queries and keys
    assert others.vector_parameters == 64 * 2048 + 256 + 2 * 2048 + 2 * 128


def test_nemotron_nas_has_layers_without_attention_and_blocks_of_their_own_width() -> None:
    whole = {"attention": {"n_heads_in_group": 8}, "ffn": {"ffn_mult": 5.25}}
    without = {"attention": WITHOUT, "ffn": {"ffn_mult": 0.5}}
    first, second, third = shape_from_config(
        nas(whole, without, {"attention": WITHOUT, "ffn": WITHOUT}), name="m"
    ).groups

    assert isinstance(first.attention, GroupedAttention)
    assert first.attention.num_kv_heads == 8
    assert first.ffn == DenseFfn(intermediate_size=28_672)  # 2/3 of 5.25 * 8192
    assert second.attention is None
    assert second.ffn == DenseFfn(intermediate_size=2816)  # 2730.7, in steps of 256
    assert (third.attention, third.ffn) == (None, None)


def test_nemotron_nas_needs_the_group_of_its_heads() -> None:
    with pytest.raises(ModelConfigError, match=r"attention\.n_heads_in_group is missing"):
        shape_from_config(nas({"attention": {}, "ffn": {"ffn_mult": 1.0}}), name="m")


@pytest.mark.parametrize("name", ["indexed_attention", "deepseek_sparse_attention"])
def test_layers_that_choose_their_tokens_may_be_listed_under_several_names(name: str) -> None:
    config = built_in_config("zai-org/GLM-5")
    listed = config | {"layer_types": [name] * config["num_hidden_layers"]}

    assert shape_from_config(listed, name="m").groups == shape_from_config(config, name="m").groups


def test_the_ratios_of_compressed_layers_may_be_given_by_their_types() -> None:
    config = built_in_config("deepseek-ai/DeepSeek-V4-Flash")
    types = {0: "sliding_attention", 4: "compressed_sparse_attention",
             128: "heavily_compressed_attention"}  # fmt: skip
    number = config["num_hidden_layers"]
    listed = {key: value for key, value in config.items() if key != "compress_ratios"} | {
        "layer_types": [types[ratio] for ratio in config["compress_ratios"][:number]],
        "compress_rates": {types[4]: 4, types[128]: 128},
    }

    assert shape_from_config(listed, name="m").groups == shape_from_config(config, name="m").groups


def test_of_several_numbers_of_draft_layers_the_largest_counts() -> None:
    both = {"num_mtp_modules": 7, "num_nextn_predict_layers": 1}

    assert shape_from_config(LAGUNA | both, name="m").num_draft_layers == 1
    minimax = built_in_config("MiniMaxAI/MiniMax-M2.5")
    assert shape_from_config(minimax | both, name="m").num_draft_layers == 7


def test_a_head_is_tied_only_where_wrapper_and_text_part_say_so() -> None:
    config = built_in_config("mistralai/Mistral-Small-3.1-24B-Instruct-2503")
    text = config["text_config"]

    def tied(outer: bool, inner: bool) -> bool:
        changed = config | {
            "tie_word_embeddings": outer,
            "text_config": text | {"tie_word_embeddings": inner},
        }
        return shape_from_config(changed, name="m").tied_embeddings

    assert tied(outer=True, inner=True)
    assert not tied(outer=True, inner=False)
    assert not tied(outer=False, inner=True)


def test_a_window_that_is_not_used_may_be_nothing() -> None:
    config = built_in_config("Qwen/Qwen2.5-7B-Instruct") | {"use_sliding_window": False}

    read = shape_from_config(config | {"sliding_window": 0}, name="m")
    assert num_parameters(read) == num_parameters(shape_from_config(config, name="m"))
