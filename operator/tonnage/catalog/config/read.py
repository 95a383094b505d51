"""From a parsed Hugging Face ``config.json`` to the shape that sizing reads."""

import re
import reprlib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches

from tonnage.catalog.config.architectures.kinds import (
    ARCHITECTURES,
    TEXT_BLOCKS,
    UNDERSTOOD,
    WRAPPED_TYPES,
    WRAPPERS,
    Architecture,
    assumed_architecture,
    assumed_kind,
    assumed_wrapper,
    has_wide_norms,
    kind_of_class,
    outer_vector_parameters,
    refuse_unknown_parts,
    refuse_without_decode,
    vector_parameters,
)
from tonnage.catalog.config.encoders import with_encoders
from tonnage.catalog.config.formats.methods import read_quantization
from tonnage.catalog.config.formats.modules import Layer
from tonnage.catalog.config.formats.quantization import (
    BF16,
    FP16,
    cache_format,
    dtype_beside,
)
from tonnage.catalog.config.formats.recipes import (
    as_kind_reads,
    stored_weights,
    with_expert_format,
)
from tonnage.catalog.config.keys.decoder import (
    DecoderKeys,
    ModelConfigError,
    UnknownArchitectureError,
    read_keys,
)
from tonnage.catalog.config.keys.names import (
    check_document,
    digest,
    own_names,
    refuse_other_values,
    usual_names,
    without_draft_entries,
)
from tonnage.catalog.config.layers.attention import derived_head_dim, rotary_elements
from tonnage.catalog.gpu import CatalogError
from tonnage.catalog.shape import (
    Assumption,
    Attention,
    GroupedAttention,
    HalfType,
    LayerGroup,
    ModelShape,
    WeightFormat,
)

_QUANTIZED_NAME = re.compile(
    r"(?<![a-z0-9])(fp8|(nv|mx)?fp4|int[48]|w[48]a(8|16)|awq|gptq)(?![a-z0-9])", re.IGNORECASE
)
_WRITTEN_STRETCHED = frozenset({"llama3", "deepseek_yarn", "deepseek_llama_scaling"})
"""Types of scaled positions whose files give the stretched length."""
_EIGHT_BITS = re.compile("fp8|int8|w8", re.IGNORECASE)


def shape_from_config(
    config: Mapping[str, object], *, name: str, encoder_parameters: int | None = None
) -> ModelShape:
    """Return the shape of the model that this configuration describes.

    Of a multimodal model the part that generates text counts, and the encoders beside it, of which
    a bound is counted where ``encoder_parameters`` is not known.

    Raises:
        ModelConfigError: a key is missing, of the wrong type, out of bounds or contradictory.
        UnknownArchitectureError: the model has parts that no formula here covers.
    """
    try:
        return _shape(config, name, encoder_parameters)
    except CatalogError as error:
        raise type(error)(f"model {name}: {error}") from error


def _shape(config: Mapping[str, object], name: str, encoder_parameters: int | None) -> ModelShape:
    check_document(config)
    block = _text_block(config)
    architecture = _architecture(config, block)
    with _naming_keys_as_written(block, architecture):
        keys = _keys(block, architecture)
        layers = list(zip(architecture.attention(keys), architecture.ffn(keys), strict=True))
        outer_vectors = outer_vector_parameters(architecture, keys)
        rotary = rotary_elements(
            keys,
            (attention for attention, _ in layers),
            default_fraction=architecture.rotary_fraction,
            differs_by_window=architecture.turns_by_window,
        )
    longest, stretched, usual = _positions(keys, block)
    shape = ModelShape(
        name=name,
        hidden_size=keys.hidden_size,
        vocab_size=keys.vocab_size,
        tied_embeddings=_is_tied(config, keys, architecture),
        groups=_groups(architecture, keys, layers),
        weight_format=BF16,
        max_position_tokens=longest,
        stretched_position_tokens=stretched,
        usual_position_tokens=usual,
        model_type=str(config.get("model_type", "")),
        digest=digest(config),
        vector_parameters=outer_vectors,
        rotary_elements=rotary,
        table_parameters=architecture.tables(keys),
        tables_on_host=architecture.keeps_tables_on_host,
        num_draft_layers=keys.num_draft_layers or 0,
        assumptions=tuple(_assumptions(config, block, keys)),
    )
    shape = _with_formats(shape, config, block, architecture, layers)
    shape = replace(shape, assumptions=(*shape.assumptions, *_unsaid(name, shape.weight_format)))
    return with_encoders(shape, config, _wrapper_path(config), encoder_parameters)


