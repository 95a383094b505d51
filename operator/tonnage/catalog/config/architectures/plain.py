"""Kinds of plain transformer: each layer is attention over its own cache and one dense block."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from tonnage.catalog.config.architectures.traits import Architecture
from tonnage.catalog.config.layers import attention, ffn
from tonnage.catalog.config.layers import families as family

NORM_AND_BIAS: Final = 2
"""A norm with weight and bias: two vectors of the model's width."""
BIASED_NORMS: Final = 2 * NORM_AND_BIAS

_GPT_NAMES = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "max_position_embeddings": "n_positions",
}
_MPT_NAMES = {
    "hidden_size": "d_model",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "num_key_value_heads": "attn_config.kv_n_heads",
    "max_position_embeddings": "max_seq_len",
}
_ONE_BIAS_KEY = {"attention_bias": "use_bias", "mlp_bias": "use_bias"}

_GPT = Architecture(
    rotary_fraction=0,
    attention=attention.plain,
    ffn=family.two_matrices_of_four_widths,
    is_tied=True,
    num_norms=BIASED_NORMS,
    num_outer_norms=NORM_AND_BIAS,
    query_bias=True,
    output_bias=True,
    ffn_bias=True,
    names=_GPT_NAMES,
    only={"add_cross_attention": False},
    outer=family.positions,
)
_FALCON = Architecture(
    attention=family.one_kv_head_or_all,
    ffn=family.two_matrices_of_four_widths,
    is_tied=True,
    num_norms=0,
    num_outer_norms=NORM_AND_BIAS,
    names={
        "num_key_value_heads": "num_kv_heads",
        "intermediate_size": "ffn_hidden_size",
        "attention_bias": "bias",
        "mlp_bias": "bias",
    },
    vectors=family.falcon_norms,
)
_COHERE = Architecture(attention=attention.plain, is_tied=True, num_norms=1, qk_norm="wide by key")
_GLM = Architecture(
    rotary_fraction=0.5,
    attention=attention.full,
    derives_head_dim=False,
    output_bias=False,
    defaults={"attention_bias": True},
)
_HUNYUAN = Architecture(attention=attention.plain, qk_norm="by key", only={"use_cla": False})
_LLAMA_LIKE = Architecture(attention=attention.plain)
_UNGATED = Architecture(attention=attention.plain, ffn=family.two_matrices)
_OLMO = Architecture(attention=family.every_fourth_full, qk_norm="wide")

