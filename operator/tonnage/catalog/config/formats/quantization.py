"""From ``quantization_config`` to a weight format: bytes per parameter, scales counted in."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Annotated, Final

from pydantic import AliasChoices, Field, ValidationError

from tonnage.catalog.config.formats.modules import Layer, unquantized_parts
from tonnage.catalog.config.keys.decoder import (
    ModelConfigError,
    UnknownArchitectureError,
    first_problem,
)
from tonnage.catalog.config.keys.types import Block
from tonnage.catalog.shape import HalfType, WeightFormat
from tonnage.units import count_of

SCALE_BYTES: Final = 2
"""Of a group of int4 or int8 weights: one fp16 number."""
BLOCK_SCALE_BYTES: Final = 4
"""Of a block of fp8 weights: one fp32 number."""
MXFP4_GROUP: Final = 32
NVFP4_GROUP: Final = 16
"""Weights that share a scale of one byte, as both 4-bit float formats define it."""
DEFAULT_GROUP: Final = 128
MARLIN_METHODS: Final = frozenset({"awq", "awq_marlin", "gptq", "gptq_marlin"})
MARLIN_GROUPS: Final = frozenset({-1, 32, 64, 128})

BF16: Final = WeightFormat(name="bf16", bytes_per_parameter=2.0, compute="bf16")
FP16: Final = WeightFormat(name="fp16", bytes_per_parameter=2.0, compute="bf16")
FP8: Final = WeightFormat(name="fp8", bytes_per_parameter=1.0, compute="fp8")
INT8: Final = WeightFormat(name="int8", bytes_per_parameter=1.0, compute="int8")
MXFP4: Final = WeightFormat(name="mxfp4", bytes_per_parameter=0.5 + 1 / MXFP4_GROUP, compute="bf16")
"""Weight-only in vLLM's default kernels: the activations keep 16 bits."""
NVFP4: Final = WeightFormat(name="nvfp4", bytes_per_parameter=0.5 + 1 / NVFP4_GROUP, compute="fp4")


def integer_group_format(
    *, bits: int, group_size: int, has_zero_points: bool, name: str = ""
) -> WeightFormat:
    """Return the format of integers in groups that share a scale and perhaps a zero point.

    ``bits / 8 + scale / group (+ bits / 8 / group)``. Weight-only: multiplied in 16 bits. A
    group size of -1 means one scale per row, too few to count.

    >>> integer_group_format(bits=4, group_size=128, has_zero_points=True).bytes_per_parameter
    0.51953125
    """
    width_bytes = bits / 8
    shared = SCALE_BYTES + (width_bytes if has_zero_points else 0)
    overhead = shared / group_size if group_size > 0 else 0.0
    return WeightFormat(
        name=name or f"int{bits}",
        bytes_per_parameter=width_bytes + overhead,
        compute="bf16",
        block_size=group_size if group_size > 0 else None,
    )


WEIGHT_FORMATS: Final[Mapping[str, WeightFormat]] = MappingProxyType(
    {
        "bfloat16": BF16,
        "float16": FP16,
        "fp8": FP8,
        "int8": INT8,
        "int4": replace(
            integer_group_format(bits=4, group_size=DEFAULT_GROUP, has_zero_points=True),
            says_unquantized=False,
        ),
        "mxfp4": replace(MXFP4, says_unquantized=False),
        "nvfp4": replace(NVFP4, says_unquantized=False),
    }
)
"""What ``spec.model.weights`` may ask for, as the usual recipes store it. Those of four bits are of
a checkpoint that is not known; the others a server makes itself, of every matrix."""
LISTING_METHODS: Final = ("compressed-tensors", "modelopt", "modelopt_fp4")
"""Whose files list what they leave out; of the others an absent list leaves nothing out."""


_Names = Annotated[list[Annotated[str, Field(max_length=500)]], Field(max_length=100_000)]


class _Tensor(Block):
    num_bits: Annotated[int, Field(ge=1, le=16)]
    type: Annotated[str, Field(max_length=20)]
    group_size: Annotated[int, Field(ge=-1, le=100_000)] | None = None
    symmetric: bool = True
    actorder: Annotated[str, Field(max_length=20)] | bool | None = None


class QuantizedGroup(Block):
    """Matrices that are stored alike."""

    weights: _Tensor | None = None
    input_activations: _Tensor | None = None
    targets: _Names = Field(default=[])


class _CacheScheme(Block):
    num_bits: Annotated[int, Field(ge=1, le=16)]
    type: Annotated[str, Field(max_length=20)] = "float"
    dynamic: bool = False


