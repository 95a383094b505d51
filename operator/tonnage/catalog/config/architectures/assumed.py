"""Kinds of model that no rule knows: a bound from the keys that all decoders have.

Each layer attends to all tokens with the heads that are written, or keeps the latent vector where
there is one, and has the widest block that its numbers make; only marks of layers that most files
write alike make less of it. What such a bound would be wrong for is refused: ``refusals``.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import resources
from typing import Final

from tonnage.catalog.assumption import Assumption
from tonnage.catalog.config.architectures.sparse import sparse_latent
from tonnage.catalog.config.architectures.traits import Architecture
from tonnage.catalog.config.keys.decoder import DecoderKeys, UnknownArchitectureError
from tonnage.catalog.config.layers import attention, ffn, state
from tonnage.catalog.shape import Attention, GroupedAttention
from tonnage.units import count_of

_SYNONYMS: Final[Mapping[str, tuple[str, ...]]] = {
    "hidden_size": ("n_embed", "n_embd", "d_model", "model_dim"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads"),
    "num_key_value_heads": (
        "num_kv_heads", "n_kv_heads", "n_head_kv", "multi_query_group_num", "num_attention_groups",
        "num_query_groups", "swa_num_key_value_heads",
    ),
    "head_dim": ("attention_head_dim", "hidden_size_per_head", "kv_channels", "swa_head_dim",
                 "global_head_dim"),
    "v_head_dim": ("v_channels", "swa_v_head_dim"),
    "intermediate_size": ("ffn_hidden_size", "n_inner", "ffn_dim", "block_ff_dim", "d_ff",
                          "intermediate_size_mlp", "dense_intermediate_size"),
    "vocab_size": ("padded_vocab_size", "embedding_size"),
    "max_position_embeddings": ("max_position_embedding", "max_sequence_length", "max_seq_len",
                                "n_positions", "seq_length", "model_max_length"),
    "num_experts": ("n_routed_experts", "num_local_experts", "moe_num_experts",
                    "num_routed_experts"),
    "num_experts_per_tok": ("num_experts_per_token", "top_k_experts", "moe_topk", "moe_top_k",
                            "moe_k", "top_k"),
    "moe_intermediate_size": ("expert_hidden_dim", "expert_ffn_hidden_size",
                              "moe_ffn_hidden_size"),
    "n_shared_experts": ("num_shared_experts", "num_shared_expert", "moe_num_shared_experts"),
    "shared_expert_intermediate_size": ("share_expert_dim", "shared_intermediate_size"),
    "qk_nope_head_dim": ("qk_nope_dim",),
    "qk_rope_head_dim": ("qk_rope_dim",),
}  # fmt: skip
"""Of each key the names that families give it.

Sources:
    [vllm-source] transformers_utils/config.py CONFIG_FIELD_ALIASES and
    model_arch_config_convertor.py.
"""
_AS_WRITTEN: Final = (
    "attention_chunk_size", "decoder_sparse_step", "first_k_dense_replace", "index_head_dim",
    "index_n_heads", "index_topk", "kv_lora_rank", "layer_types", "linear_conv_kernel_dim",
    "linear_key_head_dim", "linear_num_key_heads", "linear_num_value_heads",
    "linear_value_head_dim", "mlp_layer_types", "mlp_only_layers", "moe_layer_freq",
    "moe_shared_expert_intermediate_size", "num_nextn_predict_layers", "partial_rotary_factor",
    "q_lora_rank", "rope_parameters", "rope_scaling", "sliding_window", "tie_word_embeddings",
)  # fmt: skip
_GATES: Final = ("attn_output_gate", "gating", "use_attn_gate", "use_head_wise_attn_gate",
                 "attention_gate_func", "gated_attention")  # fmt: skip
"""Keys by which a layer's attention has a gate at its output."""
_DELTA: Final = frozenset(
    {"linear_attention", "linear_conv_kernel_dim", "linear_num_key_heads",
     "linear_num_value_heads", "full_attention_interval"}
)  # fmt: skip
_INDEX: Final = frozenset({"index_head_dim", "index_n_heads", "index_topk"})


