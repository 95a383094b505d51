"""Model configurations in the form of a file of shapes and of models that differ from them."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tonnage.catalog.gpu import CatalogError
from tonnage.catalog.models import built_in_model, read_model_config
from tonnage.catalog.shape import ModelShape

Configs = Mapping[str, Any]


def shape_in(configs: Configs, model: str, weight_label: str) -> ModelShape:
    """Return the shape of a model's checkpoint with this weight label.

    Raises:
        CatalogError: its configuration is refused.
        KeyError: there is no such model.
    """
    config = json.dumps(config_in(configs, model, weight_label))
    return with_encoders(read_model_config(config, name=model))


def with_encoders(shape: ModelShape) -> ModelShape:
    """Return a shape with the encoders that the catalogue has of its model; others keep a bound."""
    try:
        number = built_in_model(shape.name).encoder_parameters
    except CatalogError:
        return shape
    return replace(shape, encoder_parameters=number, num_uncounted_encoders=0)


def config_in(configs: Configs, model: str, weight_label: str) -> dict[str, Any]:
    """Return the ``config.json`` of a model's checkpoint with this weight label."""
    entry = configs["models"][model]
    config = json.loads(json.dumps(configs["shapes"][entry["shape"]]["config"]))
    for key, value in entry.get("overrides", {}).items():
        _put(config, key.split("."), value)
    checkpoint = entry.get("other_checkpoints", {}).get(weight_label, entry)
    if "quantization_config" in checkpoint:
        config["quantization_config"] = _written_out(checkpoint["quantization_config"])
    return config


def _written_out(block: Any) -> Any:
    """Return a block with its shorthand for module names replaced by the names."""
    match block:
        case dict():
            return {key: _written_out(value) for key, value in block.items()}
        case list():
            return [name for value in block for name in _names(value)]
        case _:
            return block


def _names(value: Any) -> list[Any]:
    """Return the names behind one: ``layers.[0-2,4-8:2].x`` is five of them.

    >>> _names("layers.[0-1,4-8:2].x")
    ['layers.0.x', 'layers.1.x', 'layers.4.x', 'layers.6.x', 'layers.8.x']
    """
    found = re.search(r"\[([\d,:-]+)\]", value) if isinstance(value, str) else None
    if not found:
        return [_written_out(value)]
    numbers = [number for part in found[1].split(",") for number in _numbers(part)]
    return [f"{value[: found.start()]}{number}{value[found.end() :]}" for number in numbers]


def _numbers(part: str) -> range:
    ends, _, step = part.partition(":")
    first, _, last = ends.partition("-")
    return range(int(first), int(last or first) + 1, int(step or 1))


def _put(block: dict[str, Any], path: list[str], value: object) -> None:
    for key in path[:-1]:
        block = block.setdefault(key, {})
    block[path[-1]] = value
