"""Kinds of model whose layers attend to chosen tokens, or to one entry for several of them."""

from dataclasses import replace
from typing import Final

from tonnage.catalog.config.keys.decoder import DecoderKeys, ModelConfigError, check_length
from tonnage.catalog.config.layers.attention import grouped_attention, latent
from tonnage.catalog.config.layers.ffn import expert_marks, experts_where_sparse, moe
from tonnage.catalog.config.layers.state import MODEL_TYPE_BYTES, delta_net
from tonnage.catalog.shape import (
    OVERLAPPING_RATIO,
    Attention,
    CompressedAttention,
    Ffn,
    GroupedAttention,
    Indexer,
)
from tonnage.units import count_of

KEY_BLOCK: Final = 128
KEY_SCALE_BYTES: Final = 4
"""Of each block of an 8-bit index key: one fp32 number."""
WIDE_KEY_BYTES: Final = 2
COMPRESS_RATIOS: Final = (0, OVERLAPPING_RATIO, 128)


def sparse_latent(keys: DecoderKeys) -> list[Attention]:
    """Latent attention to chosen tokens (DeepSeek V3.2, GLM 5).

    A shared layer takes over the choice of the layer before it: it has no indexer and no keys.

    Sources:
        [vllm-source] models/deepseek_v32/attention.py.
    """
    if keys.q_lora_rank is None:
        raise ModelConfigError("q_lora_rank is missing")
    indexer, chosen = _quantized_indexer(keys), keys.needed.index_topk
    return [
        replace(attention, chosen_tokens=chosen, indexer=None if shares else indexer)
        for attention, shares in zip(latent(keys), _shares_choice(keys), strict=True)
    ]


def _quantized_indexer(keys: DecoderKeys) -> Indexer:
    """Read an indexer whose keys are 8-bit whatever the format of the cache."""
    head_dim = keys.needed.index_head_dim
    return Indexer(
        num_heads=keys.needed.index_n_heads,
        head_dim=head_dim,
        key_bytes=head_dim + head_dim // KEY_BLOCK * KEY_SCALE_BYTES,
    )


def _shares_choice(keys: DecoderKeys) -> list[bool]:
    """Tell which layers share: as listed, else as in the pattern, else all but every n-th."""
    listings = (("indexer_types", ("full", "shared")), ("index_topk_pattern", ("F", "S")))
    for key, names in listings:
        if getattr(keys, key) is not None:
            kinds = keys.by_layer(key)
            for kind in kinds:
                if kind not in names:
                    known = ", ".join(names)
                    raise ModelConfigError(f"{key} has {kind!r:.100}, which is none of {known}")
            return [kind == names[1] for kind in kinds]
    first = keys.index_skip_topk_offset - 1
    return [
        max(layer - first, 0) % keys.index_topk_freq != 0 for layer in range(keys.num_hidden_layers)
    ]


def sparse_grouped(keys: DecoderKeys) -> list[Attention]:
    """Grouped attention, on marked layers to chosen blocks of tokens (MiniMax M3).

    Sources:
        [vllm-source] models/minimax_m3/common/indexer.py: the keys keep 16 bits by default.
    """
    every_token, sparse = grouped_attention(keys), keys.sparse_attention_config
    if sparse is None:
        raise ModelConfigError("sparse_attention_config is missing")
    marks = sparse.sparse_attention_freq
    check_length("sparse_attention_config.sparse_attention_freq", marks, keys.num_hidden_layers)
    indexer = Indexer(
        num_heads=sparse.sparse_num_index_heads,
        head_dim=sparse.sparse_index_dim,
        key_bytes=WIDE_KEY_BYTES * sparse.sparse_index_dim,
    )
    chosen = replace(
        every_token,
        indexer=indexer,
        chosen_tokens=sparse.sparse_topk_blocks * sparse.sparse_block_size,
    )
    return [chosen if mark else every_token for mark in marks]


def wide_then_experts(keys: DecoderKeys) -> list[Ffn]:
    """MiniMax M3: unmarked layers are dense and wider; shared experts are as wide as the others."""
    width = keys.needed.intermediate_size
    experts = moe(keys, width=width, shared=keys.needed.n_shared_experts * width)
    return experts_where_sparse(keys, expert_marks(keys), experts, "dense_intermediate_size")


def compressed_attentions(keys: DecoderKeys) -> list[Attention]:
    """Attention to a window and to compressed entries behind it (DeepSeek V4).

    Entries of ``compress_ratios`` beyond the layers are of draft layers, or of nothing: the engine
    reads one per layer. Only where 4 tokens share an entry there are so many entries that an
    indexer chooses among them.

    Sources:
        [vllm-source] models/deepseek_v4/attention.py.
    """
    ratios = keys.compress_ratios
    if ratios is None and keys.layer_types and keys.compress_rates:
        ratios = [keys.compress_rates.get(kind, 0) for kind in keys.layer_types]
    if ratios is None:
        raise ModelConfigError("compress_ratios is missing")
    if len(ratios) < keys.num_hidden_layers:
        raise ModelConfigError(
            f"compress_ratios has {count_of(len(ratios), 'entry', 'entries')}, but "
            f"num_hidden_layers is {keys.num_hidden_layers}"
        )
    return [
        _compressed_attention(keys, layer, ratio)
        for layer, ratio in enumerate(ratios[: keys.num_hidden_layers])
    ]