def assumed_keys(block: Mapping[str, object]) -> dict[str, object]:
    """Return the block under the usual names, of several the largest, and nothing else."""
    found: dict[str, object] = {key: block[key] for key in _AS_WRITTEN if key in block}
    for usual, others in _SYNONYMS.items():
        numbers = [number for name in (usual, *others) for number in _numbers(block.get(name))]
        if numbers:
            found[usual] = max(numbers)
    heads = block.get("num_attention_heads_per_layer")
    found["num_attention_heads"] = max(_numbers(heads), default=found.get("num_attention_heads"))
    found["attn_output_gate"] = any(block.get(key) for key in _GATES)
    found["attention_bias"] = True
    found = {key: value for key, value in found.items() if value is not None}
    return {"q_lora_rank": None, **found} if "kv_lora_rank" in found else found


def _numbers(value: object) -> list[int]:
    """Return the numbers of one layer each, or of all."""
    values: Sequence[object] = value if isinstance(value, list) else [value]
    return [each for each in values if isinstance(each, int) and not isinstance(each, bool)]


def assumed_architecture(config: Mapping[str, object], block: Mapping[str, object]) -> Architecture:
    """Return how to read a kind that no rule knows.

    Raises:
        UnknownArchitectureError: vLLM has no class of this name.
    """
    _refuse_without_class(config)
    understands = frozenset[str]()
    if block.get("kv_lora_rank"):
        understands |= _INDEX
    if block.get("linear_num_value_heads"):
        understands |= _DELTA
    return replace(_ASSUMED, understands=understands)


_REPLACED_BY: Final = (
    "the first Ready pod's own report (of the weights: headers of safetensors files, by --hub)"
)


def assumed_wrapper(described: str, text_type: str) -> Assumption:
    """Say that only the text part of a model is of a kind that a rule knows."""
    return Assumption(
        about="model",
        taken=f"{described}: its text part counts as {text_type}, and what it has "
        "beside that as a bound",
        effect="memory",
        replaced_by=_REPLACED_BY,
    )


def assumed_kind(described: str, keys: DecoderKeys) -> Assumption:
    """Say what a kind that no rule knows is counted as."""
    layers = count_of(keys.num_hidden_layers, "layer")
    if keys.kv_lora_rank:
        kept = f"a latent vector of {keys.kv_lora_rank}"
    else:
        kept = f"{count_of(keys.num_key_value_heads or keys.num_attention_heads, 'KV head')}"
    windows = " but for the windows of layer_types" if keys.layer_types else ""
    experts = f", {keys.num_experts} experts where none is excepted" if keys.num_experts else ""
    return Assumption(
        about="model",
        taken=f"{described}: {layers} that keep {kept} of every token{windows}, and "
        f"the widest blocks that the keys make{experts}",
        effect="memory and time",
        replaced_by=_REPLACED_BY,
    )


def _refuse_without_class(config: Mapping[str, object]) -> None:
    listed = config.get("architectures")
    names = [each for each in listed if isinstance(each, str)] if isinstance(listed, list) else []
    known = _classes()
    if not names or any(name in known for name in names):
        return
    code = "with --trust-remote-code " if config.get("auto_map") else ""
    raise UnknownArchitectureError(
        f"vLLM {_newest()} has no class {names[0]}: only its Transformers backend may serve it "
        f"{code}(architectures, model_type = {config.get('model_type')!r}), and how much memory "
        "that takes is not known here"
    )


@cache
def _registry() -> Mapping[str, object]:
    text = resources.files("tonnage.catalog").joinpath("engines", "classes.toml").read_text()
    return tomllib.loads(text)


def _classes() -> frozenset[str]:
    text = str(_registry()["classes"])
    return frozenset(text.split())


def _newest() -> str:
    return str(_registry()["version"])


def _widest_attention(keys: DecoderKeys) -> list[Attention]:
    if keys.kv_lora_rank and keys.qk_nope_head_dim:
        return list(sparse_latent(keys) if keys.index_topk else attention.latent(keys))
    if keys.linear_num_value_heads:
        return state.delta_net(keys.model_copy(update={"mamba_ssm_dtype": "float32"}))
    keys = attention.with_kv_heads(keys)
    layers = attention.by_layer_type(keys, attention.window_types([False] * keys.num_hidden_layers))
    return [
        replace(layer, value_head_dim=keys.v_head_dim, has_output_gate=keys.attn_output_gate)
        if isinstance(layer, GroupedAttention)
        else layer
        for layer in layers
    ]


_ASSUMED: Final = Architecture(
    attention=_widest_attention,
    ffn=ffn.experts_by_keys,
    num_norms=4,
    num_outer_norms=2,
    qk_norm="head",
    has_sinks=True,
    router_bias=True,
    has_shared_gate=True,
)
