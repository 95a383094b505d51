"""Models whose layers keep a state per sequence: what is read, counted, stored wide and refused."""

import math
from typing import Any

import pytest

from tonnage.catalog.config.formats.quantization import NVFP4
from tonnage.catalog.config.keys.decoder import ModelConfigError, UnknownArchitectureError
from tonnage.catalog.config.read import shape_from_config
from tonnage.catalog.models import built_in_config, built_in_model
from tonnage.catalog.parameters import (
    attention_parameters,
    num_active_parameters,
    num_parameters,
)
from tonnage.catalog.shape import (
    DenseFfn,
    GroupedAttention,
    Indexer,
    LatentAttention,
    ModelShape,
    MoeFfn,
    StateAttention,
)
from tonnage.units import GB, GIB

# model; billion parameters in all and that a token meets, from a table that an independent counter
# made; what the publisher states; cache bytes per token in 16 bits; state bytes per sequence.
TABLE = [
    ("Qwen/Qwen3-Next-80B-A3B-Instruct", 79.67, 3.87, 80, 24_576, 39_518_208),
    ("Qwen/Qwen3.5-27B", 26.9, 26.9, 27, 65_536, 153_944_064),
    ("Qwen/Qwen3.5-35B-A3B", 34.66, 3.45, 35, 20_480, 64_389_120),
    ("Qwen/Qwen3.5-122B-A10B", 122.11, 9.77, 122, 24_576, 153_649_152),
    ("Qwen/Qwen3.5-397B-A17B", 396.35, 17.35, 397, 30_720, 192_061_440),
    ("Qwen/Qwen3.6-27B", 26.9, 26.9, 27, 65_536, 153_944_064),
    ("Qwen/Qwen3.6-35B-A3B", 34.66, 3.45, 35, 20_480, 64_389_120),
    ("nvidia/Nemotron-H-56B-Base-8K", 56.32, 56.32, 56, 40_960, 912_605_184),
    ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", 31.58, 3.58, 31.6, 6_144, 49_082_368),
    ("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8", 120.67, 12.77, 120, 8_192, 170_229_760),
    ("nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16", 549.31, 56.06, 550, 12_288, 407_961_600),
]
ROWS = [(model, cache, state) for model, _, _, _, cache, state in TABLE]
ROWS.append(("moonshotai/Kimi-K3", 27_648, 449_372_160))
LARGE = {"num_value_heads": 48, "num_key_heads": 16, "key_head_dim": 128, "value_head_dim": 128}


def read(model: str, **changes: Any) -> ModelShape:
    """Read a built-in model with keys of its text part changed; None takes a key out."""
    config = built_in_config(model)
    block = config.get("text_config", config)
    for key, value in changes.items():
        block.pop(key, None) if value is None else block.update({key: value})
    return shape_from_config(config, name="m")


def state_layer(shape: ModelShape) -> StateAttention:
    (layer,) = {a for _, a in shape.attentions() if isinstance(a, StateAttention)}
    return layer


def num_state_layers(shape: ModelShape) -> int:
    return sum(n for n, a in shape.attentions() if isinstance(a, StateAttention))


def experts_of(shape: ModelShape) -> MoeFfn:
    (experts,) = {group.ffn for group in shape.groups if isinstance(group.ffn, MoeFfn)}
    return experts


@pytest.mark.parametrize(("model", "total", "active", "published", "_cache", "_state"), TABLE)
def test_totals_agree_with_the_table_and_the_publisher_within_one_percent(
    model: str, total: float, active: float, published: float, _cache: int, _state: int
) -> None:
    shape = built_in_model(model)

    assert num_parameters(shape) == pytest.approx(total * GB, rel=1e-3)
    assert num_parameters(shape) == pytest.approx(published * GB, rel=0.01)
    assert num_active_parameters(shape) == pytest.approx(active * GB, rel=2e-3)


def test_every_parameter_of_kimi_linear_is_counted() -> None:
    # the number in the index of the checkpoint
    assert num_parameters(built_in_model("cyankiwi/Kimi-Linear-48B-A3B-Instruct-AWQ-4bit")) == (
        49_122_681_728
    )