@dataclass(frozen=True, slots=True, kw_only=True)
class _TextBlock:
    """The part of a configuration that describes the text model, and the path to it."""

    values: Mapping[str, object]
    path: tuple[str, ...]

    def key(self, name: str) -> str:
        return ".".join((*self.path, name))

    @property
    def is_known(self) -> bool:
        return self.values.get("model_type") in ARCHITECTURES


def _wrapper_path(config: Mapping[str, object]) -> tuple[str, ...]:
    """Return where a multimodal model of this kind keeps its text part."""
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type in ARCHITECTURES:
        return ()
    return WRAPPERS[model_type] if model_type in WRAPPERS else _path_to_layers(config)


def _path_to_layers(block: Mapping[str, object]) -> tuple[str, ...]:
    """Return the way to the first text block within that has layers."""
    if "num_hidden_layers" not in block:
        for key in TEXT_BLOCKS:
            inner = block.get(key)
            if isinstance(inner, Mapping):
                return (key, *_path_to_layers(inner))
    return ()


def _text_block(config: Mapping[str, object]) -> _TextBlock:
    """Find the part that generates text; older files have its keys beside those of the encoder."""
    model_type, path = config.get("model_type"), _wrapper_path(config)
    if path and path[0] not in config and "num_hidden_layers" in config:
        text_type = WRAPPED_TYPES.get(model_type, f"{model_type}_text")
        return _TextBlock(values={**config, "model_type": text_type}, path=())
    values = config
    for depth, key in enumerate(path):
        inner = values.get(key)
        if not isinstance(inner, Mapping):
            where = ".".join(path[: depth + 1])
            raise ModelConfigError(f"{where} = {reprlib.repr(inner)} is no object")
        values = inner
    if isinstance(model_type, str) and model_type in WRAPPED_TYPES and "model_type" not in values:
        values = {"model_type": WRAPPED_TYPES[model_type], **values}
    kind, written = kind_of_class(values), values.get("model_type")
    if kind and isinstance(written, str) and ARCHITECTURES[kind] is not ARCHITECTURES.get(written):
        # Of another kind than the class no window is a rule: none takes no less memory.
        values = {"sliding_window": None, **values, "model_type": kind}
    return _TextBlock(values=values, path=path)


def _architecture(config: Mapping[str, object], block: _TextBlock) -> Architecture:
    model_type = block.values.get("model_type")
    if not isinstance(model_type, str):
        raise ModelConfigError(
            f"{block.key('model_type')} = {reprlib.repr(model_type)} names no kind of model"
        )
    refuse_without_decode(config, model_type)
    architecture = ARCHITECTURES.get(model_type) or assumed_architecture(config, block.values)
    kind = f"models with {block.key('model_type')} = {reprlib.repr(model_type)}"
    refuse_unknown_parts(config, architecture.understands, kind)
    return architecture


def _assumptions(
    config: Mapping[str, object], block: _TextBlock, keys: DecoderKeys
) -> Iterator[Assumption]:
    kind = str(config.get("model_type"))
    near = get_close_matches(kind, UNDERSTOOD)
    hint = f" (near: {', '.join(near)})" if near else ""
    described = f"model_type = {reprlib.repr(kind)} has no rule here{hint}"
    if not block.is_known:
        yield assumed_kind(described, keys)
    elif block.path and kind not in WRAPPERS:
        yield assumed_wrapper(described, str(block.values["model_type"]))


@contextmanager
def _naming_keys_as_written(block: _TextBlock, architecture: Architecture) -> Iterator[None]:
    try:
        yield
    except ModelConfigError as error:
        if not block.is_known:
            raise UnknownArchitectureError(
                f"models with {block.key('model_type')} = {block.values['model_type']!r:.100} are "
                f"not understood yet, and their keys give no bound: {error}"
            ) from error
        message = own_names(str(error), block.values, architecture.names)
        raise ModelConfigError(block.key(message)) from error


def _keys(block: _TextBlock, architecture: Architecture) -> DecoderKeys:
    refuse_other_values(block.values, architecture.only)
    sparse = architecture.sparse_defaults if block.path else {}
    written = usual_names(block.values, architecture.names)
    if architecture.reads:
        written = architecture.reads(written)
    values = {**architecture.defaults, **sparse, **written}
    if values.get("use_sliding_window") is False and values.get("sliding_window") == 0:
        del values["sliding_window"]
    listed = values.get(architecture.layer_list) if architecture.layer_list else None
    if isinstance(listed, list):
        values.setdefault("num_hidden_layers", len(listed))
    keys = read_keys(without_draft_entries(values))
    for key in architecture.needs:
        if getattr(keys, key) is None:
            raise ModelConfigError(f"{key} is missing")
    return derived_head_dim(keys) if architecture.derives_head_dim else keys


