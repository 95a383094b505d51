"""The kinds of model that are understood, by ``model_type``: the tables of ``kinds.toml``.

A model of any other kind is bounded by the keys that all decoders have, or refused by name. In
the bound each layer attends to all tokens with the heads that are written, or keeps the latent
vector where there is one, and has the widest block that its numbers make; only marks of layers
that most files write alike make less of it. What it would be wrong for is refused.
"""

import re
import reprlib
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Final

from tonnage.catalog.config.architectures.traits import Architecture
from tonnage.catalog.config.keys.decoder import DecoderKeys, UnknownArchitectureError
from tonnage.catalog.config.keys.names import PARTS
from tonnage.catalog.config.layers import attention, families, ffn, sparse, state
from tonnage.catalog.config.layers.attention import LAYER_TYPES
from tonnage.catalog.shape import USUAL_TIMES, Assumption
from tonnage.units import count_of

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