def test_the_table_counts_only_the_routed_experts_of_kimi_k3() -> None:
    shape = built_in_model("moonshotai/Kimi-K3")
    experts = experts_of(shape)
    routed = 92 * experts.num_experts * 3 * 3584 * experts.expert_intermediate_size

    assert routed == pytest.approx(2722.74 * GB, rel=1e-5)
    # By hand, in millions: 69 delta layers of 442.7 (five matrices 7168 x 12288, narrow decay,
    # 96 steps, convolution), 24 latent layers of 232.2, 92 times shared experts 132.1, narrowing
    # 51.4 and router 6.4, one dense layer 726.7, embedding and head 2348.8.
    beside = 69 * 442.7 + 24 * 232.2 + 92 * (132.1 + 51.4 + 6.4) + 726.7 + 2348.8
    assert num_parameters(shape) == pytest.approx(routed + beside * 1e6, rel=1e-4)
    assert num_active_parameters(shape) == pytest.approx(
        48.62 * GB + beside * 1e6, rel=1e-3
    )  # 16 of 896 experts are 48.62


@pytest.mark.parametrize(("model", "cache", "state"), ROWS)
def test_cache_per_token_and_state_per_sequence_are_those_of_the_table(
    model: str, cache: int, state: int
) -> None:
    shape = built_in_model(model)

    assert sum(n * 2 * elements_per_token(a) for n, a in shape.attentions()) == cache
    assert sum(n * state_bytes(a) for n, a in shape.attentions()) == state


def elements_per_token(attention: object) -> int:
    match attention:
        case GroupedAttention():
            return 2 * attention.num_kv_heads * attention.head_dim
        case LatentAttention():
            return attention.kv_lora_rank + attention.qk_rope_head_dim
        case _:
            return 0


def state_bytes(attention: object) -> int:
    """The tail of the convolution in 16 bits, and one matrix per value head."""
    if not isinstance(attention, StateAttention):
        return 0
    tail = 2 * (attention.conv_kernel - 1) * attention.conv_dim
    matrix = attention.key_head_dim * attention.value_head_dim * attention.state_element_bytes
    return tail + attention.num_value_heads * matrix


@pytest.mark.parametrize(
    ("model", "layers", "state_layers", "expected"),
    [
        (
            "Qwen/Qwen3-Next-80B-A3B-Instruct",
            48,
            36,
            StateAttention(
                kind="gated_delta_net",
                num_key_heads=16,
                num_value_heads=32,
                key_head_dim=128,
                value_head_dim=128,
                conv_kernel=4,
                state_element_bytes=2,
            ),
        ),
        (
            "Qwen/Qwen3.8-27B-FP8",
            64,
            48,
            StateAttention(kind="gated_delta_net", **LARGE, conv_kernel=4, state_element_bytes=4),
        ),
        (
            "moonshotai/Kimi-K3",
            93,
            69,
            StateAttention(
                kind="kimi_delta",
                num_key_heads=96,
                num_value_heads=96,
                key_head_dim=128,
                value_head_dim=128,
                conv_kernel=4,
                state_element_bytes=4,
                has_full_rank_gate=True,
            ),
        ),
        (
            "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16",
            108,
            48,
            StateAttention(
                kind="mamba2",
                num_key_heads=8,
                num_value_heads=256,
                key_head_dim=128,
                value_head_dim=64,
                conv_kernel=4,
                state_element_bytes=4,
            ),
        ),
    ],
)
def test_state_layers_are_read_as_they_stand(
    model: str, layers: int, state_layers: int, expected: StateAttention
) -> None:
    shape = built_in_model(model)

    assert (shape.num_layers, num_state_layers(shape)) == (layers, state_layers)
    assert state_layer(shape) == expected


def test_full_attention_of_qwen_has_an_output_gate() -> None:
    full = next(
        a
        for _, a in built_in_model("Qwen/Qwen3.5-27B").attentions()
        if isinstance(a, GroupedAttention)
    )

    assert full == GroupedAttention(
        num_heads=24, num_kv_heads=4, head_dim=256, has_output_gate=True
    )
    # by hand: queries and their gate, keys, values, output
    assert attention_parameters(full, hidden_size=5120) == 5120 * 256 * (2 * 24 + 4 + 4 + 24)


def test_the_type_of_the_state_is_that_of_the_file_or_of_the_model() -> None:
    assert state_layer(read("Qwen/Qwen3.5-9B")).state_element_bytes == 4
    assert state_layer(read("Qwen/Qwen3.5-9B", mamba_ssm_dtype=None)).state_element_bytes == 2
    assert state_layer(read("Qwen/Qwen3.5-9B", mamba_ssm_dtype="bfloat16")).state_element_bytes == 2


