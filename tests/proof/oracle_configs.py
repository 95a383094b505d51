"""A config.json for each architecture whose class transformers does not have.

The keys are those that the release's own class reads, where it reads them; the sizes are small and
stand for no checkpoint. What each key does is for the release to say: ``oracle_engine.py``.
"""

from typing import Any, Final

Config = dict[str, Any]


def _llama(architecture: str, model_type: str, **others: Any) -> Config:
    return {
        "architectures": [architecture], "model_type": model_type, "hidden_size": 1024,
        "intermediate_size": 2816, "num_hidden_layers": 8, "num_attention_heads": 16,
        "num_key_value_heads": 4, "vocab_size": 32_000, "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0}, **others,
    }  # fmt: skip


def _experts(architecture: str, model_type: str, **others: Any) -> Config:
    number = {} if {"n_routed_experts", "moe_num_experts"} & set(others) else {"num_experts": 16}
    return _llama(
        architecture, model_type,
        **{**number, "num_experts_per_tok": 2, "moe_intermediate_size": 512,
           "norm_topk_prob": True, "first_k_dense_replace": 1, "routed_scaling_factor": 1.0,
           "n_group": 1, "topk_group": 1, "score_function": "sigmoid", **others},
    )  # fmt: skip


_LATENT: Final[Config] = {
    "kv_lora_rank": 512, "q_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "v_head_dim": 128, "head_dim": 192,
}  # fmt: skip
_BAILING: Final[Config] = {
    "head_dim": 128, "num_shared_experts": 1, "moe_shared_expert_intermediate_size": 512,
    "use_qkv_bias": False, "use_bias": False, "use_qk_norm": True, "embedding_dropout": 0.0,
    "moe_router_enable_expert_bias": True, "partial_rotary_factor": 0.5,
}  # fmt: skip
_DELTA: Final[Config] = {
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    "linear_num_key_heads": 4, "linear_num_value_heads": 8,
}  # fmt: skip


def _types(layers: int, period: int, most: str = "sliding_attention") -> list[str]:
    return ["full_attention" if (layer + 1) % period == 0 else most for layer in range(layers)]


