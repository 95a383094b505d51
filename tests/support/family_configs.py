"""Configurations of plain families that do not ship with Tonnage, as their publishers have them.

Keys that decide nothing are left out. They were read in public copies of the files, or are the
defaults of the class where the class was made for that model (phi-2, GPT-NeoX 20B, SmolLM 3,
InternLM 3, the GLM-4 of 9B).
"""

from typing import Any

Config = dict[str, Any]


def decoder(
    model_type: str, hidden: int, layers: int, heads: int, vocab: int, **others: Any
) -> Config:
    """Return a configuration under the usual names."""
    return {
        "model_type": model_type,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "vocab_size": vocab,
        **others,
    }


LLAMA_3_1_8B = decoder(
    "llama", 4096, 32, 32, 128_256, num_key_value_heads=8, intermediate_size=14_336,
    max_position_embeddings=131_072, tie_word_embeddings=False,
    architectures=["LlamaForCausalLM"], torch_dtype="bfloat16",
)  # fmt: skip
PHI_2 = decoder("phi", 2560, 32, 32, 51_200, intermediate_size=10_240, max_position_embeddings=2048)
PHI_MOE = decoder(
    "phimoe", 4096, 32, 32, 32_064, num_key_value_heads=8, intermediate_size=6400,
    num_local_experts=16, num_experts_per_tok=2, attention_bias=True, lm_head_bias=True,
    sliding_window=131_072, max_position_embeddings=131_072,
)  # fmt: skip
PHI_3_VISION = decoder(
    "phi3_v", 3072, 32, 32, 32_064, num_key_value_heads=32, intermediate_size=8192,
    sliding_window=262_144, max_position_embeddings=131_072,
)  # fmt: skip
GRANITE_8B = decoder(
    "granite", 4096, 40, 32, 49_155, num_key_value_heads=8, intermediate_size=12_800,
    tie_word_embeddings=True,
)  # fmt: skip
GRANITE_MOE_3B = decoder(
    "granitemoe", 1536, 32, 24, 49_155, num_key_value_heads=8, intermediate_size=512,
    num_local_experts=40, num_experts_per_tok=8, tie_word_embeddings=True,
)  # fmt: skip
COMMAND_R = decoder(
    "cohere", 8192, 40, 64, 256_000, num_key_value_heads=64, intermediate_size=22_528,
    model_max_length=131_072, max_position_embeddings=8192,
)  # fmt: skip
COMMAND_R_7B = decoder(
    "cohere2", 4096, 32, 32, 256_000, num_key_value_heads=8, intermediate_size=14_336,
    sliding_window=4096, sliding_window_pattern=4, max_position_embeddings=132_096,
)  # fmt: skip
COMMAND_A = decoder(
    "cohere2", 12_288, 64, 96, 256_000, num_key_value_heads=8, intermediate_size=36_864,
    sliding_window=4096, sliding_window_pattern=4,
)  # fmt: skip
OLMO_7B = decoder("olmo", 4096, 32, 32, 50_304, intermediate_size=11_008)
OLMO_2_7B = decoder(
    "olmo2", 4096, 32, 32, 100_352, num_key_value_heads=32, intermediate_size=11_008
)
OLMOE = decoder(
    "olmoe", 2048, 16, 16, 50_304, num_key_value_heads=16, intermediate_size=1024,
    num_experts=64, num_experts_per_tok=8,
)  # fmt: skip
EXAONE_3_5 = {
    **decoder("exaone", 4096, 0, 32, 102_400, num_key_value_heads=8, intermediate_size=14_336),
    "num_layers": 32,
}
del EXAONE_3_5["num_hidden_layers"]
EXAONE_4_32B = decoder(
    "exaone4", 5120, 64, 40, 102_400, num_key_value_heads=8, intermediate_size=27_392,
    sliding_window=4096, sliding_window_pattern=4, tie_word_embeddings=False,
)  # fmt: skip
EXAONE_4_1B = decoder(
    "exaone4", 2048, 30, 32, 102_400, num_key_value_heads=8, intermediate_size=4096,
    sliding_window=None, sliding_window_pattern="LLLG", tie_word_embeddings=True,
)  # fmt: skip
GLM_4_9B_0414 = decoder(
    "glm4", 4096, 40, 32, 151_552, num_key_value_heads=2, head_dim=128, intermediate_size=13_696,
    attention_bias=True,
)  # fmt: skip
GLM_4_9B_HF = {**GLM_4_9B_0414, "model_type": "glm"}
GLM_4_1V = {
    "model_type": "glm4v",
    "text_config": {**GLM_4_9B_0414, "model_type": "glm4v_text"},
}
GLM_4_9B = {
    "model_type": "chatglm", "hidden_size": 4096, "num_layers": 40, "num_attention_heads": 32,
    "multi_query_attention": True, "multi_query_group_num": 2, "kv_channels": 128,
    "ffn_hidden_size": 13_696, "padded_vocab_size": 151_552, "seq_length": 8192,
    "add_bias_linear": False, "add_qkv_bias": True, "post_layer_norm": True,
    "tie_word_embeddings": False,
}  # fmt: skip
GLM_4_5V = {
    "model_type": "glm4v_moe",
    "tie_word_embeddings": False,
    "text_config": decoder(
        "glm4v_moe_text", 4096, 46, 96, 151_552, num_key_value_heads=8, head_dim=128,
        intermediate_size=10_944, moe_intermediate_size=1408, first_k_dense_replace=1,
        n_routed_experts=128, n_shared_experts=1, num_experts_per_tok=8, attention_bias=True,
    ),
}  # fmt: skip
INTERNLM_2 = decoder(
    "internlm2", 4096, 32, 32, 92_544, num_key_value_heads=8, intermediate_size=14_336, bias=False
)
INTERNLM_3 = decoder(
    "internlm3", 4096, 48, 32, 128_512, num_key_value_heads=2, head_dim=128,
    intermediate_size=10_240, qkv_bias=False, bias=False,
)  # fmt: skip
STABLELM_3B = decoder(
    "stablelm", 2560, 32, 32, 50_304, num_key_value_heads=32, intermediate_size=6912,
    use_qkv_bias=False,
)  # fmt: skip
STABLELM_2 = decoder(
    "stablelm", 2048, 24, 32, 100_352, num_key_value_heads=32, intermediate_size=5632,
    use_qkv_bias=True,
)  # fmt: skip
STARCODER_2_7B = decoder(
    "starcoder2", 4608, 32, 36, 49_152, num_key_value_heads=4, intermediate_size=18_432,
    use_bias=True, sliding_window=4096, max_position_embeddings=16_384,
)  # fmt: skip
SANTACODER = {
    "model_type": "gpt_bigcode", "n_embd": 2048, "n_layer": 24, "n_head": 16, "n_inner": 8192,
    "n_positions": 2048, "vocab_size": 49_280, "multi_query": True,
}  # fmt: skip
GPT_2 = {
    "model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024,
    "vocab_size": 50_257,
}  # fmt: skip
GPT_J = {
    "model_type": "gptj", "n_embd": 4096, "n_layer": 28, "n_head": 16, "n_inner": None,
    "n_positions": 2048, "vocab_size": 50_400, "tie_word_embeddings": False,
}  # fmt: skip
GPT_NEOX_20B = decoder(
    "gpt_neox", 6144, 44, 64, 50_432, intermediate_size=24_576, max_position_embeddings=2048
)
REDPAJAMA_3B = decoder("gpt_neox", 2560, 32, 32, 50_432, intermediate_size=10_240)
OPT_6_7B = decoder(
    "opt", 4096, 32, 32, 50_272, ffn_dim=16_384, max_position_embeddings=2048,
    word_embed_proj_dim=4096, do_layer_norm_before=True,
)  # fmt: skip
FALCON_7B = decoder("falcon", 4544, 32, 71, 65_024, multi_query=True, parallel_attn=True)
FALCON_40B = decoder(
    "falcon", 8192, 60, 128, 65_024, num_kv_heads=8, multi_query=True, parallel_attn=True,
    new_decoder_architecture=True, bias=False,
)  # fmt: skip
MPT_7B = {
    "model_type": "mpt", "d_model": 4096, "n_heads": 32, "n_layers": 32, "expansion_ratio": 4,
    "vocab_size": 50_432, "max_seq_len": 2048, "no_bias": True,
    "attn_config": {"alibi": True, "qk_ln": False, "attn_type": "multihead_attention"},
}  # fmt: skip
QWEN_MOE = decoder(
    "qwen2_moe", 2048, 24, 16, 151_936, num_key_value_heads=16, intermediate_size=5632,
    num_experts=60, num_experts_per_tok=4, moe_intermediate_size=1408,
    shared_expert_intermediate_size=5632, decoder_sparse_step=1, use_sliding_window=False,
    sliding_window=32_768, max_window_layers=21, max_position_embeddings=32_768,
)  # fmt: skip
SMOLLM_3 = decoder(
    "smollm3", 2048, 36, 16, 128_256, num_key_value_heads=4, intermediate_size=11_008
)
ERNIE_0_3B = decoder(
    "ernie4_5", 1024, 18, 16, 103_424, num_key_value_heads=2, head_dim=128,
    intermediate_size=3072, use_bias=False,
)  # fmt: skip
ERNIE_21B = decoder(
    "ernie4_5_moe", 2560, 28, 20, 103_424, num_key_value_heads=4, intermediate_size=12_288,
    moe_intermediate_size=1536, moe_num_experts=64, moe_k=6, moe_num_shared_experts=2,
    moe_layer_start_index=1, moe_layer_end_index=27, moe_layer_interval=1, use_bias=False,
)  # fmt: skip
HUNYUAN_A13B = decoder(
    "hunyuan_v1_moe", 4096, 32, 32, 128_167, num_key_value_heads=8, head_dim=128,
    intermediate_size=3072, num_experts=64, moe_topk=[8] * 32, moe_intermediate_size=[3072] * 32,
    num_shared_expert=[1] * 32, use_mixed_mlp_moe=True, use_qk_norm=True,
    tie_word_embeddings=True,
)  # fmt: skip
DBRX = {
    "model_type": "dbrx", "d_model": 6144, "n_heads": 48, "n_layers": 40, "vocab_size": 100_352,
    "max_seq_len": 32_768, "attn_config": {"kv_n_heads": 8, "clip_qkv": 8},
    "ffn_config": {"ffn_hidden_size": 10_752, "moe_num_experts": 16, "moe_top_k": 4},
}  # fmt: skip
MINICPM_2B = decoder(
    "minicpm", 2304, 40, 36, 122_753, num_key_value_heads=36, intermediate_size=5760,
    tie_word_embeddings=True,
)  # fmt: skip
MINICPM_MOE = {**MINICPM_2B, "num_experts": 8, "num_experts_per_tok": 2}
NEMOTRON_4B = decoder(
    "nemotron", 3072, 32, 24, 256_000, num_key_value_heads=8, head_dim=128, intermediate_size=9216
)
APERTUS_8B = decoder(
    "apertus", 4096, 32, 32, 131_072, num_key_value_heads=8, intermediate_size=21_504
)
DOTS_1 = decoder(
    "dots1", 4096, 62, 32, 152_064, num_key_value_heads=32, intermediate_size=10_944,
    moe_intermediate_size=1408, n_routed_experts=128, n_shared_experts=2, num_experts_per_tok=6,
    first_k_dense_replace=1,
)  # fmt: skip
LING_MINI_2 = decoder(
    "bailing_moe_v2", 2048, 20, 16, 157_184, num_key_value_heads=4, head_dim=128,
    intermediate_size=5120, moe_intermediate_size=512, moe_shared_expert_intermediate_size=512,
    num_shared_experts=1, num_experts=256, num_experts_per_tok=8, first_k_dense_replace=1,
    use_qk_norm=True,
)  # fmt: skip
DEEPSEEK_MOE = decoder(
    "deepseek", 2048, 28, 16, 102_400, num_key_value_heads=16, intermediate_size=10_944,
    moe_intermediate_size=1408, n_routed_experts=64, n_shared_experts=2, num_experts_per_tok=6,
    first_k_dense_replace=1, moe_layer_freq=1,
)  # fmt: skip
ORION_14B = decoder("orion", 5120, 40, 40, 84_608, num_key_value_heads=40, intermediate_size=15_360)
MINISTRAL_3_3B = {
    "model_type": "mistral3",
    "text_config": decoder(
        "ministral3", 3072, 26, 32, 131_072, num_key_value_heads=8, head_dim=128,
        intermediate_size=9216, sliding_window=None, max_position_embeddings=262_144,
        tie_word_embeddings=True,
    ),
}  # fmt: skip
