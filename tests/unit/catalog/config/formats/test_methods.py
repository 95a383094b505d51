"""The methods of quantization that vLLM has: bytes of each part as it loads them."""

from dataclasses import replace
from typing import Any

import pytest

from tonnage.catalog.config.formats.quantization import BF16, FP8, INT8, MXFP4, MXFP8, NVFP4
from tonnage.catalog.config.keys.decoder import ModelConfigError, UnknownArchitectureError
from tonnage.catalog.config.read import shape_from_config
from tonnage.catalog.engine_speed import prior_speed
from tonnage.catalog.gpu import built_in_gpus
from tonnage.catalog.models import built_in_config
from tonnage.catalog.parameters import counted_bytes
from tonnage.catalog.shape import ModelShape
from tonnage.units import GIB

DENSE = "meta-llama/Llama-3.1-8B-Instruct"
EXPERTS = "Qwen/Qwen3-30B-A3B"
HYBRID = "Qwen/Qwen3.5-27B"
INT4_GPTQ = 0.5 + 2.5 / 128
"""Bytes of a parameter: two of a scale and half of a zero point for each group."""


def quantized(model: str = DENSE, **keys: Any) -> ModelShape:
    """Read a built-in model with this ``quantization_config``."""
    return shape_from_config(built_in_config(model) | {"quantization_config": keys}, name="m")


def bytes_by_part(shape: ModelShape, *parts: str) -> list[float]:
    return [shape.weight_format.part_bytes_per_parameter(part) for part in parts]


# Bytes as create_weights of vLLM 0.33 allocates them, of bitsandbytes and HQQ 0.25 and 0.14.
@pytest.mark.parametrize(
    ("keys", "name", "bytes_per_parameter"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "int4", 0.5 + 4 / 64),
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True,
             "bnb_4bit_use_double_quant": True, "llm_int8_skip_modules": ["lm_head"]},
            "int4", 0.5 + 4 / 64,  # scales are unpacked as they are loaded
        ),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8", 1),
        (
            {"quant_method": "hqq",
             "quant_config": {"weight_quant_params": {"nbits": 4, "group_size": 64, "axis": 1}}},
            "int4", 0.5 + 4 / 64,
        ),
        (
            {"quant_method": "torchao", "quant_type":
             {"default": {"_type": "Int4WeightOnlyConfig", "_data": {"group_size": 128}}}},
            "int4", 0.5 + 4 / 128,
        ),
        (
            {"quant_method": "torchao",
             "quant_type": {"default": {"_type": "Int8WeightOnlyConfig", "_data": {}}}},
            "int8", 1,
        ),
        (
            {"quant_method": "torchao", "quant_type":
             {"default": {"_type": "Float8DynamicActivationFloat8WeightConfig", "_data": {}}}},
            "fp8", 1,
        ),
        ({"quant_method": "modelopt", "quant_algo": "MXFP8"}, "mxfp8", 1 + 1 / 32),
        ({"quant_method": "mxfp8", "ignored_layers": ["lm_head"]}, "mxfp8", 1 + 1 / 32),
        ({"quant_method": "modelopt", "quant_algo": "fp8_pb_wo"}, "fp8", 1 + 4 / 128**2),
        ({"quant_method": "fp_quant", "forward_dtype": "mxfp4"}, "mxfp4", 0.5 + 1 / 32),
        ({"quant_method": "fp_quant", "forward_dtype": "nvfp4"}, "nvfp4", 0.5 + 1 / 16),
        (
            {"quant_method": "auto-round", "bits": 4, "group_size": 128, "sym": True,
             "packing_format": "auto_round:auto_gptq", "block_name_to_quantize": "model.layers"},
            "int4", INT4_GPTQ,
        ),
        (
            {"quant_method": "auto-round", "bits": 8, "group_size": [128, 128],
             "data_type": "fp"},
            "fp8", 1 + 4 / 128**2,
        ),
        (
            {"quant_method": "auto-round", "bits": 4, "group_size": 32, "data_type": "mx_fp"},
            "mxfp4", 0.5 + 1 / 32,
        ),
    ],
)  # fmt: skip
def test_bytes_of_a_parameter_count_what_is_loaded_with_it(
    keys: dict[str, Any], name: str, bytes_per_parameter: float
) -> None:
    found = quantized(**keys).weight_format

    assert (found.name, found.bytes_per_parameter) == (name, bytes_per_parameter)


