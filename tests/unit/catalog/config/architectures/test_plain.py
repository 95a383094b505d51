"""Plain families beside Llama: sizes that their publishers state, windows, names of keys."""

from typing import Any

import pytest

import family_configs as known
from family_configs import Config, decoder
from tonnage.catalog.config.keys.decoder import ModelConfigError, UnknownArchitectureError
from tonnage.catalog.config.read import shape_from_config
from tonnage.catalog.models import built_in_config
from tonnage.catalog.parameters import num_active_parameters, num_parameters
from tonnage.catalog.shape import DenseFfn, GroupedAttention, LatentAttention, ModelShape, MoeFfn
from tonnage.units import GB

# Sizes that publishers state, in billions. Of multimodal models: the text part.
SIZES: dict[str, tuple[Config, float]] = {
    "phi-2": (known.PHI_2, 2.78),
    "Phi-3.5-MoE-instruct": (known.PHI_MOE, 41.9),
    "granite-3.1-8b-instruct": (known.GRANITE_8B, 8.17),
    "granite-3.1-3b-a800m-instruct": (known.GRANITE_MOE_3B, 3.30),
    "c4ai-command-r-v01": (known.COMMAND_R, 34.98),
    "c4ai-command-r7b-12-2024": (known.COMMAND_R_7B, 8.03),
    "c4ai-command-a-03-2025": (known.COMMAND_A, 111.06),
    "OLMo-7B-hf": (known.OLMO_7B, 6.89),
    "OLMo-2-1124-7B": (known.OLMO_2_7B, 7.30),
    "OLMoE-1B-7B-0125": (known.OLMOE, 6.92),
    "EXAONE-3.5-7.8B": (known.EXAONE_3_5, 7.82),
    "EXAONE-4.0-32B": (known.EXAONE_4_32B, 32.0),
    "EXAONE-4.0-1.2B": (known.EXAONE_4_1B, 1.28),
    "GLM-4-9B-0414": (known.GLM_4_9B_0414, 9.40),
    "glm-4-9b-chat-hf": (known.GLM_4_9B_HF, 9.40),
    "GLM-4.1V-9B": (known.GLM_4_1V, 9.40),
    "glm-4-9b": (known.GLM_4_9B, 9.40),
    "GLM-4.5V": (known.GLM_4_5V, 106.85),
    "internlm2-7b": (known.INTERNLM_2, 7.74),
    "internlm3-8b-instruct": (known.INTERNLM_3, 8.80),
    "stablelm-2-1_6b": (known.STABLELM_2, 1.64),
    "starcoder2-7b": (known.STARCODER_2_7B, 7.17),
    "gpt_bigcode-santacoder": (known.SANTACODER, 1.12),
    "gpt-neox-20b": (known.GPT_NEOX_20B, 20.55),
    "RedPajama-INCITE-Base-3B-v1": (known.REDPAJAMA_3B, 2.78),
    "opt-6.7b": (known.OPT_6_7B, 6.66),
    "Qwen1.5-MoE-A2.7B": (known.QWEN_MOE, 14.3),
    "SmolLM3-3B": (known.SMOLLM_3, 3.08),
    "ERNIE-4.5-0.3B": (known.ERNIE_0_3B, 0.36),
    "ERNIE-4.5-21B-A3B": (known.ERNIE_21B, 21.83),
    "Hunyuan-A13B-Instruct": (known.HUNYUAN_A13B, 80.4),
    "dbrx-instruct": (known.DBRX, 131.6),
    "MiniCPM-2B": (known.MINICPM_2B, 2.72),
    "MiniCPM-MoE-8x2B": (known.MINICPM_MOE, 13.87),
    "Nemotron-Mini-4B-Instruct": (known.NEMOTRON_4B, 4.19),
    "Apertus-8B": (known.APERTUS_8B, 8.05),
    "dots.llm1.inst": (known.DOTS_1, 142.8),
    "Ling-mini-2.0": (known.LING_MINI_2, 16.26),
    "deepseek-moe-16b-base": (known.DEEPSEEK_MOE, 16.38),
    "Orion-14B": (known.ORION_14B, 14.5),
    "Ministral-3-3B": (known.MINISTRAL_3_3B, 3.43),
    "Phi-3.5-vision-instruct": (known.PHI_3_VISION, 3.82),
}

