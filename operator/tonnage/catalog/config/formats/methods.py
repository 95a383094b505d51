"""What each method of quantization writes in its file: a recipe of formats.

A recipe is a format for what no rule names, and rules on names of modules before it.

Sources:
    [vllm-source] model_executor/layers/quantization: from_config and get_quant_method of each
    method, and create_weights for what scales and zero points take.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pydantic import ValidationError

from tonnage.catalog.config.formats.modules import TABLE, Rule
from tonnage.catalog.config.formats.quantization import (
    BF16,
    BLOCK_SCALE_BYTES,
    DEFAULT_GROUP,
    FP8,
    IGNORE_KEYS,
    INT8,
    MX_GROUP,
    MXFP4,
    MXFP8,
    NVFP4,
    NVFP4_GROUP,
    SCALE_BYTES,
    ModuleKeys,
    QuantizationKeys,
    QuantizedGroup,
    QuarkGroup,
    QuarkTensor,
    Tensor,
    integer_group_format,
    not_understood,
)
from tonnage.catalog.config.keys.decoder import (
    ModelConfigError,
    UnknownArchitectureError,
    first_problem,
)
from tonnage.catalog.shape import WeightFormat
from tonnage.units import count_of

WIDE_BITS: Final = 16
NARROW_BITS: Final = 4
UNREAD_METHODS: Final = frozenset(
    {"experts_int8", "gguf", "humming", "moe_wna16", "online", "petit_nvfp4", "ptpc_fp8", "rtn"}
)
"""That some release has too, and hardly any checkpoint names."""
BNB_BLOCK: Final = 64
"""Weights of bitsandbytes that share a fp32 scale; scales that are quantized too are unpacked."""
WEIGHT_ONLY_NVFP4: Final = replace(NVFP4, compute="bf16")
_WIDE_INT8: Final = replace(INT8, compute="bf16")
_NAMED: Final[Mapping[str, WeightFormat]] = {
    "fp8": FP8,
    "fp8 in blocks": replace(
        FP8, bytes_per_parameter=1 + BLOCK_SCALE_BYTES / 128**2, block_size=128
    ),
    "int8": INT8,
    "mxfp8": MXFP8,
    "nvfp4": NVFP4,
    "wide fp8": replace(FP8, compute="bf16"),
    "wide int8": _WIDE_INT8,
    "wide nvfp4": WEIGHT_ONLY_NVFP4,
}
"""By the names of ``formats.toml``; wide: products in 16 bits."""
_TORCHAO_INT4: Final = frozenset(
    {"Float8DynamicActivationInt4WeightConfig", "Int4WeightOnlyConfig"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a checkpoint stores its modules."""

    default: WeightFormat
    rules: Sequence[Rule] = ()
    """The first that matches a module holds."""


Reader = Callable[[QuantizationKeys], Recipe]


def read_quantization(block: object) -> QuantizationKeys:
    """Read a ``quantization_config``, or a ``hf_quant_config.json``, which has one inside.

    Raises:
        ModelConfigError: names the key and what was read.
        UnknownArchitectureError: vLLM has no such method.
    """
    if not isinstance(block, Mapping):
        raise ModelConfigError(f"quantization_config = {block!r:.100} is no object")
    inner = block.get("quantization")
    values = {**block, **inner} if isinstance(inner, Mapping) else dict(block)
    method = values.get("quant_method")
    if isinstance(method, str):
        method = values["quant_method"] = method.lower().replace("_tensors", "-tensors")
    if isinstance(method, str) and method and method not in _READERS:
        if method in UNREAD_METHODS:
            raise not_understood("quant_method", method)
        raise UnknownArchitectureError(
            f"quantization_config.quant_method = {method!r:.100}: vLLM has no such method; give a "
            f"checkpoint in one that it has: {', '.join(sorted(_READERS))}"
        )
    lists = {key: values.pop(key) for key in IGNORE_KEYS if values.get(key) is not None}
    wrong = {key: each for key, each in lists.items() if not isinstance(each, list)}
    if wrong:
        raise ModelConfigError(f"quantization_config: {wrong!r:.100} is no list of modules")
    if lists:
        values["ignore"] = [name for each in lists.values() for name in each]
    try:
        return QuantizationKeys.model_validate(values)
    except ValidationError as error:
        raise ModelConfigError(f"quantization_config.{first_problem(error)}") from error