def quark(weight: object, inputs: object = None, **keys: Any) -> ModelShape:
    group = {"weight": weight, "input_tensors": inputs}
    return quantized(EXPERTS, quant_method="quark", global_quant_config=group, **keys)


MX = {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0",
      "symmetric": None, "ch_axis": -1, "is_dynamic": False}  # fmt: skip
TENSOR = {"dtype": "fp8_e4m3", "qscheme": "per_tensor"}


@pytest.mark.parametrize(
    ("weight", "inputs", "stored", "computes"),
    [
        (MX, MX, MXFP4, ("fp4", "fp4")),
        (MX, None, MXFP4, ("bf16", "fp4")),
        (TENSOR, TENSOR, FP8, ("fp8", "fp8")),
        ({"dtype": "int8", "qscheme": "per_channel"}, {"dtype": "int8"}, INT8, ("int8", "int8")),
        ([MX | {"group_size": 16}, TENSOR], [MX, TENSOR], NVFP4, ("fp4", "fp4")),
        ({"dtype": "fp8_e4m3", "group_size": 32}, None, MXFP8, ("bf16", "bf16")),
    ],
)
def test_quark_names_weights_and_activations(
    weight: object, inputs: object, stored: Any, computes: tuple[str, str]
) -> None:
    found = quark(weight, inputs).weight_format

    assert (found.name, found.bytes_per_parameter) == (stored.name, stored.bytes_per_parameter)
    assert (found.of("attention").compute, found.of_experts.compute) == computes


def test_quark_has_integers_with_zero_points_unless_they_are_symmetric() -> None:
    integers = {"dtype": "uint4", "qscheme": "per_group", "group_size": 128}
    symmetric = integers | {"symmetric": True}

    assert bytes_by_part(quark(integers), "experts") == [0.5 + 2.5 / 128]
    assert bytes_by_part(quark(symmetric), "experts") == [0.5 + 2 / 128]


@pytest.mark.parametrize("written", [[128, 128], "128x128"])
def test_blocks_of_compressed_tensors_have_scales(written: object) -> None:
    weights = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": written}
    groups = {"a": {"targets": ["Linear"], "weights": weights}}
    found = quantized(quant_method="compressed-tensors", config_groups=groups).weight_format

    assert (found.bytes_per_parameter, found.block_size) == (1 + 4 / 128**2, 128)


def test_quark_has_formats_for_patterns_of_modules_and_leaves_some_out() -> None:
    rules = {"*self_attn*": {"weight": TENSOR, "input_tensors": TENSOR}, "*gate": {}}
    shape = quark(MX, MX, layer_quant_config=rules, exclude=["lm_head"])

    assert bytes_by_part(shape, "attention", "experts", "head") == [1, 0.53125, 2]
    assert quark(MX, exclude=["re:.*self_attn.*"]).weight_format.unquantized == {"attention"}


# GPTQModel's rules, as gptq_utils.py get_dynamic_override matches them.
@pytest.mark.parametrize(
    ("dynamic", "attention", "experts"),
    [
        ({"-:.*\\.mlp\\.gate$": {}}, INT4_GPTQ, INT4_GPTQ),
        ({"+:.*\\.self_attn\\..*": {"bits": 8, "group_size": 128}}, 1 + 3 / 128, INT4_GPTQ),
        ({"-:.*\\.self_attn\\..*": {}}, 2, INT4_GPTQ),
        ({".*experts.*": {"group_size": 32}}, INT4_GPTQ, 0.5 + 2.5 / 32),
        (  # 12 of 48 layers
            {"-:.*\\.(?:[0-9]|1[01])\\.self_attn\\..*": {}},
            (12 * 2 + 36 * INT4_GPTQ) / 48,
            INT4_GPTQ,
        ),
    ],
)
def test_gptq_has_rules_for_modules(
    dynamic: dict[str, Any], attention: float, experts: float
) -> None:
    shape = quantized(EXPERTS, quant_method="gptq", bits=4, group_size=128, dynamic=dynamic)

    assert bytes_by_part(shape, "attention", "experts") == pytest.approx([attention, experts])


