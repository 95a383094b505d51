"""How single families arrange their layers, where the usual readers do not fit.

Sources:
    [vllm-source] model_executor/models/ has one module for each family, the last release that
    served some of them natively being 0.24.0; [transformers] has the classes that say what a
    key means when it is left out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from tonnage.catalog.config.keys.decoder import (
    KEYS,
    DecoderKeys,
    ModelConfigError,
    UnknownArchitectureError,
    check_length,
)
from tonnage.catalog.config.layers import attention, ffn, state
from tonnage.catalog.config.layers.attention import (
    all_but_every,
    by_layer_type,
    full,
    plain,
    wide_global_heads,
    window_everywhere,
    window_types,
    with_kv_heads,
)
from tonnage.catalog.config.layers.ffn import experts_beside_dense
from tonnage.catalog.config.layers.sparse import sparse_latent
from tonnage.catalog.parameters import attention_parameters
from tonnage.catalog.shape import (
    Attention,
    DenseFfn,
    Ffn,
    GroupedAttention,
    LatentAttention,
)
from tonnage.units import count_of

OPT_POSITION_OFFSET = 2
"""Rows of OPT's table of positions that no position uses."""


def windows_if_any(keys: DecoderKeys) -> list[Attention]:
    """EXAONE 4: windows by a pattern, which its files write out in ``layer_types``."""
    if not keys.was_given("sliding_window"):
        raise ModelConfigError("sliding_window is missing (null means none)")
    if keys.sliding_window is None:
        return full(with_kv_heads(keys))
    pattern = keys.window_pattern
    if keys.layer_types is None and not isinstance(pattern, int):
        raise ModelConfigError(f"layer_types is missing (window_pattern is {pattern!r:.20})")
    marks = all_but_every(pattern if isinstance(pattern, int) else 1, keys)
    return by_layer_type(with_kv_heads(keys), window_types(marks))


def windows_unless_listed(keys: DecoderKeys) -> list[Attention]:
    """Ministral: every layer has the window, unless the file lists the types of the layers."""
    if keys.layer_types is None:
        return window_everywhere(with_kv_heads(keys))
    return by_layer_type(with_kv_heads(keys), [])


def one_kv_head_or_all(keys: DecoderKeys) -> list[Attention]:
    """Falcon, StarCoder: one KV head with ``multi_query``; Falcon's newer layers say how many."""
    if keys.new_decoder_architecture:
        num_kv_heads = keys.num_key_value_heads or keys.num_attention_heads
    else:
        num_kv_heads = 1 if keys.multi_query else keys.num_attention_heads
    return plain(keys.model_copy(update={"num_key_value_heads": num_kv_heads}))


def on_full_embeddings(keys: DecoderKeys) -> list[Attention]:
    """OPT: plain attention; the smallest but one, whose embeddings are narrower, is refused."""
    width = keys.word_embed_proj_dim or keys.hidden_size
    if width != keys.hidden_size:
        raise UnknownArchitectureError(
            f"embeddings of another width than the model's (word_embed_proj_dim = {width}, "
            f"hidden_size = {keys.hidden_size}) are not understood yet"
        )
    return plain(keys)


def two_matrices(keys: DecoderKeys) -> list[Ffn]:
    """A block without a gate, of the given width."""
    return _ungated_ffns(keys, keys.needed.intermediate_size)


def two_matrices_of_four_widths(keys: DecoderKeys) -> list[Ffn]:
    """The same, four times as wide as the model where the file does not say (GPT-2, BLOOM)."""
    is_given = keys.intermediate_size is not None
    return _ungated_ffns(keys, keys.needed.intermediate_size if is_given else 4 * keys.hidden_size)


def two_matrices_by_ratio(keys: DecoderKeys) -> list[Ffn]:
    """MPT: a block without a gate, ``expansion_ratio`` times as wide as the model."""
    return _ungated_ffns(keys, keys.needed.expansion_ratio * keys.hidden_size)


def _ungated_ffns(keys: DecoderKeys, width: int) -> list[Ffn]:
    return [DenseFfn(intermediate_size=width, num_matrices=2)] * keys.num_hidden_layers


def experts_between(keys: DecoderKeys) -> list[Ffn]:
    """ERNIE 4.5: experts from one layer to another, every so many; -1 means the last layer."""
    width = keys.needed.moe_intermediate_size
    experts = ffn.moe(keys, width=width, shared=keys.needed.n_shared_experts * width)
    first, last = keys.needed.moe_layer_start_index, keys.moe_layer_end_index
    end = keys.num_hidden_layers if last in {None, -1} else keys.needed.moe_layer_end_index + 1
    is_sparse = [
        first <= layer < end and (layer + 1) % keys.moe_layer_interval == 0
        for layer in range(keys.num_hidden_layers)
    ]
    return ffn.experts_where_sparse(keys, is_sparse, experts)


