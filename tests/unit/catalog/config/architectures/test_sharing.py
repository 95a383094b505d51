"""Layers that read the cache of an earlier one, and tables of their own (Gemma 3n, Gemma 4 E)."""

from typing import Any

import pytest

from tonnage.catalog.config.keys.decoder import ModelConfigError
from tonnage.catalog.config.read import shape_from_config
from tonnage.catalog.parameters import num_active_parameters, num_parameters
from tonnage.catalog.shape import DenseFfn, GroupedAttention, ModelShape

FIVE = ["sliding_attention"] * 4 + ["full_attention"]
SIX = ["sliding_attention"] * 5 + ["full_attention"]

GEMMA_4_E2B: dict[str, Any] = {
    "model_type": "gemma4_text",
    "hidden_size": 1536,
    "num_hidden_layers": 35,
    "num_attention_heads": 8,
    "num_key_value_heads": 1,
    "num_global_key_value_heads": None,
    "head_dim": 256,
    "global_head_dim": 512,
    "intermediate_size": 6144,
    "vocab_size": 262_144,
    "vocab_size_per_layer_input": 262_144,
    "hidden_size_per_layer_input": 256,
    "num_kv_shared_layers": 20,
    "use_double_wide_mlp": True,
    "attention_k_eq_v": False,
    "enable_moe_block": False,
    "sliding_window": 512,
    "max_position_embeddings": 131_072,
    "tie_word_embeddings": True,
    "layer_types": FIVE * 7,
}
GEMMA_4_E4B = GEMMA_4_E2B | {
    "hidden_size": 2560,
    "num_hidden_layers": 42,
    "num_key_value_heads": 2,
    "intermediate_size": 10_240,
    "num_kv_shared_layers": 18,
    "use_double_wide_mlp": False,
    "layer_types": SIX * 7,
}
GEMMA_3N_E4B: dict[str, Any] = {
    "model_type": "gemma3n_text",
    "hidden_size": 2048,
    "num_hidden_layers": 35,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "intermediate_size": [16_384] * 35,
    "vocab_size": 262_400,
    "vocab_size_per_layer_input": 262_144,
    "hidden_size_per_layer_input": 256,
    "num_kv_shared_layers": 15,
    "altup_num_inputs": 4,
    "laurel_rank": 64,
    "sliding_window": 512,
    "max_position_embeddings": 32_768,
    "layer_types": FIVE * 7,
}
GEMMA_3N_E2B = GEMMA_3N_E4B | {
    "num_hidden_layers": 30,
    "intermediate_size": [8192] * 30,
    "num_kv_shared_layers": 10,
    "layer_types": FIVE * 6,
}


def read(config: dict[str, Any], **changes: Any) -> ModelShape:
    return shape_from_config(config | changes, name="m")


def layers_by_cache(shape: ModelShape) -> dict[tuple[bool, int | None], int]:
    """Return the number of layers by whether they have a cache, and window."""
    found: dict[tuple[bool, int | None], int] = {}
    for num_layers, attention in shape.attentions():
        assert isinstance(attention, GroupedAttention)
        key = (attention.owns_cache, attention.window_tokens)
        found[key] = found.get(key, 0) + num_layers
    return found


# Parameters of the classes in transformers 5.23, built without weights. The tables are
# 262,144 rows of 256 per layer.
@pytest.mark.parametrize(
    ("config", "total", "tables"),
    [
        (GEMMA_4_E2B, 4_628_569_344, 262_144 * 35 * 256),
        (GEMMA_4_E4B, 7_463_013_376, 262_144 * 42 * 256),
        (GEMMA_3N_E4B, 6_835_235_568, 262_144 * 35 * 256),
        (GEMMA_3N_E2B, 4_435_182_688, 262_144 * 30 * 256),
    ],
    ids=["Gemma 4 E2B", "Gemma 4 E4B", "Gemma 3n E4B", "Gemma 3n E2B"],
)
def test_every_parameter_of_the_reference_class_is_counted(
    config: dict[str, Any], total: int, tables: int
) -> None:
    shape = read(config)

    assert num_parameters(shape) == total
    assert shape.table_parameters == tables
    assert num_active_parameters(shape) == total - tables


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (GEMMA_4_E2B, {(True, 512): 12, (True, None): 3, (False, 512): 16, (False, None): 4}),
        (GEMMA_4_E4B, {(True, 512): 20, (True, None): 4, (False, 512): 15, (False, None): 3}),
        (GEMMA_3N_E4B, {(True, 512): 16, (True, None): 4, (False, 512): 12, (False, None): 3}),
    ],
    ids=["Gemma 4 E2B", "Gemma 4 E4B", "Gemma 3n E4B"],
)
def test_the_last_layers_keep_no_cache(
    config: dict[str, Any], expected: dict[tuple[bool, int | None], int]
) -> None:
    assert layers_by_cache(read(config)) == expected


def test_full_layers_have_wider_heads_and_as_many_as_the_others_unless_keys_are_values() -> None:
    heads = {
        attention.head_dim: attention.num_kv_heads
        for _, attention in read(GEMMA_4_E4B, num_global_key_value_heads=1).attentions()
        if isinstance(attention, GroupedAttention)
    }

    assert heads == {256: 2, 512: 2}


def test_layers_without_a_cache_may_be_twice_as_wide() -> None:
    widths = {
        (group.attention.owns_cache, group.ffn.intermediate_size)
        for group in read(GEMMA_4_E2B).groups
        if isinstance(group.attention, GroupedAttention) and isinstance(group.ffn, DenseFfn)
    }

    assert widths == {(True, 6144), (False, 12_288)}


def test_without_layer_tables_nothing_is_added() -> None:
    shape = read(GEMMA_4_E4B, hidden_size_per_layer_input=0)

    assert shape.table_parameters == 0
    assert {group.replicated_parameters for group in shape.groups} == {0}


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        (GEMMA_4_E4B, {"num_kv_shared_layers": 42}, "num_kv_shared_layers = 42 leaves none"),
        (GEMMA_4_E4B, {"vocab_size_per_layer_input": None}, "vocab_size_per_layer_input is miss"),
        (GEMMA_4_E2B, {"intermediate_size": [6144] * 35}, "intermediate_size is a list of 35"),
        (GEMMA_3N_E4B, {"intermediate_size": [8192] * 3}, "intermediate_size has 3 entries"),
        (GEMMA_3N_E4B, {"altup_num_inputs": None}, "altup_num_inputs is missing"),
        (GEMMA_3N_E4B, {"layer_types": None}, "layer_types is missing"),
    ],
)
def test_what_contradicts_itself_is_named(
    config: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelConfigError) as refusal:
        read(config, **changes)

    assert message in str(refusal.value)
