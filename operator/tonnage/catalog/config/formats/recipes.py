"""From the keys of a ``quantization_config`` to the format of each part of a model."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from tonnage.catalog.config.formats.methods import recipe_of
from tonnage.catalog.config.formats.modules import Layer, formats_by_part, is_pattern
from tonnage.catalog.config.formats.quantization import (
    BF16,
    FP8,
    MXFP4,
    NVFP4,
    QuantizationKeys,
)
from tonnage.catalog.config.keys.decoder import UnknownArchitectureError
from tonnage.catalog.shape import QUANTIZED_PARTS, Assumption, MoeFfn, WeightFormat
from tonnage.units import count_of

LISTING_METHODS: Final = ("compressed-tensors", "modelopt", "modelopt_fp4", "modelopt_mxfp8")
"""Whose files list what they leave out; of the others an absent list leaves nothing out."""
PARTIAL_METHODS: Final = ("awq", "auto_awq", "modelopt")
"""Whose lists name any part of a module's name, not whole words of it only."""
MANY_NAMES: Final = 8
EVERYTHING: Final = "in:"
KNOWN_BLOCKS: Final = frozenset(
    {"block_sparse_moe", "feed_forward", "linear_attn", "mlp", "self_attn"}
)
_IN_LAYER: Final = re.compile(r"(?:layers|blocks?|h)\.\d+\.(\w+)", re.ASCII)
_BESIDE: Final = re.compile(
    "audio|conv|draft|eh_proj|embed|encoder|gate|head|indexer|mtp|norm|router|speech|vis"
)
"""Encoders, draft layers, and what is a few parameters in a hundred."""
LINEAR_METHODS: Final = frozenset({"fbgemm_fp8", "fp_quant", "hqq", "torchao"})
"""With which vLLM quantizes linear layers and no routed experts."""
UNTIMED_METHODS: Final = LINEAR_METHODS - {"fbgemm_fp8"} | {"bitsandbytes", "quark"}
"""Whose kernels no table has."""
EXPERTS_ONLY: Final = frozenset({"gpt_oss_mxfp4", "mxfp4"})
_SLOWEST_FIRST: Final = ("bf16", "int8", "fp8", "fp4")
_DENSE: Final = ("dense_ffn", "attention", "state_attention", "shared_experts")


def stored_weights(
    keys: QuantizationKeys, layers: Sequence[Layer], own_names: Mapping[str, str]
) -> tuple[WeightFormat, tuple[Assumption, ...]]:
    """Return how the checkpoint stores the weights of these layers, and what is assumed of it.

    Raises:
        ModelConfigError: a key is missing.
        UnknownArchitectureError: the format is not understood.
    """
    recipe = recipe_of(keys)
    ignored = tuple(keys.ignore or ())
    if keys.method.startswith(PARTIAL_METHODS):
        ignored = (*ignored, *(f"{EVERYTHING}{name}" for name in ignored if not _is_whole(name)))
    unknown = _unknown_names(ignored)
    is_unknown = False
    if len(unknown) >= MANY_NAMES:  # and they are of no part that is known
        asked = formats_by_part([(ignored, BF16)], FP8, layers, own_names)
        is_unknown = all(each == FP8 for each in asked.values())
    if is_unknown:
        ignored = (*ignored, EVERYTHING)
    rules = ((ignored, BF16), *recipe.rules)
    parts = formats_by_part(rules, recipe.default, layers, own_names)
    if keys.method in EXPERTS_ONLY:
        parts |= dict.fromkeys(QUANTIZED_PARTS - {"experts"}, BF16)
    if keys.method in LINEAR_METHODS:
        parts["experts"] = BF16
    found = _combined(parts, recipe.default)
    is_listed = keys.ignore is not None or keys.method not in LISTING_METHODS
    has_experts = any(isinstance(ffn, MoeFfn) for _, ffn in layers)
    assumptions = list(_assumptions(keys, found, has_experts=has_experts))
    if is_unknown:
        assumptions.append(
            Assumption(
                about="weights",
                taken=f"{count_of(len(unknown), 'module')} that stay in 16 bits, such as "
                f"{unknown[0]:.100}, are of no part that is known, and no other is named: all "
                "weights count in 16 bits",
                effect="memory and time",
                times=max(1.0, BF16.bytes_per_parameter / recipe.default.bytes_per_parameter),
                replaced_by="--hub, --checkpoint FOLDER or the first Ready pod's own report",
            )
        )
    return replace(found, says_unquantized=is_listed), tuple(assumptions)