def test_gptq_without_symmetry_is_a_kind_of_its_own() -> None:
    keys = {"quant_method": "gptq", "bits": 4, "group_size": 128}

    assert quantized(**keys, sym=False).quant_method == "asymmetric gptq"
    assert quantized(**keys).quant_method == "gptq"


def test_auto_round_has_names_of_modules_in_other_formats() -> None:
    names = (f"model.layers.{index}.self_attn" for index in range(24))
    own = {
        f"{name}.{matrix}": {"bits": 16, "data_type": "float"}
        for name in names
        for matrix in ("q_proj", "k_proj", "v_proj", "o_proj")
    }
    own |= {".*experts.*": {"bits": 8}, "lm_head": {"bits": 4}}
    shape = quantized(EXPERTS, quant_method="auto-round", bits=4, group_size=128, extra_config=own)

    halves = (2 + INT4_GPTQ) / 2  # of 24 of 48 layers
    found = bytes_by_part(shape, "attention", "experts", "head")
    assert found == pytest.approx([halves, 1 + 3 / 128, INT4_GPTQ])


def test_a_head_is_quantized_where_the_file_says_so() -> None:
    keys = {"quant_method": "gptq", "bits": 4, "group_size": 128}

    assert bytes_by_part(quantized(**keys), "head") == [2]
    assert bytes_by_part(quantized(**keys, lm_head=True), "head") == [INT4_GPTQ]


# nvidia/Qwen3.6-27B-NVFP4, config.json of 2026: 64 layers, each matrix by its full name.
def test_modelopt_names_the_format_of_each_module() -> None:
    text = built_in_config(HYBRID)
    kinds = text["text_config"]["layer_types"]
    layers = {"lm_head": {"quant_algo": "W4A16_NVFP4", "group_size": 16}}
    for index, kind in enumerate(kinds):
        prefix = f"model.language_model.layers.{index}"
        is_full = kind == "full_attention"
        matrices = ("q_proj", "k_proj", "v_proj", "o_proj") if is_full else (
            "in_proj_qkv", "in_proj_z", "out_proj",
        )  # fmt: skip
        block = "self_attn" if is_full else "linear_attn"
        layers |= {f"{prefix}.{block}.{name}": {"quant_algo": "FP8"} for name in matrices}
        layers |= {
            f"{prefix}.mlp.{name}": {"quant_algo": "W4A16_NVFP4", "group_size": 16}
            for name in ("gate_proj", "up_proj", "down_proj")
        }
    keys = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "ignore": ["mtp*"]}
    shape = quantized(HYBRID, **keys, quantized_layers=layers)

    parts = ("attention", "state_attention", "dense_ffn", "head")
    assert bytes_by_part(shape, *parts) == [1, 1, 0.5625, 0.5625]
    assert (shape.weight_format.name, shape.weight_format.compute) == ("nvfp4", "bf16")
    assert shape.quant_method == "modelopt_mixed"
    assert [each.effect for each in shape.assumptions] == ["time"]


def test_hf_quant_config_has_its_keys_inside() -> None:
    inner = {"quant_algo": "NVFP4", "group_size": 16, "kv_cache_quant_algo": "FP8",
             "exclude_modules": ["lm_head", "model.layers.*.self_attn*"]}  # fmt: skip
    shape = quantized(producer={"name": "modelopt"}, quantization=inner)

    assert shape.weight_format.unquantized == {"attention"}
    assert (shape.weight_format.name, shape.kv_cache_format) == ("nvfp4", "fp8")


def test_nvfp4_without_activations_is_multiplied_in_16_bits() -> None:
    group = {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "float", "group_size": 16}}
    keys = {"quant_method": "modelopt", "quant_algo": "NVFP4", "config_groups": {"a": group}}

    assert quantized(**keys).weight_format.compute == "bf16"