def recipe_of(keys: QuantizationKeys) -> Recipe:
    """Return the recipe that a file writes; what it leaves out in a list is not in it.

    Raises:
        ModelConfigError: a key is missing.
        UnknownArchitectureError: the format is not understood.
    """
    if keys.sparsity_config and keys.sparsity_config.get("format") not in (None, "dense"):
        raise not_understood("sparsity_config", keys.sparsity_config.get("format"))
    return _READERS[keys.method](keys)


def _fp8(sides: Sequence[int] | None) -> WeightFormat:
    if sides is None:
        return FP8
    rows, columns = sides
    scale = BLOCK_SCALE_BYTES / (rows * columns)
    return replace(FP8, bytes_per_parameter=1 + scale, block_size=max(rows, columns))


def _integer(
    keys: QuantizationKeys, of_module: ModuleKeys | None = None, *, has_zero_points: bool = True
) -> WeightFormat:
    """Return integers as the file has them, or as it has those of one module."""
    bits, group_size = keys.bits, keys.group_size
    if of_module is not None:
        bits, group_size = of_module.bits or bits, of_module.group_size or group_size
    if bits is None or group_size is None:
        missing = "bits" if bits is None else "group_size"
        raise ModelConfigError(f"quantization_config.{missing} is missing")
    if bits == WIDE_BITS:
        return BF16
    if bits not in {4, 8} or not isinstance(group_size, int) or group_size == 0:
        raise not_understood("bits and group_size", f"{bits} in groups of {group_size}")
    return integer_group_format(bits=bits, group_size=group_size, has_zero_points=has_zero_points)


def _gptq(keys: QuantizationKeys) -> Recipe:
    """GPTQ stores zero points even where it quantizes symmetrically."""
    default = _integer(keys)
    rules: list[Rule] = [
        (
            (f"re:{pattern.removeprefix('-:').removeprefix('+:')}",),
            BF16 if pattern.startswith("-:") else _integer(keys, of_module),
        )
        for pattern, of_module in (keys.dynamic or {}).items()
    ]
    head = [(("lm_head",), default)] if keys.lm_head else []
    listed = [
        name
        for each in keys.modules_in_block_to_quantize or ()
        for name in (each if isinstance(each, list) else [each])
        if "lm_head" not in name  # has a key of its own
    ]
    if not listed:
        return Recipe(default=default, rules=(*rules, *head))
    # What is not listed stays wide, but for routed experts: no list is asked about them.
    named = ("in:.experts", *(f"in:{name}" for name in listed))
    return Recipe(default=BF16, rules=(*rules, (named, default), *head))


def _auto_round(keys: QuantizationKeys) -> Recipe:
    """Names come before expressions, which have marks such as ``*`` or ``$``."""
    default = _rounded(keys)
    of_modules = {name: _rounded(keys, each) for name, each in (keys.extra_config or {}).items()}
    patterns = [name for name in of_modules if any(mark in name for mark in "*+?^$()[]{}|\\")]
    by_pattern = [((f"search:{name}",), of_modules.pop(name)) for name in patterns]
    head = [(("lm_head",), default)] if keys.lm_head else []
    rules = (*_by_format(of_modules.items()), *by_pattern, *head)
    return Recipe(default=default, rules=rules)


