"""Parts that encoders of images and sound have in common, as numbers of parameters."""

from tonnage.catalog.config.encoders.keys import EncoderKeys
from tonnage.catalog.config.keys.decoder import ModelConfigError
from tonnage.units import count_of


def llava_encoder(keys: EncoderKeys) -> int:
    match keys.model_type:
        case "clip_vision_model":
            return _clip(keys)
        case "siglip_vision_model":
            return siglip(keys)
        case "pixtral":
            return _pixtral(keys)
        case model_type:
            raise ModelConfigError(f"model_type = {model_type!r:.100} is no encoder known here")


def siglip(keys: EncoderKeys) -> int:
    width = keys.needed.hidden_size
    embedding = linear(keys.patch_elements, width) + keys.positions * width
    return embedding + layers_read(keys) * biased_block(width, keys.needed.intermediate_size)


def normed_siglip(keys: EncoderKeys) -> int:
    return siglip(keys) + biased_norm(keys.needed.hidden_size)


def _clip(keys: EncoderKeys) -> int:
    width = keys.needed.hidden_size
    embedding = (keys.patch_elements + keys.positions + 2) * width + biased_norm(width)
    return embedding + layers_read(keys) * biased_block(width, keys.needed.intermediate_size)


def _pixtral(keys: EncoderKeys) -> int:
    width = keys.needed.hidden_size
    block = 4 * width * width + 3 * width * keys.needed.intermediate_size + 2 * width
    return keys.patch_elements * width + width + layers_read(keys) * block


def layers_read(keys: EncoderKeys) -> int:
    """Return how many layers are loaded: those up to the one whose output is read.

    Sources:
        [vllm-source] model_executor/models/llava.py.
    """
    num_layers, last = keys.needed.num_hidden_layers, keys.vision_feature_layer
    if last is None:
        return num_layers
    layers = last + 1 + num_layers if last < 0 else last
    if not 0 < layers <= num_layers:
        known = count_of(num_layers, "layer")
        raise ModelConfigError(f"vision_feature_layer = {last} is none of the {known}")
    return layers


def biased_block(width: int, inner_width: int) -> int:
    """Attention and feed-forward with biases, and two norms."""
    ffn = linear(width, inner_width) + linear(inner_width, width)
    return 4 * linear(width, width) + ffn + 2 * biased_norm(width)


def merging_matrices(keys: EncoderKeys, text_width: int) -> int:
    merged = keys.spatial_merge_size**2 * keys.needed.hidden_size
    return linear(merged, merged) + linear(merged, text_width)


def two_matrices(keys: EncoderKeys, width: int, text_width: int, *, has_bias: bool) -> int:
    given = keys.multimodal_projector_bias
    bias = has_bias if given is None else given
    return linear(width, text_width, bias) + linear(text_width, text_width, bias)


def gated_matrices(inputs: int, inner: int, outputs: int) -> int:
    """Into the gate and what it lets through, together ``inner`` wide, and out of their product."""
    return linear(inputs, inner) + linear(inner // 2, outputs)


def linear(inputs: int, outputs: int, has_bias: bool = True) -> int:
    return (inputs + has_bias) * outputs


def biased_norm(width: int) -> int:
    return 2 * width