def test_compressed_tensors_name_modules_before_the_class_of_all() -> None:
    eight = {"weights": {"num_bits": 8, "type": "float"}, "targets": ["re:.*self_attn.*"]}
    four = {"weights": {"num_bits": 4, "type": "int", "group_size": 128}, "targets": ["Linear"]}
    groups = {"a": four, "b": eight}
    shape = quantized(quant_method="compressed-tensors", config_groups=groups)

    assert bytes_by_part(shape, "attention", "dense_ffn") == [1, 0.515625]

    del groups["a"]
    shape = quantized(quant_method="compressed-tensors", config_groups=groups)
    assert bytes_by_part(shape, "attention", "dense_ffn") == [1, 2]


# Published files: Qwen/Qwen3-30B-A3B-GPTQ-Int4 in a log of vllm-project/vllm#759, and AutoRound of
# Qwen3.6-27B as vLLM prints its size in noonghunna/club-3090#74 and #142.
@pytest.mark.parametrize(
    ("model", "keys", "file_bytes"),
    [
        (EXPERTS, {"quant_method": "gptq", "bits": 4, "group_size": 128}, 16_933_256_392),
        (
            "Qwen/Qwen3.6-27B",
            {
                "quant_method": "auto-round", "bits": 4, "group_size": 128,
                "extra_config": {".*in_proj_[ab].*": {"bits": 16, "data_type": "float"}},
            },
            17.69 * GIB,
        ),
    ],
)  # fmt: skip
def test_bytes_are_those_of_published_files(
    model: str, keys: dict[str, Any], file_bytes: float
) -> None:
    counted = sum(counted_bytes(quantized(model, **keys)).values())

    assert counted == pytest.approx(file_bytes, rel=0.01)


# FBGEMMFp8Config, FPQuantConfig and TorchAOConfig.get_quant_method: linear layers alone.
@pytest.mark.parametrize(
    "keys",
    [
        {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0},
        {"quant_method": "fp_quant"},
        {"quant_method": "torchao",
         "quant_type": {"default": {"_type": "Int8WeightOnlyConfig", "_data": {}}}},
    ],
)  # fmt: skip
def test_methods_of_linear_layers_leave_experts_in_16_bits(keys: dict[str, Any]) -> None:
    shape = quantized(EXPERTS, **keys)

    assert shape.weight_format.of_experts == BF16
    assert "quantizes no routed experts" in shape.assumptions[0].taken
    assert shape.assumptions[0].effect == "start"
    assert all("experts" not in each.taken for each in quantized(DENSE, **keys).assumptions)


def test_kernels_that_no_table_has_are_an_assumption_of_time() -> None:
    [assumed] = quantized(quant_method="bitsandbytes", load_in_4bit=True).assumptions

    assert assumed.effect == "time"
    assert assumed.taken == (
        "bitsandbytes: stored as int4, with scales 0.5625 bytes a parameter; timed as other files "
        "of int4, each matrix of which a step unpacks to 16 bits first"
    )


def test_weights_that_a_step_unpacks_are_written_and_read_in_16_bits() -> None:
    found = quantized(quant_method="bitsandbytes", load_in_4bit=True).weight_format
    plain = replace(found, traffic=1)
    slow, fast = (prior_speed(built_in_gpus()["H100"], each) for each in (found, plain))

    assert found.traffic * 0.5625 == pytest.approx(0.5625 + 2 + 2)
    assert slow.bandwidth_efficiency == pytest.approx(fast.bandwidth_efficiency / found.traffic)
    assert slow.cache_bandwidth_efficiency == pytest.approx(fast.cache_bandwidth_efficiency)


