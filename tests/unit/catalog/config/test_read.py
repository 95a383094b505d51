"""Reading a config.json: what each family's keys mean, and what is refused."""

import json
from typing import Any

import pytest

from tonnage.catalog.config.keys.decoder import ModelConfigError, UnknownArchitectureError
from tonnage.catalog.config.read import shape_from_config
from tonnage.catalog.engine import positions_of
from tonnage.catalog.models import (
    MAX_CONFIG_BYTES,
    built_in_config,
    built_in_model,
    read_model_config,
    with_second_file,
)
from tonnage.catalog.shape import (
    DenseFfn,
    GroupedAttention,
    LatentAttention,
    LayerGroup,
    ModelShape,
    MoeFfn,
)
from tonnage.units import MIB

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
}


def read(**changes: Any) -> ModelShape:
    """Read the small Llama with keys changed; None takes a key out."""
    config = LLAMA | changes
    return shape_from_config({k: v for k, v in config.items() if v is not None}, name="m")


def windows(shape: ModelShape) -> dict[int | None, int]:
    """Return the number of layers by window."""
    found: dict[int | None, int] = {}
    for group in shape.groups:
        assert isinstance(group.attention, GroupedAttention)
        window = group.attention.window_tokens
        found[window] = found.get(window, 0) + group.num_layers
    return found


def num_moe_layers(shape: ModelShape) -> int:
    return sum(group.num_layers for group in shape.groups if isinstance(group.ffn, MoeFfn))


def test_a_llama_is_read_as_it_stands() -> None:
    shape = read()

    assert shape.groups == (
        LayerGroup(
            num_layers=32,
            attention=GroupedAttention(num_heads=32, num_kv_heads=8, head_dim=128),
            ffn=DenseFfn(intermediate_size=14336),
            vector_parameters=2 * 4096,
        ),
    )
    assert (shape.hidden_size, shape.vocab_size, shape.max_position_tokens) == (4096, 128256, 8192)
    assert not shape.tied_embeddings
    assert shape.weight_format.name == "bf16"
    assert shape.kv_cache_format == "bf16"


def test_a_given_head_dim_stands_above_width_over_heads() -> None:
    shape = built_in_model("mistralai/Mistral-Small-24B-2501")

    assert shape.groups[0].attention == GroupedAttention(
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,  # not 5120 / 32 = 160
    )


def test_a_llama_without_kv_heads_has_one_per_query_head() -> None:
    shape = read(num_key_value_heads=None)

    assert shape.groups[0].attention == GroupedAttention(
        num_heads=32, num_kv_heads=32, head_dim=128
    )


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("Qwen/Qwen2.5-7B", {None: 28}),  # has a sliding_window, and use_sliding_window: false
        ("mistralai/Mistral-7B-v0.1", {4096: 32}),
        ("mistralai/Mistral-7B-Instruct-v0.3", {None: 32}),
        ("microsoft/Phi-3.5-mini-instruct", {None: 32}),  # the window exceeds the longest context
        ("google/gemma-2-9b", {4096: 21, None: 21}),
        ("google/gemma-3-12b-it", {1024: 40, None: 8}),  # five to one: a default of the class
        ("openai/gpt-oss-120b", {128: 18, None: 18}),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", {8192: 36, None: 12}),
        ("meta-llama/Llama-4-Maverick-17B-128E-Instruct", {8192: 36, None: 12}),
        ("XiaomiMiMo/MiMo-V2-Flash", {128: 39, None: 9}),
        ("google/gemma-4-31B", {1024: 50, None: 10}),
    ],
)
def test_windows_are_those_of_the_family(model: str, expected: dict[int | None, int]) -> None:
    assert windows(built_in_model(model)) == expected