def test_a_nemotron_state_is_float32_unless_the_file_says_otherwise() -> None:
    model = "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"

    assert state_layer(read(model, mamba_ssm_cache_dtype=None)).state_element_bytes == 4
    assert state_layer(read(model, mamba_ssm_cache_dtype="float16")).state_element_bytes == 2


def test_every_fourth_layer_is_full_where_only_the_interval_is_given() -> None:
    assert read("Qwen/Qwen3.5-9B", layer_types=None).groups == read("Qwen/Qwen3.5-9B").groups


def test_a_nested_block_may_leave_out_what_equals_the_class() -> None:
    left_out = {
        "hidden_size": None,
        "num_hidden_layers": None,
        "intermediate_size": None,
        "linear_conv_kernel_dim": None,
        "linear_num_value_heads": None,
        "head_dim": None,
    }

    assert read("Qwen/Qwen3.5-9B", **left_out).groups == read("Qwen/Qwen3.5-9B").groups


def test_a_nemotron_layer_has_one_half_only() -> None:
    shape = built_in_model("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8")

    assert all((group.attention is None) != (group.ffn is None) for group in shape.groups)
    assert {group.num_layers for group in shape.groups if group.attention is None} == {40}
    assert experts_of(shape) == MoeFfn(
        num_experts=512,
        experts_per_token=22,
        expert_intermediate_size=2688,
        shared_intermediate_size=5376,
        num_matrices=2,
        latent_size=1024,
    )


def test_a_nemotron_without_experts_has_dense_blocks_without_gate() -> None:
    shape = built_in_model("nvidia/Nemotron-H-56B-Base-8K")

    assert {group.ffn for group in shape.groups} == {
        None,
        DenseFfn(intermediate_size=32_768, num_matrices=2),
    }


def test_the_number_of_layers_is_the_length_of_the_list_where_it_is_not_given() -> None:
    model = "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16"

    assert "num_hidden_layers" not in built_in_config(model)
    assert built_in_model(model).num_layers == 108


def test_both_ways_to_write_the_layers_of_a_nemotron_mean_the_same() -> None:
    model = "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"
    names = {"M": "linear_attention", "*": "full_attention", "E": "moe"}
    listed = [names[letter] for letter in built_in_config(model)["hybrid_override_pattern"]]

    shape = read(model, hybrid_override_pattern=None, layers_block_type=listed)

    assert shape.groups == built_in_model(model).groups


def test_latent_attention_of_kimi_k3_has_a_gate_and_experts_work_on_a_narrow_vector() -> None:
    shape = built_in_model("moonshotai/Kimi-K3")
    (latent,) = {a for _, a in shape.attentions() if isinstance(a, LatentAttention)}
    experts = experts_of(shape)

    assert latent.has_output_gate
    assert (latent.q_lora_rank, latent.kv_lora_rank) == (1536, 512)
    assert (experts.latent_size, experts.shared_intermediate_size) == (3584, 2 * 3072)


def test_places_of_kimi_layers_count_from_one() -> None:
    shape = built_in_model("cyankiwi/Kimi-Linear-48B-A3B-Instruct-AWQ-4bit")

    first = shape.groups[0]
    assert (first.num_layers, first.ffn) == (1, DenseFfn(intermediate_size=9216))
    assert isinstance(first.attention, StateAttention)
    assert num_state_layers(shape) == 20


@pytest.mark.parametrize(
    ("kind", "full_rank", "whole", "split"),
    [
        # queries and keys 2 x 4 x 128, values and gate 2 x 8 x 128, step and decay 2 x 8, a
        # convolution of 4; output
        ("gated_delta_net", False, 0, 1024 * (1024 + 2048 + 16) + 4 * 2048 + 1024 * 1024),
        # gate 8 x 128, values, group states 2 x 4 x 128, steps
        ("mamba2", False, 0, 1024 * (1024 + 2048 + 8) + 4 * 2048 + 1024 * 1024),
        # decay and gate go through 128: the way there is whole on every rank
        ("kimi_delta", False, 2 * 1024 * 128,
         1024 * (2048 + 8) + 4 * 2048 + 2 * 128 * 1024 + 1024 * 1024),
        ("kimi_delta", True, 1024 * 128,
         1024 * (2048 + 1024 + 8) + 4 * 2048 + 128 * 1024 + 1024 * 1024),
    ],
)  # fmt: skip
def test_parameters_of_a_state_layer_split_by_heads_but_for_narrow_ways_in(
    kind: Any, full_rank: bool, whole: int, split: int
) -> None:
    def layer(heads: int) -> StateAttention:
        return StateAttention(
            kind=kind,
            num_key_heads=heads // 2,
            num_value_heads=heads,
            key_head_dim=128,
            value_head_dim=128,
            conv_kernel=4,
            state_element_bytes=4,
            has_full_rank_gate=full_rank,
        )

    assert attention_parameters(layer(8), hidden_size=1024) == whole + split
    assert attention_parameters(layer(4), hidden_size=1024) == whole + split // 2