def test_layers_that_differ_count_as_their_mean() -> None:
    names = [
        f"model.layers.{index}.mlp.{each}_proj" for index in range(8) for each in ("up", "down")
    ]
    shape = quantized(quant_method="fp8", modules_to_not_convert=names)

    assert bytes_by_part(shape, "attention", "dense_ffn") == [1, (8 * 2 + 24) / 32]
    assert shape.weight_format.with_parts({}).bytes_per_parameter == 1


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        (["*a" * 200], "modules by the pattern '*a*a"),
        ([f"*{n}*" for n in range(1001)], "modules in 1001 patterns"),
        ([f"re:.*{n}.*" for n in range(1001)], "modules in 1001 patterns"),
        ([f"re:.*{n}.*" for n in range(300)], "comparisons, and at most 600,000 are made"),
        (["re:" + "(.|.)" * 20 + "x"], "comparisons, and at most"),
        (["re:" + "(a)?" * 20 + "x"], "comparisons, and at most"),
        (["re:" + "(m|mo)(o|od)(d|de)" * 6], "comparisons, and at most"),
        ([f"re:.*.*.*.*{end}" for end in "xyz"], "comparisons, and at most"),
    ],
)
def test_patterns_that_take_long_are_refused(patterns: list[str], message: str) -> None:
    with pytest.raises(UnknownArchitectureError) as refusal:
        quantized(quant_method="fp8", modules_to_not_convert=patterns)

    assert message in str(refusal.value)


# Layers 10 to 31 of 32, in four ways that have no digit before a dot, or none.
@pytest.mark.parametrize(
    ("pattern", "share"),
    [
        ("re:.*layers\\.\\d\\d\\.mlp.*", 22 / 32),
        ("re:.*layers\\...\\.mlp.*", 22 / 32),
        ("re:.*layers\\.\\w{2}\\.mlp.*", 22 / 32),
        ("model.layers.??.mlp*", 22 / 32),
        ("model.layers.[!3].mlp*", 9 / 32),
        ("re:.*layers\\.\\d+\\.mlp.*", 1),
        ("re:.*layers\\.[0-9]+\\.mlp.*", 1),
    ],
)
def test_a_pattern_without_a_number_may_be_of_some_layers(pattern: str, share: float) -> None:
    shape = quantized(quant_method="fp8", modules_to_not_convert=[pattern])

    assert bytes_by_part(shape, "attention", "dense_ffn") == [1, 1 + share]


@pytest.mark.parametrize(
    "keys",
    [
        {"modules_to_not_convert": None, "ignored_layers": ["self_attn"]},
        {"ignore": [], "exclude_modules": ["self_attn"]},
        {"modules_to_not_convert": ["lm_head"], "llm_int8_skip_modules": ["self_attn"]},
    ],
)
def test_all_lists_of_what_stays_wide_count(keys: dict[str, Any]) -> None:
    assert quantized(quant_method="fp8", **keys).weight_format.unquantized == {"attention"}


# is_layer_skipped(match_mode="substring") of auto_awq.py and is_layer_excluded of modelopt.py.
@pytest.mark.parametrize(
    "method",
    [
        {"quant_method": "awq", "bits": 4, "group_size": 128},
        {"quant_method": "modelopt", "quant_algo": "FP8"},
    ],
)
@pytest.mark.parametrize(
    ("name", "wide"),
    [
        ("self_attn.", {"attention"}),
        ("attn", {"attention"}),
        ("gate", set()),  # the router of experts, which are one module
        ("model.layers.", {"attention", "experts"}),
    ],
)
def test_some_methods_take_any_part_of_a_name(
    method: dict[str, Any], name: str, wide: set[str]
) -> None:
    shape = quantized(EXPERTS, **method, modules_to_not_convert=[name])

    assert shape.weight_format.unquantized - {"dense_ffn", "shared_experts"} == wide


# gptq_utils.py is_layer_gptq_quantized; get_moe_quant_method does not ask it.
@pytest.mark.parametrize("nested", [False, True])
def test_gptq_may_list_what_it_quantizes(nested: bool) -> None:
    names = ["self_attn.k_proj", "self_attn.v_proj", "self_attn.q_proj", "self_attn.o_proj"]
    keys = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    keys |= {"modules_in_block_to_quantize": [names[:3], names[3:]] if nested else names}

    assert bytes_by_part(quantized(**keys), "attention", "dense_ffn") == [INT4_GPTQ, 2]
    assert bytes_by_part(quantized(EXPERTS, **keys), "attention", "experts") == [INT4_GPTQ] * 2
    dynamic = {"-:.*attn.*": {}}
    assert bytes_by_part(quantized(**keys, dynamic=dynamic), "attention", "dense_ffn") == [2, 2]