@pytest.mark.parametrize(
    ("model", "layers"),
    [
        ("Qwen/Qwen3-8B", 0),
        ("mistralai/Mixtral-8x7B-v0.1", 32),
        ("deepseek-ai/DeepSeek-V3", 58),  # the first three of 61 are dense
        ("moonshotai/Kimi-K2-Instruct", 60),
        ("zai-org/GLM-4.5", 89),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", 48),
        ("meta-llama/Llama-4-Maverick-17B-128E-Instruct", 24),  # every second layer
        ("XiaomiMiMo/MiMo-V2-Flash", 47),
    ],
)
def test_layers_with_experts_are_those_of_the_family(model: str, layers: int) -> None:
    assert num_moe_layers(built_in_model(model)) == layers


def test_latent_attention_ignores_the_meaningless_head_keys() -> None:
    shape = built_in_model("deepseek-ai/DeepSeek-R1")

    assert {group.attention for group in shape.groups} == {
        LatentAttention(
            num_heads=128,
            kv_lora_rank=512,
            qk_rope_head_dim=64,
            qk_nope_head_dim=128,
            value_head_dim=128,
            q_lora_rank=1536,
        )
    }


def test_keys_and_values_may_differ_in_width() -> None:
    full, window = built_in_model("XiaomiMiMo/MiMo-V2-Flash").groups[0], None
    for group in built_in_model("XiaomiMiMo/MiMo-V2-Flash").groups:
        assert isinstance(group.attention, GroupedAttention)
        if group.attention.window_tokens:
            window = group.attention

    assert full.attention == GroupedAttention(
        num_heads=64, num_kv_heads=4, head_dim=192, value_head_dim=128
    )
    assert window is not None
    assert (window.num_kv_heads, window.head_dim, window.value_head_dim) == (8, 192, 128)


def test_llama_4_has_a_shared_expert_and_wider_dense_layers() -> None:
    ffns = {group.ffn for group in built_in_model("Llama-4-Maverick-17B-128E-Instruct").groups}

    assert ffns == {
        DenseFfn(intermediate_size=16384),
        MoeFfn(
            num_experts=128,
            experts_per_token=1,
            expert_intermediate_size=8192,
            shared_intermediate_size=8192,
        ),
    }


def test_of_a_multimodal_model_the_text_part_counts_and_notes_tell_of_the_rest() -> None:
    shape = built_in_model("Qwen/Qwen2.5-Omni-7B")

    assert shape.hidden_size == 3584
    assert shape.notes == ("encoders count with 1,316 million parameters in 16 bits",)


def test_a_wrapper_decides_on_tied_tables_when_the_text_part_is_silent() -> None:
    config = built_in_config("QuantTrio/Qwen3-VL-235B-A22B-Instruct-FP8")
    config["tie_word_embeddings"] = True

    assert shape_from_config(config, name="m").tied_embeddings


@pytest.mark.parametrize(
    ("model", "longest"),
    [
        ("moonshotai/Kimi-K2-Thinking", 262_144),  # yarn: 64 * 4096
        ("openai/gpt-oss-20b", 131_072),  # yarn: 32 * 4096
        ("google/gemma-3-27b-it", 131_072),  # linear by 8, already counted in
        ("meta-llama/Llama-3.3-70B-Instruct", 131_072),  # llama3: already counted in
        ("bigscience/bloom", None),
    ],
)
def test_the_longest_context_follows_the_position_scaling(model: str, longest: int | None) -> None:
    assert built_in_model(model).max_position_tokens == longest


@pytest.mark.parametrize(
    ("changes", "minor", "longest", "usual"),
    [
        ({"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048},
          "max_position_embeddings": 4096}, "0.29", 8192, None),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048},
          "max_position_embeddings": 4096}, "0.30", 4096, None),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "0.33", 16_384, None),
        ({"rope_scaling": {"type": "default", "factor": 2.0}}, "0.20", 16_384, None),
        ({"rope_scaling": {"type": "llama3", "factor": 2.0}}, "0.20", 8192, None),
        ({"rope_scaling": {"type": "longrope"}, "original_max_position_embeddings": 4096}, "0.11",
         8192, None),
        ({"rope_scaling": {"type": "su"}, "original_max_position_embeddings": 4096}, "0.12",
         8192, 4096),
        ({"rope_scaling": {"type": "longrope", "original_max_position_embeddings": 4096}}, "0.33",
         8192, None),
    ],
)  # fmt: skip
def test_each_version_derives_its_lengths_of_the_scaling(
    changes: dict[str, Any], minor: str, longest: int, usual: int | None
) -> None:
    """By ``_get_and_verify_max_len`` of that release, with max_position_embeddings 8192."""
    assert positions_of(read(**changes), minor) == (longest, usual or longest)