def _unknown_names(names: Sequence[str]) -> list[str]:
    """Return the names in layers of text of which no block is known, and that are no small part."""
    return [
        name
        for name in names
        if (inside := _IN_LAYER.search(name))
        and inside[1] not in KNOWN_BLOCKS
        and not _BESIDE.search(name)
    ]


def _is_whole(name: str) -> bool:
    """Tell whether no more modules may have this in their names than have it as words."""
    return name.endswith("_proj") or ".experts." in name or "vis" in name or is_pattern(name)


def _combined(parts: Mapping[str, WeightFormat], default: WeightFormat) -> WeightFormat:
    """Return the slowest of the formats beside experts, with the others as its own."""
    plain = replace(default, own=())
    narrow = [parts[part] for part in _DENSE if part in parts and _is_narrow(parts[part])]
    others = [plain, parts.get("experts", plain)]
    choice = [each for each in (narrow or others) if _is_narrow(each)] or [BF16]
    main = min(choice, key=lambda stored: _SLOWEST_FIRST.index(stored.compute))
    if (main.name, main.compute) == (plain.name, plain.compute):
        main = plain
    own = {part: each for part, each in parts.items() if each != main or part == "head"}
    return main.with_parts(own)


def _is_narrow(stored: WeightFormat) -> bool:
    return stored.bytes_per_parameter < BF16.bytes_per_parameter


def _assumptions(
    keys: QuantizationKeys, found: WeightFormat, *, has_experts: bool
) -> Iterator[Assumption]:
    own_report = "the first Ready pod's own report"
    if keys.read_from == "quantize_config.json":
        yield Assumption(
            about="flags",
            taken=f"{keys.read_from}: vLLM reads it only with --quantization {keys.method}, which "
            "is assumed",
            effect="start",
            replaced_by="a quantization_config in config.json",
        )
    if keys.method in LINEAR_METHODS and has_experts:
        yield Assumption(
            about="weights",
            taken=f"{keys.method}: vLLM quantizes no routed experts with it; the checkpoint is "
            "assumed to have them in 16 bits",
            effect="start",
            replaced_by="--hub, --checkpoint FOLDER or a checkpoint of another method",
        )
    if keys.method in UNTIMED_METHODS:
        timed = f"timed as other files of {found.name}"
        if found.traffic > 1:
            timed = f"{timed}, each matrix of which a step unpacks to 16 bits first"
        yield Assumption(
            about="weights",
            taken=f"{keys.method}: stored as {found.described}, with scales "
            f"{found.bytes_per_parameter:.4g} bytes a parameter; {timed}",
            effect="time",
            replaced_by=own_report,
        )
    dense = (found.of(part) for part in _DENSE[:3] if part not in found.unquantized)
    if len({stored.compute for stored in dense}) > 1:
        yield Assumption(
            about="weights",
            taken=f"{found.described}: all beside routed experts is timed as {found.name}, the "
            "slowest",
            effect="time",
            replaced_by=own_report,
        )


def as_kind_reads(found: WeightFormat, kind: object) -> WeightFormat:
    """Return the format as the engine reads it: Kimi-K3's file is not one of compressed-tensors.

    Sources:
        [vllm-source] models/config.py KimiK3ForConditionalGenerationConfig, which has it read as
        a file of mxfp4: experts as DeepSeek V4's, but for Humming, from 0.33 on.
    """
    if kind != "kimi_k3" or found.of_experts.name != MXFP4.name:
        return found
    return found.with_parts({"experts": replace(MXFP4, compute="fp8")})


def with_expert_format(
    found: WeightFormat, keys: QuantizationKeys, expert_dtype: object
) -> WeightFormat:
    """Return the format with that of the routed experts, which DeepSeek V4 names beside it.

    Raises:
        UnknownArchitectureError: it is neither fp4 nor fp8.

    Sources:
        [vllm-source] models/deepseek_v4/quant_config.py: in fp8 checkpoints only; it asks for
        activations in 8 bits beside experts in mxfp4.
    """
    if keys.method != "fp8" or expert_dtype == "fp8":
        return found
    if expert_dtype != "fp4":
        raise UnknownArchitectureError(
            f"experts with expert_dtype = {expert_dtype!r:.100} are not understood yet"
        )
    is_nvfp4 = keys.moe_quant_algo == "NVFP4"
    return found.with_parts({"experts": NVFP4 if is_nvfp4 else replace(MXFP4, compute="fp8")})