@pytest.mark.parametrize(
    ("names", "bytes_per_parameter"),
    [
        ([f"transformer.h.{index}.attn.c_attn" for index in range(8)], 2),
        ([f"transformer.h.{index}.attn.c_attn" for index in range(7)], 1),
        ([f"transformer.h.{index}.router" for index in range(8)], 1),
        ([f"vision_tower.layers.{index}.attn.out" for index in range(8)], 1),
        ([f"model.layers.{index}.mlp.extra" for index in range(8)], 1),
    ],
)
def test_a_list_of_unknown_modules_leaves_all_in_16_bits(
    names: list[str], bytes_per_parameter: float
) -> None:
    shape = quantized(quant_method="fp8", modules_to_not_convert=names)

    parts = ("attention", "dense_ffn")
    assert bytes_by_part(shape, *parts) == [bytes_per_parameter] * 2
    assert [each.times for each in shape.assumptions] == [2] * (bytes_per_parameter == 2)


def test_expressions_of_auto_round_match_anywhere() -> None:
    own = {"self_attn\\.(q|k|v|o)_proj": {"bits": 16}}
    shape = quantized(quant_method="auto-round", bits=4, group_size=128, extra_config=own)

    assert bytes_by_part(shape, "attention", "dense_ffn") == [2, INT4_GPTQ]


def test_groups_of_one_are_wider_than_16_bits() -> None:
    names = [f"model.layers.{index}.mlp" for index in range(8)]
    keys = {"quant_method": "awq", "bits": 4, "group_size": 1, "modules_to_not_convert": names}

    assert bytes_by_part(quantized(**keys), "dense_ffn") == [(8 * 2 + 24 * 3) / 32]


def test_a_group_of_two_sides_beside_16_bits_is_read() -> None:
    shape = quantized(quant_method="gptq", bits=16, group_size=[1, 1])

    assert shape.weight_format.bytes_per_parameter == 2


@pytest.mark.parametrize("method", ["exl3", "exl2", "aqlm", "vptq"])
def test_a_method_that_vllm_has_not_is_refused_with_those_that_it_has(method: str) -> None:
    with pytest.raises(UnknownArchitectureError) as refusal:
        quantized(quant_method=method, bits=4.0)

    assert f"quant_method = '{method}': vLLM has no such method" in str(refusal.value)
    assert "compressed-tensors" in str(refusal.value)


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"quant_method": "hqq"}, "quant_config = 'None bits in groups of None'"),
        ({"quant_method": "torchao", "quant_type": "int4_weight_only"}, "quant_type"),
        ({"quant_method": "torchao", "quant_type": {"default": "int4wo"}}, "quant_type = {"),
        (
            {"quant_method": "torchao", "quant_type": {"default": {"_type": []}}},
            "quant_type = []",
        ),
        (
            {
                "quant_method": "torchao",
                "quant_type": {"default": {"_data": {"fqn_to_config": {"a": [1]}}}},
            },
            "quant_type = [1]",
        ),
        ({"quant_method": "fp8", "sparsity_config": {"format": []}}, "sparsity_config = []"),
        ({"quant_method": "fp8", "ignored_layers": "mlp"}, "ignored_layers': 'mlp'} is no list"),
        ({"quant_method": "quark"}, "global_quant_config is missing"),
        ({"quant_method": "gguf"}, "quant_method = 'gguf' are not understood yet"),
        (
            {"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "bf8"}}},
            "global_quant_config.weight.dtype = 'bf8'",
        ),
        ({"quant_method": "auto-round", "bits": 3, "group_size": 128}, "'3 in groups of 128'"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "quant_algo = 'W4A8_AWQ'"),
    ],
)
def test_what_a_method_does_not_read_is_refused_by_its_key(
    keys: dict[str, Any], named: str
) -> None:
    with pytest.raises((ModelConfigError, UnknownArchitectureError)) as refusal:
        quantized(**keys)

    assert named in str(refusal.value)
