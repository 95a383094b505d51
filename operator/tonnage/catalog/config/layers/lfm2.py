"""LFM2: short convolutions, with attention in some layers, before feed-forward blocks."""

from tonnage.catalog.config.keys.decoder import DecoderKeys, ModelConfigError
from tonnage.catalog.config.layers.attention import grouped_attention
from tonnage.catalog.config.layers.state import MODEL_TYPE_BYTES
from tonnage.catalog.shape import Attention, DenseFfn, Ffn, StateAttention


def short_convolutions(keys: DecoderKeys) -> list[Attention]:
    """Convolutions over every channel, and attention where ``layer_types`` says so.

    Older files list the indices of attention, counted from zero, in ``full_attn_idxs``.

    Sources:
        [vllm-source] model_executor/layers/mamba/short_conv.py.
    """
    full, heads = grouped_attention(keys), keys.num_attention_heads
    convolution = StateAttention(
        kind="short_conv",
        num_key_heads=0,
        num_value_heads=heads,
        key_head_dim=0,
        value_head_dim=keys.hidden_size // heads,
        conv_kernel=keys.needed.conv_l_cache,
        state_element_bytes=MODEL_TYPE_BYTES,
    )
    if keys.layer_types is not None:
        return [convolution if kind == "conv" else full for kind in keys.by_layer("layer_types")]
    if keys.full_attn_idxs is None:
        raise ModelConfigError("layer_types is missing, and full_attn_idxs too")
    indices = set(keys.full_attn_idxs)
    return [full if layer in indices else convolution for layer in range(keys.num_hidden_layers)]


def adjusted_dense(keys: DecoderKeys) -> list[Ffn]:
    """Blocks whose width is two thirds of the one given, rounded up, unless that is switched off.

    Sources:
        [vllm-source] model_executor/models/lfm2.py.
    """
    width = keys.needed.intermediate_size
    if keys.block_auto_adjust_ff_dim is None:
        raise ModelConfigError("block_auto_adjust_ff_dim is missing")
    if keys.block_auto_adjust_ff_dim:
        multiple = keys.needed.block_multiple_of
        narrowed = int(keys.block_ffn_dim_multiplier * (2 * width // 3))
        width = -(-narrowed // multiple) * multiple
    return [DenseFfn(intermediate_size=width)] * keys.num_hidden_layers
