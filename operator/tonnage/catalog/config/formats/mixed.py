"""Checkpoints with some parts in one narrow format and some in another, by lists of modules."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from tonnage.catalog.config.formats.modules import PARTS, Layer, unquantized_parts
from tonnage.catalog.config.formats.quantization import MXFP4, NVFP4, QuantizationKeys, group_format
from tonnage.catalog.config.keys.decoder import UnknownArchitectureError
from tonnage.catalog.shape import WeightFormat

_EXPERTS: Final = frozenset({"experts", "shared_experts"})


def is_mixed(keys: QuantizationKeys) -> bool:
    """Tell whether groups of modules are listed that differ in their weights."""
    groups = list((keys.config_groups or {}).values())
    differ = any(group.weights != groups[0].weights for group in groups)
    return differ and all(group.targets and "Linear" not in group.targets for group in groups)


def mixed_weights(
    keys: QuantizationKeys, layers: Sequence[Layer], own_names: Mapping[str, str]
) -> WeightFormat:
    """Return the format of all but the experts, which may have one of their own.

    A part that no group names stays wide. Shared experts in a format of their own count as the
    rest, or as wide where that would be too light; a head always counts as wide.

    Raises:
        UnknownArchitectureError: parts other than experts differ among themselves.
    """
    ignored = unquantized_parts(keys.ignore or [], layers, own_names)
    formats = {
        part: group_format(group, keys)
        for group in (keys.config_groups or {}).values()
        for part in unquantized_parts(group.targets, layers, own_names) - ignored
    }
    others = {part: found for part, found in formats.items() if part not in _EXPERTS}
    names = {found.name for found in others.values()}
    if len(names) != 1 or "experts" not in formats:
        described = ", ".join(f"{part}: {found.name}" for part, found in sorted(formats.items()))
        raise UnknownArchitectureError(
            f"weights stored in a mixture of formats ({described}) are not understood yet"
        )
    found = next(iter(others.values()))
    widest = found.bytes_per_parameter
    narrow = {part for part in formats if formats[part].bytes_per_parameter <= widest} | {"experts"}
    return replace(
        found,
        own_of_experts=formats["experts"].of_experts,
        unquantized=frozenset(PARTS - narrow),
    )


def as_kind_reads(found: WeightFormat, kind: object) -> WeightFormat:
    """Return the format as the engine reads it: Kimi-K3's file is not one of compressed-tensors.

    Sources:
        [vllm-source] models/config.py KimiK3ForConditionalGenerationConfig, which has it read as
        a file of mxfp4: experts as DeepSeek V4's, but for Humming, from 0.33 on.
    """
    if kind != "kimi_k3" or found.of_experts.name != MXFP4.name:
        return found
    return replace(found, own_of_experts=replace(MXFP4, compute="fp8"))


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
    return replace(found, own_of_experts=NVFP4 if is_nvfp4 else replace(MXFP4, compute="fp8"))
