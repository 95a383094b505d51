"""How checkpoints store their weights: bytes per parameter, precision, and what stays wide."""

from typing import Any

import pytest

from tonnage.catalog.config.formats.quantization import WEIGHT_FORMATS
from tonnage.catalog.config.keys.decoder import ModelConfigError, UnknownArchitectureError
from tonnage.catalog.config.read import shape_from_config
from tonnage.catalog.models import built_in_config, built_in_model
from tonnage.catalog.shape import ModelShape

DENSE = "meta-llama/Llama-3.1-8B-Instruct"
EXPERTS = "moonshotai/Kimi-K2-Instruct"
FLOAT8 = {"num_bits": 8, "type": "float"}
FLOAT4 = {"num_bits": 4, "type": "float", "group_size": 16}


def quantized(model: str = DENSE, **keys: Any) -> ModelShape:
    """Read a built-in model with this ``quantization_config``."""
    return shape_from_config(built_in_config(model) | {"quantization_config": keys}, name="m")


def compressed(weights: dict[str, Any], inputs: dict[str, Any] | None, **keys: Any) -> ModelShape:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return quantized(quant_method="compressed-tensors", config_groups={"group_0": group}, **keys)


@pytest.mark.parametrize(
    ("keys", "name", "bytes_per_parameter", "compute"),
    [
        # fp8: one fp32 scale per block of 128 x 128, or one per tensor
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8", 1 + 4 / 16384, "fp8"),
        ({"quant_method": "fp8"}, "fp8", 1, "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8", 1, "fp8"),
        ({"quant_algo": "FP8", "producer": {"name": "modelopt"}}, "fp8", 1, "fp8"),
        # integers: an fp16 scale per group, and a zero point as wide as a weight where there is one
        (
            {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True},
            "int4", 0.5 + 2.5 / 128, "bf16",
        ),
        (
            {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": False},
            "int4", 0.5 + 2 / 128, "bf16",
        ),
        (  # as AutoAWQ writes them itself
            {"quant_method": "awq", "w_bit": 4, "q_group_size": 64, "zero_point": True},
            "int4", 0.5 + 2.5 / 64, "bf16",
        ),
        ({"quant_method": "gptq", "bits": 8, "group_size": 32}, "int8", 1 + 3 / 32, "bf16"),
        ({"quant_method": "gptq", "bits": 4, "group_size": -1}, "int4", 0.5, "bf16"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4", 0.5 + 1 / 16, "fp4"),
    ],
)  # fmt: skip
def test_bytes_count_the_scales(
    keys: dict[str, Any], name: str, bytes_per_parameter: float, compute: str
) -> None:
    found = quantized(**keys).weight_format

    assert (found.name, found.compute) == (name, compute)
    assert found.bytes_per_parameter == pytest.approx(bytes_per_parameter, rel=1e-9)


@pytest.mark.parametrize(
    ("weights", "inputs", "name", "bytes_per_parameter", "compute"),
    [
        (FLOAT8, FLOAT8, "fp8", 1, "fp8"),
        (FLOAT8, None, "fp8", 1, "bf16"),
        (FLOAT4, FLOAT4, "nvfp4", 0.5625, "fp4"),
        (FLOAT4, None, "nvfp4", 0.5625, "bf16"),
        (FLOAT4 | {"group_size": 32}, None, "mxfp4", 0.53125, "bf16"),
        ({"num_bits": 8, "type": "int"}, {"num_bits": 8, "type": "int"}, "int8", 1, "int8"),
        ({"num_bits": 4, "type": "int", "group_size": 32}, None, "int4", 0.5625, "bf16"),
        (
            {"num_bits": 4, "type": "int", "group_size": 128, "symmetric": False},
            FLOAT8, "int4", 0.51953125, "fp8",
        ),
    ],
)  # fmt: skip
def test_compressed_tensors_multiply_in_the_precision_of_the_activations(
    weights: dict[str, Any],
    inputs: dict[str, Any] | None,
    name: str,
    bytes_per_parameter: float,
    compute: str,
) -> None:
    found = compressed(weights, inputs).weight_format

    assert (found.name, found.bytes_per_parameter, found.compute) == (
        name,
        bytes_per_parameter,
        compute,
    )


@pytest.mark.parametrize(
    ("model", "name", "wide"),
    [
        (
            "openai/gpt-oss-120b",
            "mxfp4",
            {"attention", "state_attention", "dense_ffn", "shared_experts"},
        ),
        ("moonshotai/Kimi-K2.5", "int4", {"attention", "dense_ffn", "shared_experts"}),
        ("nvidia/Kimi-K2.5-NVFP4", "nvfp4", {"attention"}),
        ("nvidia/Kimi-K2.6-NVFP4", "nvfp4", {"attention", "dense_ffn", "shared_experts"}),
        ("nvidia/DeepSeek-V3.1-NVFP4", "nvfp4", {"attention"}),
        ("nvidia/MiniMax-M2.5-NVFP4", "nvfp4", {"attention"}),
        ("MiniMaxAI/MiniMax-M2.5", "fp8", set()),  # the router is called gate; gate_proj is not it
        ("Qwen/Qwen3-235B-A22B-FP8", "fp8", set()),  # lists norms and routers only
        ("deepseek-ai/DeepSeek-V3", "fp8", set()),
    ],
)
def test_parts_that_the_list_excludes_stay_wide(model: str, name: str, wide: set[str]) -> None:
    found = built_in_model(model).weight_format

    assert found.name == name
    assert found.unquantized == wide


@pytest.mark.parametrize(
    ("pattern", "wide"),
    [
        ("model.layers.*.self_attn", {"attention"}),
        ("self_attn", {"attention"}),
        ("re:.*self_attn.*", {"attention"}),
        ("re:.*mlp\\.(gate|up|gate_up|down)_proj.*", {"dense_ffn"}),
        ("re:.*shared_experts.*", {"shared_experts"}),
        ("re:^model\\.layers\\.\\d+\\.self_attn\\.(?:[qkv]|o)_proj$", {"attention"}),
        (
            "re:.*(self_attn|mlp\\.(?:shared_experts|experts)).*_proj$",
            {"attention", "experts", "shared_experts"},
        ),
        ("re:^(?!.*expert).*proj$", {"attention", "dense_ffn"}),
        ("re:.*self_attn\\b.*", {"attention"}),
        ("re:.*layers\\.[0-9]{1,2}\\.self_attn.*", {"attention"}),
        ("model.layers.*.mlp.experts.*", {"experts"}),
        ("lm_head", set()),
        ("mlp.gate", set()),
        ("model.embed_tokens", set()),
        ("visual*", set()),
    ],
)
def test_module_names_globs_and_expressions_are_understood(pattern: str, wide: set[str]) -> None:
    shape = quantized(EXPERTS, quant_method="fp8", modules_to_not_convert=[pattern])

    assert shape.weight_format.unquantized == wide


@pytest.mark.parametrize("pattern", ["re:(a+)+$", "re:.*.*.*.*.*", "re:a{1,9}", "re:(", "re:[z-a]"])
def test_an_expression_that_could_run_for_ever_is_refused_unread(pattern: str) -> None:
    with pytest.raises(UnknownArchitectureError, match="quantized or not by the expression"):
        quantized(quant_method="fp8", ignore=[pattern])


@pytest.mark.parametrize(
    ("keys", "cache"),
    [
        ({}, "bf16"),
        ({"kv_cache_scheme": {"num_bits": 8, "type": "float"}}, "fp8"),
        ({"kv_cache_scheme": "FP8"}, "fp8"),
        ({"kv_cache_quant_algo": "FP8"}, "fp8"),
        ({"kv_cache_scheme": None}, "bf16"),
        ({"kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": True}}, "bf16"),
        ({"kv_cache_quant_algo": "INT8"}, "bf16"),
        ({"kv_cache_quant_algo": "NVFP4"}, "nvfp4"),
        ({"kv_cache_scheme": {"num_bits": 4, "type": "float"}}, "nvfp4"),
    ],
)
def test_scales_for_the_cache_decide_its_type(keys: dict[str, Any], cache: str) -> None:
    shape = quantized(quant_method="modelopt", quant_algo="FP8", **keys)

    assert shape.kv_cache_format == cache


@pytest.mark.parametrize(
    ("keys", "is_said"),
    [
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, False),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "exclude_modules": ["lm_head"]}, True),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, True),  # nothing is left out
    ],
)
def test_a_file_without_the_list_that_its_method_writes_does_not_say_what_stays_wide(
    keys: dict[str, Any], is_said: bool
) -> None:
    assert quantized(**keys).weight_format.says_unquantized is is_said


