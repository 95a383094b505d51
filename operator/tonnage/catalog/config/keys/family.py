"""Keys of a ``config.json`` that one family has, or a few, beside the usual ones."""

from typing import Annotated

from pydantic import Field

from tonnage.catalog.config.keys.types import Block, Experts, LayerIndex, Layers, Size

_PerLayerExperts = Annotated[list[Experts], Field(max_length=2000)]
_PerLayerSizes = Annotated[list[Size], Field(max_length=2000)]


class FamilyKeys(Block):
    """What each means is said where it is read: ``config_families``."""

    multi_query: bool = True
    new_decoder_architecture: bool = False
    parallel_attn: bool = True
    num_ln_in_parallel_attn: Annotated[int, Field(ge=1, le=2)] | None = None
    use_parallel_residual: bool = False
    lm_head_bias: bool = False
    word_embed_proj_dim: Size | None = None
    expansion_ratio: Layers | None = None

    window_pattern: Layers | Annotated[str, Field(max_length=2000)] | None = None

    moe_layer_start_index: LayerIndex | None = None
    moe_layer_end_index: Annotated[int, Field(ge=-1, le=2000)] | None = None
    moe_layer_interval: Layers = 1

    chosen_by_layer: Experts | _PerLayerExperts | None = None
    widths_by_layer: Size | _PerLayerSizes | None = None
    num_shared_by_layer: Experts | _PerLayerExperts | None = None
    use_mixed_mlp_moe: bool | Annotated[int, Field(ge=0, le=1)] | None = None
