"""The kinds of model that are understood, by ``model_type``: the tables of ``kinds.toml``.

A model of any other kind is bounded by the keys that all decoders have, or refused by name. In
the bound each layer attends to all tokens with the heads that are written, or keeps the latent
vector where there is one, and has the widest block that its numbers make; only marks of layers
that most files write alike make less of it. What it would be wrong for is refused.
"""

import re
import reprlib
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Final, Literal

from tonnage.catalog.config.keys.decoder import DecoderKeys, UnknownArchitectureError
from tonnage.catalog.config.keys.names import PARTS
from tonnage.catalog.config.layers import attention, families, ffn, sparse, state
from tonnage.catalog.config.layers.attention import LAYER_TYPES
from tonnage.catalog.shape import (
    USUAL_TIMES,
    Assumption,
    Attention,
    CompressedAttention,
    Ffn,
    GroupedAttention,
    LatentAttention,
    MoeFfn,
    StateAttention,
)
from tonnage.units import count_of


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
    """Counts what is outside the layers, beside norms, embedding and head."""
    tables: Callable[[DecoderKeys], int] = _nothing
    """Counts further embedding tables."""
    keeps_tables_on_host: bool = False
    """vLLM has those in the memory of the host unless a flag says otherwise."""


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


_FUNCTIONS: Final = ("attention", "ffn", "outer", "reads", "replicated", "tables", "vectors")
_MODULES: Final = {
    each.__name__.rpartition(".")[2]: each for each in (attention, families, ffn, sparse, state)
}


def _architectures() -> dict[str, Architecture]:
    """Return the architecture of each row, those that only others are made of too."""
    rows: dict[str, dict[str, Any]] = {}
    found = {}
    text = Path(__file__).with_suffix(".toml").read_text()
    for name, written in tomllib.loads(text).items():
        if name == "source":
            continue
        row = dict(rows.get(written.pop("as", ""), {}))
        also = written.pop("also", ())
        for key, value in written.items():
            row[key] = _added(row.get(key), value)
        found.update(dict.fromkeys((name, *also), _architecture(row)))
        rows[name] = row
    return found


def _added(before: Any, value: Any) -> Any:
    match value:
        case dict():
            return {**(before or {}), **value}
        case list():
            return [*(before or ()), *value]
        case _:
            return value


def _architecture(row: Mapping[str, Any]) -> Architecture:
    places = {key: row[key].partition(".") for key in _FUNCTIONS if key in row}
    functions = {key: getattr(_MODULES[of], name) for key, (of, _, name) in places.items()}
    understood = frozenset(row.get("understands", ()))
    return Architecture(**{**row, **functions, "understands": understood})


_FOUND: Final = _architectures()
ARCHITECTURES: Final[Mapping[str, Architecture]] = {
    name: each for name, each in _FOUND.items() if not name.startswith("_")
}
ASSUMED: Final = _FOUND["_assumed"]
"""Of kinds that no row has: all that takes memory."""

WRAPPERS: Final[Mapping[str, tuple[str, ...]]] = {
    kind: tuple(path.split(".")) for path, kinds in PARTS["wrappers"].items() for kind in kinds
}
"""Multimodal models: the path to the part that generates text."""
WRAPPED_TYPES: Final[Mapping[object, str]] = PARTS["wrapped_types"]
"""The kind of that part where it does not name its own."""
UNDERSTOOD = tuple(sorted({*ARCHITECTURES, *WRAPPERS}))


_LINEAR: Final = "linear attention layers"
TEXT_BLOCKS: Final[tuple[str, ...]] = tuple(PARTS["text_blocks"])
_NO_DECODE = re.compile(
    r"(For(SequenceClassification|TokenClassification|MaskedLM|QuestionAnswering)|RewardModel)$"
    r"|^(Gemma2|Gemma3Text|Llama|Mistral|Qwen2|Qwen3)Model$"
)
"""Heads of classes, and decoders without a head, as the engine pools them.

Sources:
    [vllm-source] model_executor/models/registry.py: _EMBEDDING_MODELS.
"""


def refuse_unknown_parts(
    block: Mapping[str, object], understands: frozenset[str], kind: str
) -> None:
    """Refuse a configuration that names a part which no formula here covers, nested or not.

    ``understands`` are the keys and layer types that this kind of model reads; ``kind`` is what
    the message calls it.

    Raises:
        UnknownArchitectureError: names the part, the key and its value.
    """
    for what, where in _unknown_parts(block, understands):
        raise UnknownArchitectureError(f"{what} ({where}) are not understood yet in {kind}")
    for key in TEXT_BLOCKS:
        inner = block.get(key)
        if isinstance(inner, Mapping):
            refuse_unknown_parts(inner, understands, kind)


