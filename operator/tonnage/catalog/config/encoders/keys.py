"""The keys that decide how large an encoder of images or sound is, under the names of all kinds."""

from typing import Annotated, Literal

from pydantic import AliasChoices, Field

from tonnage.catalog.config.keys.decoder import ModelConfigError, Needed
from tonnage.catalog.config.keys.types import Block, Heads, LayerIndex, Layers, Size

_Pair = Annotated[list[Size], Field(min_length=2, max_length=2)]
_FeatureLayer = Annotated[int, Field(ge=-2000, le=2000)]


class EncoderKeys(Block):
    """The keys of an encoder's block, and those of the wrapper that concern its projector."""

    model_type: Annotated[str, Field(max_length=100)] | None = None
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
    num_channels: Heads = Field(
        default=3, validation_alias=AliasChoices("num_channels", "in_channels", "in_chans")
    )
    patch_size: Size | _Pair | None = None
    image_size: Size | _Pair | None = None
    temporal_patch_size: Heads = 2
    spatial_merge_size: Heads = 2
    mlp_ratio: Heads | None = None
    num_position_embeddings: Size | None = None
    deepstack_visual_indexes: Annotated[list[LayerIndex], Field(max_length=2000)] | None = None
    vision_feature_layer: _FeatureLayer | None = Field(
        default=None, validation_alias=AliasChoices("select_layer", "vision_feature_layer")
    )
    multimodal_projector_bias: bool | None = None
    projector_hidden_size: Size | None = None

    projector_input_dim: Size | None = None
    projector_output_dim: Size | None = None
    vision_output_dim: Size | None = None

    num_attention_heads: Heads | None = None
    num_key_value_heads: Heads | None = None
    head_dim: Size | None = None
    position_embedding_size: Size | None = None
    subsampling_conv_channels: _Pair | None = None
    conv_kernel_size: Heads | None = None
    output_proj_dims: Size | None = None
    model_patch_size: Size | None = None
    mm_embed_dim: Size | None = None
    mm_posemb_size: Size | None = None

    init_pos_emb_height: Size | None = None
    init_pos_emb_width: Size | None = None
    merge_kernel_size: _Pair | None = None
    qkv_hidden_size: Size | None = None
    attn_bias: bool = True
    linear_bias: bool = True
    patch_embed_proj_bias: bool = True
    norm_type: Literal["layernorm", "layer_norm", "rmsnorm", "rms_norm"] = "layernorm"
    mm_projector_type: Literal["patchmerger", "patchmergerv2"] = "patchmerger"

    qkv_bias: bool | None = Field(
        default=None, validation_alias=AliasChoices("qkv_bias", "attention_bias")
    )
    qk_normalization: bool | None = Field(
        default=None, validation_alias=AliasChoices("qk_normalization", "use_qk_norm")
    )
    downsample_ratio: Annotated[float, Field(gt=0.01, le=1)] | None = None

    downsample_factor: Heads | None = None
    alignment_intermediate_size: Size | None = None
    scale_factor: Heads | None = None
    out_hidden_size: Size | None = None
    output_hidden_size: Size | None = None
    num_global_layers: Heads | None = None
    max_num_tiles: Heads = 4

    num_mel_bins: Size | None = None

    @property
    def needed(self) -> Needed:
        return Needed(self)

    @property
    def positions(self) -> int:
        """Patches of one image of the size that the encoder was made for."""
        return (_side(self, "image_size") // _side(self, "patch_size")) ** 2

    @property
    def patch_elements(self) -> int:
        return self.num_channels * _side(self, "patch_size") ** 2

    @property
    def frame_elements(self) -> int:
        """Of a patch over the frames that are read together."""
        return self.temporal_patch_size * self.patch_elements


def _side(keys: EncoderKeys, key: str) -> int:
    """Return the side of a square, which may be written as a pair."""
    value = getattr(keys, key)
    if not isinstance(value, list):
        return int(getattr(keys.needed, key))
    if value[0] != value[1]:
        raise ModelConfigError(f"{key} = {value} is no square")
    return int(value[0])
