"""What an engine version runs on a board, in a format, of a kind, and with which kernels.

A format has products of its own where the board has units for it, and the engine a kernel for them.
Elsewhere the engine takes kernels that read narrow weights and multiply wide ones, by default those
of ``engines/kernels.toml``.
"""

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter

from tonnage.catalog.cache_types import CACHE_TYPES
from tonnage.catalog.engine import at_version, parse_version
from tonnage.catalog.gpu import FORBID_EXTRA, Gpu
from tonnage.catalog.shape import Assumption, ModelShape, WeightFormat

DEPRECATED_FLAG = "--allow-deprecated-quantization"
LIMITS_FILE = Path(__file__).parent / "engines" / "limits.toml"


@cache
def _limits() -> Mapping[str, Any]:
    return tomllib.loads(LIMITS_FILE.read_text())


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """What a request would have an engine run."""

    engine_minor: str
    gpu: Gpu
    shape: ModelShape
    weights_name: str
    """Of the format: a key of ``[weights]``, or one that has no limit."""
    cache: str = "bf16"
    """A key of ``CACHE_TYPES``."""


def refusals(use: Use) -> Iterator[str]:
    """Yield why the engine would not start; a board of an unknown generation is not judged.

    Sources:
        [vllm-source] docs/getting_started/installation/gpu, layers/quantization,
        v1/attention/backends, config/model.py, models/registry.py.
    """
    yield from _of_kind(use)
    capability = _limits()["generations"].get(use.gpu.generation)
    if capability is not None:
        yield from _of_board(use, capability)


def _of_kind(use: Use) -> Iterator[str]:
    asked, quantization = parse_version(use.engine_minor), _limits()["quantization"]
    model_type, method = use.shape.model_type, use.shape.quant_method
    kind = f"vLLM serves models of the kind {model_type}"
    yield from _of_versions(_limits(), model_type, kind, asked)
    if method not in quantization["plugins"]:
        deed = f"vLLM takes checkpoints of {method}"
        yield from _of_versions(quantization, method, deed, asked)
    last_ordered = quantization["activation_order_until"]
    if use.shape.orders_activations and asked > parse_version(last_ordered):
        yield (
            "vLLM takes quantized weights that are ordered by activation (desc_act, actorder) up "
            f"to {last_ordered} only"
        )
    if not use.gpu.has_bf16 and needs_bf16(model_type):
        yield (
            f"models of the kind {model_type} do not run in float16, and {use.gpu.name} has no bf16"
        )


def _of_versions(
    rules: Mapping[str, Any], name: str, deed: str, asked: tuple[int, ...]
) -> Iterator[str]:
    first, last = rules["first_version"].get(name), rules["last_version"].get(name)
    if first and asked < parse_version(first):
        yield f"{deed} from {first} on"
    if last and asked > parse_version(last):
        yield f"{deed} up to {last} only"


def method_assumptions(method: str, engine_minor: str) -> Iterator[Assumption]:
    """Yield what a version needs to start with checkpoints of a method, and is taken to have.

    Sources:
        [vllm-source] layers/quantization/__init__.py, config/model.py _verify_quantization.
    """
    rules, asked = _limits()["quantization"], parse_version(engine_minor)
    last = rules["last_version"].get(method)
    if last and asked > parse_version(last) and method in rules["plugins"]:
        yield Assumption(
            about="weights",
            taken=f"{method}: vLLM after {last} starts with it only if the image has "
            f"{rules['plugins'][method]}; that is assumed",
            effect="start",
            replaced_by=f"engine.version {last}, or a checkpoint of another method",
        )
    since = rules["deprecated_since"].get(method)
    if since and asked >= parse_version(since):
        yield Assumption(
            about="flags",
            taken=f"{method}: vLLM from {since} on starts with it only with {DEPRECATED_FLAG}, "
            "which is assumed",
            effect="start",
            replaced_by=f"engine.args: [{DEPRECATED_FLAG}]",
        )


def _of_board(use: Use, capability: int) -> Iterator[str]:
    yield from board_refusals(use.engine_minor, use.gpu)
    asked = parse_version(use.engine_minor)
    of_then: Iterator[int] = (
        rule["formats"].get(use.weights_name, 0)
        for rule in _limits()["weights_before"]
        if asked < parse_version(rule["version"])
        and rule.get("method", use.shape.quant_method) == use.shape.quant_method
    )
    least = max(_limits()["weights"].get(use.weights_name, 0), *of_then, 0)
    if capability < least:
        yield _lack(f"weights in {use.weights_name}", least, use.gpu, capability)


def adapter_kinds(group: str) -> frozenset[str]:
    """Return the kinds of model of a group of those whose LoRA adapters are counted."""
    return frozenset(_limits()["adapters"][group])


def flag_refusals(engine_minor: str, arguments: Iterable[str]) -> Iterator[str]:
    """Yield which of these arguments a version does not know.

    Sources:
        [vllm-source] engine/arg_utils.py.
    """
    for argument in arguments:
        first = _limits()["flags"].get(argument.partition("=")[0].removeprefix("--"))
        if first and parse_version(engine_minor) < parse_version(first):
            yield f"{argument.partition('=')[0]} is known to vLLM from {first} on"