def _compressed_attention(keys: DecoderKeys, layer: int, ratio: int) -> CompressedAttention:
    if ratio not in COMPRESS_RATIOS:
        allowed = ", ".join(map(str, COMPRESS_RATIOS))
        raise ModelConfigError(f"compress_ratios[{layer}] = {ratio} is none of {allowed}")
    is_chosen = ratio == OVERLAPPING_RATIO
    return CompressedAttention(
        num_heads=keys.num_attention_heads,
        head_dim=keys.needed.head_dim,
        qk_rope_head_dim=keys.needed.qk_rope_head_dim,
        q_lora_rank=keys.needed.q_lora_rank,
        output_groups=keys.needed.o_groups,
        output_lora_rank=keys.needed.o_lora_rank,
        window_tokens=keys.needed.sliding_window,
        compress_ratio=ratio or None,
        indexer=_quantized_indexer(keys) if is_chosen else None,
        chosen_tokens=keys.needed.index_topk * ratio if is_chosen else None,
    )


def compressors_and_streams(keys: DecoderKeys, layer: Attention | None) -> int:
    """Count what compresses, and what mixes the residual streams before attention and experts.

    A compressor is a value and a weight per entry that a token takes part in. A mix reads all
    streams, and gives one number to read, one to write and one per pair of streams.

    Sources:
        [vllm-source] models/deepseek_v4: compressor.py and nvidia/model.py.
    """
    streams = keys.needed.hc_mult
    mixed = (2 + streams) * streams
    mixes = 2 * (mixed * (streams * keys.hidden_size + 1) + 3)
    if not isinstance(layer, CompressedAttention):
        return mixes
    return mixes + 2 * layer.overlap * sum(layer.compressed_widths) * keys.hidden_size


def stream_head(keys: DecoderKeys) -> int:
    """Count what joins the residual streams before the head."""
    streams = keys.needed.hc_mult
    return streams * (streams * keys.hidden_size + 1) + 1


MIXES_PER_LAYER: Final = 2
"""Before attention and before experts."""
GROUPED_NORMS: Final = 3
"""Of an n-gram layer: on keys, queries and the input of its convolution."""


def indexed_delta_net(keys: DecoderKeys) -> list[Attention]:
    """Like Qwen3.5, but the layers of full attention have an indexer; its keys stay in 16 bits.

    One key is of ``indexer_compress_ratio`` tokens. Leaves out the few keys of the tokens
    that have none yet, and the tail of the convolution of an n-gram layer: a few hundred
    kilobytes per sequence.

    Sources:
        [vllm-source] models/qwen4_exp/nvidia/indexer_qsa.py and common/qsa_cache.py.
    """
    layers = delta_net(keys)
    if keys.indexer_n_heads is None:
        return layers
    head_dim, ratio = keys.needed.indexer_head_dim, keys.needed.indexer_compress_ratio
    if MODEL_TYPE_BYTES * head_dim % ratio:
        raise ModelConfigError(
            f"indexer_compress_ratio = {ratio} does not divide the bytes of a key of {head_dim}"
        )
    indexer = Indexer(
        num_heads=keys.indexer_n_heads,
        head_dim=head_dim,
        key_bytes=MODEL_TYPE_BYTES * head_dim // ratio,
    )
    chosen = keys.needed.indexer_budget
    return [
        replace(layer, indexer=indexer, chosen_tokens=chosen)
        if isinstance(layer, GroupedAttention)
        else layer
        for layer in layers
    ]


def stream_mixes(keys: DecoderKeys, _: Attention | None) -> int:
    """Count what reads the streams through a narrow gate, and what writes back to each.

    Sources:
        [vllm-source] models/qwen4_exp/nvidia/hyperconnection.py.
    """
    written = keys.needed.hc_count * _streams_width(keys)
    return MIXES_PER_LAYER * (_mix(keys) + written)


def last_mix_and_ngram_layers(keys: DecoderKeys) -> int:
    """Count what joins the streams before the head, and what looks n-grams up.

    Sources:
        [vllm-source] models/qwen4_exp/nvidia/ple_layer.py.
    """
    if not keys.ple_layer_ids:
        return _mix(keys)
    streams = _streams_width(keys)
    projections = _ngram_width(keys) * (streams + keys.hidden_size)
    convolution = keys.needed.ple_conv_kernel_size * streams
    each = projections + convolution + GROUPED_NORMS * streams
    return _mix(keys) + len(keys.ple_layer_ids) * each


def ngram_tables(keys: DecoderKeys) -> int:
    """Count the tables: each head of an n-gram layer has a part of the width and a table.

    The rows of a table are a prime just above ``ngram_vocab_size_base``: a few hundred more.

    Sources:
        [vllm-source] models/qwen4_exp/nvidia/ngram_embedding.py.
    """
    if not keys.ple_layer_ids:
        return 0
    num_heads = (keys.needed.ngram_size - 1) * keys.needed.heads_per_ngram
    width = _ngram_width(keys)
    if width % num_heads:
        heads = count_of(num_heads, "head")
        raise ModelConfigError(f"ple_embed_dim = {width} is no multiple of {heads}")
    return len(keys.ple_layer_ids) * keys.needed.ngram_vocab_size_base * width


def _mix(keys: DecoderKeys) -> int:
    """Count a norm, and the way to the narrow gate and back."""
    return (2 * keys.needed.hc_lowrank + 1) * _streams_width(keys)


def _streams_width(keys: DecoderKeys) -> int:
    return keys.needed.hc_count * keys.hidden_size


def _ngram_width(keys: DecoderKeys) -> int:
    return keys.hidden_size if keys.ple_embed_dim is None else keys.ple_embed_dim