BY_HAND: Final[dict[str, Config]] = {
    "AliceAIForCausalLM": _experts(
        "AliceAIForCausalLM", "alice_ai", head_dim=128, shared_expert_intermediate_size=512,
        layer_types=_types(8, 4, "linear_attention"), block_attn_res_block_size=4,
        kda_allow_negative_eigenvalues=False,
        router_score_function="sigmoid", router_bias_correction=True,
        **{**_DELTA, "linear_num_value_heads": 4},
    ),
    "BailingMoeForCausalLM": _experts("BailingMoeForCausalLM", "bailing_moe", **_BAILING),
    "BailingMoeV2ForCausalLM": _experts("BailingMoeV2ForCausalLM", "bailing_moe_v2", **_BAILING),
    "BailingMoeV2_5ForCausalLM": _experts(
        "BailingMoeV2_5ForCausalLM", "bailing_hybrid",
        **{**_BAILING, **_LATENT, "layer_group_size": 4, "head_dim": 64, "group_norm_size": 4},
    ),
    "BailingMoeV3ForCausalLM": _experts(
        "BailingMoeV3ForCausalLM", "bailing_hybrid_v3",
        **{**_BAILING, **_LATENT, "layer_group_size": 4, "head_dim": 128,
           "short_conv_kernel_size": 4, "num_key_value_heads": 16, "no_kda_lora": True},
    ),
    "ChatGLMModel": {
        "architectures": ["ChatGLMModel"], "model_type": "chatglm", "hidden_size": 1024,
        "ffn_hidden_size": 2816, "num_layers": 8, "num_attention_heads": 16, "kv_channels": 64,
        "multi_query_attention": True, "multi_query_group_num": 2, "padded_vocab_size": 32_000,
        "seq_length": 8192, "add_bias_linear": False, "add_qkv_bias": True, "rmsnorm": True,
        "post_layer_norm": True, "layernorm_epsilon": 1e-5, "original_rope": True,
        "apply_residual_connection_post_layernorm": False, "fp32_residual_connection": False,
        "tie_word_embeddings": False,
    },
    "ChatGLMForConditionalGeneration": {
        "architectures": ["ChatGLMForConditionalGeneration"], "model_type": "chatglm",
        "hidden_size": 1024, "ffn_hidden_size": 2816, "num_layers": 8, "num_attention_heads": 16,
        "kv_channels": 64, "multi_query_attention": True, "multi_query_group_num": 2,
        "padded_vocab_size": 32_000, "seq_length": 8192, "add_bias_linear": False,
        "add_qkv_bias": True, "rmsnorm": True, "post_layer_norm": True, "layernorm_epsilon": 1e-5,
        "original_rope": True, "apply_residual_connection_post_layernorm": False,
        "fp32_residual_connection": False, "tie_word_embeddings": False,
    },
    "DeepseekForCausalLM": _experts(
        "DeepseekForCausalLM", "deepseek", n_routed_experts=16, n_shared_experts=2,
        moe_layer_freq=1, num_key_value_heads=16,
    ),
    "ExaoneForCausalLM": _llama(
        "ExaoneForCausalLM", "exaone", num_layers=8, activation_function="silu",
        layer_norm_epsilon=1e-5,
    ),
    "ExaoneMoEForCausalLM": _experts(
        "ExaoneMoEForCausalLM", "exaone_moe", head_dim=64, num_shared_experts=1,
        sliding_window=128, layer_types=_types(8, 4),
        mlp_layer_types=["dense"] + ["sparse"] * 7,
    ),
    "InternLM2ForCausalLM": _llama("InternLM2ForCausalLM", "internlm2", bias=False),
    "InternLM3ForCausalLM": _llama(
        "InternLM3ForCausalLM", "internlm3", qkv_bias=False, bias=False, head_dim=64
    ),
    "IQuestCoderForCausalLM": _llama("IQuestCoderForCausalLM", "iquestcoder", head_dim=64),
    "IQuestLoopCoderForCausalLM": _llama(
        "IQuestLoopCoderForCausalLM", "iquestloopcoder", head_dim=64, loop_num=2,
        loop_window_size=64,
    ),
    "K2HorizonForCausalLM": _experts(
        "K2HorizonForCausalLM", "k2_horizon", head_dim=128, rope_head_dim=64,
        attention_bias=False, attention_gate_func="sigmoid", query_key_norm=True,
        layernorm_num_groups=4, num_shared_experts=1, mlp_only_layers=[0], decoder_sparse_step=1,
        moe_gate_bias=True, mova_num_experts=0, mova_num_experts_per_tok=0,
        router_scaling_factor=1.0, router_score_func="sigmoid",
    ),
    "MiMoForCausalLM": _llama(
        "MiMoForCausalLM", "mimo", attention_bias=True, head_dim=64, num_nextn_predict_layers=1
    ),
    "MiMoV2ForCausalLM": _experts(
        "MiMoV2ForCausalLM", "mimo_v2", head_dim=96, v_head_dim=64, swa_head_dim=96,
        swa_v_head_dim=64, swa_num_attention_heads=16, swa_num_key_value_heads=8,
        hybrid_layer_pattern=[0, 1, 1, 1, 0, 1, 1, 0], moe_layer_freq=[0] + [1] * 7,
        n_routed_experts=16, sliding_window=128, sliding_window_size=128,
        attention_bias=False, layernorm_epsilon=1e-5, scoring_func="sigmoid",
        topk_method="noaux_tc", add_swa_attention_sink_bias=True, partial_rotary_factor=0.334,
    ),
    "MiniCPMForCausalLM": _llama(
        "MiniCPMForCausalLM", "minicpm", num_key_value_heads=16, scale_emb=12, scale_depth=1.4,
        dim_model_base=256, tie_word_embeddings=True,
    ),
    "OrionForCausalLM": _llama("OrionForCausalLM", "orion", num_key_value_heads=16),
    "PanguEmbeddedForCausalLM": _llama(
        "PanguEmbeddedForCausalLM", "PanguEmbedded", bias=True
    ),
    "PanguUltraMoEForCausalLM": _experts(
        "PanguUltraMoEForCausalLM", "pangu_ultra_moe", n_routed_experts=16,
        n_shared_experts=1, sandwich_norm=True, router_enable_expert_bias=True,
        **{**_LATENT, "num_key_value_heads": 16},
    ),
    "Param2MoEForCausalLM": _experts(
        "Param2MoEForCausalLM", "param2moe", rope_theta=10_000.0, rope_scaling=None, **_BAILING
    ),
    "PhiMoEForCausalLM": _llama(
        "PhiMoEForCausalLM", "phimoe", num_local_experts=16, num_experts_per_tok=2,
        attention_bias=True, lm_head_bias=True, router_jitter_noise=0.01,
    ),
    "Plamo3ForCausalLM": _llama(
        "Plamo3ForCausalLM", "plamo3", head_dim=64, sliding_window=128,
        interleaved_sliding_window=[128, 128, 128, None] * 2, layer_types=_types(8, 4),
        rope_local_theta=10_000,
    ),
    "Rnj1ForCausalLM": _llama(
        "Rnj1ForCausalLM", "rnj1", head_dim=64, attention_bias=False, sliding_window=None,
        layer_types=["full_attention"] * 8, hidden_activation="gelu_pytorch_tanh",
        query_pre_attn_scalar=64, final_logit_softcapping=30.0, tie_word_embeddings=True,
    ),
    "SarvamMoEForCausalLM": _experts(
        "SarvamMoEForCausalLM", "sarvam_moe", **_BAILING
    ),
    "SarvamMLAForCausalLM": _experts(
        "SarvamMLAForCausalLM", "sarvam_mla",
        **{**_BAILING, **_LATENT, "q_lora_rank": None, "num_key_value_heads": 16},
    ),
    "SolarForCausalLM": _llama(
        "SolarForCausalLM", "solar", head_dim=64, bskcn_1=[2], bskcn_2=[3], bskcn_3=[4],
        bskcn_4=[5], bskcn_tv=[0.9, 0.8],
    ),
    "Step1ForCausalLM": _llama(
        "Step1ForCausalLM", "step1", num_attention_groups=4
    ),
    "Step3p5ForCausalLM": _experts(
        "Step3p5ForCausalLM", "step3p5", head_dim=64, num_attention_groups=4,
        sliding_window=128, layer_types=_types(8, 4), moe_num_experts=16, moe_top_k=2,
        share_expert_dim=512, moe_layers_enum="1,2,3,4,5,6,7", use_moe_router_bias=True,
        need_fp32_gate=True, moe_router_scaling_factor=1.0, norm_expert_weight=True,
        use_head_wise_attn_gate=True, rope_theta=10_000.0,
        swiglu_limits=[0.0] * 8, swiglu_limits_shared=[0.0] * 8,
        attention_other_setting={"attention_type": "sliding_attention",
                                 "num_attention_heads": 24, "num_attention_groups": 4,
                                 "head_dim": 64, "true_head_dim": 64},
    ),
    "TeleChat2ForCausalLM": {
        "architectures": ["TeleChat2ForCausalLM"], "model_type": "telechat", "hidden_size": 1024,
        "ffn_hidden_size": 2816, "n_layer": 8, "n_head": 16, "num_key_value_heads": 4,
        "vocab_size": 32_000, "seq_length": 8192, "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": False, "add_bias_linear": False,
    },
    "TeleChat3ForCausalLM": _llama("TeleChat3ForCausalLM", "telechat3", head_dim=64),
    "TeleFLMForCausalLM": _llama(
        "TeleFLMForCausalLM", "teleflm", use_mup=True, mup_scale_factor=1.0, output_mult=1.0,
        input_mult=1.0, num_key_value_heads=16,
    ),
    "LLaMAForCausalLM": _llama("LLaMAForCausalLM", "llama"),
    "NanbeigeForCausalLM": _llama("NanbeigeForCausalLM", "nanbeige", head_dim=64),
}  # fmt: skip