GRANITE = {
    "model_type": "granitemoehybrid",
    "torch_dtype": "bfloat16",
    "hidden_size": 1536,
    "num_hidden_layers": 40,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "vocab_size": 100_352,
    "intermediate_size": 512,
    "shared_intermediate_size": 1024,
    "num_local_experts": 64,
    "num_experts_per_tok": 6,
    "tie_word_embeddings": True,
    "max_position_embeddings": 131_072,
    "attention_bias": False,
    "layer_types": ["attention" if layer % 10 == 5 else "mamba" for layer in range(40)],
    "mamba_n_heads": 48,
    "mamba_d_head": 64,
    "mamba_d_state": 128,
    "mamba_n_groups": 1,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
}


def test_granite_4_is_read_under_its_own_names() -> None:
    shape = shape_from_config(GRANITE, name="m")

    assert num_state_layers(shape) == 36
    assert state_layer(shape) == StateAttention(
        kind="mamba2",
        num_key_heads=1,
        num_value_heads=48,
        key_head_dim=128,
        value_head_dim=64,
        conv_kernel=4,
        state_element_bytes=2,
    )
    # Published: 7 billion (Granite 4.0 H Tiny).
    assert num_parameters(shape) == pytest.approx(7 * GB, rel=0.01)


def test_a_granite_without_experts_has_its_shared_block_only() -> None:
    shape = shape_from_config(GRANITE | {"num_local_experts": 0}, name="m")

    assert {group.ffn for group in shape.groups} == {DenseFfn(intermediate_size=1024)}


def test_the_width_of_a_mamba_head_is_its_part_of_the_expansion_when_left_open() -> None:
    shape = shape_from_config(GRANITE | {"mamba_d_head": "auto"}, name="m")

    assert state_layer(shape).value_head_dim == 2 * 1536 // 48


def test_bamba_has_attention_in_the_listed_layers() -> None:
    config = GRANITE | {
        "model_type": "bamba",
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128_256,
        "tie_word_embeddings": False,
        "attn_layer_indices": [9, 18, 27],
        "mamba_n_heads": 128,
    }
    del config["layer_types"]
    shape = shape_from_config(config, name="m")

    assert num_state_layers(shape) == 29
    # Published: 9.78 billion (Bamba 9B).
    assert num_parameters(shape) == pytest.approx(9.78 * GB, rel=1e-3)


LFM2 = {
    "model_type": "lfm2",
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 65_536,
    "block_ff_dim": 12_288,
    "block_auto_adjust_ff_dim": True,
    "block_multiple_of": 256,
    "block_ffn_dim_multiplier": 1.0,
    "conv_L_cache": 3,
    "conv_bias": False,
    "full_attn_idxs": [2, 5, 8, 10, 12, 14],
}


def test_lfm2_keeps_the_tail_of_a_convolution_and_no_matrix() -> None:
    shape = shape_from_config(LFM2, name="m")

    assert num_state_layers(shape) == 10
    assert state_bytes(state_layer(shape)) == 2 * 2 * 2048  # two tokens of 2048 in 16 bits
    assert {group.ffn for group in shape.groups} == {DenseFfn(intermediate_size=8192)}
    # Published: 1.17 billion (LFM2 1.2B).
    assert num_parameters(shape) == pytest.approx(1.17 * GB, rel=1e-3)