def experts_by_layer(keys: DecoderKeys) -> list[Ffn]:
    """Hunyuan: each layer may have its own choice, width and number of shared experts."""
    widest = keys.needed.intermediate_size
    num_layers = keys.num_hidden_layers
    chosen = _one_or_each(keys, "chosen_by_layer")
    widths = (
        _one_or_each(keys, "widths_by_layer") if keys.widths_by_layer else [widest] * num_layers
    )
    shared = [0] * num_layers
    if keys.needed.use_mixed_mlp_moe:
        shared = _one_or_each(keys, "num_shared_by_layer")
    num_experts = keys.needed.num_experts
    for each in chosen:
        if not 1 <= each <= num_experts:
            raise ModelConfigError(
                f"chosen_by_layer = {each} is not between 1 and num_experts = {num_experts}"
            )
    return [
        ffn.moe(
            keys.model_copy(update={"num_experts_per_tok": each}), width=width, shared=more * widest
        )
        for each, width, more in zip(chosen, widths, shared, strict=True)
    ]


def _one_or_each(keys: DecoderKeys, key: str) -> list[int]:
    """Return a number for each layer: one for all, or a list."""
    value = getattr(keys, key)
    return [value] * keys.num_hidden_layers if isinstance(value, int) else keys.by_layer(key)


def falcon_norms(keys: DecoderKeys) -> int:
    """Return weight and bias of the norms: two, or one before both halves side by side."""
    default = 2 if keys.new_decoder_architecture else 1
    side_by_side = keys.new_decoder_architecture or keys.parallel_attn
    num_norms = keys.num_ln_in_parallel_attn or default if side_by_side else 2
    return 2 * num_norms * keys.hidden_size


def stablelm_norms(keys: DecoderKeys) -> int:
    """Return weight and bias of the norms: two, or one before both halves side by side."""
    return 2 * (1 if keys.use_parallel_residual else 2) * keys.hidden_size


def head_bias(keys: DecoderKeys) -> int:
    """Return one bias per word of the vocabulary."""
    return keys.vocab_size


def head_bias_by_key(keys: DecoderKeys) -> int:
    """The same, where ``lm_head_bias`` says so."""
    return keys.vocab_size * bool(keys.lm_head_bias)


def positions(keys: DecoderKeys) -> int:
    """Return a learned vector for each position."""
    return keys.needed.max_position_embeddings * keys.hidden_size


def opt_positions(keys: DecoderKeys) -> int:
    """The same, with OPT's unused rows."""
    return positions(keys) + OPT_POSITION_OFFSET * keys.hidden_size


LAYER_TABLE_MATRICES: Final = 3
"""Per layer: into the width of the layer's table, out of it, and the model's share of the sum."""


def shared_wide_global_heads(keys: DecoderKeys) -> list[Attention]:
    """Gemma 4: as ``wide_global_heads``, and the last layers may read the cache of earlier ones."""
    return _share_caches(keys, wide_global_heads(keys))


def shared_windows(keys: DecoderKeys) -> list[Attention]:
    """Gemma 3n: ``layer_types``, and the last layers read the cache of earlier ones."""
    return _share_caches(keys, by_layer_type(keys, []))


def _share_caches(keys: DecoderKeys, attentions: list[Attention]) -> list[Attention]:
    first = _first_shared(keys)
    return attentions[:first] + [
        replace(attention, owns_cache=False)
        if isinstance(attention, GroupedAttention)
        else attention
        for attention in attentions[first:]
    ]


def _first_shared(keys: DecoderKeys) -> int:
    shared = keys.num_kv_shared_layers or 0
    if shared >= keys.num_hidden_layers:
        raise ModelConfigError(
            f"num_kv_shared_layers = {shared} leaves none of the "
            f"{count_of(keys.num_hidden_layers, 'layer')} with a cache"
        )
    return keys.num_hidden_layers - shared


def double_where_shared(keys: DecoderKeys) -> list[Ffn]:
    """Gemma 4: with ``use_double_wide_mlp``, layers without a cache are twice as wide."""
    blocks, first = experts_beside_dense(keys), _first_shared(keys)
    if not keys.use_double_wide_mlp or first == len(blocks):
        return blocks
    if keys.enable_moe_block:
        raise ModelConfigError("use_double_wide_mlp = True with enable_moe_block = True")
    double = DenseFfn(intermediate_size=2 * keys.needed.intermediate_size)
    return [*blocks[:first], *[double] * (len(blocks) - first)]


