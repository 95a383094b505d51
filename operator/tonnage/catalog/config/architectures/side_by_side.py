"""Kinds of model that mix attention with states in ways of their own, and Step-3 and Mllama."""

from collections.abc import Mapping

from tonnage.catalog.config.architectures.hybrid import MAMBA_NAMES
from tonnage.catalog.config.architectures.traits import Architecture
from tonnage.catalog.config.layers import attention, ffn
from tonnage.catalog.config.layers import side_by_side as mixes

_MINIMAX_TEXT = Architecture(
    attention=mixes.lightning_with_some_attention,
    ffn=ffn.all_experts,
    module_names={"state_attention": "self_attn", "experts": "block_sparse_moe.experts.0"},
    understands=frozenset({"attn_type_list", "linear_attention"}),
)

SIDE_BY_SIDE: Mapping[str, Architecture] = {
    "falcon_h1": Architecture(
        attention=mixes.attention_and_mamba,
        ffn=mixes.dense_in_every_second,
        num_norms=1,
        names=MAMBA_NAMES,
        module_names={"state_attention": "mamba", "dense_ffn": "feed_forward"},
        understands=frozenset({"mamba_d_state"}),
    ),
    "jamba": Architecture(
        rotary_fraction=0,
        attention=mixes.mamba_with_some_attention,
        ffn=mixes.experts_in_some,
        names={
            "ssm_state_size": "mamba_d_state",
            "conv_kernel": "mamba_d_conv",
            "use_conv_bias": "mamba_conv_bias",
            "use_bias": "mamba_proj_bias",
        },
        module_names={"state_attention": "mamba", "dense_ffn": "feed_forward"},
        understands=frozenset({"mamba_d_state", "layers_block_type"}),
    ),
    "minimax": _MINIMAX_TEXT,
    "minimax_m1": _MINIMAX_TEXT,
    "minimax_text_01": _MINIMAX_TEXT,
    # Layers that attend to an image have a cache as wide as the others'. The first engine gave them
    # as many blocks ([vllm-source] mllama.py, 0.6 to 0.10); the second does not serve them.
    "mllama_text_model": Architecture(
        attention=attention.full, understands=frozenset({"cross_attention_layers"})
    ),
    "step3_text": Architecture(
        attention=mixes.narrow_queries,
        ffn=mixes.experts_where_listed,
        derives_head_dim=False,
        names={
            "num_key_value_heads": "num_attention_groups",
            "num_experts": "moe_num_experts",
            "num_experts_per_tok": "moe_top_k",
            "shared_intermediate_size": "share_expert_dim",
            "max_position_embeddings": "max_position_embedding",
        },
        understands=frozenset({"num_attention_groups"}),
    ),
    "zamba2": Architecture(
        attention=mixes.mamba_with_shared_attention,
        ffn=mixes.no_blocks,
        is_tied=True,
        num_norms=1,
        names={
            "mamba_num_heads": "n_mamba_heads",
            "mamba_head_dim": "mamba_headdim",
            "n_groups": "mamba_ngroups",
            "ssm_state_size": "mamba_d_state",
            "conv_kernel": "mamba_d_conv",
        },
        module_names={"state_attention": "mamba"},
        understands=frozenset({"mamba_d_state", "layers_block_type"}),
        outer=mixes.shared_blocks,
    ),
}
