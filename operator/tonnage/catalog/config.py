"""From a parsed Hugging Face ``config.json`` to the shape that sizing reads."""

import hashlib
import json
import re
import reprlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from tonnage.catalog.config_architectures import (
    ARCHITECTURES,
    UNDERSTOOD,
    WRAPPERS,
    Architecture,
    vector_parameters,
)
from tonnage.catalog.config_attention import derived_head_dim
from tonnage.catalog.config_keys import (
    DecoderKeys,
    ModelConfigError,
    UnknownArchitectureError,
    read_keys,
)
from tonnage.catalog.config_quantization import (
    BF16,
    FP16,
    cache_format,
    read_quantization,
    stored_weights,
)
from tonnage.catalog.config_refusals import refuse_unknown_parts
from tonnage.catalog.gpu import CatalogError
from tonnage.catalog.shape import (
    Attention,
    Ffn,
    GroupedAttention,
    LayerGroup,
    ModelShape,
    WeightFormat,
)

DIGEST_LENGTH = 12
MAX_NESTING = 50
_QUANTIZED_NAME = re.compile(
    r"(?<![a-z0-9])(fp8|(nv|mx)?fp4|int[48]|w[48]a(8|16)|awq|gptq)(?![a-z0-9])", re.IGNORECASE
)


def shape_from_config(config: Mapping[str, object], *, name: str) -> ModelShape:
    """Return the shape of the model that this configuration describes.

    Of a multimodal model only the part that generates text counts.

    Raises:
        ModelConfigError: a key is missing, of the wrong type, out of bounds or contradictory.
        UnknownArchitectureError: the model has parts that no formula here covers.
    """
    try:
        return _shape(config, name)
    except CatalogError as error:
        raise type(error)(f"model {name}: {error}") from error


