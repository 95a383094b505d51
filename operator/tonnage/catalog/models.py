"""The models that ship with Tonnage, and configurations that users bring.

The files in ``models/`` are read one family at a time, when a model of it is asked for.
"""

import copy
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tonnage.catalog.config.keys.decoder import ModelConfigError
from tonnage.catalog.config.read import shape_from_config
from tonnage.catalog.gpu import UnknownModelError
from tonnage.catalog.shape import ModelShape
from tonnage.units import MIB

MODELS_FOLDER = Path(__file__).parent / "models"
MAX_CONFIG_BYTES = MIB

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a built-in configuration comes from; ``models/index.yaml`` explains the grades."""

    source: str
    certainty: str


def built_in_model(model_id: str) -> ModelShape:
    """Return the shape of a model that ships with Tonnage.

    Raises:
        CatalogError: it does not; the message lists near names.
        UnknownArchitectureError: it does, but has parts that no formula here covers.
    """
    return _shape(find_model(model_id, _names()))


def model_origin(model_id: str) -> Origin:
    """Return where the configuration of a built-in model comes from.

    Raises:
        CatalogError: it does not ship with Tonnage.
    """
    name = find_model(model_id, _names())
    shape, checkpoint = _blocks(name)
    parts = [part for part in (shape, checkpoint) if "certainty" in part]
    return Origin(
        source="; ".join(part["source"] for part in parts),
        certainty=", ".join(dict.fromkeys(part["certainty"] for part in parts)),
    )


def model_names() -> tuple[str, ...]:
    """Return the names of all built-in models, as they stand on the hub."""
    return tuple(dict.fromkeys(_names().values()))


def find_model(model_id: str, models: Mapping[str, str]) -> str:
    """Look up a model by its hub id, in any case, or by the part after the publisher.

    ``models`` leads from every name and alias to the name.

    Raises:
        CatalogError: unknown, or short for several; the message says what to do.

    >>> find_model("qwen3-8b", {"Qwen/Qwen3-8B": "Qwen/Qwen3-8B"})
    'Qwen/Qwen3-8B'
    """
    if model_id in models:
        return models[model_id]
    asked = model_id.casefold()
    found = _matching(models, lambda name: name == asked)
    if not found and "/" not in asked:
        found = _matching(models, lambda name: name.rpartition("/")[2] == asked)
    if len(found) == 1:
        return found[0]
    if found:
        raise UnknownModelError(f"model {model_id!r} is short for several: {', '.join(found)}")
    raise UnknownModelError(
        f"model {model_id!r} is not in the catalogue{_near(asked, models)}; "
        "any other model needs its config.json (spec.model.config)"
    )


def _matching(models: Mapping[str, str], accept: Callable[[str], bool]) -> list[str]:
    return sorted({models[name] for name in models if accept(name.casefold())})


def _near(asked: str, models: Mapping[str, str]) -> str:
    by_folded = {name.casefold(): name for name in models}
    near = [by_folded[name] for name in get_close_matches(asked, by_folded, n=3)]
    return f" (near: {', '.join(near)})" if near else ""


def read_model_config(text: str, *, name: str) -> ModelShape:
    """Return the shape that the text of a ``config.json`` describes.

    Raises:
        ModelConfigError: it is no JSON object, or one that cannot be right.
        UnknownArchitectureError: the model has parts that no formula here covers.
    """
    size_bytes = len(text.encode("utf-8", "surrogatepass"))
    if size_bytes > MAX_CONFIG_BYTES:
        raise ModelConfigError(
            f"model {name}: config.json has {size_bytes} bytes; at most {MAX_CONFIG_BYTES} are read"
        )
    try:
        config = json.loads(
            text,
            object_pairs_hook=_without_duplicates,
            parse_constant=_no_constant,
            parse_float=_finite,
        )
    except (ValueError, RecursionError) as error:
        raise ModelConfigError(f"model {name}: config.json: {error}") from error
    if not isinstance(config, dict):
        raise ModelConfigError(f"model {name}: config.json is no object")
    return shape_from_config(config, name=name)


def _without_duplicates(pairs: Iterable[tuple[str, object]]) -> dict[str, object]:
    block: dict[str, object] = {}
    for key, value in pairs:
        if key in block:
            raise ValueError(f"key {key!r:.100} stands twice")
        block[key] = value
    return block


def _no_constant(constant: str) -> float:
    raise ValueError(f"{constant} is not a number that JSON has")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits:.100} is too large")
    return number


@cache
def _names() -> Mapping[str, str]:
    """Return the name that each name and alias stands for."""
    return {
        known: name
        for models in _index().values()
        for name, aliases in models.items()
        for known in (name, *(aliases or ()))
    }


@cache
def _index() -> Mapping[str, Mapping[str, list[str] | None]]:
    index: Mapping[str, Mapping[str, list[str] | None]] = _read("index")
    return index


@cache
def _family(family: str) -> Mapping[str, Any]:
    return _read(family)


def _read(stem: str) -> Mapping[str, Any]:
    text = (MODELS_FOLDER / f"{stem}.yaml").read_text()
    values: Mapping[str, Any] = yaml.load(text, Loader=_Loader)  # noqa: S506 (a safe loader)
    return values


def _blocks(name: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the block of the shape and that of the checkpoint."""
    family = next(family for family, models in _index().items() if name in models)
    checkpoint = _family(family)["models"][name]
    return _family(family)["shapes"][checkpoint["shape"]], checkpoint


@cache
def _shape(name: str) -> ModelShape:
    return shape_from_config(built_in_config(name), name=name)


def built_in_config(name: str) -> dict[str, Any]:
    """Return the ``config.json`` of a built-in model, by its exact name."""
    shape, checkpoint = _blocks(name)
    config = copy.deepcopy(shape["config"])
    for path, value in checkpoint.get("overrides", {}).items():
        *parents, key = path.split(".")
        block = config
        for parent in parents:
            block = block[parent]
        block[key] = value
    if "quantization_config" in checkpoint:
        config["quantization_config"] = checkpoint["quantization_config"]
    return dict(config)
