"""Which kernels unpack weights to 16 bits before they multiply, by version and board.

A format has products of its own where the board has units for it, and the engine a kernel for
them. Elsewhere the engine takes kernels that read narrow weights and multiply wide ones:
``engines/kernels.toml`` names them as each release chooses by default.
"""

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, TypeAdapter
from pydantic.dataclasses import dataclass

from tonnage.catalog.engine import at_version
from tonnage.catalog.gpu import Gpu
from tonnage.catalog.shape import ModelShape, WeightFormat

KERNELS_FILE = Path(__file__).parent / "engines" / "kernels.toml"
Part = Literal["dense", "experts"]
WIDE = "bf16"
WEIGHT_ONLY = frozenset({"fp8", "mxfp8", "nvfp4"})
"""Formats of floats whose files may ask for products in 16 bits."""
AS_MARLIN = ("marlin", "humming")
"""Kernels whose rate is Marlin's. Humming goes before Marlin on Hopper from 0.32 on, and is in no
table: a bound."""


@dataclass(frozen=True, slots=True, kw_only=True, config=ConfigDict(extra="forbid"))
class KernelTable:
    """The kernels by format, board or generation, and the first version that takes them."""

    source: str
    names: Mapping[str, str]
    """As releases write them."""
    dense_share: Mapping[str, float]
    """Of the rate in 16 bits, of ``AS_MARLIN``, by generation; elsewhere all of it."""
    dense: Mapping[str, Mapping[str, Mapping[str, str]]]
    """Empty: products are those of the format."""
    experts: Mapping[str, Mapping[str, Mapping[str, str]]]


@cache
def kernel_table() -> KernelTable:
    """Return the table as the data file has it."""
    return TypeAdapter(KernelTable).validate_python(tomllib.loads(KERNELS_FILE.read_text()))


def unpacking_kernels(gpu: Gpu, stored: str, part: Part, minor: str = "") -> str:
    """Name the kernels that unpack weights stored in a format; empty: none that is known of.

    ``minor``: of the engine's version; the newest if empty.

    Sources:
        [vllm-source] layers/quantization, kernels/linear and layers/fused_moe/oracle: what each
        release from 0.11 to 0.33 chooses, asked of its own functions.
    """
    by_board = (kernel_table().dense if part == "dense" else kernel_table().experts).get(stored, {})
    name = gpu.name if gpu.name in by_board else gpu.generation
    return at_version(by_board[name], minor) if name in by_board else ""


def unpacked_share(gpu: Gpu, kernels: str) -> float:
    """Return what kernels that unpack dense weights have of the rate of products in 16 bits.

    Machete's and those of before Marlin: at most all of it.
    """
    return kernel_table().dense_share.get(gpu.generation, 1.0) if kernels in AS_MARLIN else 1.0


def kernels_of_dense(gpu: Gpu, weights: WeightFormat, minor: str = "") -> str:
    """Name the kernels that unpack what is quantized beside experts; empty: none that is known of.

    Of floats that a file asks to multiply in 16 bits it is Marlin, whatever the board could.

    Sources:
        [vllm-source] compressed_tensors_w8a16_fp8.py, modelopt.py (W4A16_NVFP4).
    """
    stored = scaling_of(weights)
    if stored == "mxfp4" and weights.compute != WIDE:
        stored = f"{stored}-{weights.compute}"
    found = unpacking_kernels(gpu, stored, "dense", minor)
    is_asked = weights.name in WEIGHT_ONLY and weights.compute == WIDE
    return found or ("marlin" if is_asked else "")


def products_in(gpu: Gpu, weights: WeightFormat, minor: str = "") -> str:
    """Return the precision in which a version multiplies quantized matrices beside experts."""
    return WIDE if kernels_of_dense(gpu, weights, minor) else weights.compute


def dense_kernels(gpu: Gpu, weights: WeightFormat, shape: ModelShape, minor: str = "") -> str:
    """Name the kernels that unpack what a model multiplies beside routed experts; empty: none.

    Some files leave all of these matrices in 16 bits.
    """
    if shape.has_experts and "attention" in weights.unquantized:
        return ""
    return kernels_of_dense(gpu, weights, minor)


def scaling_of(weights: WeightFormat) -> str:
    """Name how the products of quantized matrices are scaled: fp8 in blocks is another kernel."""
    is_in_blocks = weights.name == "fp8" and weights.block_size is not None
    return "fp8-block" if is_in_blocks else weights.name


def format_of_experts(weights: WeightFormat) -> str:
    """Name the format in which routed experts are stored."""
    each_bytes = weights.part_bytes_per_parameter("experts")
    is_wide = each_bytes >= weights.wide_bytes_per_parameter
    return WIDE if is_wide else scaling_of(weights.of_experts)


def kernels_of_experts(gpu: Gpu, weights: WeightFormat, minor: str = "") -> str:
    """Name the kernels that unpack routed experts; empty: none that is known of.

    Of mxfp4 the kernels hang on the precision of activations that its file asks for.
    """
    stored, compute = format_of_experts(weights), weights.of_experts.compute
    is_narrow = stored == "mxfp4" and compute != WIDE
    return unpacking_kernels(gpu, f"{stored}-{compute}" if is_narrow else stored, "experts", minor)
