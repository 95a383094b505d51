"""The kinds of model that are understood, by ``model_type``.

An entry exists only where the whole cost of the model is known: its cache, its weights and its
work. A model of any other kind is refused by name.
"""

from collections.abc import Mapping

from tonnage.catalog.config.architectures.hybrid import HYBRID
from tonnage.catalog.config.architectures.keyed import KEYED
from tonnage.catalog.config.architectures.plain import PLAIN
from tonnage.catalog.config.architectures.plain_moe import PLAIN_MOE
from tonnage.catalog.config.architectures.sharing import SHARING
from tonnage.catalog.config.architectures.side_by_side import SIDE_BY_SIDE
from tonnage.catalog.config.architectures.sparse import SPARSE
from tonnage.catalog.config.architectures.traits import Architecture
from tonnage.catalog.config.layers import attention, ffn
from tonnage.catalog.config.layers.families import two_matrices_of_four_widths

_QWEN3 = Architecture(attention=attention.window_if_used, derives_head_dim=False, qk_norm="head")
_QWEN3_MOE = Architecture(
    attention=attention.window_if_used,
    ffn=ffn.sparse_steps,
    derives_head_dim=False,
    qk_norm="head",
)
_QWEN2 = Architecture(attention=attention.window_if_used, query_bias=True, output_bias=False)
_LATENT = Architecture(attention=attention.latent, ffn=ffn.dense_then_experts, router_bias=True)
_LLAMA4 = Architecture(attention=attention.chunked_with_full, ffn=ffn.interleaved_experts)
_MIMO_V2 = Architecture(
    turns_by_window=True,
    attention=attention.mimo_windows,
    ffn=ffn.marked_layers,
    derives_head_dim=False,
    router_bias=True,
)
_GEMMA3 = Architecture(
    turns_by_window=True,
    attention=attention.five_windows_to_one,
    is_tied=True,
    derives_head_dim=False,
    num_norms=4,
    qk_norm="head",
    sparse_defaults={
        "vocab_size": 262_208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131_072,
    },
)

ARCHITECTURES: Mapping[str, Architecture] = {
    **HYBRID,
    **KEYED,
    **PLAIN,
    **PLAIN_MOE,
    **SHARING,
    **SIDE_BY_SIDE,
    **SPARSE,
    "bloom": Architecture(
        rotary_fraction=0,
        attention=attention.plain,
        ffn=two_matrices_of_four_widths,
        is_tied=True,
        num_norms=4 + 5,  # two norms with bias; the biases of the block: four widths and one
        num_outer_norms=4,  # after the embedding and after the layers, with bias
        query_bias=True,
        output_bias=True,
    ),
    "deepseek_v2": Architecture(attention=attention.latent, ffn=ffn.dense_then_experts),
    "deepseek_v3": _LATENT,
    "gemma": Architecture(attention=attention.full, is_tied=True, derives_head_dim=False),
    "gemma2": Architecture(
        attention=attention.alternating_windows, is_tied=True, derives_head_dim=False, num_norms=4
    ),
    "gemma3_text": _GEMMA3,
    "glm4_moe": Architecture(
        rotary_fraction=0.5,
        attention=attention.full,
        ffn=ffn.dense_then_experts,
        derives_head_dim=False,
        output_bias=False,
        qk_norm="by key",
        router_bias=True,
    ),
    "gpt_oss": Architecture(
        attention=attention.alternating_windows,
        ffn=ffn.all_experts_with_bias,
        derives_head_dim=False,
        has_sinks=True,
        router_bias=True,
    ),
    "kimi_k2": _LATENT,
    "llama": Architecture(
        attention=attention.plain,
        sparse_defaults={
            "vocab_size": 32_000,
            "hidden_size": 4096,
            "intermediate_size": 11_008,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "max_position_embeddings": 2048,
        },
    ),
    "llama4_text": _LLAMA4,
    "mimo_v2": _MIMO_V2,
    "mimo_v2_flash": _MIMO_V2,
    "minimax_m2": Architecture(
        attention=attention.full,
        ffn=ffn.all_experts,
        derives_head_dim=False,
        qk_norm="by key",
        router_bias=True,
    ),
    "mistral": Architecture(
        attention=attention.window_everywhere,
        sparse_defaults={
            "hidden_size": 4096,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
        },
    ),
    "mixtral": Architecture(attention=attention.window_everywhere, ffn=ffn.all_experts),
    "phi3": Architecture(attention=attention.plain),
    "qwen2": _QWEN2,
    "qwen2_vl_text": _QWEN2,
    "qwen2_5_vl_text": _QWEN2,
    "qwen2_5_omni_text": _QWEN2,
    "qwen3": _QWEN3,
    "qwen3_moe": _QWEN3_MOE,
    "qwen3_vl_text": _QWEN3,
    "qwen3_vl_moe_text": _QWEN3_MOE,
    "seed_oss": Architecture(attention=attention.full, derives_head_dim=False, output_bias=False),
}

WRAPPERS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("aria", "aya_vision", "blip-2", "cohere2_vision", "cosmos3_edge", "exaone4_5",
         "gemma3", "gemma3n", "gemma4", "gemma4_unified", "glm4v", "glm4v_moe", "glm_ocr",
         "idefics3", "internvl", "kimi_k25", "kimi_k3", "kimi_vl", "llama4", "llava",
         "llava_next", "llava_next_video", "llava_onevision", "minicpm_ocr", "minicpmv4_6",
         "minicpmv4_7", "minimax_m3_vl", "mistral3", "mllama", "moss_transcribe_diarize",
         "muse_glimmer", "paddleocr_vl", "paligemma", "qwen2_5_vl", "qwen2_vl", "qwen3_5",
         "qwen3_5_moe", "qwen3_vl", "qwen3_vl_moe", "qwen4_exp", "smolvlm", "step3_vl"),
        ("text_config",),
    ),
    "internvl_chat": ("llm_config",),
    "qwen2_5_omni": ("thinker_config", "text_config"),
}  # fmt: skip
"""Multimodal models: the path to the part that generates text."""

WRAPPED_TYPES: Mapping[object, str] = {
    "llava": "llama",
    "mllama": "mllama_text_model",
    "step3_vl": "step3_text",
    "minimax_m3_vl": "minimax_m3_vl_text",
    "mistral3": "mistral",
}
"""The kind of that part where it does not name its own."""

UNDERSTOOD = tuple(sorted({*ARCHITECTURES, *WRAPPERS}))
