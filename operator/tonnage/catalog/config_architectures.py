"""The kinds of model that are understood, by ``model_type``, and what makes each of them special.

An entry exists only where the whole cost of the model is known: its cache, its weights and its
work. A model of any other kind is refused by name.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from tonnage.catalog import config_attention as attention
from tonnage.catalog import config_ffn as ffn
from tonnage.catalog.config_keys import DecoderKeys
from tonnage.catalog.shape import Attention, Ffn, GroupedAttention, LatentAttention, MoeFfn


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """How to read the configuration of one kind of model."""

    attention: Callable[[DecoderKeys], list[Attention]]
    ffn: Callable[[DecoderKeys], list[Ffn]] = ffn.dense
    is_tied: bool = False
    """Embedding and head are one table when the file does not say."""
    derives_head_dim: bool = True
    """A missing ``head_dim`` means width over heads; else it must be given."""
    num_norms: int = 2
    """Vectors of the model's width per layer."""
    num_outer_norms: int = 1
    """The same, outside the layers."""
    query_bias: bool | None = None
    """Of query, key and value. None: as ``attention_bias`` says."""
    output_bias: bool | None = None
    """Of the output projection. None: as ``attention_bias`` says."""
    qk_norm: Literal["none", "head", "by key"] = "none"
    """Norms on queries and keys: none, one head wide, or as ``use_qk_norm`` says."""
    has_sinks: bool = False
    """One learned score per query head."""
    router_bias: bool = False
    """One bias per expert."""
    module_names: Mapping[str, str] = field(default_factory=dict)
    """Of the parts that a list of unquantized modules calls by another than the usual name."""
    sparse_defaults: Mapping[str, object] = field(default_factory=dict)
    """What a nested block means by leaving a key out: transformers does not write the values
    that equal the defaults of the class there."""


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
_GEMMA3 = Architecture(
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
_GEMMA4 = Architecture(
    attention=attention.wide_global_heads,
    ffn=ffn.experts_beside_dense,
    module_names={"experts": "experts.0", "shared_experts": "mlp"},
    is_tied=True,
    derives_head_dim=False,
    num_norms=4,
    qk_norm="head",
)

ARCHITECTURES: Mapping[str, Architecture] = {
    "bloom": Architecture(
        attention=attention.plain,
        ffn=ffn.dense_ungated,
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
    "gemma4_text": _GEMMA4,
    "gemma4_unified_text": _GEMMA4,
    "glm4_moe": Architecture(
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
    "llama": Architecture(attention=attention.plain),
    "llama4_text": _LLAMA4,
    "mimo_v2_flash": Architecture(
        attention=attention.mimo_windows,
        ffn=ffn.marked_layers,
        derives_head_dim=False,
        router_bias=True,
    ),
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
    "gemma3": ("text_config",),
    "gemma4": ("text_config",),
    "gemma4_unified": ("text_config",),
    "kimi_k25": ("text_config",),
    "llama4": ("text_config",),
    "llava_next": ("text_config",),
    "mistral3": ("text_config",),
    "qwen2_5_omni": ("thinker_config", "text_config"),
    "qwen2_5_vl": ("text_config",),
    "qwen2_vl": ("text_config",),
    "qwen3_vl": ("text_config",),
    "qwen3_vl_moe": ("text_config",),
}
"""Multimodal models: the path to the part that generates text."""

UNDERSTOOD = tuple(sorted({*ARCHITECTURES, *WRAPPERS}))


def vector_parameters(
    architecture: Architecture, keys: DecoderKeys, layer: Attention, block: Ffn
) -> int:
    """Return the norms, biases and other small vectors of one layer."""
    return (
        architecture.num_norms * keys.hidden_size
        + _attention_vectors(architecture, keys, layer)
        + _ffn_vectors(architecture, keys, block)
    )


def _attention_vectors(architecture: Architecture, keys: DecoderKeys, layer: Attention) -> int:
    if isinstance(layer, LatentAttention):
        return (layer.q_lora_rank or 0) + layer.kv_lora_rank
    total = keys.attention_out_bias * keys.hidden_size
    if _says(architecture.query_bias, keys.attention_bias):
        total += layer.num_heads * layer.head_dim
        total += layer.num_kv_heads * (layer.head_dim + layer.num_value_dims)
    if _says(architecture.output_bias, keys.attention_bias):
        total += keys.hidden_size
    if architecture.has_sinks:
        total += layer.num_heads
    return total + _qk_norm(architecture, keys, layer)


def _says(always: bool | None, key: bool) -> bool:
    return key if always is None else always


def _qk_norm(architecture: Architecture, keys: DecoderKeys, layer: GroupedAttention) -> int:
    match architecture.qk_norm:
        case "head":
            return 2 * layer.head_dim
        case "by key" if keys.use_qk_norm and keys.qk_norm_type == "per_layer":
            return (layer.num_heads + layer.num_kv_heads) * layer.head_dim
        case "by key" if keys.use_qk_norm:
            return 2 * layer.head_dim
        case _:
            return 0


def _ffn_vectors(architecture: Architecture, keys: DecoderKeys, block: Ffn) -> int:
    if isinstance(block, MoeFfn):
        return block.num_experts if architecture.router_bias else 0
    if keys.mlp_bias:
        return (block.num_matrices - 1) * block.intermediate_size + keys.hidden_size
    return 0