CHANGES: Final[dict[str, Config]] = {
    "AfmoeForCausalLM": {
        "score_func": "sigmoid",
        "route_norm": True,
        "route_scale": 1.0,
        "n_group": 1,
        "topk_group": 1,
    },
    "DbrxForCausalLM": {
        "attn_config": {"kv_n_heads": 1, "clip_qkv": None, "rope_theta": 10_000.0},
    },
    "DeepseekV2ForCausalLM": {
        "topk_method": "greedy",
        "n_group": 1,
        "topk_group": 1,
        "num_experts_per_tok": 6,
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 1408,
    },
    "Glm4MoeForCausalLM": {"head_dim": 128},
    "Glm4MoeLiteForCausalLM": {"first_k_dense_replace": 1},
    "HYV3ForCausalLM": {
        "first_k_dense_replace": 1,
        "expert_hidden_dim": 1536,
        "num_shared_experts": 1,
        "route_norm": True,
        "qk_norm": True,
    },
    "HunYuanDenseV1ForCausalLM": {"head_dim": 128},
    "HunYuanMoEV1ForCausalLM": {
        "head_dim": 128,
        "use_mixed_mlp_moe": True,
        "num_shared_expert": 1,
    },
    "Lfm2ForCausalLM": {"block_dim": 2560, "block_ff_dim": 12288},
    "Lfm2MoeForCausalLM": {
        "layer_types": ["full_attention" if layer % 4 == 2 else "conv" for layer in range(32)]
    },
    "LongcatFlashForCausalLM": {
        "mla_scale_q_lora": True,
        "mla_scale_kv_lora": True,
        "zero_expert_type": "identity",
    },
    "MiniMaxM2ForCausalLM": {
        "rotary_dim": 64,
        "scoring_func": "sigmoid",
        "use_routing_bias": True,
        "head_dim": 128,
    },
    "InklingForCausalLM": {
        "padded_vocab_size": 201_024,
        "use_embed_norm": True,
        "gate_activation": "sigmoid",
        "norm_after_topk": True,
        "shared_expert_sink": True,
        "inference_moe_w13_interleaved": True,
    },
    "Qwen3MoeForCausalLM": {"head_dim": 64},
    "MuseGlimmerForCausalLM": {"model_type": "muse_glimmer_text"},
    "Qwen4ExpForCausalLM": {"ple_embedding_dtype": "float8_e4m3fn"},
    "NemotronForCausalLM": {"num_key_value_heads": 8},
    "Llama4ForCausalLM": {"model_type": "llama4_text"},
}
"""What a file has that transformers' class leaves out, and the release's class does not."""