def refuse_without_decode(config: Mapping[str, object], model_type: str) -> None:
    """Refuse encoders, and models whose head names a class: they generate no tokens.

    Raises:
        UnknownArchitectureError: with the key that says it.
    """
    head = next(filter(_NO_DECODE.search, _class_names(config)), None)
    named = f"architectures = {head!r}" if head else f"model_type = {model_type!r}"
    if head or model_type in PARTS["encoders"]:
        raise UnknownArchitectureError(
            f"{named} embeds or classifies text: it generates no tokens, and there is no decode to "
            "plan"
        )


def _unknown_parts(
    block: Mapping[str, object], understands: frozenset[str]
) -> Iterator[tuple[str, str]]:
    yield from _odd_entries(block, "layer_types", understood=LAYER_TYPES | understands)
    kinds = frozenset({0, 1}) if "attn_type_list" in understands else frozenset({1})
    yield from _odd_entries(block, "attn_type_list", understood=kinds)
    for what, keys in PARTS["unknown_parts"].items():
        for key in keys:
            value = block.get(key)
            if value and key not in understands:
                yield what, f"{key} = {reprlib.repr(value)}"


def _odd_entries(
    block: Mapping[str, object], key: str, *, understood: frozenset[object]
) -> Iterator[tuple[str, str]]:
    entries = block.get(key)
    if not isinstance(entries, list):
        return
    for index, entry in enumerate(entries):
        if isinstance(entry, str | int) and entry not in understood:
            what = _LINEAR if entry in {"linear_attention", 0} else "layers of this kind"
            yield what, f"{key}[{index}] = {reprlib.repr(entry)}"


def assumed_architecture(config: Mapping[str, object], block: Mapping[str, object]) -> Architecture:
    """Return how to read a kind that no rule knows.

    Raises:
        UnknownArchitectureError: vLLM has no class of this name.
    """
    names = _class_names(config)
    if names and _classes().keys().isdisjoint(names):
        code = "with --trust-remote-code " if config.get("auto_map") else ""
        raise UnknownArchitectureError(
            f"vLLM {_registry()['version']} has no class {names[0]}: only its Transformers backend "
            f"may serve it {code}(architectures, model_type = {config.get('model_type')!r}), and "
            "how much memory that takes is not known here"
        )
    is_latent = bool(block.get("kv_lora_rank"))
    has_states = bool(block.get("linear_num_value_heads"))
    return replace(
        ASSUMED,
        understands=(ARCHITECTURES["deepseek_v32"].understands if is_latent else frozenset())
        | (ARCHITECTURES["olmo_hybrid"].understands if has_states else frozenset()),
        derives_head_dim=not is_latent,
    )


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
    times, positions = USUAL_TIMES, keys.max_position_embeddings
    window = keys.sliding_window or keys.attention_chunk_size
    if window and not keys.layer_types:
        times = max(times, (positions or window) / window)
        windows = f" (its window of {window} tokens is of no layer that is named)"
    if not keys.kv_lora_rank and not keys.num_key_value_heads:  # there may be one for all
        times = max(times, times / USUAL_TIMES * keys.num_attention_heads)
    experts = f", {keys.num_experts} experts where none is excepted" if keys.num_experts else ""
    return Assumption(
        about="model",
        taken=f"{described}: {layers} that keep {kept} of every token{windows}, and "
        f"the widest blocks that the keys make{experts}",
        effect="memory and time",
        times=times,
        replaced_by=_REPLACED_BY,
    )


@cache
def _registry() -> Mapping[str, object]:
    text = resources.files("tonnage.catalog").joinpath("engines", "classes.toml").read_text()
    return tomllib.loads(text)


@cache
def _classes() -> Mapping[str, str]:
    """Return the classes that vLLM has, and of which kind each is; empty: no rule knows that."""
    pairs = (each.partition("=") for each in str(_registry()["classes"]).split())
    return {name: kind for name, _, kind in pairs}


def kind_of_class(config: Mapping[str, object]) -> str:
    """Return the kind of the class that a file asks for; empty: none that a rule knows.

    vLLM takes its class by ``architectures``, whatever ``model_type`` says.
    """
    return next((_classes()[name] for name in _class_names(config) if name in _classes()), "")


def _class_names(config: Mapping[str, object]) -> list[str]:
    listed = config.get("architectures")
    return [each for each in listed if isinstance(each, str)] if isinstance(listed, list) else []