def test_the_class_says_the_kind_whatever_model_type_says() -> None:
    mixed = {"num_local_experts": 8, "num_experts_per_tok": 2, "model_type": "mistral"}
    found = read(architectures=["MixtralForCausalLM"], **mixed)
    usual = {k: v for k, v in (LLAMA | mixed).items() if v is not None}
    usual |= {"model_type": "mixtral", "sliding_window": None}

    assert found.groups == shape_from_config(usual, name="m").groups
    assert found.has_experts
    assert read(architectures=["MistralForCausalLM"]).groups == read().groups  # without a window
    assert not read(architectures=["LlamaForCausalLM"], **mixed).has_experts


def test_the_digest_is_that_of_the_content_in_any_order() -> None:
    backwards = dict(reversed(list(LLAMA.items())))

    assert shape_from_config(backwards, name="m").digest == read().digest
    assert read(rope_theta=1).digest != read().digest


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"vocab_size": None}, "vocab_size is missing"),
        ({"intermediate_size": None}, "intermediate_size is missing"),
        ({"num_hidden_layers": 0}, "num_hidden_layers = 0"),
        ({"num_hidden_layers": 2001}, "num_hidden_layers = 2001"),
        ({"hidden_size": -4096}, "hidden_size = -4096"),
        ({"hidden_size": 10**9}, "hidden_size = 1000000000"),
        ({"hidden_size": "4096"}, "hidden_size = '4096'"),
        ({"hidden_size": 4096.0}, "hidden_size = 4096.0"),
        ({"hidden_size": True}, "hidden_size = True"),
        ({"num_attention_heads": [32]}, "num_attention_heads = [32]"),
        ({"num_key_value_heads": 7}, "num_key_value_heads = 7 does not divide the 32"),
        ({"num_key_value_heads": 64}, "num_key_value_heads = 64 does not divide the 32"),
        ({"num_attention_heads": 24, "head_dim": None}, "head_dim is missing"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings = 'no'"),
        ({"rope_scaling": {"factor": -1.0}}, "rope_scaling.factor = -1.0"),
        ({"rope_scaling": 8}, "rope_scaling = 8"),
        ({"model_type": 5}, "model_type = 5"),
        ({"model_type": None}, "model_type = None"),
    ],
)
def test_an_impossible_key_is_named_with_its_value(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelConfigError) as refusal:
        read(**change)

    assert str(refusal.value).startswith(f"model m: {message}")


def test_a_key_of_a_nested_block_is_named_with_its_path() -> None:
    config = built_in_config("google/gemma-3-12b-it")
    del config["text_config"]["hidden_size"]

    with pytest.raises(ModelConfigError, match=r"model m: text_config\.hidden_size is missing"):
        shape_from_config(config, name="m")


def test_a_wrapper_without_its_text_part_is_refused() -> None:
    with pytest.raises(ModelConfigError, match="text_config = None is no object"):
        shape_from_config({"model_type": "gemma3"}, name="m")


@pytest.mark.parametrize("key", ["num_key_value_heads", "head_dim", "num_experts_per_tok"])
def test_a_default_that_differs_by_family_is_not_assumed(key: str) -> None:
    config = built_in_config("Qwen/Qwen3-30B-A3B")
    del config[key]

    with pytest.raises(ModelConfigError, match=f"{key} is missing"):
        shape_from_config(config, name="m")


def test_a_mistral_without_the_window_key_is_refused_since_the_class_has_a_window() -> None:
    with pytest.raises(ModelConfigError, match="sliding_window is missing"):
        read(model_type="mistral")