# All tensors that a checkpoint needs.
EXACT: dict[str, tuple[Config, int]] = {
    "phi-2": (known.PHI_2, 2_779_683_840),
    "gpt2": (known.GPT_2, 124_439_808),
    "gpt-j-6b": (known.GPT_J, 6_050_882_784),
    "mpt-7b": (known.MPT_7B, 6_649_286_656),
    "stablelm-3b-4e1t": (known.STABLELM_3B, 2_795_443_200),
    # Per layer: query and output 4544 x 4544, key and value 4544 x 64 each, 8 x 4544 x 4544, one
    # norm with bias; one table, which is the head too (the files hold it twice: 7.22 billion).
    "falcon-7b": (
        known.FALCON_7B,
        32 * (10 * 4544**2 + 2 * 4544 * 64 + 9088) + 65_024 * 4544 + 9088,
    ),
    # 8 KV heads of 64, two norms with bias.
    "falcon-40b": (
        known.FALCON_40B,
        60 * (10 * 8192**2 + 2 * 8192 * 512 + 4 * 8192) + 65_024 * 8192 + 2 * 8192,
    ),
}


def read(config: Config, **changes: Any) -> ModelShape:
    return shape_from_config(config | changes, name="m")


def windows(shape: ModelShape) -> dict[int | None, int]:
    """Return the number of layers by window."""
    found: dict[int | None, int] = {}
    for group in shape.groups:
        assert isinstance(group.attention, GroupedAttention)
        window = group.attention.window_tokens
        found[window] = found.get(window, 0) + group.num_layers
    return found


def attention(config: Config) -> GroupedAttention:
    (only,) = {group.attention for group in read(config).groups}
    assert isinstance(only, GroupedAttention)
    return only


@pytest.mark.parametrize("model", SIZES)
def test_the_published_size_is_met_within_one_percent(model: str) -> None:
    config, billions = SIZES[model]

    assert num_parameters(read(config)) == pytest.approx(billions * GB, rel=0.01)


@pytest.mark.parametrize("model", EXACT)
def test_every_parameter_of_a_checkpoint_is_counted(model: str) -> None:
    config, total = EXACT[model]

    assert num_parameters(read(config)) == total


@pytest.mark.parametrize(
    ("config", "billions"),
    [
        (known.QWEN_MOE, 2.69),
        (known.DEEPSEEK_MOE, 2.83),
        (known.DBRX, 36.5),
        (known.OLMOE, 1.28),
        (known.PHI_MOE, 6.64),
        (known.LING_MINI_2, 1.43),
        (known.DOTS_1, 14.0),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else None,
)
def test_a_token_meets_as_many_parameters_as_published(config: Config, billions: float) -> None:
    assert num_active_parameters(read(config)) == pytest.approx(billions * GB, rel=0.01)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (known.COMMAND_R, {None: 40}),
        (known.COMMAND_R_7B, {4096: 24, None: 8}),  # every fourth is full
        (known.OLMO_2_7B | {"model_type": "olmo3", "sliding_window": 4096}, {4096: 24, None: 8}),
        (known.EXAONE_4_32B, {4096: 48, None: 16}),
        (known.EXAONE_4_1B, {None: 30}),
        (known.STARCODER_2_7B, {4096: 32}),
        (known.QWEN_MOE, {None: 24}),  # has a window, and use_sliding_window: false
        (known.QWEN_MOE | {"use_sliding_window": True, "sliding_window": 512}, {512: 11, None: 13}),
        (known.SMOLLM_3, {None: 36}),
        (
            known.SMOLLM_3 | {"use_sliding_window": True, "sliding_window": 8192},
            {8192: 9, None: 27},
        ),
        (known.DOTS_1, {None: 62}),
        (known.DOTS_1 | {"sliding_window": 4096, "max_window_layers": 60}, {4096: 2, None: 60}),
        (known.PHI_MOE, {None: 32}),  # the window is as long as the longest context
    ],
    ids=lambda value: value.get("model_type") if isinstance(value, dict) else None,
)
def test_windows_are_those_of_the_family(config: Config, expected: dict[int | None, int]) -> None:
    assert windows(read(config)) == expected


