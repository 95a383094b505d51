"""What encoders of images and sound beside the text part of a model need of memory.

Their parameters are known of the models of the catalogue, and of a checkpoint by its own files. Of
other configurations a bound is counted, from the widths that the blocks of all kinds have.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Final

from pydantic import AliasChoices, Field, ValidationError

from tonnage.catalog.config.keys.decoder import (
    Block,
    Heads,
    Layers,
    ModelConfigError,
    Needed,
    Size,
    first_problem,
)
from tonnage.catalog.config.keys.names import PARTS
from tonnage.catalog.shape import ModelShape
from tonnage.units import MILLION

VISION: Final = "vision_config"
AUDIO: Final = "audio_config"
MERGED: Final = "spatial_merge_size"
"""Some wrappers write it beside the encoder's block."""

LARGEST_IMAGE: Final[Mapping[str, int]] = PARTS["largest_image"]
"""Tokens, as the processor of the kind allows them when nobody limits it."""
USUAL_LARGEST_IMAGE: Final = 4096
ENCODER_BYTES: Final = 2
PATCHES_PER_TOKEN: Final[Mapping[str, int]] = PARTS["patches_per_token"]
"""Of kinds that do not merge a square of ``spatial_merge_size``."""
GATED: Final[Sequence[str]] = PARTS["gated_encoders"]
"""Kinds whose feed-forward blocks hold a row more: that of the gate."""
HIDDEN_AT_PEAK: Final = 2
"""The residual and its norm."""
ATTENTION_WIDTHS: Final = 8
"""Queries, keys and values; queries and keys side by side, and rotated; what attention makes."""
MORE: Final = "no fewer than it has: its safetensors files say how many"


class _Widths(Block):
    """The keys of an encoder's block that all kinds have, under their names."""

    hidden_size: Size | None = Field(
        default=None,
        validation_alias=AliasChoices("embed_dim", "vt_hidden_size", "d_model", "hidden_size"),
    )
    num_hidden_layers: Layers | None = Field(
        default=None,
        validation_alias=AliasChoices(
            "num_hidden_layers", "depth", "vt_num_hidden_layers", "encoder_layers"
        ),
    )
    intermediate_size: Size | None = Field(
        default=None,
        validation_alias=AliasChoices(
            "intermediate_size", "vt_intermediate_size", "encoder_ffn_dim"
        ),
    )
    mlp_ratio: Annotated[float, Field(gt=0, le=100)] | None = None
    spatial_merge_size: Heads = 2

    @property
    def inner(self) -> float:
        """Width of the feed-forward blocks; 0: it is not known."""
        return self.intermediate_size or (self.mlp_ratio or 0) * (self.hidden_size or 0)


def with_encoders(
    shape: ModelShape,
    config: Mapping[str, object],
    text_path: Sequence[str],
    num_parameters: int | None,
) -> ModelShape:
    """Return the shape of a text part with the encoders beside it.

    ``num_parameters``: of all of them, where that is known.
    """
    if not text_path:
        return shape
    kind, outer = str(config.get("model_type")), config
    for key in text_path[:-1]:
        inner = outer[key]
        outer = inner if isinstance(inner, Mapping) else {}
    token_bytes, split_token_bytes = _token_bytes(kind, outer)
    prefix = "".join(f"{key}." for key in text_path[:-1])
    bounds = list(_bounds(outer, shape.hidden_size)) if num_parameters is None else []
    notes = tuple(f"{prefix}{note}" for _, note in bounds)
    if num_parameters is not None:
        notes = (f"encoders count with {_millions(num_parameters)} parameters in 16 bits",)
    return replace(
        shape,
        encoder_parameters=num_parameters or sum(number or 0 for number, _ in bounds),
        num_uncounted_encoders=sum(number is None for number, _ in bounds),
        encoder_token_bytes=token_bytes,
        encoder_split_token_bytes=split_token_bytes,
        encoder_item_tokens=LARGEST_IMAGE.get(kind, USUAL_LARGEST_IMAGE),
        notes=notes,
    )


def _bounds(outer: Mapping[str, object], text_width: int) -> Iterator[tuple[int | None, str]]:
    """Yield (parameters, note) of each encoder; None: they cannot be counted."""
    for key in (VISION, AUDIO):
        if outer.get(key, "missing" if key == VISION else None) is None:
            continue
        try:
            number = _parameters_bound(_widths(key, outer), text_width)
        except ModelConfigError as error:
            yield None, f"{key} is not counted and needs memory beside the rest: {error}"
        else:
            yield number, f"{key} counts with {_millions(number)} parameters in 16 bits, {MORE}"


def _parameters_bound(widths: _Widths, text_width: int) -> int:
    """Return no fewer parameters than such an encoder and its projector have.

    ``num_layers * (4 * width**2 + 3 * width * inner) + (merged + text_width)**2``: all blocks count
    as gated, and the projector as a square matrix of merged neighbours and the text part's width.
    Of the models of the catalogue that is 1.02 to 1.7 times what they have.
    """
    width, layers = Needed(widths).hidden_size, Needed(widths).num_hidden_layers
    if not widths.inner:
        raise ModelConfigError("intermediate_size is missing")
    block = 4 * width**2 + 3 * width * widths.inner
    projector = (widths.spatial_merge_size**2 * width + text_width) ** 2
    return int(layers * block) + projector


def _token_bytes(kind: str, outer: Mapping[str, object]) -> tuple[int, int]:
    """Return what the encoder holds for each token at its peak: on every rank, and split over them.

    Nothing where its widths are not known.

    Sources:
        [vllm-source] model_executor/models/qwen2_5_vl.py and its kin.
    """
    try:
        widths = _widths(VISION, outer)
    except ModelConfigError:
        return 0, 0
    hidden = widths.hidden_size or 0
    rows = 3 if kind in GATED else 2
    each_bytes = ENCODER_BYTES * PATCHES_PER_TOKEN.get(kind, widths.spatial_merge_size**2)
    split = max(rows * widths.inner, ATTENTION_WIDTHS * hidden)
    return each_bytes * HIDDEN_AT_PEAK * hidden, int(each_bytes * split)


def _widths(key: str, outer: Mapping[str, object]) -> _Widths:
    block = outer.get(key)
    if not isinstance(block, Mapping):
        raise ModelConfigError("it is missing" if block is None else f"{block!r:.100} is no object")
    beside = {MERGED: outer[MERGED]} if MERGED in outer else {}
    try:
        return _Widths.model_validate({**block, **beside})
    except ValidationError as error:
        raise ModelConfigError(first_problem(error)) from error


def _millions(number: int) -> str:
    return f"{number / MILLION:,.0f} million"