class QuantizationKeys(Block):
    """The keys that decide bytes. Observers and calibration settings are not read."""

    quant_method: Annotated[str, Field(max_length=100)] | None = None
    quant_algo: Annotated[str, Field(max_length=100)] | None = None
    moe_quant_algo: Annotated[str, Field(max_length=100)] | None = None
    format: Annotated[str, Field(max_length=100)] | None = None
    bits: Annotated[int, Field(ge=1, le=16)] | None = None
    group_size: Annotated[int, Field(ge=-1, le=100_000)] | None = None
    zero_point: bool = True
    sym: bool = True
    desc_act: bool = False
    weight_block_size: (
        Annotated[list[Annotated[int, Field(gt=0, le=100_000)]], Field(min_length=2, max_length=2)]
        | None
    ) = None
    config_groups: Annotated[dict[str, QuantizedGroup], Field(max_length=500)] | None = None
    ignore: _Names | None = Field(
        default=None,
        validation_alias=AliasChoices("ignore", "modules_to_not_convert", "exclude_modules"),
    )
    kv_cache_scheme: _CacheScheme | Annotated[str, Field(max_length=100)] | None = None
    kv_cache_quant_algo: Annotated[str, Field(max_length=100)] | None = None
    sparsity_config: dict[str, object] | None = None
    dynamic: dict[str, object] | None = None

    @property
    def method(self) -> str:
        """``quant_method``; older ModelOpt files name the algorithm only.

        Raises:
            ModelConfigError: neither is given.
        """
        if self.quant_method:
            return self.quant_method
        if self.quant_algo:
            return "modelopt"
        raise ModelConfigError("quantization_config.quant_method is missing")

    @property
    def orders_activations(self) -> bool:
        """Tell whether groups of weights are in the order of their activations.

        Sources:
            [vllm-source] quantization/utils/gptq_utils.py, compressed_tensors.py.
        """
        groups = (self.config_groups or {}).values()
        orders = {group.weights.actorder for group in groups if group.weights}
        return (self.desc_act and self.group_size != -1) or bool(
            orders & {"group", "dynamic", True}
        )


def read_quantization(block: object) -> QuantizationKeys:
    """Read a ``quantization_config``.

    Raises:
        ModelConfigError: names the key and what was read.
    """
    if not isinstance(block, Mapping):
        raise ModelConfigError(f"quantization_config = {block!r:.100} is no object")
    try:
        return QuantizationKeys.model_validate(dict(block))
    except ValidationError as error:
        raise ModelConfigError(f"quantization_config.{first_problem(error)}") from error


def stored_weights(
    keys: QuantizationKeys, layers: Sequence[Layer], own_names: Mapping[str, str]
) -> WeightFormat:
    """Return how the checkpoint stores the weights of these layers.

    Raises:
        ModelConfigError: a key is missing.
        UnknownArchitectureError: the format, or a mixture of formats, is not understood.
    """
    found = _weight_format(keys)
    ignored = unquantized_parts(keys.ignore or [], layers, own_names)
    if keys.method == "mxfp4":  # gpt-oss: the experts only, whatever the list says
        ignored |= {"attention", "state_attention", "dense_ffn", "shared_experts"}
    is_listed = keys.ignore is not None or keys.method not in LISTING_METHODS
    return replace(found, unquantized=frozenset(ignored), says_unquantized=is_listed)


def _weight_format(keys: QuantizationKeys) -> WeightFormat:
    if keys.sparsity_config and keys.sparsity_config.get("format") != "dense":
        raise _unknown("sparsity_config", keys.sparsity_config.get("format"))
    if keys.dynamic:
        raise _unknown("dynamic", "rules per module")
    match keys.method:
        case "fp8" | "fbgemm_fp8":
            return _block_fp8(keys)
        case "awq" | "gptq" | "gptq_marlin" | "awq_marlin" | "auto-round":
            return _integer(keys)
        case "mxfp4":
            return MXFP4
        case "modelopt" | "modelopt_fp4":
            return _modelopt(keys)
        case "compressed-tensors":
            return _compressed_tensors(keys)
        case method:
            raise _unknown("quant_method", method)


def _block_fp8(keys: QuantizationKeys) -> WeightFormat:
    if keys.weight_block_size is None:
        return FP8
    rows, columns = keys.weight_block_size
    scale = BLOCK_SCALE_BYTES / (rows * columns)
    return replace(FP8, bytes_per_parameter=1 + scale, block_size=max(rows, columns))


def _integer(keys: QuantizationKeys) -> WeightFormat:
    bits, group_size = keys.bits, keys.group_size
    if bits is None or group_size is None:
        missing = "bits" if bits is None else "group_size"
        raise ModelConfigError(f"quantization_config.{missing} is missing")
    if bits not in {4, 8} or group_size == 0:
        raise _unknown("bits and group_size", f"{bits} in groups of {group_size}")
    # GPTQ stores zero points even where it quantizes symmetrically; AWQ says whether it has them.
    has_zero_points = keys.zero_point if keys.method.startswith("awq") else True
    return integer_group_format(bits=bits, group_size=group_size, has_zero_points=has_zero_points)


def _modelopt(keys: QuantizationKeys) -> WeightFormat:
    match keys.quant_algo:
        case "FP8":
            return FP8
        case "NVFP4":
            _same_weights(keys)
            return NVFP4
        case algorithm:
            raise _unknown("quant_algo", algorithm)


def _compressed_tensors(keys: QuantizationKeys) -> WeightFormat:
    group = _same_weights(keys)
    if group is None:
        raise _unknown("format", keys.format)
    return group_format(group, keys)


