"""Which encoders of images and sound stand beside the text part of a model, and their size."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pydantic import ValidationError

from tonnage.catalog.config.encoders import counts
from tonnage.catalog.config.encoders.keys import EncoderKeys
from tonnage.catalog.config.keys.decoder import ModelConfigError, first_problem
from tonnage.units import MILLION

VISION: Final = "vision_config"
AUDIO: Final = "audio_config"
OUTER_KEYS: Final = (
    "alignment_intermediate_size",
    "downsample_factor",
    "downsample_ratio",
    "select_layer",
    "vision_feature_layer",
    "multimodal_projector_bias",
    "projector_hidden_size",
    "scale_factor",
    "spatial_merge_size",
)
"""Of the projector, which most wrappers write beside the encoder's block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """One encoder of a kind of multimodal model."""

    count: Callable[[EncoderKeys, int], int]
    defaults: Mapping[str, object] = field(default_factory=dict)
    """What the class means by leaving a key out."""
    is_optional: bool = False
    """Without the block there is no such encoder; else a missing block is a gap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoders:
    """The encoders of one model together."""

    num_parameters: int = 0
    num_uncounted: int = 0
    token_bytes: int = 0
    """At the peak of the first one on every rank, for each token that it makes."""
    split_token_bytes: int = 0
    """The same of what the ranks split."""
    item_tokens: int = 0
    """Of the largest image."""
    notes: tuple[str, ...] = ()
    """What was counted, and what could not be."""


LARGEST_IMAGE: Final[Mapping[str, int]] = {
    "gemma3": 256,
    "gemma4": 1120,
    "gemma4_unified": 1120,
    "llava": 576,
    "llava_next": 2880,
    "mistral3": 3025,
    **dict.fromkeys(
        ("qwen2_vl", "qwen2_5_vl", "qwen2_5_omni", "qwen3_vl", "qwen3_vl_moe", "qwen3_5",
         "qwen3_5_moe", "qwen4_exp"),
        16_384,
    ),
}  # fmt: skip
"""Tokens, as the processor of the kind allows them when nobody limits it."""
USUAL_LARGEST_IMAGE: Final = 4096
ENCODER_BYTES: Final = 2
PATCHES_PER_TOKEN: Final[Mapping[str, int]] = {"gemma3": 16, "llava": 1, "llava_next": 1}
"""Of kinds that do not merge a square of ``spatial_merge_size``."""
GATED: Final = frozenset({"qwen2_5_vl", "qwen2_5_omni", "glm4v", "glm4v_moe"})
"""Kinds whose feed-forward blocks hold a row more: that of the gate."""
HIDDEN_AT_PEAK: Final = 2
"""The residual and its norm."""
ATTENTION_WIDTHS: Final = 8
"""Queries, keys and values; queries and keys side by side, and rotated; what attention makes."""

_QWEN3_VL = Encoder(count=counts.qwen3_vl)
_QWEN3_5 = Encoder(count=counts.qwen3_vl, defaults={"deepstack_visual_indexes": []})
_GLM4V = Encoder(count=counts.glm4v)
_MOONVIT = Encoder(count=counts.moonvit)
_IDEFICS3 = Encoder(count=counts.idefics3, defaults={"scale_factor": 2})

VISION_ENCODERS: Mapping[str, Encoder] = {
    "aya_vision": Encoder(count=counts.aya_vision, defaults={"downsample_factor": 2}),
    "cohere2_vision": Encoder(
        count=counts.cohere2_vision,
        defaults={"downsample_factor": 2, "alignment_intermediate_size": 36_864},
    ),
    "gemma3": Encoder(count=counts.gemma3),
    "gemma4": Encoder(count=counts.gemma4),
    "gemma4_unified": Encoder(count=counts.gemma4_unified),
    "glm4v": _GLM4V,
    "glm4v_moe": _GLM4V,
    "idefics3": _IDEFICS3,
    "internvl": Encoder(
        count=counts.internvl,
        defaults={
            "attention_bias": False,
            "use_qk_norm": False,
            "vision_feature_layer": -1,
            "downsample_ratio": 0.5,
        },
    ),
    "internvl_chat": Encoder(count=counts.internvl, defaults={"select_layer": -1}),
    "kimi_k25": _MOONVIT,
    "kimi_k3": _MOONVIT,
    "kimi_vl": _MOONVIT,
    "llama4": Encoder(count=counts.llama4),
    "llava": Encoder(count=counts.llava, defaults={"vision_feature_layer": -2}),
    "llava_next": Encoder(count=counts.llava_next, defaults={"vision_feature_layer": -2}),
    "llava_onevision": Encoder(count=counts.llava_next, defaults={"vision_feature_layer": -1}),
    "minimax_m3_vl": Encoder(count=counts.minimax_m3),
    "mllama": Encoder(count=counts.mllama),
    "mistral3": Encoder(count=counts.mistral3),
    "qwen2_5_omni": Encoder(count=counts.qwen2_5_vl),
    "qwen2_5_vl": Encoder(count=counts.qwen2_5_vl),
    "qwen2_vl": Encoder(count=counts.qwen2_vl),
    "qwen3_5": _QWEN3_5,
    "qwen3_5_moe": _QWEN3_5,
    "qwen3_vl": _QWEN3_VL,
    "qwen3_vl_moe": _QWEN3_VL,
    "qwen4_exp": _QWEN3_5,
    "step3_vl": Encoder(count=counts.step3),
    "smolvlm": _IDEFICS3,
}
AUDIO_ENCODERS: Mapping[str, Encoder] = {
    "gemma4": Encoder(
        count=counts.gemma4_audio,
        is_optional=True,
        defaults={
            "num_hidden_layers": 12,
            "num_attention_heads": 8,
            "subsampling_conv_channels": [128, 32],
            "conv_kernel_size": 5,
            "output_proj_dims": 1536,
        },
    ),
    "gemma4_unified": Encoder(count=counts.gemma4_unified_audio, is_optional=True),
    "qwen2_5_omni": Encoder(count=counts.qwen2_5_omni_audio),
}


def read_encoders(
    config: Mapping[str, object], *, text_path: Sequence[str], text_width: int
) -> Encoders:
    """Count the encoders that stand beside the text part; what cannot be counted is a note."""
    if not text_path:
        return Encoders()
    kind = str(config.get("model_type"))
    vision, audio = VISION_ENCODERS.get(kind), AUDIO_ENCODERS.get(kind)
    if vision is None:
        where = ".".join(text_path)
        note = f"only {where} counts: other encoders need memory beside it"
        return Encoders(num_uncounted=1, notes=(note,))
    outer = config
    for key in text_path[:-1]:
        inner = outer[key]
        outer = inner if isinstance(inner, Mapping) else {}
    token_bytes, split_token_bytes = _token_bytes(kind, vision, outer)
    found = [
        _parameter_count(encoder, key, outer, text_path[:-1], text_width)
        for key, encoder in ((VISION, vision), (AUDIO, audio))
        if encoder and outer.get(key, None if encoder.is_optional else "missing") is not None
    ]
    return Encoders(
        num_parameters=sum(number or 0 for number, _ in found),
        num_uncounted=sum(number is None for number, _ in found),
        token_bytes=token_bytes,
        split_token_bytes=split_token_bytes,
        item_tokens=LARGEST_IMAGE.get(kind, USUAL_LARGEST_IMAGE),
        notes=tuple(note for _, note in found),
    )


def _token_bytes(kind: str, encoder: Encoder, outer: Mapping[str, object]) -> tuple[int, int]:
    """Return what the encoder holds for each token at its peak: on every rank, and split over them.

    Nothing where its widths are not known.

    Sources:
        [vllm-source] model_executor/models/qwen2_5_vl.py and its kin.
    """
    try:
        keys = _keys(encoder, VISION, outer)
    except ModelConfigError:
        return 0, 0
    hidden = keys.hidden_size or 0
    inner = keys.intermediate_size or (keys.mlp_ratio or 0) * hidden
    rows = 3 if kind in GATED else 2
    each_bytes = ENCODER_BYTES * PATCHES_PER_TOKEN.get(kind, keys.spatial_merge_size**2)
    split = max(rows * inner, ATTENTION_WIDTHS * hidden)
    return each_bytes * HIDDEN_AT_PEAK * hidden, int(each_bytes * split)


def _parameter_count(
    encoder: Encoder,
    key: str,
    outer: Mapping[str, object],
    path: Sequence[str],
    text_width: int,
) -> tuple[int | None, str]:
    """Return (parameters, note); None: they cannot be counted."""
    where = ".".join((*path, key))
    try:
        number = encoder.count(_keys(encoder, key, outer), text_width)
    except ModelConfigError as error:
        return None, f"{where} is not counted and needs memory beside the rest: {error}"
    millions = f"{number / MILLION:,.0f} million"
    return number, f"{where} counts with {millions} parameters in 16 bits"


def _keys(encoder: Encoder, key: str, outer: Mapping[str, object]) -> EncoderKeys:
    block = outer.get(key)
    if not isinstance(block, Mapping):
        raise ModelConfigError("it is missing" if block is None else f"{block!r:.100} is no object")
    beside = {name: outer[name] for name in OUTER_KEYS if name in outer}
    try:
        return EncoderKeys.model_validate({**encoder.defaults, **block, **beside})
    except ValidationError as error:
        raise ModelConfigError(first_problem(error)) from error
