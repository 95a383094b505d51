"""Model configurations in the form of a file of shapes and of models that differ from them."""

import json
from collections.abc import Mapping
from typing import Any

from tonnage.catalog.models import read_model_config
from tonnage.catalog.shape import ModelShape

Configs = Mapping[str, Any]


def shape_in(configs: Configs, model: str, weight_label: str) -> ModelShape:
    """Return the shape of a model's checkpoint with this weight label.

    Raises:
        CatalogError: its configuration is refused.
        KeyError: there is no such model.
    """
    return read_model_config(json.dumps(config_in(configs, model, weight_label)), name=model)


def config_in(configs: Configs, model: str, weight_label: str) -> dict[str, Any]:
    """Return the ``config.json`` of a model's checkpoint with this weight label."""
    entry = configs["models"][model]
    config = json.loads(json.dumps(configs["shapes"][entry["shape"]]["config"]))
    for key, value in entry.get("overrides", {}).items():
        _put(config, key.split("."), value)
    checkpoint = entry.get("other_checkpoints", {}).get(weight_label, entry)
    if "quantization_config" in checkpoint:
        config["quantization_config"] = checkpoint["quantization_config"]
    return config


def _put(block: dict[str, Any], path: list[str], value: object) -> None:
    for key in path[:-1]:
        block = block.setdefault(key, {})
    block[path[-1]] = value
