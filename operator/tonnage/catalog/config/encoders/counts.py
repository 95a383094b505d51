"""How many parameters the encoders of images and sound have, and what projects their output.

Each public function counts one kind of encoder with its projector, as the engine loads them;
``text_width`` is the width of the model that reads the output.
"""

from tonnage.catalog.config.encoders.keys import EncoderKeys
from tonnage.catalog.config.encoders.parts import (
    biased_block,
    biased_norm,
    gated_matrices,
    layers_read,
    linear,
    llava_encoder,
    merging_matrices,
    normed_siglip,
    siglip,
    two_matrices,
)
from tonnage.catalog.config.keys.decoder import ModelConfigError

MLLAMA_RATIOS = 9
"""Of tiles of an image, and none."""


def gemma3(keys: EncoderKeys, text_width: int) -> int:
    """SigLIP and its last norm; a norm and one matrix."""
    width = keys.needed.hidden_size
    return siglip(keys) + biased_norm(width) + width + width * text_width


def llava(keys: EncoderKeys, text_width: int) -> int:
    """Any encoder, up to the layer that is read; two matrices."""
    projector = two_matrices(keys, keys.needed.hidden_size, text_width, has_bias=True)
    return llava_encoder(keys) + projector


def llava_next(keys: EncoderKeys, text_width: int) -> int:
    """As ``llava``, and the mark of a line's end."""
    return llava(keys, text_width) + text_width


def aya_vision(keys: EncoderKeys, text_width: int) -> int:
    """SigLIP and its last norm; a norm, and two gated matrices on merged neighbours.

    Sources:
        [vllm-source] model_executor/models/aya_vision.py, until 0.23.
    """
    merged = keys.needed.downsample_factor**2 * keys.needed.hidden_size
    inner = keys.alignment_intermediate_size or text_width
    return normed_siglip(keys) + biased_norm(merged) + gated_matrices(merged, inner, text_width)


def cohere2_vision(keys: EncoderKeys, text_width: int) -> int:
    """As ``aya_vision``, without the norm in the projector."""
    merged = keys.needed.downsample_factor**2 * keys.needed.hidden_size
    inner = keys.needed.alignment_intermediate_size
    return normed_siglip(keys) + gated_matrices(merged, inner, text_width)


def idefics3(keys: EncoderKeys, text_width: int) -> int:
    """SigLIP and its last norm; one matrix on merged neighbours."""
    merged = keys.needed.scale_factor**2 * keys.needed.hidden_size
    return normed_siglip(keys) + merged * text_width


def mllama(keys: EncoderKeys, text_width: int) -> int:
    """Local and global blocks, positions for each tile of each aspect ratio; one matrix.

    Sources:
        [vllm-source] model_executor/models/mllama.py, 0.6 to 0.10.
    """
    width, inner = keys.needed.hidden_size, keys.needed.intermediate_size
    block = 4 * width * width + linear(width, inner) + linear(inner, width) + 4 * width
    layers = keys.needed.num_hidden_layers + keys.needed.num_global_layers
    positions = (keys.positions + 1) * width
    tables = positions * (1 + MLLAMA_RATIOS * keys.max_num_tiles)
    projector = linear(keys.needed.vision_output_dim, text_width)
    return keys.patch_elements * width + layers * block + tables + projector


def step3(keys: EncoderKeys, text_width: int) -> int:
    """SigLIP-like blocks; two convolutions that merge neighbours, and one matrix.

    Sources:
        [vllm-source] model_executor/models/step3_vl.py.
    """
    width, output = keys.needed.hidden_size, keys.needed.output_hidden_size
    merging = linear(4 * width, output) + linear(9 * output, 2 * output)
    return siglip(keys) + merging + 2 * output * text_width


def glm4v(keys: EncoderKeys, _text_width: int) -> int:
    """An encoder with positions and gated blocks; what merges neighbours, and four matrices.

    Blocks are ``out_hidden_size`` wide inside, the projector ``intermediate_size``.

    Sources:
        [vllm-source] model_executor/models/glm4_1v.py.
    """
    width, output = keys.needed.hidden_size, keys.needed.out_hidden_size
    patches = linear(keys.frame_elements, width) + keys.positions * width
    block = 4 * width * width + 3 * width * output + 2 * width
    merged = keys.spatial_merge_size**2 * width
    gated = 3 * output * keys.needed.intermediate_size
    projector = linear(merged, output) + output * output + biased_norm(output) + gated
    return patches + keys.needed.num_hidden_layers * block + 2 * width + projector