def nodes_refusal(engine_minor: str) -> str | None:
    """Return why a version runs no replica over several nodes; None: it does.

    >>> nodes_refusal("0.11")
    'vLLM runs a replica over several nodes without Ray (--nnodes) from 0.12 on, not 0.11'
    """
    since = _limits()["nodes"]["since"]
    if parse_version(engine_minor) >= parse_version(since):
        return None
    return (
        f"vLLM runs a replica over several nodes without Ray (--nnodes) from {since} on, "
        f"not {engine_minor}"
    )


def needs_bf16(model_type: str) -> bool:
    """Tell whether vLLM refuses to compute a kind of model in float16."""
    return model_type in _limits()["float16"]["refused"]


def automatic_cache(use: Use) -> str:
    """Return the type that ``--kv-cache-dtype auto`` is, a key of ``CACHE_TYPES``.

    Sources:
        [vllm-source] utils/torch_utils.py resolve_kv_cache_dtype_string: what the checkpoint says;
        models/config.py: what a kind of model has.
    """
    asked, rules = parse_version(use.engine_minor), _limits()["cache"]
    since = rules["of_checkpoint_since"].get(use.shape.kv_cache_format)
    if since and asked >= parse_version(since):
        return use.shape.kv_cache_format
    is_fp8 = any(
        rule["kind"] == use.shape.model_type
        and parse_version(rule["since"]) <= asked <= parse_version(rule["until"])
        and use.gpu.generation in rule.get("generations", (use.gpu.generation,))
        for rule in rules["defaults"]
    )
    return "fp8" if is_fp8 else "bf16"


def board_refusals(engine_minor: str, gpu: Gpu) -> Iterator[str]:
    """Yield why a version does not run on a board at all, and up to which version one does.

    Sources:
        [vllm-source] docs/getting_started/installation/gpu.
    """
    capability = _limits()["generations"].get(gpu.generation)
    asked = parse_version(engine_minor)
    for rule in _limits()["boards"] if capability is not None else ():
        if parse_version(rule["since"]) <= asked and capability < rule["least_capability"]:
            lack = _lack(f"vLLM from {rule['since']} on", rule["least_capability"], gpu, capability)
            yield f"{lack}; earlier versions run on it"


def cache_refusal(use: Use) -> str | None:
    """Say why there are no kernels for such a cache; None: there are.

    Or in 16 bits, why that of a checkpoint that has one in fp8 would be that, whatever is asked.

    Sources:
        [vllm-source] layers/attention/attention.py Attention: kv_cache_scheme went before what was
        asked for; csrc quant_utils.cuh: until 0.19 no 16-bit type was known by its name.
    """
    if use.cache == "bf16":
        rules, asked = _limits()["cache"], parse_version(use.engine_minor)
        first, named = rules["of_checkpoint_since"]["fp8"], rules["of_checkpoint_yields_since"]
        is_known = not parse_version(first) <= asked < parse_version(named)
        if is_known or use.shape.kv_cache_format != "fp8":
            return None
        return (
            f"the checkpoint has a cache in fp8, and vLLM {use.engine_minor} takes no 16 bits in "
            f"its place; {named} and later do"
        )
    capability = _limits()["generations"].get(use.gpu.generation)
    least = CACHE_TYPES[use.cache].least_capability
    if capability is None or capability >= least:
        return None
    return _lack(f"a cache in {use.cache}", least, use.gpu, capability)


def cache_kernels(use: Use) -> str | None:
    """Say which version has kernels for such a cache on this board; None: this one has."""
    capability = _limits()["generations"].get(use.gpu.generation)
    families = CACHE_TYPES[use.cache].families
    family = (capability or 0) // 10
    if not family or not families or family in at_version(families, use.engine_minor):
        return None
    later = next(
        (since for since, those in families.items() if family in those), "no later version"
    )
    return f"vLLM {use.engine_minor} has no kernels for it on {use.gpu.name}, {later} has"


def _lack(what: str, least: int, gpu: Gpu, capability: int) -> str:
    return (
        f"{what} needs compute capability {least / 10:.1f}, {gpu.name} ({gpu.generation}) has "
        f"{capability / 10:.1f}"
    )


KERNELS_FILE = LIMITS_FILE.with_name("kernels.toml")
Part = Literal["dense", "experts"]
WIDE = "bf16"
WEIGHT_ONLY = frozenset({"fp8", "mxfp8", "nvfp4"})
"""Formats of floats whose files may ask for products in 16 bits."""
AS_MARLIN = ("marlin", "humming")
"""Kernels whose rate is Marlin's. Humming goes before Marlin on Hopper from 0.32 on, and is in no
table: a bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTable:
    """The kernels by format, board or generation, and the first version that takes them."""

    __pydantic_config__ = FORBID_EXTRA

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