def group_format(group: QuantizedGroup, keys: QuantizationKeys) -> WeightFormat:
    """Return the format of one of these groups of matrices.

    Raises:
        UnknownArchitectureError: it is not understood.
    """
    if group.weights is None:
        raise _unknown("format", keys.format)
    weights, inputs = group.weights, group.input_activations
    match weights.type, weights.num_bits:
        case "float", 8:
            found = FP8
        case "float", 4 if weights.group_size == NVFP4_GROUP:
            found = NVFP4
        case "float", 4 if weights.group_size == MXFP4_GROUP:
            found = replace(MXFP4, own_of_experts=_experts_in_mxfp4(inputs))
        case "int", 4 | 8:
            found = integer_group_format(
                bits=weights.num_bits,
                group_size=weights.group_size or -1,
                has_zero_points=not weights.symmetric,
            )
        case kind, bits:
            raise _unknown("config_groups", f"{bits} bits of {kind}")
    return replace(found, compute=_compute(inputs))


def _experts_in_mxfp4(inputs: _Tensor | None) -> WeightFormat:
    """Return the format of experts, of which vLLM makes products in 4 bits if nobody asks for 8.

    Sources:
        [vllm-source] compressed_tensors_moe.py: CompressedTensorsW4A4Mxfp4MoEMethod; from 0.32 on
        CompressedTensorsW4A8Mxfp4MoEMethod beside it.
    """
    return replace(MXFP4, compute="fp8" if _compute(inputs) == "fp8" else "fp4")


def _compute(inputs: _Tensor | None) -> str:
    """Return the precision of the products: that of the activations, or 16 bits."""
    if inputs is None:
        return "bf16"
    if inputs.type not in {"float", "int"}:
        raise _unknown("config_groups", f"activations of the type {inputs.type}")
    widths = {("float", 4): "fp4", ("float", 8): "fp8", ("int", 8): "int8"}
    return widths.get((inputs.type, inputs.num_bits), "bf16")


def _same_weights(keys: QuantizationKeys) -> QuantizedGroup | None:
    """Return the group of all matrices; several that differ in the weights are not understood."""
    groups = list((keys.config_groups or {}).values())
    if any(group.weights != groups[0].weights for group in groups):
        several = count_of(len(groups), "group")
        raise _unknown("config_groups", f"{several} with different weights")
    if any(target != "Linear" for group in groups for target in group.targets):
        target = next(t for group in groups for t in group.targets if t != "Linear")
        raise _unknown("config_groups", f"target {target!r:.100}")
    return groups[0] if groups else None


def cache_format(keys: QuantizationKeys) -> str:
    """Return what vLLM's ``auto`` means here: bf16, or fp8 or nvfp4 where the file has its scales.

    Of ModelOpt what vLLM does not know leaves the cache in 16 bits; of compressed-tensors it does
    not start; other methods have no scheme that it reads.

    Sources:
        [vllm-source] utils/torch_utils.py get_kv_cache_quant_algo_string; layers/quantization
        compressed_tensors.py validate_kv_cache_scheme; layers/attention/attention.py.
    """
    scheme = keys.kv_cache_scheme or keys.kv_cache_quant_algo
    if scheme is None or not keys.method.startswith(("modelopt", "compressed-tensors")):
        return "bf16"
    is_modelopt = keys.method.startswith("modelopt")
    found = scheme.lower() if isinstance(scheme, str) else _scheme_name(scheme, is_modelopt)
    if found == "fp8":
        return "fp8"
    if is_modelopt:
        return found if found == "nvfp4" else "bf16"
    raise _unknown("kv_cache_scheme", scheme if isinstance(scheme, str) else found)


def _scheme_name(scheme: _CacheScheme, is_modelopt: bool) -> str:
    match scheme.type, scheme.num_bits:
        case "float", 8 if not (is_modelopt and scheme.dynamic):
            return "fp8"
        case "float", 4:
            return "nvfp4"
        case kind, bits:
            return f"{bits} bits of {kind}"


def dtype_beside(keys: QuantizationKeys, declared: HalfType | None) -> HalfType:
    """Return the 16-bit type to compute in: the one declared, where the kernels take it.

    AWQ and GPTQ have kernels that take float16 only, and others (Marlin) for the usual layouts.

    Sources:
        [vllm-source] layers/quantization: get_supported_act_dtypes, is_awq_marlin_compatible,
        is_gptq_marlin_compatible; utils/marlin_utils.py MARLIN_SUPPORTED_GROUP_SIZES.
    """
    if keys.method not in MARLIN_METHODS:
        return declared or "bfloat16"
    is_usual = keys.zero_point if keys.method.startswith("awq") else keys.sym
    has_marlin = is_usual and keys.group_size in MARLIN_GROUPS
    return declared if declared and has_marlin else "float16"


def _unknown(key: str, value: object) -> UnknownArchitectureError:
    return UnknownArchitectureError(
        f"weights stored with quantization_config.{key} = {value!r:.100} are not understood yet"
    )