def listed_widths(keys: DecoderKeys) -> list[Ffn]:
    """Gemma 3n: ``intermediate_size`` may be a list with the width of each layer."""
    widths = keys.intermediate_size
    if not isinstance(widths, list):
        widths = [keys.needed.intermediate_size] * keys.num_hidden_layers
    check_length("intermediate_size", widths, keys.num_hidden_layers)
    return [DenseFfn(intermediate_size=width) for width in widths]


def layer_table_matrices(keys: DecoderKeys, _layer: Attention | None) -> int:
    """Count what joins the row of a layer's table to its output, and the norm of that.

    Sources:
        [vllm-source] model_executor/models/gemma4.py.
    """
    width = keys.hidden_size_per_layer_input or 0
    return (LAYER_TABLE_MATRICES * width + 1) * keys.hidden_size if width else 0


def layer_table_norm(keys: DecoderKeys) -> int:
    return keys.hidden_size_per_layer_input or 0


def layer_tables(keys: DecoderKeys) -> int:
    """Count the tables of all layers, which have a vocabulary of their own."""
    width = keys.hidden_size_per_layer_input or 0
    rows = keys.needed.vocab_size_per_layer_input if width else 0
    return rows * keys.num_hidden_layers * width


def alternating_streams(keys: DecoderKeys, layer: Attention | None) -> int:
    """Count what Gemma 3n adds to a layer: mixing of the streams, a narrow residual, its table.

    The mixing is a router to as many numbers as there are streams, its norm and the scale of its
    output, and a matrix each to predict and to correct; the residual a pair of matrices and a norm.

    Sources:
        [vllm-source] model_executor/models/gemma3n.py.
    """
    streams, hidden = keys.needed.altup_num_inputs, keys.hidden_size
    mixing = streams * hidden + 2 * hidden + streams**3 + streams**2
    residual = 2 * hidden * keys.needed.laurel_rank + hidden
    return mixing + residual + layer_table_matrices(keys, layer)


def stream_projections(keys: DecoderKeys) -> int:
    """Count what splits the embedding into streams and joins them again: a matrix each way."""
    others = keys.needed.altup_num_inputs - 1
    return 2 * others * keys.hidden_size**2 + layer_table_norm(keys)


def shared_keys(block: Mapping[str, object]) -> dict[str, object]:
    """Return the block under the usual names, of several the heaviest, and nothing else."""
    written, gates = KEYS["shared"]["as_written"], KEYS["shared"]["gates"]
    found: dict[str, object] = {key: block[key] for key in written if key in block}
    for usual, others in KEYS["synonyms"].items():
        numbers = [number for name in (usual, *others) for number in _numbers(block.get(name))]
        if numbers:
            found[usual] = min(numbers) if usual == "first_k_dense_replace" else max(numbers)
    found["attn_output_gate"] = any(block.get(key) for key in gates)
    found = {key: value for key, value in found.items() if value is not None}
    return {"q_lora_rank": None, **found} if "kv_lora_rank" in found else found


def assumed_keys(block: Mapping[str, object]) -> dict[str, object]:
    """Return the keys that decoders share, and the widest state."""
    found = shared_keys(block)
    shared, number = (
        found.get(key) for key in ("shared_expert_intermediate_size", "n_shared_experts")
    )
    widths = (
        found.get(key)
        for key in (
            "moe_shared_expert_intermediate_size", "moe_intermediate_size", "intermediate_size",
        )
    )  # fmt: skip
    each = next((width for width in widths if isinstance(width, int) and width), 0)
    if isinstance(shared, int) and isinstance(number, int):
        found["shared_expert_intermediate_size"] = max(shared, number * each)
    return {**found, "mamba_ssm_dtype": "float32"}


def _numbers(value: object) -> list[int]:
    """Return the numbers of one layer each, or of all."""
    values: Sequence[object] = value if isinstance(value, list) else [value]
    return [each for each in values if isinstance(each, int) and not isinstance(each, bool)]