def _groups(
    architecture: Architecture, keys: DecoderKeys, layers: list[Layer]
) -> tuple[LayerGroup, ...]:
    """Merge layers that are alike, in the order of their first."""
    kinds = Counter((_with_traits(architecture, keys, each), ffn) for each, ffn in layers)
    return tuple(
        LayerGroup(
            num_layers=num_layers,
            attention=attention,
            ffn=ffn,
            vector_parameters=vector_parameters(architecture, keys, attention, ffn),
            replicated_parameters=architecture.replicated(keys, attention),
        )
        for (attention, ffn), num_layers in kinds.items()
    )


def _with_traits(
    architecture: Architecture, keys: DecoderKeys, attention: Attention | None
) -> Attention | None:
    if not isinstance(attention, GroupedAttention):
        return attention
    return replace(
        attention,
        has_bias=attention.has_bias or bool(architecture.query_bias),
        has_output_gate=(
            attention.has_output_gate
            if architecture.gate == "by key"
            else architecture.gate == "full"
        ),
        has_wide_norms=has_wide_norms(architecture, keys),
    )


def _is_tied(config: Mapping[str, object], keys: DecoderKeys, architecture: Architecture) -> bool:
    """Tell whether embedding and head are one table: if all say so that do, else as the class.

    Sources:
        [vllm-source] config/vllm.py with_hf_config: what the wrapper says is set in the text part;
        config/model.py maybe_untie_word_embeddings: a head in the checkpoint unties them again.
    """
    written = [keys.tie_word_embeddings, config.get("tie_word_embeddings")]
    found = [each for each in written if isinstance(each, bool)]
    return all(found) if found else architecture.is_tied


def _with_formats(
    shape: ModelShape,
    config: Mapping[str, object],
    block: _TextBlock,
    architecture: Architecture,
    layers: list[Layer],
) -> ModelShape:
    """Return a shape as its checkpoint is stored, with what is assumed of that."""
    # float32 and unnamed types are served in 16 bits too.
    dtypes = [of.get(key) for of in (block.values, config) for key in ("torch_dtype", "dtype")]
    names: tuple[HalfType, ...] = ("bfloat16", "float16")
    dtype = next((name for name in names if name in dtypes), None)
    written = (
        values.get(key)
        for values in (config, block.values)
        for key in ("quantization_config", "compression_config")
    )
    quantization = next((each for each in written if each is not None), None)
    if quantization is None or quantization == {}:
        wide = FP16 if dtype == "float16" else BF16
        return replace(shape, weight_format=wide, dtype=dtype or "bfloat16")
    keys = read_quantization(quantization)
    found, assumptions = stored_weights(keys, layers, architecture.module_names)
    weights = as_kind_reads(found, config.get("model_type"))
    if "expert_dtype" in architecture.understands:
        weights = with_expert_format(weights, keys, block.values.get("expert_dtype", "fp4"))
    return replace(
        shape,
        weight_format=weights,
        kv_cache_format=cache_format(keys),
        dtype=dtype_beside(keys, dtype),
        quant_method=keys.kind,
        orders_activations=keys.orders_activations,
        assumptions=(*shape.assumptions, *assumptions),
    )


def _positions(keys: DecoderKeys, block: _TextBlock) -> tuple[int | None, int | None, int | None]:
    """Return the longest context, that of older versions with YaRN, and LongRoPE's usual one.

    Sources:
        [vllm-source] config/model.py _get_and_verify_max_len: scaling stretches the length, but for
        the kinds and types whose files give the stretched length already.
    """
    longest, scaling = keys.max_position_embeddings, keys.rope_scaling
    if longest is None or scaling is None or scaling.rope_type is None:
        return longest, None, None
    factor, kind = scaling.factor or 1.0, scaling.rope_type
    if kind in {"su", "longrope"}:
        return longest, None, keys.original_max_position_embeddings
    if kind == "yarn":
        return longest, int((scaling.original_max_position_embeddings or longest) * factor), None
    if kind not in _WRITTEN_STRETCHED and "gemma3" not in str(block.values.get("model_type")):
        longest = int(longest * factor)
    return longest, None, None


def _unsaid(name: str, weights: WeightFormat) -> Iterator[Assumption]:
    hint = _QUANTIZED_NAME.search(name)
    if hint and weights in {BF16, FP16}:
        yield Assumption(
            about="weights",
            taken=f"the name says {hint[0]}, but config.json has no quantization_config: two bytes "
            "per parameter are counted",
            effect="memory and time",
            times=BF16.bytes_per_parameter / (1.0 if _EIGHT_BITS.match(hint[0]) else 0.5),
            replaced_by="hf_quant_config.json beside config.json, or model.weights",
        )