def test_lfm2_with_experts_starts_with_dense_layers() -> None:
    experts = {
        "model_type": "lfm2_moe",
        "num_hidden_layers": 24,
        "intermediate_size": 7168,
        "moe_intermediate_size": 1792,
        "num_dense_layers": 2,
        "num_experts": 32,
        "num_experts_per_tok": 4,
        "layer_types": ["full_attention" if i % 4 == 2 else "conv" for i in range(24)],
    }
    shape = shape_from_config(LFM2 | experts, name="m")

    assert num_state_layers(shape) == 18
    # Published: 8.3 billion, of which 1.5 billion at a time (LFM2 8B A1B).
    assert num_parameters(shape) == pytest.approx(8.3 * GB, rel=0.01)
    assert num_active_parameters(shape) == pytest.approx(1.5 * GB, rel=0.05)


def test_flash_next_has_streams_an_indexer_and_tables_of_n_grams() -> None:
    shape = built_in_model("wtdcode/Qwen3.8-Flash-Next-AWQ-W4A16")
    full = next(a for _, a in shape.attentions() if isinstance(a, GroupedAttention))

    # A key of 128 in 16 bits for every four tokens.
    assert full.indexer == Indexer(num_heads=4, head_dim=128, key_bytes=64)
    # Twice per layer: norm, way to a gate of 320 and back, and one weight per stream of 4 x 2560.
    assert {group.replicated_parameters for group in shape.groups} == {
        2 * 10_240 * (1 + 2 * 320 + 4)
    }
    # 20 million rows for each head of the n-grams, whose parts make up a width of 2560.
    assert shape.table_parameters == 20_000_000 * 2560
    assert shape.tables_on_host
    # The last mix, and of the one n-gram layer keys for four streams, values, convolution, norms.
    assert shape.vector_parameters == 10_240 * 641 + 2560 * (10_240 + 2560) + (4 + 3) * 10_240


def test_the_bytes_of_flash_next_are_those_of_the_checkpoint() -> None:
    shape = built_in_model("wtdcode/Qwen3.8-Flash-Next-AWQ-W4A16")
    experts = 48 * 512 * 3 * 2560 * 640
    narrow = experts * shape.weight_format.bytes_per_parameter
    wide = 2 * (num_parameters(shape) - experts)

    # 168 GiB, of which a draft layer of 2.61 and an encoder of 0.45 billion parameters in 16 bits
    # are not counted here.
    assert (narrow + wide) / GIB == pytest.approx(168 - 2 * 3.06 * GB / GIB, rel=0.005)


def test_flash_next_agrees_with_a_census_of_its_tensors() -> None:
    shape = built_in_model("wtdcode/Qwen3.8-Flash-Next-AWQ-W4A16")
    (state, full) = (a for _, a in shape.attentions())

    # Published headers: 125.74 billion beside the table of 320,001,536 rows of 160; delta layers
    # of 57.96 million, attention with its indexer 51.45 million.
    assert num_parameters(shape) - shape.table_parameters == pytest.approx(125.74 * GB, rel=5e-5)
    assert shape.table_parameters == pytest.approx(320_001_536 * 160, rel=1e-5)
    assert attention_parameters(state, hidden_size=2560) == pytest.approx(57.96e6, rel=1e-4)
    assert attention_parameters(full, hidden_size=2560) == pytest.approx(51.45e6, rel=1e-4)


@pytest.mark.parametrize(
    ("model", "name", "wide"),
    [
        (
            "nvidia/Qwen3.5-397B-A17B-NVFP4",
            "nvfp4",
            {"attention", "state_attention", "shared_experts"},
        ),
        ("Inferact/Qwen3.8-27B-NVFP4", "nvfp4", {"state_attention"}),
        ("Qwen/Qwen3.8-27B-FP8", "fp8", set()),
        ("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8", "fp8", set()),
        (
            "moonshotai/Kimi-K3",
            "mxfp4",
            {"attention", "state_attention", "dense_ffn", "shared_experts"},
        ),
        (
            "wtdcode/Qwen3.8-Flash-Next-AWQ-W4A16",
            "int4",
            {"attention", "state_attention", "shared_experts"},
        ),
    ],
)
def test_state_layers_stay_wide_where_the_list_excludes_them(
    model: str, name: str, wide: set[str]
) -> None:
    found = built_in_model(model).weight_format

    assert (found.name, found.unquantized) == (name, wide)


