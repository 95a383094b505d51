"""Refuse what marks a model whose cost is not understood, and models that generate no text."""

import re
import reprlib
from collections.abc import Iterator, Mapping
from typing import Final

from tonnage.catalog.config.keys.decoder import UnknownArchitectureError
from tonnage.catalog.config.keys.parts import PARTS
from tonnage.catalog.config.layers.attention import LAYER_TYPES

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
    listed = config.get("architectures")
    heads = [str(each) for each in listed] if isinstance(listed, list) else []
    head = next((each for each in heads if _NO_DECODE.search(each)), None)
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