def _rounded(keys: QuantizationKeys, of_module: ModuleKeys | None = None) -> WeightFormat:
    bits = (of_module.bits if of_module else None) or keys.bits
    if bits == WIDE_BITS:
        return BF16
    if keys.data_type == "int":
        return _integer(keys, of_module)
    if keys.data_type in {"fp", "fp8"} and isinstance(keys.group_size, list):
        return _fp8(keys.group_size)
    if "mx_fp" in keys.data_type and bits in {4, 8}:
        return MXFP4 if bits == NARROW_BITS else MXFP8
    raise not_understood("data_type and bits", f"{keys.data_type}, {bits}")


def _by_format(named: Iterable[tuple[str, WeightFormat]]) -> list[Rule]:
    """Return a rule for each format: of names in full, whose order is of no matter."""
    by_format: dict[WeightFormat, list[str]] = {}
    for name, stored in named:
        by_format.setdefault(stored, []).append(name)
    return [(names, stored) for stored, names in by_format.items()]


def _modelopt(keys: QuantizationKeys) -> Recipe:
    """A file of one algorithm, or of one for each module; the rest is then in 16 bits."""
    if keys.method == "modelopt_mixed":
        if keys.quantized_layers:
            named = (
                (name, _algorithm(of.quant_algo)) for name, of in keys.quantized_layers.items()
            )
            return Recipe(default=BF16, rules=_by_format(named))
        if keys.config_groups:
            return _compressed_tensors(keys)
    found = _algorithm(keys.quant_algo)
    groups = (keys.config_groups or {}).values()
    if found is NVFP4 and groups and all(each.input_activations is None for each in groups):
        found = WEIGHT_ONLY_NVFP4
    return Recipe(default=found)


def _algorithm(name: str | None) -> WeightFormat:
    upper = (name or "").upper().replace("FP8_BLOCK_SCALES", "FP8_PB_WO")
    if upper not in TABLE["algorithms"]:
        raise not_understood("quant_algo", name)
    return _NAMED[TABLE["algorithms"][upper]]


def _compressed_tensors(keys: QuantizationKeys) -> Recipe:
    """Names and patterns of modules come before the class ``Linear``, which is all of them."""
    groups = (each for each in (keys.config_groups or {}).values() if each.weights)
    rules = [(each.targets, group_format(each, keys)) for each in groups]
    if not rules:
        raise not_understood("format", keys.format)
    whole = [stored for targets, stored in rules if not targets or "Linear" in targets]
    if len(set(whole)) > 1:
        several = count_of(len(whole), "group")
        raise not_understood("config_groups", f"{several} with different weights")
    return Recipe(default=whole[0] if whole else BF16, rules=rules)


def group_format(group: QuantizedGroup, keys: QuantizationKeys) -> WeightFormat:
    """Return the format of one of these groups of matrices.

    Raises:
        UnknownArchitectureError: it is not understood.
    """
    weights, inputs = group.weights, group.input_activations
    if weights is None:
        raise not_understood("format", keys.format)
    match weights.type, weights.num_bits:
        case "float", 8 if weights.group_size == MX_GROUP:
            found = MXFP8
        case "float", 8:
            found = _fp8(_sides(weights.block_structure))
        case "float", 4 if weights.group_size == NVFP4_GROUP:
            found = NVFP4
        case "float", 4 if weights.group_size == MX_GROUP:
            found = MXFP4.with_parts({"experts": _experts_in_mxfp4(_compute(inputs))})
        case "int", 4 | 8:
            found = integer_group_format(
                bits=weights.num_bits,
                group_size=weights.group_size or -1,
                has_zero_points=not weights.symmetric,
            )
        case kind, bits:
            raise not_understood("config_groups", f"{bits} bits of {kind}")
    return replace(found, compute=_compute(inputs))


def _sides(written: Sequence[int] | str | None) -> Sequence[int] | None:
    """Return the sides of a block, which older files write as ``128x128``."""
    if not isinstance(written, str):
        return written
    found = re.fullmatch(r"([1-9]\d{0,4})x([1-9]\d{0,4})", written, re.ASCII)
    return [int(side) for side in found.groups()] if found else None


