"""Which encoders of images and sound stand beside the text part of a model, and their size."""

from collections.abc import Callable, Iterator, Mapping, Sequence
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
class Tower:
    """One encoder of a kind of multimodal model."""

    count: Callable[[EncoderKeys, int], int]
    key: str = VISION
    defaults: Mapping[str, object] = field(default_factory=dict)
    """What the class means by leaving a key out."""
    is_optional: bool = False
    """Without the block there is no such encoder; else a missing block is a gap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Towers:
    """The encoders of one model together."""

    num_parameters: int = 0
    num_uncounted: int = 0
    notes: tuple[str, ...] = ()
    """What was counted, and what could not be."""


_QWEN3_VL = (Tower(count=counts.qwen3_vl),)
_QWEN3_5 = (Tower(count=counts.qwen3_vl, defaults={"deepstack_visual_indexes": []}),)
_GLM4V = (Tower(count=counts.glm4v),)
_MOONVIT = (Tower(count=counts.moonvit),)

TOWERS: Mapping[str, tuple[Tower, ...]] = {
    "aya_vision": (Tower(count=counts.aya_vision, defaults={"downsample_factor": 2}),),
    "cohere2_vision": (
        Tower(
            count=counts.cohere2_vision,
            defaults={"downsample_factor": 2, "alignment_intermediate_size": 36_864},
        ),
    ),
    "gemma3": (Tower(count=counts.gemma3),),
    "gemma4": (
        Tower(count=counts.gemma4),
        Tower(
            count=counts.gemma4_audio,
            key=AUDIO,
            is_optional=True,
            defaults={
                "num_hidden_layers": 12,
                "num_attention_heads": 8,
                "subsampling_conv_channels": [128, 32],
                "conv_kernel_size": 5,
                "output_proj_dims": 1536,
            },
        ),
    ),
    "gemma4_unified": (
        Tower(count=counts.gemma4_unified),
        Tower(count=counts.gemma4_unified_audio, key=AUDIO, is_optional=True),
    ),
    "glm4v": _GLM4V,
    "glm4v_moe": _GLM4V,
    "idefics3": (Tower(count=counts.idefics3, defaults={"scale_factor": 2}),),
    "internvl": (
        Tower(
            count=counts.internvl,
            defaults={
                "attention_bias": False,
                "use_qk_norm": False,
                "vision_feature_layer": -1,
                "downsample_ratio": 0.5,
            },
        ),
    ),
    "internvl_chat": (Tower(count=counts.internvl, defaults={"select_layer": -1}),),
    "kimi_k25": _MOONVIT,
    "kimi_k3": _MOONVIT,
    "kimi_vl": _MOONVIT,
    "llama4": (Tower(count=counts.llama4),),
    "llava": (Tower(count=counts.llava, defaults={"vision_feature_layer": -2}),),
    "llava_next": (Tower(count=counts.llava_next, defaults={"vision_feature_layer": -2}),),
    "llava_onevision": (Tower(count=counts.llava_next, defaults={"vision_feature_layer": -1}),),
    "minimax_m3_vl": (Tower(count=counts.minimax_m3),),
    "mistral3": (Tower(count=counts.mistral3),),
    "qwen2_5_omni": (
        Tower(count=counts.qwen2_5_vl),
        Tower(count=counts.qwen2_5_omni_audio, key=AUDIO),
    ),
    "qwen2_5_vl": (Tower(count=counts.qwen2_5_vl),),
    "qwen2_vl": (Tower(count=counts.qwen2_vl),),
    "qwen3_5": _QWEN3_5,
    "qwen3_5_moe": _QWEN3_5,
    "qwen3_vl": _QWEN3_VL,
    "qwen3_vl_moe": _QWEN3_VL,
    "qwen4_exp": _QWEN3_5,
    "smolvlm": (Tower(count=counts.idefics3, defaults={"scale_factor": 2}),),
}


def read_towers(
    config: Mapping[str, object], *, text_path: Sequence[str], text_width: int
) -> Towers:
    """Count the encoders that stand beside the text part; what cannot be counted is a note."""
    if not text_path:
        return Towers()
    towers = TOWERS.get(str(config.get("model_type")), ())
    if not towers:
        where = ".".join(text_path)
        note = f"only {where} counts: other towers need memory beside it"
        return Towers(num_uncounted=1, notes=(note,))
    outer = config
    for key in text_path[:-1]:
        inner = outer[key]
        outer = inner if isinstance(inner, Mapping) else {}
    found = list(_counted(towers, outer, text_path[:-1], text_width))
    return Towers(
        num_parameters=sum(number or 0 for number, _ in found),
        num_uncounted=sum(number is None for number, _ in found),
        notes=tuple(note for _, note in found),
    )


def _counted(
    towers: Sequence[Tower], outer: Mapping[str, object], path: Sequence[str], text_width: int
) -> Iterator[tuple[int | None, str]]:
    """Yield (parameters, note); None: they cannot be counted."""
    for tower in towers:
        if outer.get(tower.key, None if tower.is_optional else "missing") is None:
            continue
        where = ".".join((*path, tower.key))
        try:
            number = tower.count(_keys(tower, outer), text_width)
        except ModelConfigError as error:
            yield None, f"{where} is not counted and needs memory beside the rest: {error}"
        else:
            millions = f"{number / MILLION:,.0f} million"
            yield number, f"{where} counts with {millions} parameters in 16 bits"


def _keys(tower: Tower, outer: Mapping[str, object]) -> EncoderKeys:
    block = outer.get(tower.key)
    if not isinstance(block, Mapping):
        raise ModelConfigError("it is missing" if block is None else f"{block!r:.100} is no object")
    beside = {key: outer[key] for key in OUTER_KEYS if key in outer}
    try:
        return EncoderKeys.model_validate({**tower.defaults, **block, **beside})
    except ValidationError as error:
        raise ModelConfigError(first_problem(error)) from error
