"""What makes a kind of model special, and the small vectors of its layers that follow from it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from tonnage.catalog.config.keys.decoder import DecoderKeys
from tonnage.catalog.config.layers import ffn
from tonnage.catalog.shape import (
    Attention,
    CompressedAttention,
    Ffn,
    GroupedAttention,
    LatentAttention,
    MoeFfn,
    StateAttention,
)


def _nothing(*_: object) -> int:
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """How to read the configuration of one kind of model."""

    attention: Callable[[DecoderKeys], Sequence[Attention | None]]
    ffn: Callable[[DecoderKeys], Sequence[Ffn | None]] = ffn.dense
    """Both: one entry per layer. None: the layer lacks this half."""
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
    ffn_bias: bool | None = None
    """Of the matrices of a dense block. None: as ``mlp_bias`` says."""
    qk_norm: Literal["none", "head", "by key", "wide", "wide by key"] = "none"
    """Norms on queries and keys: none, one head wide, or as ``use_qk_norm`` says. Wide: as wide as
    all heads together."""
    rotary_fraction: float = 1.0
    """Of a head's width that turns with the position, where the file does not say; 0: none does,
    positions are learned, a bias of the scores, or not seen at all."""
    turns_by_window: bool = False
    """Layers with a window turn at another rate than those without."""
    has_sinks: bool = False
    """One learned score per query head."""
    router_bias: bool = False
    """One bias per expert."""
    has_shared_gate: bool = False
    """The shared expert has a gate: one vector of the model's width."""
    module_names: Mapping[str, str] = field(default_factory=dict)
    """Of the parts that a list of unquantized modules calls by another than the usual name."""
    gate: Literal["none", "head", "full", "by key"] = "by key"
    """At the output of attention: one number per head, or one per element as queries have."""
    reads: Callable[[Mapping[str, object]], dict[str, object]] | None = None
    """Returns the keys that this kind reads, under the usual names. None: all that are known."""
    names: Mapping[str, str] = field(default_factory=dict)
    """The family's own name of a key, by the usual one; a dotted one reaches into a block."""
    needs: Sequence[str] = ()
    """Keys without which the class makes no model, by their usual names."""
    only: Mapping[str, object] = field(default_factory=dict)
    """Keys with the one value that is understood, which is also what leaving them out means."""
    defaults: Mapping[str, object] = field(default_factory=dict)
    """What the class means by leaving a key out, where most kinds mean something else."""
    sparse_defaults: Mapping[str, object] = field(default_factory=dict)
    """What a nested block means by leaving a key out: transformers does not write the values
    that equal the defaults of the class there."""
    understands: frozenset[str] = frozenset()
    """Keys and layer types that mark a part which most kinds lack (``config_refusals``), and which
    this kind reads."""
    layer_list: str | None = None
    """The list whose length is ``num_hidden_layers`` where that is not given."""
    replicated: Callable[[DecoderKeys, Attention | None], int] = _nothing
    """Counts the matrices that every rank holds whole in a layer with this attention, beside
    those of attention and feed-forward."""
    vectors: Callable[[DecoderKeys], int] = _nothing
    """Counts small vectors of one layer that depend on keys of the family."""
    outer: Callable[[DecoderKeys], int] = _nothing
    """Counts what stands outside the layers beside norms, embedding and head."""
    tables: Callable[[DecoderKeys], int] = _nothing
    """Counts further embedding tables."""
    keeps_tables_on_host: bool = False
    """vLLM keeps those in the memory of the host unless told otherwise."""


def vector_parameters(
    architecture: Architecture, keys: DecoderKeys, layer: Attention | None, block: Ffn | None
) -> int:
    """Return the norms, biases and other small vectors of one layer."""
    return (
        architecture.num_norms * keys.hidden_size
        + _residual_vectors(keys, num_mixes=2)
        + architecture.vectors(keys)
        + _attention_vectors(architecture, keys, layer)
        + _ffn_vectors(architecture, keys, block)
    )


def outer_vector_parameters(architecture: Architecture, keys: DecoderKeys) -> int:
    """Return the norms and other small vectors outside the layers."""
    norms = architecture.num_outer_norms * keys.hidden_size
    return norms + _residual_vectors(keys, num_mixes=1) + architecture.outer(keys)


def _residual_vectors(keys: DecoderKeys, *, num_mixes: int) -> int:
    """Return what picks among the outputs of earlier blocks (Kimi K3): a norm and a score each."""
    return 2 * num_mixes * keys.hidden_size if keys.attn_res_block_size else 0


