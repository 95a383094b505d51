"""From a family's own names of keys to the usual ones, and back in what errors say."""

import hashlib
import json
import re
import reprlib
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from tonnage.catalog.config.keys.decoder import ModelConfigError, UnknownArchitectureError

DIGEST_LENGTH: Final = 12
MAX_NESTING: Final = 50
MAX_INTEGER_BITS: Final = 4096
"""Python refuses to write longer numbers than about three times that."""

MAX_PATH_LENGTH: Final = 200
"""Of a key with those around it, in messages."""


def check_document(config: Mapping[str, object]) -> None:
    """Refuse what Python's JSON cannot hold, and nesting and numbers that no honest file has.

    Infinity and NaN, which Python and vLLM read, are refused by the keys that are used.

    Raises:
        ModelConfigError: names the key.
    """
    level: list[tuple[str, object]] = [("", config)]
    for _ in range(MAX_NESTING + 1):
        for where, value in level:
            _refuse_odd(where, value)
        level = [child for where, value in level for child in _children(where, value)]
    if level:
        raise ModelConfigError(f"{level[0][0]} is nested deeper than {MAX_NESTING} levels")


def digest(config: Mapping[str, object]) -> str:
    """Return a short name for a checked document: the same for the same keys in any order."""
    text = json.dumps(config, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_LENGTH]


def _refuse_odd(where: str, value: object) -> None:
    match value:
        case int() if value.bit_length() > MAX_INTEGER_BITS:
            odd = f"a number of {value.bit_length()} bits"
        case Mapping() if not all(isinstance(key, str) for key in value):
            odd = "a key that is no text"
        case str() | int() | float() | list() | Mapping() | None:
            return
        case _:
            odd = f"a value of type {type(value).__name__}"
    raise ModelConfigError(f"{where or 'the configuration'} is not JSON: it holds {odd}")


def _children(where: str, value: object) -> Iterable[tuple[str, object]]:
    if isinstance(value, Mapping):
        prefix = f"{where}." if where else ""
        return ((f"{prefix}{key}"[:MAX_PATH_LENGTH], child) for key, child in value.items())
    return ((where, child) for child in value) if isinstance(value, list) else ()


PARTS: Final[Mapping[str, Any]] = tomllib.loads(Path(__file__).with_name("parts.toml").read_text())


_ABSENT: Final = object()
MOST_DRAFT_LAYERS: Final = 4
BY_LAYER: Final = frozenset(
    {"attn_type_list", "hybrid_layer_pattern", "indexer_types", "layer_types", "layers_block_type",
     "mlp_layer_types", "moe_layer_freq", "no_rope_layers"}
)  # fmt: skip
"""Lists with one entry for each layer."""


def usual_names(block: Mapping[str, object], names: Mapping[str, str]) -> dict[str, object]:
    """Return the block with its keys under the usual names.

    ``names`` leads from the usual name to the family's own; a dotted one reaches into a block.

    Raises:
        ModelConfigError: a key stands under both names, with different values.
    """
    own_names = set(names.values())
    renamed = {key: value for key, value in block.items() if key not in own_names}
    for usual, own in names.items():
        value, other = _value(block, own), renamed.get(usual)
        if value is _ABSENT or (value is None and usual in renamed):
            continue
        if other is not None and value != other:
            raise ModelConfigError(
                f"{own} = {reprlib.repr(value)} contradicts {usual} = {reprlib.repr(other)}"
            )
        renamed[usual] = value
    return renamed


def own_names(message: str, block: Mapping[str, object], names: Mapping[str, str]) -> str:
    """Say what is wrong in the words of the file: each key by the family's name for it."""
    absent = {usual: own for usual, own in names.items() if usual not in block}
    if not absent:
        return message
    usual = re.compile(rf"\b({'|'.join(absent)})\b")
    return usual.sub(lambda match: absent[match[0]], message)


def without_draft_entries(values: Mapping[str, object]) -> dict[str, object]:
    """Return the values with lists by layer cut to the layers: some go on with layers that draft.

    The engine looks its own layers up and sees nothing behind them.

    Sources:
        [vllm-source] model_executor/models/step3p5.py and its kin: indexed by layer.
    """
    number = values.get("num_hidden_layers", values.get("n_layer"))
    if not isinstance(number, int):
        return dict(values)
    cut = dict(values)
    for key in BY_LAYER:
        value = values.get(key)
        if isinstance(value, list) and number < len(value) <= number + MOST_DRAFT_LAYERS:
            cut[key] = value[:number]
    return cut


def refuse_other_values(block: Mapping[str, object], only: Mapping[str, object]) -> None:
    """Refuse a variant of the family that no formula here covers.

    ``only`` leads from keys to the one value of each that is understood; a key that is left out
    means that value.

    Raises:
        UnknownArchitectureError: names the key and its value.
    """
    for key, understood in only.items():
        value = _value(block, key)
        if value is _ABSENT or value == understood or (value is None and not understood):
            continue
        raise UnknownArchitectureError(
            f"models of this kind with {key} = {reprlib.repr(value)} are not understood yet"
        )


def _value(block: Mapping[str, object], path: str) -> object:
    *parents, key = path.split(".")
    for parent in parents:
        inner = block.get(parent)
        if inner is None:
            return _ABSENT
        if not isinstance(inner, Mapping):
            raise ModelConfigError(f"{parent} = {reprlib.repr(inner)} is no object")
        block = inner
    return block.get(key, _ABSENT)