def mistral3(keys: EncoderKeys, text_width: int) -> int:
    """Any encoder; a norm, what merges neighbours, and two matrices."""
    width = keys.needed.hidden_size
    merger = width + keys.spatial_merge_size**2 * width * width
    return llava_encoder(keys) + merger + two_matrices(keys, width, text_width, has_bias=False)


def llama4(keys: EncoderKeys, text_width: int) -> int:
    """An encoder with positions and one extra token; what merges neighbours, and one matrix.

    Sources:
        [vllm-source] model_executor/models/mllama4.py.
    """
    width, inner = keys.needed.hidden_size, keys.needed.intermediate_size
    output = keys.needed.projector_output_dim
    embedding = width * (keys.patch_elements + keys.positions + 2) + 2 * biased_norm(width)
    merger = inner * keys.needed.projector_input_dim + output * output
    projector = keys.needed.vision_output_dim * text_width
    return (
        embedding + keys.needed.num_hidden_layers * biased_block(width, inner) + merger + projector
    )


def qwen2_vl(keys: EncoderKeys, text_width: int) -> int:
    """An encoder without positions, as wide inside as ``mlp_ratio`` says.

    Sources:
        [vllm-source] model_executor/models/qwen2_vl.py.
    """
    width = keys.needed.hidden_size
    layers = keys.needed.num_hidden_layers * biased_block(width, keys.needed.mlp_ratio * width)
    merger = biased_norm(width) + merging_matrices(keys, text_width)
    return keys.frame_elements * width + layers + merger


def qwen2_5_vl(keys: EncoderKeys, text_width: int) -> int:
    """An encoder without positions, with gated blocks and norms without bias.

    Sources:
        [vllm-source] model_executor/models/qwen2_5_vl.py.
    """
    width, inner = keys.needed.hidden_size, keys.needed.intermediate_size
    gated = 2 * linear(width, inner) + linear(inner, width)
    layers = keys.needed.num_hidden_layers * (4 * linear(width, width) + gated + 2 * width)
    merger = width + merging_matrices(keys, text_width)
    return keys.frame_elements * width + layers + merger


def qwen3_vl(keys: EncoderKeys, text_width: int) -> int:
    """An encoder with positions, and a further merger for each layer that is passed on.

    Sources:
        [vllm-source] model_executor/models/qwen3_vl.py.
    """
    width = keys.needed.hidden_size
    passed_on = keys.deepstack_visual_indexes
    if passed_on is None:
        raise ModelConfigError("deepstack_visual_indexes is missing")
    embedding = linear(keys.frame_elements, width) + keys.needed.num_position_embeddings * width
    layers = keys.needed.num_hidden_layers * biased_block(width, keys.needed.intermediate_size)
    merged = keys.spatial_merge_size**2 * width
    further = len(passed_on) * (biased_norm(merged) + merging_matrices(keys, text_width))
    return embedding + layers + biased_norm(width) + merging_matrices(keys, text_width) + further


def minimax_m3(keys: EncoderKeys, text_width: int) -> int:
    """CLIP without positions and extra token; two matrices, and two more that merge neighbours.

    Sources:
        [vllm-source] models/minimax_m3/common/vision_tower.py.
    """
    width, between = keys.needed.hidden_size, keys.projector_hidden_size or text_width
    embedding = keys.frame_elements * width + biased_norm(width)
    layers = keys.needed.num_hidden_layers * biased_block(width, keys.needed.intermediate_size)
    merged = keys.spatial_merge_size**2 * text_width
    projector = linear(width, between) + linear(between, text_width)
    return embedding + layers + projector + linear(merged, between) + linear(between, text_width)


def internvl(keys: EncoderKeys, text_width: int) -> int:
    """An encoder with positions, one extra token and scaled residuals; a norm and two matrices.

    Sources:
        [vllm-source] model_executor/models: intern_vit.py and internvl.py.
    """
    if keys.qkv_bias is None or keys.qk_normalization is None or keys.downsample_ratio is None:
        raise ModelConfigError("qkv_bias, qk_normalization or downsample_ratio is missing")
    width = keys.needed.hidden_size
    no_bias = 0 if keys.qkv_bias else 3 * width
    query_norms = 2 * width * keys.qk_normalization
    norm_biases = 2 * width * (keys.norm_type == "rms_norm")
    block = biased_block(width, keys.needed.intermediate_size) + 2 * width
    embedding = linear(keys.patch_elements, width) + (keys.positions + 2) * width
    layers = layers_read(keys) * (block - no_bias + query_norms - norm_biases)
    merged = round(1 / keys.downsample_ratio) ** 2 * width
    projector = biased_norm(merged) + linear(merged, text_width) + linear(text_width, text_width)
    return embedding + layers + projector