def test_a_ministral_has_windows_everywhere_but_where_its_layer_types_say_full() -> None:
    plain = decoder(
        "ministral", 4096, 4, 32, 1000, intermediate_size=8192, num_key_value_heads=8,
        sliding_window=1024,
    )  # fmt: skip
    listed = {"layer_types": ["full_attention", *["sliding_attention"] * 3]}

    assert windows(read(plain)) == {1024: 4}
    assert windows(read(plain, **listed)) == {None: 1, 1024: 3}


@pytest.mark.parametrize(
    ("config", "heads", "kv_heads", "head_dim"),
    [
        (known.PHI_2, 32, 32, 80),  # no KV heads in the file: one per query head
        (known.FALCON_7B, 71, 1, 64),
        (known.FALCON_7B | {"multi_query": False}, 71, 71, 64),
        (known.FALCON_40B, 128, 8, 64),
        (known.SANTACODER, 16, 1, 128),
        (known.GPT_2, 12, 12, 64),
        (known.MPT_7B, 32, 32, 128),
        (known.MPT_7B | {"attn_config": {"kv_n_heads": 8}}, 32, 8, 128),
        (known.DBRX, 48, 8, 128),
        (known.GLM_4_9B, 32, 2, 128),
        (known.ERNIE_0_3B, 16, 2, 128),  # head_dim as given, not 1024 / 16 = 64
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else None,
)
def test_heads_are_those_of_the_family(
    config: Config, heads: int, kv_heads: int, head_dim: int
) -> None:
    found = attention(config)

    assert (found.num_heads, found.num_kv_heads, found.head_dim) == (heads, kv_heads, head_dim)


def test_a_block_without_a_gate_has_two_matrices() -> None:
    arcee = decoder("arcee", 64, 2, 4, 100, intermediate_size=192)
    ffns = {
        config["model_type"]: {group.ffn for group in read(config).groups}
        for config in (known.PHI_2, known.FALCON_7B, known.MPT_7B, known.APERTUS_8B, arcee)
    }

    assert ffns == {
        "phi": {DenseFfn(intermediate_size=10_240, num_matrices=2)},
        "falcon": {DenseFfn(intermediate_size=4 * 4544, num_matrices=2)},
        "mpt": {DenseFfn(intermediate_size=4 * 4096, num_matrices=2)},
        "apertus": {DenseFfn(intermediate_size=21_504, num_matrices=2)},
        "arcee": {DenseFfn(intermediate_size=192, num_matrices=2)},
    }


def test_the_newest_falcon_names_the_width_of_its_block() -> None:
    shape = read(known.FALCON_40B, ffn_hidden_size=30_000)

    assert shape.groups[0].ffn == DenseFfn(intermediate_size=30_000, num_matrices=2)


def test_ernie_has_experts_from_the_first_to_the_last_layer_that_it_names() -> None:
    def num_sparse(**changes: Any) -> int:
        groups = read(known.ERNIE_21B, **changes).groups
        return sum(group.num_layers for group in groups if isinstance(group.ffn, MoeFfn))

    assert num_sparse() == 27
    assert num_sparse(moe_layer_end_index=-1) == 27  # the last of 28
    assert num_sparse(moe_layer_start_index=3, moe_layer_end_index=9) == 7
    assert num_sparse(moe_layer_interval=2) == 14  # layers 1, 3, ... 27


def test_hunyuan_layers_may_differ_in_their_experts() -> None:
    shape = read(known.HUNYUAN_A13B, moe_topk=[4] + [8] * 31, moe_intermediate_size=3072)

    assert [
        (group.num_layers, group.ffn.experts_per_token, group.ffn.expert_intermediate_size)
        for group in shape.groups
        if isinstance(group.ffn, MoeFfn)
    ] == [(1, 4, 3072), (31, 8, 3072)]


def test_hunyuan_without_mixed_blocks_has_no_shared_expert() -> None:
    ffn = read(known.HUNYUAN_A13B, use_mixed_mlp_moe=False).groups[0].ffn

    assert isinstance(ffn, MoeFfn)
    assert ffn.shared_intermediate_size == 0


@pytest.mark.parametrize(
    ("config", "tied"),
    [
        (known.FALCON_7B, True),
        (known.GPT_2, True),
        (known.COMMAND_R, True),
        (known.SMOLLM_3, True),
        (known.ERNIE_0_3B, True),
        (known.PHI_2, False),
        (known.OLMO_2_7B, False),
        (known.GPT_NEOX_20B, False),
        (known.STABLELM_2, False),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else None,
)
def test_a_silent_file_means_what_the_class_means_about_tied_tables(
    config: Config, tied: bool
) -> None:
    assert read(config).tied_embeddings is tied


def test_the_length_of_a_command_r_is_that_of_its_model_max_length() -> None:
    assert read(known.COMMAND_R).max_position_tokens == 131_072


@pytest.mark.parametrize(
    ("config", "path", "hidden_size"),
    [
        (known.GLM_4_5V, "text_config", 4096),
        ({"model_type": "internvl_chat", "llm_config": known.INTERNLM_2}, "llm_config", 4096),
        ({"model_type": "internvl", "text_config": known.GRANITE_8B}, "text_config", 4096),
        ({"model_type": "aya_vision", "text_config": known.COMMAND_R_7B}, "text_config", 4096),
        ({"model_type": "cohere2_vision", "text_config": known.COMMAND_A}, "text_config", 12_288),
        ({"model_type": "llava_onevision", "text_config": known.SMOLLM_3}, "text_config", 2048),
        ({"model_type": "smolvlm", "text_config": known.OLMO_2_7B}, "text_config", 4096),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else None,
)
def test_of_a_multimodal_model_the_text_part_is_read(
    config: Config, path: str, hidden_size: int
) -> None:
    assert read(config).hidden_size == hidden_size
    with pytest.raises(ModelConfigError, match=rf"{path}\.hidden_size = -1"):
        read(config, **{path: config[path] | {"hidden_size": -1}})


def test_a_kimi_vl_has_the_latent_attention_of_its_text_part() -> None:
    text = built_in_config("deepseek-ai/DeepSeek-V3")
    shape = read({"model_type": "kimi_vl", "text_config": text})

    assert {type(group.attention) for group in shape.groups} == {LatentAttention}


def test_a_llava_may_leave_out_what_its_text_class_means_anyway() -> None:
    text = {"model_type": "llama", "vocab_size": 32_064, "max_position_embeddings": 4096}
    shape = read({"model_type": "llava", "text_config": text})

    # Llama 2 7B has 6,738,415,616, with a table and a head of 32,000 rows.
    assert num_parameters(shape) == 6_738_415_616 + 2 * 64 * 4096


@pytest.mark.parametrize(
    ("config", "stray"),
    [
        (known.GPT_2, {"expansion_ratio": 2}),
        (known.MPT_7B, {"intermediate_size": 999}),
        (known.PHI_2, {"lm_head_bias": False}),
        (known.STABLELM_2, {"parallel_attn": True, "num_ln_in_parallel_attn": 1}),
    ],
)
def test_a_key_that_only_another_family_reads_changes_nothing(
    config: Config, stray: Config
) -> None:
    assert num_parameters(read(config, **stray)) == num_parameters(read(config))


def test_no_ratio_stands_for_a_width_that_is_missing() -> None:
    config = {
        key: value for key, value in known.STARCODER_2_7B.items() if key != "intermediate_size"
    }
    with pytest.raises(ModelConfigError, match="intermediate_size is missing"):
        read({**config, "expansion_ratio": 4})


@pytest.mark.parametrize(
    ("config", "missing", "message"),
    [
        (known.GPT_2, "n_layer", "n_layer is missing"),
        (known.GPT_2, "n_positions", "n_positions is missing"),
        (known.MPT_7B, "expansion_ratio", "expansion_ratio is missing"),
        (known.DBRX, "attn_config", r"attn_config\.kv_n_heads is missing"),
        (known.DBRX, "ffn_config", r"ffn_config\.ffn_hidden_size is missing"),
        (known.GLM_4_9B, "multi_query_group_num", "multi_query_group_num is missing"),
        (known.OPT_6_7B, "ffn_dim", "ffn_dim is missing"),
        (known.ERNIE_21B, "moe_k", "moe_k is missing"),
        (known.HUNYUAN_A13B, "moe_topk", "moe_topk is missing"),
        (known.HUNYUAN_A13B, "use_mixed_mlp_moe", "use_mixed_mlp_moe is missing"),
    ],
)
def test_a_missing_key_is_named_as_the_file_names_it(
    config: Config, missing: str, message: str
) -> None:
    with pytest.raises(ModelConfigError, match=message):
        read({key: value for key, value in config.items() if key != missing})


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        (known.GPT_2, {"n_head": -1}, "n_head = -1"),
        (known.GPT_2, {"n_head": 7}, "n_head = 7 does not divide n_embd = 768"),
        (known.GPT_2, {"hidden_size": 770}, "n_embd = 768 contradicts hidden_size = 770"),
        (known.MPT_7B, {"attn_config": 5}, "attn_config = 5 is no object"),
        (
            known.DBRX,
            {"ffn_config": {"ffn_hidden_size": "x"}},
            r"ffn_config\.ffn_hidden_size = 'x'",
        ),
        (known.HUNYUAN_A13B, {"moe_topk": [8] * 31}, "moe_topk has 31 entries"),
        (
            known.HUNYUAN_A13B,
            {"moe_topk": 65},
            "moe_topk = 65 is not between 1 and num_experts = 64",
        ),
        (known.EXAONE_4_32B, {"sliding_window_pattern": "LLLG"}, "layer_types is missing"),
        (known.EXAONE_4_32B, {"sliding_window_pattern": 0}, "sliding_window_pattern = 0"),
    ],
)
def test_a_wrong_value_is_refused_in_the_words_of_the_file(
    config: Config, changes: Config, message: str
) -> None:
    with pytest.raises(ModelConfigError, match=message):
        read(config, **changes)


@pytest.mark.parametrize(
    ("config", "kv_heads"),
    [
        (known.STARCODER_2_7B, 2),
        (known.STABLELM_2, 32),
        (known.QWEN_MOE, 16),
        (known.COMMAND_R, 64),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else None,
)
def test_missing_kv_heads_mean_what_the_class_means(config: Config, kv_heads: int) -> None:
    silent = {key: value for key, value in config.items() if key != "num_key_value_heads"}

    assert attention(silent).num_kv_heads == kv_heads


@pytest.mark.parametrize("key", ["shared_expert_intermediate_size", "sliding_window"])
def test_a_default_of_the_class_that_decides_much_must_be_written(key: str) -> None:
    config = known.QWEN_MOE if key.startswith("shared") else known.EXAONE_4_32B

    with pytest.raises(ModelConfigError, match=f"{key} is missing"):
        read({name: value for name, value in config.items() if name != key})


def test_the_same_number_under_both_names_is_no_contradiction() -> None:
    assert (
        read(known.GPT_2, hidden_size=768, num_hidden_layers=None).groups
        == read(known.GPT_2).groups
    )


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        (known.OPT_6_7B, {"word_embed_proj_dim": 512}, "word_embed_proj_dim = 512"),
        (known.OPT_6_7B, {"enable_bias": False}, "enable_bias = False"),
        (known.MPT_7B, {"no_bias": False}, "no_bias = False"),
        (known.MPT_7B, {"attn_config": {"qk_ln": True}}, r"attn_config\.qk_ln = True"),
        (known.LING_MINI_2, {"use_bias": True}, "use_bias = True"),
        (known.HUNYUAN_A13B, {"use_cla": True}, "use_cla = True"),
        (known.PHI_2, {"qk_layernorm": True}, "qk_layernorm = True"),
        (known.GPT_2, {"add_cross_attention": True}, "add_cross_attention = True"),
    ],
)
def test_a_variant_that_no_formula_covers_is_refused_by_name(
    config: Config, changes: Config, message: str
) -> None:
    with pytest.raises(UnknownArchitectureError, match=message):
        read(config, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cross_attention_layers": [3]}, "cross-attention layers"),
        ({"attn_type_list": [0, 1]}, "linear attention"),
        ({"num_attention_groups": 1}, "factorized queries"),
    ],
)
def test_families_with_other_parts_stay_refused(changes: Config, message: str) -> None:
    with pytest.raises(UnknownArchitectureError, match=message):
        read(known.GRANITE_8B, **changes)