@pytest.mark.parametrize(
    ("model", "pattern", "wide"),
    [
        ("Qwen/Qwen3.5-35B-A3B", "model.language_model.layers.*.linear_attn", "state_attention"),
        ("Qwen/Qwen3.5-35B-A3B", "re:.*linear_attn.*", "state_attention"),
        ("Qwen/Qwen3.5-35B-A3B", "model.language_model.layers.*.self_attn*", "attention"),
        # what is narrow stays wide in all FP8 checkpoints, and weighs nothing
        ("Qwen/Qwen3.5-35B-A3B", "model.language_model.layers.20.linear_attn.in_proj_a", None),
        ("Qwen/Qwen3.5-35B-A3B", "model.language_model.layers.*.linear_attn.conv1d", None),
        ("nvidia/Nemotron-H-56B-Base-8K", "backbone.layers.*.mixer.in_proj", "state_attention"),
        ("nvidia/Nemotron-H-56B-Base-8K", "backbone.layers.*.mixer.q_proj", "attention"),
        ("nvidia/Nemotron-H-56B-Base-8K", "*.mixer.up_proj", "dense_ffn"),
        (
            "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
            "*.mixer.shared_experts.*",
            "shared_experts",
        ),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "*.mixer.conv1d", None),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "*.mixer.gate", None),
    ],
)
def test_module_names_of_state_layers_are_known(model: str, pattern: str, wide: str | None) -> None:
    config = built_in_config(model)
    config["quantization_config"] = {"quant_method": "fp8", "ignore": [pattern]}

    found = shape_from_config(config, name="m").weight_format

    assert found.unquantized == ({wide} if wide else set())


def test_experts_may_have_a_format_of_their_own() -> None:
    found = built_in_model("nvidia/Qwen3.6-35B-A3B-NVFP4").weight_format

    assert (found.name, found.bytes_per_parameter) == ("fp8", 1)
    assert found.of_experts == NVFP4
    assert not found.unquantized & {"attention", "state_attention", "experts", "shared_experts"}


def test_shared_experts_may_have_a_wider_format_than_the_rest() -> None:
    config = built_in_config("Qwen/Qwen3.5-35B-A3B")
    eight, four = {"num_bits": 8, "type": "float"}, {"num_bits": 4, "type": "float"}
    groups = {
        "a": {"weights": eight, "targets": ["*.shared_expert.*"]},
        "b": {
            "weights": four | {"group_size": 16},
            "targets": ["*.self_attn.*", "*.linear_attn.*", "*.experts.*"],
        },
    }
    config["quantization_config"] = {"quant_method": "compressed-tensors", "config_groups": groups}

    found = shape_from_config(config, name="m").weight_format

    assert found.name == "nvfp4"
    assert found.of("shared_experts").name == "fp8"


def test_a_mixture_of_formats_outside_experts_is_timed_as_the_slowest() -> None:
    config = built_in_config("Qwen/Qwen3.5-27B")
    groups = {
        "a": {"weights": {"num_bits": 8, "type": "float"}, "targets": ["*linear_attn*"]},
        "b": {"weights": {"num_bits": 4, "type": "float", "group_size": 16}, "targets": ["*mlp*"]},
    }
    config["quantization_config"] = {"quant_method": "compressed-tensors", "config_groups": groups}

    shape = shape_from_config(config, name="m")

    assert shape.weight_format.described == "nvfp4, state attention fp8"
    assert shape.weight_format.unquantized == {"attention"}
    assert [each.taken for each in shape.assumptions] == []  # both are multiplied in 16 bits


LLAMA = "meta-llama/Llama-3.1-8B-Instruct"


@pytest.mark.parametrize(
    ("model", "change", "message"),
    [
        (LLAMA, {"linear_num_key_heads": 16}, "linear attention layers (linear_num_key_heads"),
        (LLAMA, {"linear_attn_config": {"a": 1}}, "linear attention layers (linear_attn_config"),
        (LLAMA, {"mamba_num_heads": 8}, "layers with a state per sequence (mamba_num_heads"),
        (LLAMA, {"moe_latent_size": 8}, "experts on a narrower vector (moe_latent_size"),
        (LLAMA, {"layer_types": ["mamba"] * 32}, "layers of this kind (layer_types[0] = 'mamba')"),
        ("Qwen/Qwen3.5-9B", {"index_topk": 8}, "sparse-attention indexers (index_topk"),
        ("Qwen/Qwen3.5-9B", {"ssm_state_size": 8}, "layers with a state per sequence ("),
        (
            "Qwen/Qwen3.5-9B",
            {"layer_types": ["linear_attention", "sliding_attention"] * 16},
            "layers of this kind (layer_types[1] = 'sliding_attention')",
        ),
        (
            "nvidia/Nemotron-H-56B-Base-8K",
            {"hybrid_override_pattern": "M-X" + "M" * 115},
            "layers of this kind (hybrid_override_pattern[2] = 'X')",
        ),
    ],
)
def test_parts_that_a_family_does_not_read_are_refused(
    model: str, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnknownArchitectureError) as refusal:
        read(model, **change)

    assert message in str(refusal.value)