def test_more_experts_per_token_than_experts_are_refused() -> None:
    with pytest.raises(ModelConfigError, match="num_experts_per_tok = 9"):
        read(model_type="mixtral", sliding_window=8192, num_local_experts=8, num_experts_per_tok=9)


def test_a_list_by_layer_must_have_one_entry_per_layer() -> None:
    with pytest.raises(ModelConfigError, match="layer_types has 1 entry, but num_hidden_layers"):
        read(model_type="qwen3", head_dim=128, layer_types=["full_attention"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"layer_types": ["linear_attention"] * 32},
            "linear attention layers (layer_types[0] = 'linear_attention')",
        ),
        (
            {"layer_types": ["full_attention", "retrieval"]},
            "layers of this kind (layer_types[1] = 'retrieval')",
        ),
        ({"attn_type_list": [1, 0]}, "linear attention layers (attn_type_list[1] = 0)"),
        ({"index_topk": 2048}, "sparse-attention indexers (index_topk = 2048)"),
        ({"compress_ratios": [4]}, "compressed caches (compress_ratios = [4])"),
        ({"hybrid_override_pattern": "M*"}, "layers with a state per sequence ("),
        ({"num_kv_shared_layers": 20}, "layers that share a cache (num_kv_shared_layers = 20)"),
        ({"is_encoder_decoder": True}, "encoder layers (is_encoder_decoder = True)"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UnknownArchitectureError) as refusal:
        read(**change)

    assert str(refusal.value).startswith(f"model m: {message}")
    assert "not understood yet" in str(refusal.value)


@pytest.mark.parametrize("key", ["num_kv_shared_layers", "hidden_size_per_layer_input"])
def test_a_mark_with_an_empty_value_refuses_nothing(key: str) -> None:
    assert read(**{key: 0}).num_layers == 32


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "bert"}, "model_type = 'bert'"),
        ({"model_type": "xlm-roberta", "architectures": ["XLMRobertaModel"]}, "'xlm-roberta'"),
        (
            {"architectures": ["LlamaForSequenceClassification"]},
            "architectures = 'LlamaForSequenceClassification'",
        ),
        ({"model_type": "mistral", "architectures": ["MistralModel"]}, "'MistralModel'"),
        ({"model_type": "qwen2", "architectures": ["Qwen2ForRewardModel"]}, "RewardModel'"),
    ],
)
def test_a_model_that_generates_no_tokens_is_refused_by_what_it_is(
    changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(UnknownArchitectureError, match=f"{said} embeds or classifies text"):
        read(**changes)


def test_a_model_with_a_head_for_tokens_is_read() -> None:
    assert read(architectures=["LlamaForCausalLM"]).groups == read().groups


def test_an_unknown_wrapper_is_refused_for_what_it_wraps() -> None:
    config = {"model_type": "new_vl", "text_config": LLAMA | {"ssm_state_size": 128}}

    with pytest.raises(UnknownArchitectureError, match="state per sequence"):
        shape_from_config(config, name="m")


def test_the_assumption_of_an_unknown_kind_names_those_that_are_near() -> None:
    [assumption] = read(model_type="qwen3_mo").assumptions

    assert "'qwen3_mo' has no rule here (near: qwen3_moe" in assumption.taken


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Expecting value"),
        ("[1, 2]", "no object"),
        ('{"a": 1, "a": 2}', "key 'a' is given twice"),
        ('{"b": {"a": 1, "a": 2}}', "key 'a' is given twice"),
        ("[" * 60 + "]" * 60, "no object"),
        ('{"a":' * 60 + "1" + "}" * 60, "nested deeper than 50 levels"),
        ("[" * 200_000, "config.json: "),
        ('{"a": ' + "9" * 5000 + "}", "config.json: "),
        ('{"a": "' + "x" * MAX_CONFIG_BYTES + '"}', "at most 16777216 are read"),
        ('{"a": "\ud800"}', "model_type = None"),
    ],
)
def test_text_that_is_no_sound_json_object_is_refused(text: str, message: str) -> None:
    with pytest.raises(ModelConfigError) as refusal:
        read_model_config(text, name="m")

    assert str(refusal.value).startswith("model m: ")
    assert message in str(refusal.value)


