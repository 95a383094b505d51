"""Keys of a ``config.json`` that one family has, or a few, beside the usual ones."""

from typing import Annotated, Literal

from pydantic import Field

from tonnage.catalog.config.keys.types import (
    Block,
    Experts,
    Heads,
    LayerIndex,
    LayerIndices,
    Layers,
    Names,
    Size,
    Sizes,
    StateType,
    ZerosAndOnes,
)

_ExpertsByLayer = Annotated[list[Experts], Field(max_length=2000)]


class KimiDelta(Block):
    """The layers of Kimi's linear attention; indices count from one."""

    num_heads: Heads
    head_dim: Size
    short_conv_kernel_size: Layers
    kda_layers: LayerIndices
    full_attn_layers: LayerIndices
    use_full_rank_gate: bool = False


class FamilyKeys(Block):
    """What each means is said where it is read: first those of layers with a state per sequence."""

    full_attention_interval: Layers | None = None
    attn_output_gate: bool = True
    linear_num_key_heads: Heads | None = None
    linear_num_value_heads: Heads | None = None
    linear_key_head_dim: Size | None = None
    linear_value_head_dim: Size | None = None
    linear_conv_kernel_dim: Layers | None = None
    mamba_ssm_dtype: StateType | None = None

    linear_attn_config: KimiDelta | None = None
    mla_use_output_gate: bool | None = None
    attn_res_block_size: Layers | None = None

    hybrid_override_pattern: Annotated[str, Field(max_length=2000)] | None = None
    layers_block_type: Names | None = None
    mamba_num_heads: Heads | None = None
    mamba_head_dim: Size | Literal["auto"] | None = None
    n_groups: Heads | None = None
    ssm_state_size: Size | None = None
    conv_kernel: Layers | None = None
    use_conv_bias: bool = True
    use_bias: bool = False
    mamba_expand: Layers | None = None
    mamba_ssm_cache_dtype: StateType = "float32"
    attn_layer_indices: Annotated[list[LayerIndex], Field(max_length=2000)] | None = None

    attn_layer_period: Layers | None = None
    attn_layer_offset: LayerIndex = 0
    expert_layer_period: Layers | None = None
    expert_layer_offset: LayerIndex = 0
    mamba_dt_rank: Size | Literal["auto"] | None = None
    mamba_d_ssm: Size | None = None
    attn_type_list: ZerosAndOnes | None = None
    num_mem_blocks: Heads = 1
    use_shared_attention_adapter: bool = False
    adapter_rank: Size | None = None

    share_q_dim: Size | None = None
    moe_layers_enum: Annotated[str, Field(max_length=10_000)] | None = None
    cross_attention_layers: Annotated[list[LayerIndex], Field(max_length=2000)] | None = None

    conv_l_cache: Layers | None = None
    conv_bias: bool = False
    full_attn_idxs: Annotated[list[LayerIndex], Field(max_length=2000)] | None = None
    block_auto_adjust_ff_dim: bool | None = None
    block_multiple_of: Size | None = None
    block_ffn_dim_multiplier: Annotated[float, Field(gt=0, le=100)] = 1.0
    num_dense_layers: LayerIndex | None = None

    hc_count: Heads | None = None
    hc_lowrank: Size | None = None
    ple_layer_ids: LayerIndices | None = None
    ple_embed_dim: Size | None = None
    ple_conv_kernel_size: Layers | None = None
    ngram_size: Annotated[int, Field(ge=2, le=100)] | None = None
    heads_per_ngram: Heads | None = None
    ngram_vocab_size_base: Annotated[int, Field(gt=0, le=10_000_000_000)] | None = None
    indexer_n_heads: Heads | None = None
    indexer_head_dim: Size | None = None
    indexer_compress_ratio: Layers | None = None
    indexer_budget: Size | None = None

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

    chosen_by_layer: Experts | _ExpertsByLayer | None = None
    widths_by_layer: Size | Sizes | None = None
    num_shared_by_layer: Experts | _ExpertsByLayer | None = None
    use_mixed_mlp_moe: bool | Annotated[int, Field(ge=0, le=1)] | None = None