PLAIN: Mapping[str, Architecture] = {
    "apertus": replace(_UNGATED, qk_norm="head"),
    "arcee": _UNGATED,
    "chatglm": Architecture(
        rotary_fraction=0.5,
        attention=attention.full,
        derives_head_dim=False,
        output_bias=False,
        names={
            "num_hidden_layers": "num_layers",
            "num_key_value_heads": "multi_query_group_num",
            "head_dim": "kv_channels",
            "intermediate_size": "ffn_hidden_size",
            "vocab_size": "padded_vocab_size",
            "max_position_embeddings": "seq_length",
            "attention_bias": "add_qkv_bias",
        },
        only={"multi_query_attention": True, "add_bias_linear": False, "post_layer_norm": True},
    ),
    "cohere": _COHERE,
    "cohere2": replace(
        _COHERE,
        attention=family.every_fourth_full,
        qk_norm="none",
        sparse_defaults={
            "vocab_size": 256_000,
            "hidden_size": 8192,
            "intermediate_size": 22_528,
            "num_hidden_layers": 40,
            "num_attention_heads": 64,
            "max_position_embeddings": 8192,
            "sliding_window": 4096,
        },
    ),
    "ernie4_5": Architecture(
        attention=attention.plain,
        is_tied=True,
        names=_ONE_BIAS_KEY,
        defaults={"num_key_value_heads": 2, "head_dim": 128},
    ),
    "exaone": replace(_LLAMA_LIKE, names={"num_hidden_layers": "num_layers"}),
    "exaone4": Architecture(
        attention=family.windows_if_any,
        qk_norm="head",
        names={"window_pattern": "sliding_window_pattern"},
        defaults={"num_key_value_heads": 32},
    ),
    "falcon": _FALCON,
    "glm": _GLM,
    "glm4": replace(_GLM, num_norms=4),
    "glm4v_text": Architecture(
        rotary_fraction=0.5,
        attention=attention.plain,
        num_norms=4,
        query_bias=True,
        output_bias=False,
        defaults={"num_key_value_heads": 2},
    ),
    "gpt2": _GPT,
    "gpt_bigcode": replace(_GPT, attention=family.one_kv_head_or_all),
    "gpt_neox": replace(
        _UNGATED,
        rotary_fraction=0.25,
        num_norms=BIASED_NORMS,
        num_outer_norms=NORM_AND_BIAS,
        ffn_bias=True,
        defaults={"attention_bias": True},
    ),
    "gptj": replace(
        _GPT,
        rotary_fraction=1.0,
        is_tied=False,
        num_norms=NORM_AND_BIAS,
        query_bias=False,
        output_bias=False,
        outer=family.head_bias,
    ),
    "granite": _LLAMA_LIKE,
    "hunyuan_v1_dense": _HUNYUAN,
    "internlm2": replace(_LLAMA_LIKE, names={"attention_bias": "bias"}),
    "internlm3": replace(
        _LLAMA_LIKE,
        names={"attention_bias": "qkv_bias", "mlp_bias": "bias"},
        defaults={"num_key_value_heads": 2, "head_dim": 128},
    ),
    "minicpm": Architecture(attention=attention.plain, ffn=ffn.experts_by_keys, is_tied=True),
    "ministral": Architecture(
        attention=family.windows_unless_listed, defaults={"num_key_value_heads": 8}
    ),
    "ministral3": Architecture(
        attention=attention.plain,
        derives_head_dim=False,
        sparse_defaults={
            "vocab_size": 131_072,
            "hidden_size": 4096,
            "intermediate_size": 14_336,
            "num_hidden_layers": 34,
            "num_attention_heads": 32,
            "head_dim": 128,
            "max_position_embeddings": 262_144,
        },
        defaults={"num_key_value_heads": 8},
    ),
    "mpt": Architecture(
        rotary_fraction=0,
        attention=attention.plain,
        ffn=family.two_matrices_by_ratio,
        is_tied=True,
        names=_MPT_NAMES,
        only={"no_bias": True, "attn_config.qk_ln": False, "attn_config.alibi": True},
    ),
    "nemotron": replace(
        _UNGATED, rotary_fraction=0.5, num_norms=BIASED_NORMS, num_outer_norms=NORM_AND_BIAS
    ),
    "olmo": replace(_LLAMA_LIKE, num_norms=0, num_outer_norms=0),
    "olmo2": replace(_OLMO, attention=attention.plain),
    "olmo3": _OLMO,
    "opt": replace(
        _GPT,
        attention=family.on_full_embeddings,
        ffn=family.two_matrices,
        names={"intermediate_size": "ffn_dim"},
        only={"enable_bias": True, "layer_norm_elementwise_affine": True},
        outer=family.opt_positions,
    ),
    "orion": replace(_LLAMA_LIKE, num_norms=BIASED_NORMS, num_outer_norms=NORM_AND_BIAS),
    "phi": replace(
        _UNGATED,
        rotary_fraction=0.5,
        num_norms=NORM_AND_BIAS,
        num_outer_norms=NORM_AND_BIAS,
        query_bias=True,
        output_bias=True,
        ffn_bias=True,
        only={"qk_layernorm": False},
        outer=family.head_bias,
    ),
    "phi3_v": _LLAMA_LIKE,
    "smollm3": Architecture(
        attention=family.windows_without_positions,
        is_tied=True,
        defaults={"num_key_value_heads": 4},
    ),
    "stablelm": Architecture(
        rotary_fraction=0.25,
        attention=attention.plain,
        num_norms=0,
        num_outer_norms=NORM_AND_BIAS,
        output_bias=False,
        qk_norm="wide by key",
        names={"attention_bias": "use_qkv_bias", "use_qk_norm": "qk_layernorm"},
        defaults={"num_key_value_heads": 32},
        vectors=family.stablelm_norms,
    ),
    "starcoder2": replace(
        _UNGATED,
        is_tied=True,
        num_norms=BIASED_NORMS,
        num_outer_norms=NORM_AND_BIAS,
        names=_ONE_BIAS_KEY,
        defaults={"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 2},
    ),
}
