"""Families that mix attention with states in ways of their own; Step-3 and Mllama."""

from typing import Any

import pytest

from tonnage.catalog.config.keys.decoder import ModelConfigError, UnknownArchitectureError
from tonnage.catalog.config.read import shape_from_config
from tonnage.catalog.models import built_in_config, built_in_model
from tonnage.catalog.parameters import num_active_parameters, num_parameters
from tonnage.catalog.shape import GroupedAttention, ModelShape, StateAttention
from tonnage.sizing.parallelism.kv import kv_bytes_per_token, state_bytes
from tonnage.units import GB

FALCON, JAMBA = "tiiuae/Falcon-H1-7B-Instruct", "ai21labs/AI21-Jamba-Mini-1.6"
MINIMAX, STEP = "MiniMaxAI/MiniMax-Text-01", "stepfun-ai/step3"
ZAMBA, LLAMA = "Zyphra/Zamba2-7B-Instruct", "meta-llama/Llama-3.2-11B-Vision-Instruct"

# model; billion parameters in all and of a token, as published; cache bytes per token in 16 bits;
# state bytes per sequence.
TABLE = [
    # 44 x 2 heads x 128 x 2 x 2 B; 44 x (3 x 3584 x 2 B + 24 x 128 x 256 x 2 B)
    (FALCON, 7.59, 7.59, 45_056, 70_152_192),
    # 4 x 8 heads x 128 x 2 x 2 B; 28 x 8192 channels x (3 + 16) x 2 B
    (JAMBA, 51.57, 12.1, 16_384, 8_716_288),
    # 10 x 8 x 128 x 2 x 2 B; 70 x 64 heads x 128 x 128 x 2 B
    (MINIMAX, 456.1, 48.4, 40_960, 146_800_640),
    # 61 x 1 head x 256 x 2 x 2 B
    (STEP, 316.3, 38.8, 62_464, 0),
    # 13 x 32 heads x 224 x 2 x 2 B; 81 x (3 x 7424 x 2 B + 112 x 64 x 64 x 2 B)
    (ZAMBA, 7.36, 7.36, 372_736, 77_925_888),
    # 40 x 8 x 128 x 2 x 2 B, the layers that attend to images among them
    (LLAMA, 9.78, 9.78, 163_840, 0),
]


@pytest.mark.parametrize(("model", "total", "active", "cache", "state"), TABLE)
def test_parameters_and_cache_are_what_is_published_and_counted_by_hand(
    model: str, total: float, active: float, cache: int, state: int
) -> None:
    shape = built_in_model(model)

    assert num_parameters(shape) / GB == pytest.approx(total, rel=0.001)
    assert num_active_parameters(shape) / GB == pytest.approx(active, rel=0.005)
    assert kv_bytes_per_token(shape.attentions()) == cache
    assert sum(number * state_bytes(each) for number, each in shape.attentions()) == state


def read(model: str, **changes: Any) -> ModelShape:
    config = built_in_config(model)
    config.get("text_config", config).update(changes)
    return shape_from_config(config, name="m")


def test_a_layer_with_both_is_read_as_two() -> None:
    layers = [attention for _, attention in built_in_model(FALCON).attentions()]

    assert [type(layer) for layer in layers] == [GroupedAttention, StateAttention]
    assert built_in_model(FALCON).num_layers == 2 * 44


def test_a_width_of_the_state_gives_the_heads_theirs() -> None:
    assert read(FALCON, mamba_d_head="auto").groups == read(FALCON).groups


def test_experts_and_attention_stand_where_periods_and_offsets_say() -> None:
    shape = read(JAMBA, num_hidden_layers=8)

    kinds = [(type(group.attention).__name__, type(group.ffn).__name__) for group in shape.groups]

    assert {kind: group.num_layers for kind, group in zip(kinds, shape.groups, strict=True)} == {
        ("StateAttention", "DenseFfn"): 3,
        ("StateAttention", "MoeFfn"): 4,
        ("GroupedAttention", "DenseFfn"): 1,
    }


def test_the_converted_file_of_minimax_is_read_alike() -> None:
    types = ["full_attention" if kind else "linear_attention" for kind in ([0] * 7 + [1]) * 10]
    config = built_in_config(MINIMAX) | {"model_type": "minimax", "layer_types": types}
    del config["attn_type_list"]

    assert shape_from_config(config, name="m").groups == read(MINIMAX).groups


def test_shared_blocks_count_once_and_keep_a_cache_for_each_use() -> None:
    one, two = read(ZAMBA, num_mem_blocks=1), read(ZAMBA, num_mem_blocks=2)
    hidden, inner = 3584, 14_336
    block = 14 * hidden**2 + 3 * hidden * inner + 3 * hidden

    assert num_parameters(two) - num_parameters(one) == block
    assert list(one.attentions()) == list(two.attentions())


def test_encoders_are_counted_as_published() -> None:
    assert built_in_model(LLAMA).encoder_parameters / GB == pytest.approx(0.89, abs=0.01)
    assert built_in_model(STEP).encoder_parameters / GB == pytest.approx(4.7, abs=0.05)


@pytest.mark.parametrize(
    ("model", "changes", "error", "words"),
    [
        (JAMBA, {"attn_layer_period": None}, ModelConfigError, "attn_layer_period .* missing"),
        (JAMBA, {"num_attention_heads": 24, "num_key_value_heads": 8, "head_dim": 128},
         ModelConfigError, "24 does not divide the 8192 channels"),
        (MINIMAX, {"attn_type_list": [1]}, ModelConfigError, "attn_type_list has 1 entry"),
        (MINIMAX, {"attn_type_list": None}, ModelConfigError, "attn_type_list are missing"),
        (STEP, {"num_attention_groups": 2}, UnknownArchitectureError, "num_attention_groups = 2"),
        (STEP, {"share_q_dim": None}, ModelConfigError, "share_q_dim is missing"),
        (STEP, {"moe_layers_enum": "4,five"}, ModelConfigError, "moe_layers_enum"),
        (ZAMBA, {"layers_block_type": None}, ModelConfigError, "layers_block_type is missing"),
        (ZAMBA, {"layers_block_type": ["odd"] * 81}, UnknownArchitectureError, "'odd'"),
    ],
)  # fmt: skip
def test_what_is_missing_or_odd_is_named(
    model: str, changes: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words.replace("[", r"\[")):
        read(model, **changes)