def moonvit(keys: EncoderKeys, text_width: int) -> int:
    """Kimi's encoder: learned positions, and norms with bias or without, as the file says.

    Sources:
        [vllm-source] model_executor/models/kimi_k25_vit.py.
    """
    width, inner = keys.needed.hidden_size, keys.needed.intermediate_size
    norm = width if keys.norm_type == "rmsnorm" else biased_norm(width)
    attended = keys.qkv_hidden_size or width
    attention = linear(width, 3 * attended, keys.attn_bias) + linear(
        attended, width, keys.attn_bias
    )
    block = linear(width, inner, keys.linear_bias) + linear(inner, width, keys.linear_bias)
    positions = keys.needed.init_pos_emb_height * keys.needed.init_pos_emb_width
    embedding = linear(keys.patch_elements, width, keys.patch_embed_proj_bias) + positions * width
    layers = keys.needed.num_hidden_layers * (attention + block + 2 * norm)
    return embedding + layers + norm + _moonvit_projector(keys, text_width)


def _moonvit_projector(keys: EncoderKeys, text_width: int) -> int:
    if keys.merge_kernel_size is None:
        raise ModelConfigError("merge_kernel_size is missing")
    width, (rows, columns) = keys.needed.hidden_size, keys.merge_kernel_size
    merged = rows * columns * width
    if keys.mm_projector_type == "patchmergerv2":
        return merged * merged + merged * text_width + text_width
    return biased_norm(width) + linear(merged, merged) + linear(merged, text_width)


def gemma4(keys: EncoderKeys, text_width: int) -> int:
    """An encoder with positions along both axes, gated blocks and norms within; one matrix.

    Sources:
        [transformers] models/gemma4/modeling_gemma4.py, which vLLM loads this encoder from.
    """
    width, head_dim = keys.needed.hidden_size, keys.needed.head_dim
    heads = keys.needed.num_attention_heads + keys.needed.num_key_value_heads
    attention = 2 * width * heads * head_dim + 2 * head_dim
    block = attention + 3 * width * keys.needed.intermediate_size + 4 * width
    positions = 2 * keys.needed.position_embedding_size
    embedding = (keys.patch_elements + positions) * width
    return embedding + keys.needed.num_hidden_layers * block + width * text_width


def gemma4_unified(keys: EncoderKeys, text_width: int) -> int:
    """No encoder: one matrix from large patches, norms, positions along both axes, one matrix.

    Sources:
        [transformers] models/gemma4_unified/modeling_gemma4_unified.py.
    """
    width = keys.needed.mm_embed_dim
    elements = keys.num_channels * keys.needed.model_patch_size**2
    embedding = biased_norm(elements) + linear(elements, width) + 2 * biased_norm(width)
    positions = 2 * keys.needed.mm_posemb_size * width
    return embedding + positions + keys.needed.output_proj_dims * text_width


def gemma4_unified_audio(keys: EncoderKeys, text_width: int) -> int:
    """No encoder: one matrix from the samples of a token."""
    return keys.needed.output_proj_dims * text_width


def gemma4_audio(keys: EncoderKeys, text_width: int) -> int:
    """A conformer behind two convolutions of three by three; two matrices.

    Sources:
        [transformers] models/gemma4/modeling_gemma4.py, which vLLM loads this encoder from.
    """
    if keys.subsampling_conv_channels is None:
        raise ModelConfigError("subsampling_conv_channels is missing")
    first, second = keys.subsampling_conv_channels
    width, output = keys.needed.hidden_size, keys.needed.output_proj_dims
    head_dim = width // keys.needed.num_attention_heads
    subsampling = 9 * first * (1 + second) + first + second + first // 4 * second * width
    feed_forward = 2 * 2 * 4 * width * width + 4 * width
    attention = 5 * width * width + head_dim
    convolution = 3 * width * width + keys.needed.conv_kernel_size * width + 2 * width
    block = feed_forward + attention + convolution + 3 * width
    projector = linear(width, output) + output * text_width
    return subsampling + keys.needed.num_hidden_layers * block + projector


def qwen2_5_omni_audio(keys: EncoderKeys, text_width: int) -> int:
    """Whisper's encoder: two convolutions over three frames; one matrix, and two marks.

    Sources:
        [vllm-source] model_executor/models/qwen2_5_omni_thinker.py.
    """
    width = keys.needed.hidden_size
    convolutions = linear(3 * keys.needed.num_mel_bins, width) + linear(3 * width, width)
    keys_without_bias = width
    block = biased_block(width, keys.needed.intermediate_size) - keys_without_bias
    layers = keys.needed.num_hidden_layers * block
    return convolutions + layers + biased_norm(width) + linear(width, text_width) + 2 * text_width