# NVIDIA-Nemotron-3-Super-120B's config.json: "time_step_limit": [0.0, Infinity]. Python's own JSON,
# which transformers and vLLM read it with, has these numbers.
@pytest.mark.parametrize("written", ["Infinity", "-Infinity", "NaN", "1e999"])
def test_numbers_that_python_alone_writes_are_read_and_refused_where_they_count(
    written: str,
) -> None:
    plain = json.dumps(built_in_config("Qwen/Qwen3-8B"))
    unused = plain[:-1] + f', "time_step_limit": [0.0, {written}]' + "}"
    used = plain[:-1] + f', "partial_rotary_factor": {written}' + "}"

    assert read_model_config(unused, name="m").num_layers == 36
    with pytest.raises(ModelConfigError, match="partial_rotary_factor = "):
        read_model_config(used, name="m")


def test_a_file_of_several_mib_is_read() -> None:
    names = [f"model.layers.{n % 36}.mlp.experts.{n}.up_proj" for n in range(60_000)]
    config = built_in_config("Qwen/Qwen3-8B") | {
        "quantization_config": {"quant_method": "fp8", "modules_to_not_convert": names}
    }
    text = json.dumps(config)

    assert len(text) > 2 * MIB
    assert read_model_config(text, name="m").weight_format.name == "fp8"


# transformers_utils/config.py of vLLM 0.33: the second file only where config.json says nothing.
@pytest.mark.parametrize(
    ("own", "name", "second", "stored"),
    [
        (None, "hf_quant_config.json", {"quantization": {"quant_algo": "NVFP4"}}, "nvfp4"),
        (None, "quantize_config.json", {"bits": 4, "group_size": 128, "sym": True}, "int4"),
        (None, "other.json", {"bits": 4, "group_size": 128}, "bf16"),
        ({"quant_method": "fp8"}, "hf_quant_config.json", {"quant_algo": "NVFP4"}, "fp8"),
    ],
)
def test_a_second_file_says_how_weights_are_quantized(
    own: dict[str, Any] | None, name: str, second: dict[str, Any], stored: str
) -> None:
    config = json.dumps(built_in_config("Qwen/Qwen3-8B") | {"quantization_config": own})
    beside = {name: json.dumps(second)}

    text = with_second_file(config, beside.get)

    shape = read_model_config(text, name="m")
    assert shape.weight_format.name == stored
    flagged = [each.taken for each in shape.assumptions if each.about == "flags"]
    assert bool(flagged) == (name == "quantize_config.json")  # with --quantization gptq


@pytest.mark.parametrize(("second", "message"), [("[1]", "is no object"), ("{", "hf_quant_config")])
def test_a_second_file_that_is_no_object_is_refused(second: str, message: str) -> None:
    with pytest.raises(ModelConfigError, match=message):
        with_second_file("{}", {"hf_quant_config.json": second}.get)


def test_what_is_no_config_json_has_no_second_file() -> None:
    assert with_second_file("[", {"hf_quant_config.json": "{}"}.get) == "["
    assert with_second_file("[1]", {"hf_quant_config.json": "{}"}.get) == "[1]"


@pytest.mark.parametrize("value", [{1, 2}, b"x"])
def test_a_mapping_with_what_json_cannot_hold_is_refused(value: object) -> None:
    with pytest.raises(ModelConfigError, match="not JSON"):
        read(something=value)


def test_a_list_by_layer_may_go_on_with_layers_that_draft() -> None:
    config = built_in_config("openai/gpt-oss-20b")
    longer = config | {"layer_types": [*config["layer_types"], *["full_attention"] * 3]}

    assert shape_from_config(longer, name="m").groups == shape_from_config(config, name="m").groups


def test_a_list_that_is_longer_by_more_is_refused() -> None:
    config = built_in_config("openai/gpt-oss-20b")

    with pytest.raises(ModelConfigError, match="layer_types has 48 entries"):
        shape_from_config(config | {"layer_types": 2 * config["layer_types"]}, name="m")