def test_a_scheme_that_no_method_reads_leaves_the_cache_wide() -> None:
    shape = quantized(quant_method="fp8", kv_cache_scheme={"num_bits": 8, "type": "float"})

    assert shape.kv_cache_format == "bf16"


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, "'MIXED_PRECISION'"),
        ({"quant_method": "modelopt", "quant_algo": None}, "quant_algo = None"),
        ({"quant_method": "gptq", "bits": 3, "group_size": 128}, "'3 in groups of 128'"),
        ({"quant_method": "compressed-tensors", "format": "mixed-precision"}, "mixed-precision"),
        ({"quant_method": "fp8", "sparsity_config": {"format": "sparse-24"}}, "'sparse-24'"),
        (
            # vLLM: NotImplementedError of CompressedTensorsConfig.validate_kv_cache_scheme.
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"a": {"weights": FLOAT8}},
                "kv_cache_scheme": {"num_bits": 4, "type": "float"},
            },
            "kv_cache_scheme = 'nvfp4'",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"a": {"weights": FLOAT8}, "b": {"weights": FLOAT4}},
            },
            "2 groups with different weights",
        ),
    ],
)
def test_a_format_that_is_not_understood_is_refused_by_name(
    keys: dict[str, Any], named: str
) -> None:
    with pytest.raises(UnknownArchitectureError) as refusal:
        quantized(**keys)

    assert str(refusal.value).startswith("model m: weights stored with quantization_config.")
    assert named in str(refusal.value)


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"bits": 4}, "quantization_config.quant_method is missing"),
        ({"quant_method": "awq", "bits": 4}, "quantization_config.group_size is missing"),
        ({"quant_method": "awq", "group_size": 128}, "quantization_config.bits is missing"),
        ({"quant_method": "awq", "bits": "4"}, "quantization_config.bits = '4'"),
        ({"quant_method": "fp8", "weight_block_size": [0, 1]}, "weight_block_size[0] = 0"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "weight_block_size = [128]"),
        ({"quant_method": 8}, "quantization_config.quant_method = 8"),
    ],
)
def test_a_wrong_key_is_named_with_its_value(keys: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelConfigError) as refusal:
        quantized(**keys)

    assert named in str(refusal.value)