@pytest.mark.parametrize("model_type", ["mamba2", "plamo2", "zamba"])
def test_families_of_layers_that_no_formula_covers_are_refused(model_type: str) -> None:
    with pytest.raises(UnknownArchitectureError, match="layers with a state per sequence"):
        shape_from_config(GRANITE | {"model_type": model_type, "layer_types": None}, name="m")


KIMI = "cyankiwi/Kimi-Linear-48B-A3B-Instruct-AWQ-4bit"
DELTA = {
    "num_heads": 32,
    "head_dim": 128,
    "short_conv_kernel_size": 4,
    "kda_layers": list(range(1, 27)),
    "full_attn_layers": [27],
}


@pytest.mark.parametrize(
    ("model", "change", "message"),
    [
        ("Qwen/Qwen3.5-27B", {"linear_num_key_heads": 7}, "linear_num_key_heads = 7 does not div"),
        ("Qwen/Qwen3.5-27B", {"mamba_ssm_dtype": "int8"}, "mamba_ssm_dtype = 'int8'"),
        ("Qwen/Qwen3.5-27B", {"layer_types": ["linear_attention"]}, "layer_types has 1 entry"),
        (KIMI, {"linear_attn_config": None}, "linear_attn_config is missing"),
        (KIMI, {"linear_attn_config": 5}, "linear_attn_config = 5"),
        (KIMI, {"linear_attn_config": DELTA | {"head_dim": 0}}, "linear_attn_config.head_dim = 0"),
        (KIMI, {"linear_attn_config": DELTA | {"kda_layers": [1, 0]}}, "kda_layers[1] = 0"),
        (
            KIMI,
            {"linear_attn_config": DELTA | {"full_attn_layers": [26]}},
            "kda_layers and full_attn_layers do not name each of the 27 layers once",
        ),
        (KIMI, {"q_lora_rank": None}, "q_lora_rank is missing"),
        (KIMI, {"num_experts_per_token": None}, "num_experts_per_token is missing"),
        (
            "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
            {"n_groups": 7},
            "n_groups = 7 does not divide the 64 heads that keep a state",
        ),
        (
            "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
            {"hybrid_override_pattern": None},
            "hybrid_override_pattern is missing, and layers_block_type too",
        ),
        (
            "wtdcode/Qwen3.8-Flash-Next-AWQ-W4A16",
            {"ple_embed_dim": 2561},
            "ple_embed_dim = 2561 is no multiple of 16 heads",
        ),
        (
            "wtdcode/Qwen3.8-Flash-Next-AWQ-W4A16",
            {"indexer_compress_ratio": 3},
            "indexer_compress_ratio = 3 does not divide the bytes of a key of 128",
        ),
    ],
)
def test_an_impossible_state_layer_is_named_with_its_value(
    model: str, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelConfigError) as refusal:
        read(model, **change)

    assert message in str(refusal.value)


@pytest.mark.parametrize(
    "key",
    ["linear_num_value_heads", "linear_key_head_dim", "linear_conv_kernel_dim", "head_dim"],
)
def test_a_missing_size_of_a_plain_config_is_named(key: str) -> None:
    with pytest.raises(ModelConfigError, match=f"{key} is missing"):
        read("Qwen/Qwen3-Next-80B-A3B-Instruct", **{key: None})


def test_the_length_of_kimi_linear_stands_under_its_own_name() -> None:
    assert built_in_model(KIMI).max_position_tokens == math.prod((1024, 1024))


@pytest.mark.parametrize("key", ["conv_L_cache", "block_ff_dim", "block_auto_adjust_ff_dim"])
def test_a_missing_size_of_lfm2_is_named_as_the_file_names_it(key: str) -> None:
    with pytest.raises(ModelConfigError, match=f"{key} is missing"):
        shape_from_config({k: v for k, v in LFM2.items() if k != key}, name="m")