def _experts_in_mxfp4(compute: str) -> WeightFormat:
    """Return the format of experts, of which vLLM makes products in 4 bits if nobody asks for 8.

    Sources:
        [vllm-source] compressed_tensors_moe.py: CompressedTensorsW4A4Mxfp4MoEMethod; from 0.32 on
        CompressedTensorsW4A8Mxfp4MoEMethod beside it.
    """
    return replace(MXFP4, compute="fp8" if compute == "fp8" else "fp4")


def _compute(inputs: Tensor | None) -> str:
    """Return the precision of the products: that of the activations, or 16 bits."""
    if inputs is None:
        return "bf16"
    if inputs.type not in {"float", "int"}:
        raise not_understood("config_groups", f"activations of the type {inputs.type}")
    widths = {("float", 4): "fp4", ("float", 8): "fp8", ("int", 8): "int8"}
    return widths.get((inputs.type, inputs.num_bits), "bf16")


def _quark(keys: QuantizationKeys) -> Recipe:
    if keys.global_quant_config is None:
        raise ModelConfigError("quantization_config.global_quant_config is missing")
    rules: list[Rule] = [
        ((pattern,), _quark_format(group))
        for pattern, group in (keys.layer_quant_config or {}).items()
    ]
    return Recipe(default=_quark_format(keys.global_quant_config), rules=rules)


def _quark_format(group: QuarkGroup) -> WeightFormat:
    weights, inputs = _entries(group.weight), _entries(group.input_tensors)
    if not weights:
        return BF16
    widths = {"fp4": "fp4", "fp8_e4m3": "fp8", "int8": "int8"}
    compute = widths.get(inputs[0].dtype, "bf16") if inputs else "bf16"
    first = weights[0]
    if first.dtype in widths:
        return replace(_quark_floats(weights, compute), compute=compute)
    if first.dtype not in {"int4", "uint4"}:
        raise not_understood("global_quant_config.weight.dtype", first.dtype)
    return integer_group_format(
        bits=NARROW_BITS,
        group_size=first.group_size or -1,
        has_zero_points=first.symmetric is not True,
    )


def _quark_floats(weights: Sequence[QuarkTensor], compute: str) -> WeightFormat:
    """Return the bytes of floats, and of int8, which has one scale for each row."""
    match weights[0].dtype, weights[0].group_size:
        case "fp4", 16 if len(weights) > 1:
            return NVFP4
        case "fp4", 32:
            return MXFP4.with_parts({"experts": _experts_in_mxfp4(compute)})
        case "fp8_e4m3", 32:
            return MXFP8
        case "fp8_e4m3", _ if len(weights) > 1:  # integers of four bits below scales in fp8
            return integer_group_format(bits=NARROW_BITS, group_size=-1, has_zero_points=False)
        case "fp8_e4m3", _:
            return _fp8(weights[0].block_size)
        case "int8", _:
            return INT8
        case dtype, group_size:
            raise not_understood("global_quant_config", f"{dtype} in groups of {group_size}")


def _entries(written: QuarkTensor | list[QuarkTensor] | None) -> list[QuarkTensor]:
    if written is None:
        return []
    return written if isinstance(written, list) else [written]


def _torchao(keys: QuantizationKeys) -> Recipe:
    """One type for all modules, or one for each name or expression, in full."""
    written = (keys.quant_type or {}).get("default")
    if not isinstance(written, Mapping):
        raise not_understood("quant_type", keys.quant_type)
    data = written.get("_data")
    inner = data if isinstance(data, Mapping) else {}
    by_name = inner.get("module_fqn_to_config", inner.get("fqn_to_config"))
    if not isinstance(by_name, Mapping):
        return Recipe(default=_torchao_format(written))
    rules: list[Rule] = [
        ((f"{name}$" if name.startswith("re:") else str(name),), _torchao_format(each))
        for name, each in by_name.items()
        if name != "_default"
    ]
    return Recipe(default=_torchao_format(by_name.get("_default")), rules=rules)