def keyed_attention(keys: DecoderKeys) -> list[Attention]:
    """Read latent ranks, states or heads, whichever there are, and the types of the layers."""
    if keys.kv_lora_rank and keys.qk_nope_head_dim:
        return list(sparse_latent(keys) if keys.index_topk else attention.latent(keys))
    if keys.linear_num_value_heads:
        return state.delta_net(keys)
    keys = attention.with_kv_heads(keys)
    full = attention.window_types([False] * keys.num_hidden_layers)
    heads = keys.num_attention_heads_per_layer or [keys.num_attention_heads] * len(full)
    check_length("num_attention_heads_per_layer", heads, keys.num_hidden_layers)
    return [
        replace(
            layer,
            num_heads=number,
            value_head_dim=keys.v_head_dim,
            has_output_gate=keys.attn_output_gate,
        )
        if isinstance(layer, GroupedAttention)
        else layer
        for layer, number in zip(attention.by_layer_type(keys, full), heads, strict=True)
    ]


def gated_latent(keys: DecoderKeys) -> list[Attention]:
    """Hunyuan 4: latent attention to chosen tokens, with a gate at its output."""
    return [
        replace(layer, has_output_gate=True) if isinstance(layer, LatentAttention) else layer
        for layer in sparse_latent(keys)
    ]


def two_stream_mixes(keys: DecoderKeys, _: Attention | None) -> int:
    """Count what reads and writes the residual streams before attention and before experts."""
    streams = keys.needed.hc_mult
    return 2 * 2 * streams * streams * keys.hidden_size


def stream_sum(keys: DecoderKeys) -> int:
    """Count what joins the streams before the head."""
    return keys.needed.hc_mult**2 * keys.hidden_size


def doubled_latent(keys: DecoderKeys) -> list[Attention]:
    """LongCat: two layers of attention in each that is counted."""
    return [layer for layer in attention.latent(keys) for _ in range(2)]


def experts_beside_two_dense(keys: DecoderKeys) -> list[Ffn]:
    """LongCat: a dense block behind each of the two, and experts beside the first."""
    width = keys.needed.intermediate_size
    experts = ffn.moe(keys, width=keys.needed.moe_intermediate_size, shared=width)
    return [experts, DenseFfn(intermediate_size=width)] * keys.num_hidden_layers


def lightning_groups(keys: DecoderKeys) -> list[Attention]:
    """Ling 2.5: latent attention in the last layer of each group, lightning in the others."""
    linear = state.lightning(keys.num_attention_heads, keys.needed.head_dim)
    marks = attention.all_but_every(keys.needed.layer_group_size, keys)
    return [
        linear if mark else full for mark, full in zip(marks, attention.latent(keys), strict=True)
    ]


def step_windows(keys: DecoderKeys) -> list[Attention]:
    """Step 3.5: the layers of one type have heads of their own."""
    layers, other = keyed_attention(keys), keys.attention_other_setting
    if other is None or keys.layer_types is None:
        return layers
    return [
        replace(
            layer,
            num_heads=other.num_attention_heads,
            num_kv_heads=other.num_attention_groups,
            head_dim=other.head_dim or layer.head_dim,
        )
        if kind == other.attention_type and isinstance(layer, GroupedAttention)
        else layer
        for layer, kind in zip(layers, keys.layer_types, strict=True)
    ]


def block_attention(keys: DecoderKeys) -> list[Attention | None]:
    """Nemotron NAS: each layer has KV heads of its own, or no attention."""
    return [
        None
        if block.attention.no_op
        else attention.grouped_attention(
            keys.model_copy(update={"num_key_value_heads": block.attention.kv_heads(keys)})
        )
        for block in keys.by_layer("block_configs")
    ]


def block_ffns(keys: DecoderKeys) -> list[Ffn | None]:
    """Nemotron NAS: each layer has a width of its own, or no block."""
    return [
        None if block.ffn.no_op else DenseFfn(intermediate_size=block.ffn.width(keys))
        for block in keys.by_layer("block_configs")
    ]


def unpacked_latent(keys: DecoderKeys) -> list[Attention]:
    """MiniCPM 3: the matrices of latent attention, and a cache as wide as all heads."""
    width = keys.needed.qk_nope_head_dim + keys.needed.qk_rope_head_dim
    heads = keys.num_attention_heads
    layer = GroupedAttention(
        num_heads=heads, num_kv_heads=heads, head_dim=width, owns_weights=False
    )
    return [layer] * keys.num_hidden_layers


def latent_matrices(keys: DecoderKeys, _: Attention | None) -> int:
    values = keys.model_copy(
        update={"v_head_dim": keys.v_head_dim or keys.hidden_size // keys.num_attention_heads}
    )
    return attention_parameters(attention.latent(values)[0], hidden_size=keys.hidden_size)