def _shape(config: Mapping[str, object], name: str) -> ModelShape:
    _check_nesting(config)
    block = _text_block(config)
    architecture = _architecture(block)
    keys = _keys(block, architecture)
    attentions, ffns = architecture.attention(keys), architecture.ffn(keys)
    weights, cache = _formats(config, block, architecture, ffns)
    return ModelShape(
        name=name,
        hidden_size=keys.hidden_size,
        vocab_size=keys.vocab_size,
        tied_embeddings=_is_tied(config, keys, architecture),
        groups=_groups(architecture, keys, attentions, ffns),
        weight_format=weights,
        max_position_tokens=_max_position_tokens(keys, block),
        kv_cache_format=cache,
        digest=_digest(config),
        vector_parameters=architecture.num_outer_norms * keys.hidden_size,
        notes=tuple(_notes(name, block, weights)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _TextBlock:
    """The part of a configuration that describes the text model, and the path to it."""

    values: Mapping[str, object]
    path: tuple[str, ...]

    def key(self, name: str) -> str:
        return ".".join((*self.path, name))


def _text_block(config: Mapping[str, object]) -> _TextBlock:
    refuse_unknown_parts(config)
    model_type = config.get("model_type")
    path = WRAPPERS.get(model_type, ()) if isinstance(model_type, str) else ()
    values = config
    for depth, key in enumerate(path):
        inner = values.get(key)
        if not isinstance(inner, Mapping):
            where = ".".join(path[: depth + 1])
            raise ModelConfigError(f"{where} = {reprlib.repr(inner)} is no object")
        values = inner
    return _TextBlock(values=values, path=path)


def _architecture(block: _TextBlock) -> Architecture:
    model_type = block.values.get("model_type")
    if not isinstance(model_type, str):
        raise ModelConfigError(
            f"{block.key('model_type')} = {reprlib.repr(model_type)} names no kind of model"
        )
    if model_type not in ARCHITECTURES:
        raise UnknownArchitectureError(
            f"models with {block.key('model_type')} = {reprlib.repr(model_type)} are not "
            f"understood yet; understood: {', '.join(UNDERSTOOD)}"
        )
    return ARCHITECTURES[model_type]


def _keys(block: _TextBlock, architecture: Architecture) -> DecoderKeys:
    values = dict(block.values)
    if block.path:
        values = {**architecture.sparse_defaults, **values}
    try:
        keys = read_keys(values)
        return derived_head_dim(keys) if architecture.derives_head_dim else keys
    except ModelConfigError as error:
        raise ModelConfigError(block.key(str(error))) from error


def _groups(
    architecture: Architecture, keys: DecoderKeys, attentions: list[Attention], ffns: list[Ffn]
) -> tuple[LayerGroup, ...]:
    """Merge layers that are alike, in the order of their first."""
    kinds = Counter(
        (_with_bias(architecture, attention), ffn)
        for attention, ffn in zip(attentions, ffns, strict=True)
    )
    return tuple(
        LayerGroup(
            num_layers=num_layers,
            attention=attention,
            ffn=ffn,
            vector_parameters=vector_parameters(architecture, keys, attention, ffn),
        )
        for (attention, ffn), num_layers in kinds.items()
    )


def _with_bias(architecture: Architecture, attention: Attention) -> Attention:
    if architecture.query_bias and isinstance(attention, GroupedAttention):
        return replace(attention, has_bias=True)
    return attention


def _is_tied(config: Mapping[str, object], keys: DecoderKeys, architecture: Architecture) -> bool:
    """Tell whether embedding and head are one table: text part, then wrapper, then class."""
    if keys.tie_word_embeddings is not None:
        return keys.tie_word_embeddings
    outer = config.get("tie_word_embeddings")
    return outer if isinstance(outer, bool) else architecture.is_tied


def _formats(
    config: Mapping[str, object], block: _TextBlock, architecture: Architecture, ffns: list[Ffn]
) -> tuple[WeightFormat, str]:
    outer, inner = config.get("quantization_config"), block.values.get("quantization_config")
    quantization = inner if outer is None else outer
    if quantization is None:
        return _plain_format(config, block), "bf16"
    keys = read_quantization(quantization)
    return stored_weights(keys, ffns, architecture.module_names), cache_format(keys)


def _plain_format(config: Mapping[str, object], block: _TextBlock) -> WeightFormat:
    """Return two bytes: vLLM serves float32 and undeclared checkpoints in 16 bits as well."""
    blocks = (block.values, config)
    dtypes = [values.get(key) for values in blocks for key in ("torch_dtype", "dtype")]
    return FP16 if "float16" in dtypes and "bfloat16" not in dtypes else BF16


def _max_position_tokens(keys: DecoderKeys, block: _TextBlock) -> int | None:
    """Return the longest context, as vLLM derives it.

    Sources:
        [vllm-source] config/model.py: position scaling stretches the length, but for the kinds
        whose files give the stretched length already.
    """
    longest, scaling = keys.max_position_embeddings, keys.rope_scaling
    if longest is None or scaling is None or scaling.factor is None:
        return longest
    if scaling.rope_type == "yarn":
        original = scaling.original_max_position_embeddings or longest
        return int(original * scaling.factor)
    is_stretched = scaling.rope_type in {"linear", "dynamic"}
    if is_stretched and "gemma3" not in str(block.values.get("model_type")):
        return int(longest * scaling.factor)
    return longest


def _notes(name: str, block: _TextBlock, weights: WeightFormat) -> Iterator[str]:
    if block.path:
        yield f"only {'.'.join(block.path)} counts: other towers need memory beside it"
    hint = _QUANTIZED_NAME.search(name)
    if hint and weights in {BF16, FP16}:
        yield (
            f"the name says {hint[0]}, but config.json has no quantization_config (it may stand in "
            "hf_quant_config.json): two bytes per parameter are counted"
        )


def _digest(config: Mapping[str, object]) -> str:
    """Return a short name for the content: the same for the same keys in any order.

    Raises:
        ModelConfigError: it is not what JSON can hold.
    """
    try:
        text = json.dumps(config, sort_keys=True, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise ModelConfigError(f"the configuration is not JSON: {error}") from error
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_LENGTH]


def _check_nesting(config: object) -> None:
    level = [config]
    for _ in range(MAX_NESTING):
        level = [child for value in level for child in _children(value)]
        if not level:
            return
    raise ModelConfigError(f"the configuration is nested deeper than {MAX_NESTING} levels")


def _children(value: object) -> list[object]:
    if isinstance(value, Mapping):
        return list(value.values())
    return list(value) if isinstance(value, list) else []
