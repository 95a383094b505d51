"""Kinds of model whose files say all under keys that decoders share, by whatever name.

The same reading makes the bound of kinds that no rule knows: ``architectures.kinds``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tonnage.catalog.config.keys.decoder import KEYS, DecoderKeys, check_length
from tonnage.catalog.config.layers import attention, ffn, state
from tonnage.catalog.config.layers.sparse import sparse_latent
from tonnage.catalog.parameters import attention_parameters
from tonnage.catalog.shape import (
    Attention,
    DenseFfn,
    Ffn,
    GroupedAttention,
    LatentAttention,
)


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
