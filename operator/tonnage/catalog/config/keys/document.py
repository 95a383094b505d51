"""What a ``config.json`` may hold as a document, whatever it means, and a name for its content."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Final

from tonnage.catalog.config.keys.decoder import ModelConfigError

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