CATALOGUE: Final[dict[str, str]] = {
    "MistralLarge3ForCausalLM": "deepseek-ai/DeepSeek-V3",
    "NemotronHPuzzleForCausalLM": "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "Qwen4ExpForCausalLM": "wtdcode/Qwen3.8-Flash-Next-AWQ-W4A16#text_config",
    "Step3TextForCausalLM": "stepfun-ai/step3#text_config",
    "KimiLinearForCausalLM": "moonshotai/Kimi-Linear-48B-A3B-Instruct",
    "MiMoV2FlashForCausalLM": "XiaomiMiMo/MiMo-V2-Flash",
    "MiniMaxM3SparseForConditionalGeneration": "MiniMaxAI/MiniMax-M3",
    "Qwen4ExpForConditionalGeneration": "wtdcode/Qwen3.8-Flash-Next-AWQ-W4A16",
    "KimiK3ForConditionalGeneration": "moonshotai/Kimi-K3",
    "Gemma4ForConditionalGeneration": "google/gemma-4-26B-A4B",
    "Qwen3VLMoeForConditionalGeneration": "Qwen/Qwen3-VL-30B-A3B-Instruct",
    "KimiK25ForConditionalGeneration": "moonshotai/Kimi-K2.5",
}
"""Of the catalogue, where a class without arguments makes a file that the release cannot read."""

BACKENDS: Final[dict[str, str]] = {
    "FlintForCausalLM": "FLASHINFER",
    "Step1ForCausalLM": "TRITON_ATTN",
    "Rnj1ForCausalLM": "TRITON_ATTN",
}
"""The attention that a release's class asks for, where it is not that of an H100."""