def _torchao_format(written: object) -> WeightFormat:
    if written is None:
        return BF16
    kind = written.get("_type") if isinstance(written, Mapping) else written
    data = written.get("_data") if isinstance(written, Mapping) else None
    if not isinstance(kind, str):
        raise not_understood("quant_type", kind)
    if kind in _TORCHAO_INT4:
        size = data.get("group_size", DEFAULT_GROUP) if isinstance(data, Mapping) else DEFAULT_GROUP
        if isinstance(size, int) and size > 0:
            return _with_wide_zero_points(size)
    if kind not in TABLE["torchao"]:
        raise not_understood("quant_type", kind)
    return _NAMED[TABLE["torchao"][kind]]


def _with_wide_zero_points(group_size: int) -> WeightFormat:
    """Return integers of four bits with a scale and a zero point of 16 bits for each group."""
    plain = integer_group_format(bits=NARROW_BITS, group_size=group_size, has_zero_points=False)
    return replace(plain, bytes_per_parameter=NARROW_BITS / 8 + 2 * SCALE_BYTES / group_size)


def _bits_and_bytes(keys: QuantizationKeys) -> WeightFormat:
    """Four bits are unpacked to 16, which are written and read: ``dequantize_4bit``."""
    if keys.load_in_8bit:
        return _WIDE_INT8
    each_bytes = 0.5 + BLOCK_SCALE_BYTES / BNB_BLOCK
    return WeightFormat(
        name="int4",
        bytes_per_parameter=each_bytes,
        compute="bf16",
        block_size=BNB_BLOCK,
        traffic=1 + 2 * BF16.bytes_per_parameter / each_bytes,
    )


def _hqq(keys: QuantizationKeys) -> WeightFormat:
    found = (keys.quant_config or {}).get("weight_quant_params")
    params = found if isinstance(found, Mapping) else {}
    bits, group_size = params.get("nbits"), params.get("group_size")
    if bits != NARROW_BITS or not isinstance(group_size, int) or group_size <= 0:
        raise not_understood("quant_config", f"{bits} bits in groups of {group_size}")
    return _with_wide_zero_points(group_size)


def _of_one(stored: Callable[[QuantizationKeys], WeightFormat]) -> Reader:
    return lambda keys: Recipe(default=stored(keys))


_READERS: Final[Mapping[str, Reader]] = {
    **dict.fromkeys(
        ("fp8", "fbgemm_fp8", "deepseek_v4_fp8"), _of_one(lambda keys: _fp8(keys.weight_block_size))
    ),
    **dict.fromkeys(
        ("awq", "awq_marlin", "auto_awq"),
        _of_one(lambda keys: _integer(keys, has_zero_points=keys.zero_point)),
    ),
    **dict.fromkeys(("gptq", "gptq_marlin", "auto_gptq"), _gptq),
    **dict.fromkeys(("auto-round", "inc"), _auto_round),
    **dict.fromkeys(("mxfp4", "gpt_oss_mxfp4"), _of_one(lambda _: MXFP4)),
    "mxfp8": _of_one(lambda _: MXFP8),
    "compressed-tensors": _compressed_tensors,
    **dict.fromkeys(("modelopt", "modelopt_fp4", "modelopt_mixed", "modelopt_mxfp8"), _modelopt),
    "quark": _quark,
    "torchao": _torchao,
    "bitsandbytes": _of_one(_bits_and_bytes),
    "fp_quant": _of_one(
        lambda keys: replace(NVFP4 if keys.forward_dtype == "nvfp4" else MXFP4, compute="bf16")
    ),
    "hqq": _of_one(_hqq),
}
"""Of ``QUANTIZATION_METHODS`` of the releases from 0.10 to 0.33 those that checkpoints have."""
