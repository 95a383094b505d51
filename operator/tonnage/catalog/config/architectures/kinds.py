"""The kinds of model that are understood, by ``model_type``: the tables of ``kinds.toml``.

A model of any other kind is bounded, or refused by name.
"""

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from tonnage.catalog.config.architectures.traits import Architecture
from tonnage.catalog.config.keys.names import PARTS
from tonnage.catalog.config.layers import attention, families, ffn, keyed, sparse, state

_FUNCTIONS: Final = ("attention", "ffn", "outer", "reads", "replicated", "tables", "vectors")
_MODULES: Final = {
    each.__name__.rpartition(".")[2]: each
    for each in (attention, families, ffn, keyed, sparse, state)
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
    functions = {key: _function(row[key]) for key in _FUNCTIONS if key in row}
    understood = frozenset(row.get("understands", ()))
    return Architecture(**{**row, **functions, "understands": understood})


def _function(path: str) -> Callable[..., Any]:
    module, _, name = path.partition(".")
    function: Callable[..., Any] = getattr(_MODULES[module], name)
    return function


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