def _attention_vectors(
    architecture: Architecture, keys: DecoderKeys, layer: Attention | None
) -> int:
    match layer:
        case None:
            return 0
        case LatentAttention():
            return (layer.q_lora_rank or 0) + layer.kv_lora_rank + _index_norm(layer)
        case StateAttention():
            return _state_vectors(keys, layer)
        case CompressedAttention():
            return _compressed_vectors(layer)
        case GroupedAttention():
            return _grouped_vectors(architecture, keys, layer)


def _state_vectors(keys: DecoderKeys, layer: StateAttention) -> int:
    """Return decay, step and skip of each head, the norm of the output, and biases."""
    heads, width = layer.num_value_heads, layer.num_value_heads * layer.value_head_dim
    match layer.kind:
        case "gated_delta_net":
            return 2 * heads + layer.value_head_dim
        case "kimi_delta":
            return heads + width + layer.value_head_dim
        case "lightning":
            return width
        case "mamba1":
            norms = layer.step_rank + 2 * layer.key_head_dim
            return 2 * width + norms + bool(keys.use_conv_bias) * width
        case "mamba2":
            biases = width + layer.conv_dim + heads + keys.hidden_size
            total = 3 * heads + width + bool(keys.use_conv_bias) * layer.conv_dim
            return total + bool(keys.use_bias) * biases
        case "short_conv":
            return bool(keys.conv_bias) * 5 * width


def _index_norm(layer: GroupedAttention | LatentAttention) -> int:
    """Return weight and bias of the norm of the keys, or one norm each for queries and keys."""
    return 2 * layer.indexer.head_dim if layer.indexer else 0


def _compressed_vectors(layer: CompressedAttention) -> int:
    """Return norms and scores of the attention; norm and position biases of each compressor.

    Sources:
        [vllm-source] models/deepseek_v4: attention.py and compressor.py.
    """
    total = layer.q_lora_rank + layer.head_dim + layer.num_heads
    ratio = layer.compress_ratio
    return total + sum(
        width * (1 + ratio * layer.overlap) for width in layer.compressed_widths if ratio
    )


def _grouped_vectors(architecture: Architecture, keys: DecoderKeys, layer: GroupedAttention) -> int:
    total = bool(keys.attention_out_bias) * keys.hidden_size
    if _says(architecture.query_bias, keys.attention_bias):
        total += layer.num_heads * layer.head_dim
        total += layer.num_kv_heads * (layer.head_dim + layer.num_value_dims)
    if _says(architecture.output_bias, keys.attention_bias):
        total += keys.hidden_size
    if architecture.has_sinks:
        total += layer.num_heads
    if architecture.gate == "head":
        total += layer.num_heads * keys.hidden_size
    return total + _qk_norm(architecture, keys, layer) + _index_norm(layer)


def _says(always: bool | None, key: bool) -> bool:
    return key if always is None else always


def has_wide_norms(architecture: Architecture, keys: DecoderKeys) -> bool:
    """Tell whether queries and keys are normed over all heads together.

    Those of ``wide by key`` have a weight for each element, and norm each head by itself.
    """
    if architecture.qk_norm == "by key":
        return keys.use_qk_norm and keys.qk_norm_type == "per_layer"
    return architecture.qk_norm == "wide"


def _qk_norm(architecture: Architecture, keys: DecoderKeys, layer: GroupedAttention) -> int:
    match architecture.qk_norm:
        case "head":
            return (1 + layer.owns_cache) * layer.head_dim
        case "by key" if keys.use_qk_norm and keys.qk_norm_type != "per_layer":
            return 2 * layer.head_dim
        case "wide":
            return (layer.num_heads + layer.num_kv_heads) * layer.head_dim
        case "by key" | "wide by key" if keys.use_qk_norm:
            return (layer.num_heads + layer.num_kv_heads) * layer.head_dim
        case _:
            return 0


def _ffn_vectors(architecture: Architecture, keys: DecoderKeys, block: Ffn | None) -> int:
    if block is None:
        return 0
    if isinstance(block, MoeFfn):
        shared_gate = bool(block.shared_intermediate_size) and architecture.has_shared_gate
        norm = bool(keys.latent_moe_use_norm) * (block.latent_size or 0)
        return block.num_experts * architecture.router_bias + shared_gate * keys.hidden_size + norm
    if _says(architecture.ffn_bias, keys.mlp_bias):
        return (block.num_matrices - 1) * block.intermediate_size + keys.hidden_size
    return 0