def test_a_block_inside_the_text_part_counts_too() -> None:
    config = built_in_config("moonshotai/Kimi-K2.5")
    config["text_config"]["quantization_config"] = config.pop("quantization_config")
    config["quantization_config"] = None

    assert shape_from_config(config, name="m").weight_format.name == "int4"


def test_an_empty_quantization_config_is_none() -> None:
    assert quantized().weight_format.name == "bf16"


def test_a_quantization_config_that_is_no_object_is_refused() -> None:
    config = built_in_config(DENSE) | {"quantization_config": "fp8"}

    with pytest.raises(ModelConfigError, match="quantization_config = 'fp8' is no object"):
        shape_from_config(config, name="m")


def test_a_name_that_names_quantization_without_the_block_is_an_assumption() -> None:
    shape = shape_from_config(built_in_config(DENSE), name="someone/Llama-3.1-8B-NVFP4")

    assert shape.weight_format.name == "bf16"
    assert "the name says NVFP4" in shape.assumptions[0].taken


def test_a_user_may_ask_for_these_weights() -> None:
    by_name = {name: found.bytes_per_parameter for name, found in WEIGHT_FORMATS.items()}

    assert by_name == {
        "bfloat16": 2,
        "float16": 2,
        "fp8": 1,
        "int8": 1,
        "int4": 0.5 + 2.5 / 128,
        "mxfp4": 0.5 + 1 / 32,
        "nvfp4": 0.5 + 1 / 16,
    }
