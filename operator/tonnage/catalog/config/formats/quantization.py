"""The keys of a ``quantization_config``, and the formats that they name: bytes and precision."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Annotated, Final

from pydantic import AliasChoices, Field

from tonnage.catalog.config.keys.decoder import Block, ModelConfigError, UnknownArchitectureError
from tonnage.catalog.shape import HalfType, WeightFormat

SCALE_BYTES: Final = 2
"""Of a group of int4 or int8 weights: one fp16 number."""
BLOCK_SCALE_BYTES: Final = 4
"""Of a block of fp8 weights: one fp32 number."""
MX_GROUP: Final = 32
NVFP4_GROUP: Final = 16
"""Weights that share a scale of one byte, as these formats define it."""
DEFAULT_GROUP: Final = 128
MARLIN_METHODS: Final = frozenset({"awq", "awq_marlin", "gptq", "gptq_marlin"})
MARLIN_GROUPS: Final = (-1, 32, 64, 128)

BF16: Final = WeightFormat(name="bf16", bytes_per_parameter=2.0, compute="bf16")
FP16: Final = WeightFormat(name="fp16", bytes_per_parameter=2.0, compute="bf16")
FP8: Final = WeightFormat(name="fp8", bytes_per_parameter=1.0, compute="fp8")
INT8: Final = WeightFormat(name="int8", bytes_per_parameter=1.0, compute="int8")
MXFP4: Final = WeightFormat(name="mxfp4", bytes_per_parameter=0.5 + 1 / MX_GROUP, compute="bf16")
"""Weight-only in vLLM's default kernels: the activations keep 16 bits."""
MXFP8: Final = WeightFormat(name="mxfp8", bytes_per_parameter=1 + 1 / MX_GROUP, compute="fp8")
NVFP4: Final = WeightFormat(name="nvfp4", bytes_per_parameter=0.5 + 1 / NVFP4_GROUP, compute="fp4")


def integer_group_format(*, bits: int, group_size: int, has_zero_points: bool) -> WeightFormat:
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
        name=f"int{bits}",
        bytes_per_parameter=width_bytes + overhead,
        compute="bf16",
        block_size=group_size if group_size > 0 else None,
    )


READ_FROM: Final = "read_from"
"""A key that no publisher writes: the file that the others were read from, if not config.json."""
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
_Word = Annotated[str, Field(max_length=100)]
_Bits = Annotated[int, Field(ge=1, le=16)]
_Group = Annotated[int, Field(ge=-1, le=100_000)]
_Module = Annotated[str, Field(max_length=500)]
_Names = Annotated[list[_Module], Field(max_length=200_000)]
_Sides = Annotated[list[Annotated[int, Field(gt=0, le=100_000)]], Field(min_length=2, max_length=2)]


class Tensor(Block):
    """How numbers are stored, as compressed-tensors writes it."""

    num_bits: _Bits
    type: Annotated[str, Field(max_length=20)]
    group_size: _Group | None = None
    symmetric: bool = True
    actorder: Annotated[str, Field(max_length=20)] | bool | None = None
    block_structure: _Sides | _Word | None = None


class QuarkTensor(Block):
    """The same, as Quark writes it."""

    dtype: _Word
    group_size: _Group | None = None
    symmetric: bool | None = None
    block_size: _Sides | None = None


class QuarkGroup(Block):
    """Matrices that are stored alike; nvfp4 has two entries, of blocks and of the scales."""

    weight: QuarkTensor | list[QuarkTensor] | None = None
    input_tensors: QuarkTensor | list[QuarkTensor] | None = None


class ModuleKeys(Block):
    """What is said of one module, or of those of a pattern, beside what holds for all."""

    bits: _Bits | None = None
    group_size: _Group | _Sides | None = None
    quant_algo: _Word | None = None


_ByModule = Annotated[dict[_Module, ModuleKeys], Field(max_length=200_000)]


class QuantizedGroup(Block):
    """Matrices that are stored alike."""

    weights: Tensor | None = None
    input_activations: Tensor | None = None
    targets: _Names = Field(default=[])


class _CacheScheme(Block):
    num_bits: Annotated[int, Field(ge=1, le=16)]
    type: Annotated[str, Field(max_length=20)] = "float"
    dynamic: bool = False


IGNORE_KEYS: Final = (
    "ignore", "modules_to_not_convert", "exclude_modules", "ignored_layers", "exclude",
    "skip_modules", "llm_int8_skip_modules",
)  # fmt: skip
"""Names of the list of what stays in 16 bits; some files have several, all but one empty."""


class QuantizationKeys(Block):
    """The keys that decide bytes. Observers and calibration settings are not read."""

    quant_method: _Word | None = None
    quant_algo: _Word | None = None
    moe_quant_algo: _Word | None = None
    format: _Word | None = None
    bits: _Bits | None = Field(default=None, validation_alias=AliasChoices("w_bit", "bits"))
    group_size: _Group | _Sides | None = Field(
        default=None, validation_alias=AliasChoices("q_group_size", "group_size")
    )
    zero_point: bool = True
    sym: bool = True
    desc_act: bool = False
    lm_head: bool = False
    read_from: _Word | None = None
    data_type: _Word = "int"
    load_in_8bit: bool = False
    forward_dtype: _Word | None = None
    weight_block_size: _Sides | None = None
    config_groups: Annotated[dict[str, QuantizedGroup], Field(max_length=500)] | None = None
    ignore: _Names | None = None
    """Of all lists under ``IGNORE_KEYS``."""
    kv_cache_scheme: _CacheScheme | _Word | None = None
    kv_cache_quant_algo: _Word | None = None
    sparsity_config: dict[str, object] | None = None
    dynamic: _ByModule | None = None
    modules_in_block_to_quantize: (
        Annotated[
            list[_Module | Annotated[list[_Module], Field(max_length=500)]],
            Field(max_length=200_000),
        ]
        | None
    ) = None
    extra_config: _ByModule | None = None
    quantized_layers: _ByModule | None = None
    quant_type: dict[str, object] | None = None
    quant_config: dict[str, object] | None = None
    global_quant_config: QuarkGroup | None = None
    layer_quant_config: Annotated[dict[_Module, QuarkGroup], Field(max_length=10_000)] | None = None

    @property
    def method(self) -> str:
        """``quant_method``, of ModelOpt as vLLM tells its kinds apart.

        Older ModelOpt files name the algorithm only.

        Raises:
            ModelConfigError: neither is given.

        Sources:
            [vllm-source] modelopt.py override_quantization_method.
        """
        method, algorithm = self.quant_method, (self.quant_algo or "").upper()
        if not method and not algorithm:
            raise ModelConfigError("quantization_config.quant_method is missing")
        if method and not method.startswith("modelopt"):
            return method
        kinds = {"MXFP8": "modelopt_mxfp8", "MIXED_PRECISION": "modelopt_mixed"}
        return kinds.get(algorithm, method or "modelopt")

    @property
    def kind(self) -> str:
        """The method, of GPTQ with its variant that later versions of vLLM do not have."""
        is_variant = "gptq" in self.method and not self.sym
        return f"asymmetric {self.method}" if is_variant else self.method

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
    raise not_understood("kv_cache_scheme", scheme if isinstance(scheme, str) else found)


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


def not_understood(key: str, value: object) -> UnknownArchitectureError:
    """Return the error that names a key and its value."""
    return UnknownArchitectureError(
        f"weights stored with quantization_config.{key} = {value!r:.100} are not understood yet"
    )
