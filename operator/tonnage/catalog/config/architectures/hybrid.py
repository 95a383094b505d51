"""Kinds of model with layers that keep a state per sequence, most beside layers of attention."""

from collections.abc import Mapping
from dataclasses import replace

from tonnage.catalog.config.architectures.traits import Architecture
from tonnage.catalog.config.layers import ffn, lfm2, qwen4, state

_DELTA_NET_MARKS = frozenset(
    {
        "linear_attention",
        "full_attention_interval",
        "linear_conv_kernel_dim",
        "linear_num_key_heads",
        "linear_num_value_heads",
    }
)
_DELTA_NET_DEFAULTS: Mapping[str, object] = {
    "vocab_size": 248_320,
    "num_attention_heads": 16,
    "head_dim": 256,
    "max_position_embeddings": 32_768,
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}
MAMBA_NAMES: Mapping[str, str] = {
    "mamba_num_heads": "mamba_n_heads",
    "mamba_head_dim": "mamba_d_head",
    "n_groups": "mamba_n_groups",
    "ssm_state_size": "mamba_d_state",
    "conv_kernel": "mamba_d_conv",
    "use_conv_bias": "mamba_conv_bias",
    "use_bias": "mamba_proj_bias",
}
_LFM2_NAMES: Mapping[str, str] = {
    "conv_l_cache": "conv_L_cache",
    "tie_word_embeddings": "tie_embedding",
}
_QWEN3_NEXT = Architecture(
    rotary_fraction=0.25,
    attention=state.delta_net_in_model_type,
    ffn=ffn.sparse_steps_and_shared,
    derives_head_dim=False,
    query_bias=False,
    output_bias=False,
    qk_norm="head",
    has_shared_gate=True,
    understands=_DELTA_NET_MARKS,
)
_QWEN3_5 = Architecture(
    rotary_fraction=0.25,
    attention=state.delta_net,
    derives_head_dim=False,
    query_bias=False,
    output_bias=False,
    qk_norm="head",
    understands=_DELTA_NET_MARKS | {"mamba_ssm_dtype"},
    sparse_defaults={
        **_DELTA_NET_DEFAULTS,
        "hidden_size": 4096,
        "intermediate_size": 12_288,
        "num_hidden_layers": 32,
        "num_key_value_heads": 4,
    },
)
_QWEN3_5_MOE = replace(
    _QWEN3_5,
    ffn=ffn.sparse_steps_and_shared,
    has_shared_gate=True,
    sparse_defaults={
        **_DELTA_NET_DEFAULTS,
        "hidden_size": 2048,
        "num_hidden_layers": 40,
        "num_key_value_heads": 2,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "num_experts": 256,
        "num_experts_per_tok": 8,
    },
)
_QWEN4_EXP = replace(
    _QWEN3_5_MOE,
    attention=qwen4.indexed_delta_net,
    num_norms=0,
    num_outer_norms=0,
    replicated=qwen4.stream_mixes,
    outer=qwen4.last_mix_and_ngram_layers,
    tables=qwen4.ngram_tables,
    keeps_tables_on_host=True,
    understands=_QWEN3_5_MOE.understands
    | {"hc_count", "indexed_attention", "indexer_head_dim", "ngram_size", "ple_layer_ids"},
    sparse_defaults={
        **_QWEN3_5_MOE.sparse_defaults,
        "num_experts": 512,
        "num_experts_per_tok": 10,
        "hc_count": 4,
        "hc_lowrank": 320,
        "ple_conv_kernel_size": 4,
        "ngram_size": 3,
        "heads_per_ngram": 8,
        "ngram_vocab_size_base": 20_000_000,
    },
)
_KIMI_LINEAR = Architecture(
    rotary_fraction=0,
    attention=state.kimi_delta,
    ffn=ffn.dense_then_experts,
    derives_head_dim=False,
    router_bias=True,
    names={
        "num_experts_per_tok": "num_experts_per_token",
        "n_shared_experts": "num_shared_experts",
        "moe_latent_size": "routed_expert_hidden_size",
    },
    module_names={
        "state_attention": "self_attn",
        "experts": "block_sparse_moe.experts.0",
        "shared_experts": "block_sparse_moe.shared_experts",
    },
    understands=frozenset(
        {
            "linear_attention",
            "linear_attn_config",
            "linear_conv_kernel_dim",
            "routed_expert_hidden_size",
        }
    ),
)
_LFM2 = Architecture(
    attention=lfm2.short_convolutions,
    ffn=lfm2.adjusted_dense,
    is_tied=True,
    query_bias=False,
    output_bias=False,
    qk_norm="head",
    names={**_LFM2_NAMES, "intermediate_size": "block_ff_dim"},
    module_names={"state_attention": "conv", "dense_ffn": "feed_forward"},
    understands=frozenset({"conv", "conv_L_cache"}),
)
_NEMOTRON_H = Architecture(
    rotary_fraction=0,
    attention=state.nemotron_mixers,
    ffn=state.nemotron_blocks,
    derives_head_dim=False,
    num_norms=1,
    query_bias=False,
    output_bias=False,
    router_bias=True,
    module_names={
        "attention": "mixer",
        "state_attention": "mixer",
        "dense_ffn": "mixer",
        "experts": "mixer.experts.0",
        "shared_experts": "mixer.shared_experts",
    },
    understands=frozenset(
        {
            "hybrid_override_pattern",
            "layers_block_type",
            "mamba_num_heads",
            "moe_latent_size",
            "ssm_state_size",
        }
    ),
    layer_list="layers_block_type",
)

HYBRID: Mapping[str, Architecture] = {
    "bamba": Architecture(
        attention=state.bamba_mixers,
        names=MAMBA_NAMES,
        module_names={"state_attention": "mamba", "dense_ffn": "feed_forward"},
        understands=frozenset({"mamba_d_state"}),
    ),
    "granitemoehybrid": Architecture(
        attention=state.granite_mixers,
        ffn=state.granite_blocks,
        names=MAMBA_NAMES,
        module_names={
            "state_attention": "mamba",
            "dense_ffn": "shared_mlp",
            "experts": "block_sparse_moe",
            "shared_experts": "shared_mlp",
        },
        understands=frozenset({"attention", "linear_attention", "mamba", "mamba_d_state"}),
    ),
    "kimi_linear": _KIMI_LINEAR,
    "lfm2": _LFM2,
    "lfm2_moe": replace(
        _LFM2,
        ffn=lfm2.dense_then_routed,
        router_bias=True,
        names=_LFM2_NAMES,
        module_names={**_LFM2.module_names, "experts": "feed_forward.experts.0"},
    ),
    "nemotron_h": _NEMOTRON_H,
    "qwen3_5_moe_text": _QWEN3_5_MOE,
    "qwen3_5_text": _QWEN3_5,
    "qwen3_next": _QWEN3_NEXT,
    "qwen4_exp_text": _QWEN4_EXP,
}
