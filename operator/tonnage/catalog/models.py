"""The models that ship with Tonnage, and configurations that users bring.

The files in ``models/`` are read one family at a time, when a model of it is asked for.
"""

import copy
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

from tonnage.api.strict_json import read_json
from tonnage.catalog.config.formats.quantization import READ_FROM
from tonnage.catalog.config.keys.decoder import ModelConfigError, UnknownArchitectureError
from tonnage.catalog.config.read import shape_from_config
from tonnage.catalog.gpu import UnknownModelError
from tonnage.catalog.model_names import (
    QUANTIZATION,
    REQUANTIZERS,
    NameParts,
    name_parts,
    no_decoder,
    publisher_of,
)
from tonnage.catalog.shape import ModelShape
from tonnage.units import MIB

FLAG: Final = "--hf-overrides"
_BLOCKS: Final = frozenset(
    {"text_config", "thinker_config", "llm_config", "language_config", "vision_config",
     "audio_config"}
)  # fmt: skip
_ROPE: Final = ("rope_scaling", "rope_parameters")


def overrides_in(arguments: Iterable[str]) -> str:
    """Return the value of the flag, the last of several; empty: it is absent."""
    values = [each.partition("=")[2] for each in arguments if each.startswith(f"{FLAG}=")]
    return values[-1] if values else ""


def with_overrides(config: Mapping[str, object], written: str) -> dict[str, object]:
    """Return the configuration with the keys of the flag's value, as vLLM takes them over.

    Blocks that are configurations of their own are merged, all others replaced.

    Raises:
        ModelConfigError: the value is no JSON object.

    Sources:
        [vllm-source] config/model.py _apply_dict_overrides, _update_nested.
    """
    try:
        overrides = read_json(written, is_finite=False) if written else {}
    except ValueError as error:
        raise ModelConfigError(f"{FLAG}: {error}") from error
    if not isinstance(overrides, Mapping):
        raise ModelConfigError(f"{FLAG} {written!r:.100} is no JSON object")
    return _merged(config, overrides)


def _merged(config: Mapping[str, object], overrides: Mapping[str, object]) -> dict[str, object]:
    scales = not overrides.keys().isdisjoint(_ROPE)
    merged = {key: value for key, value in config.items() if not (scales and key in _ROPE)}
    for key, value in overrides.items():
        block = config.get(key)
        is_block = key in _BLOCKS and isinstance(block, Mapping) and isinstance(value, Mapping)
        merged[key] = _merged(block, value) if is_block else value  # type: ignore[arg-type]
    return merged


MODELS_FOLDER = Path(__file__).parent / "models"
MAX_CONFIG_BYTES = 16 * MIB
"""Lists with the format of each expert of each layer take several MiB."""
SECOND_FILES = {"hf_quant_config.json": "modelopt", "quantize_config.json": "gptq"}
"""Where a checkpoint may say how it is quantized, and the method that writes the file."""

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigOrigin:
    """Where a built-in configuration comes from; ``models/index.yaml`` explains the grades."""

    source: str
    certainty: str


def built_in_model(model_id: str, overrides: str = "") -> ModelShape:
    """Return the shape of a model that ships with Tonnage, or of one whose name says its base.

    ``overrides``: the value of ``--hf-overrides``.

    Raises:
        CatalogError: it does not; the message lists near names.
        UnknownArchitectureError: it does, but has parts that no formula here covers.
    """
    name, parts = _known(model_id)
    if parts is None:
        return _shape(name, overrides)
    return _renamed_shape(model_id, name, parts, overrides)


def model_origin(model_id: str) -> ConfigOrigin:
    """Return where the configuration of a built-in model comes from.

    Raises:
        CatalogError: it does not ship with Tonnage.
    """
    shape, checkpoint = _blocks(_known(model_id)[0])
    parts = [part for part in (shape, checkpoint) if "certainty" in part]
    return ConfigOrigin(
        source="; ".join(part["source"] for part in parts),
        certainty=", ".join(dict.fromkeys(part["certainty"] for part in parts)),
    )


def _known(model_id: str) -> tuple[str, NameParts | None]:
    """Return the name of a built-in model, or the base that a rule gives, and what a name says.

    Publishers of weights in other formats may rename any model, others their own.
    """
    try:
        return full_model_name(model_id), None
    except UnknownModelError:
        parts, publisher = name_parts(model_id), publisher_of(model_id)
        names = _bases().get(parts.base, ()) if parts else ()
        owners = {None, *REQUANTIZERS, *map(publisher_of, names)}
        if len({_blocks(name)[1]["shape"] for name in names}) != 1 or publisher not in owners:
            raise
        return min(names, key=lambda name: "quantization_config" in _blocks(name)[1]), parts


@cache
def _bases() -> Mapping[tuple[str, ...], tuple[str, ...]]:
    """Return the models that the base of a name may mean, in the order of the index."""
    found: dict[tuple[str, ...], tuple[str, ...]] = {}
    for known, name in _names().items():
        parts = name_parts(known)
        if parts and name not in found.get(parts.base, ()):
            found[parts.base] = (*found.get(parts.base, ()), name)
    return found


def _renamed_shape(model_id: str, base: str, parts: NameParts, overrides: str) -> ModelShape:
    config = with_overrides(built_in_config(base), overrides)
    stored, there = "weights as there", name_parts(base)
    if there and there.weight_format and not parts.weight_format:
        config.pop("quantization_config", None)
        stored = "weights in 16 bits, as the name says nothing else"
    elif parts.weight_format:
        config["quantization_config"] = dict(QUANTIZATION[parts.weight_format])
        stored = f"weights in {parts.weight_format}, as the name says"
    shape = shape_from_config(config, name=model_id, encoder_parameters=encoder_parameters(base))
    note = f"counted with the shape of {base}, {stored}: give its config.json to be sure"
    return replace(
        shape,
        max_position_tokens=None if parts.is_tuned else shape.max_position_tokens,
        dtype="float16" if parts.weight_format == "int4" else shape.dtype,  # as AWQ's recipes write
        notes=(*shape.notes, note),
    )


def model_names() -> tuple[str, ...]:
    """Return the names of all built-in models, as they stand on the hub."""
    return tuple(dict.fromkeys(_names().values()))


def full_model_name(model_id: str, models: Mapping[str, str] | None = None) -> str:
    """Look up a model by its hub id, in any case, or by the part after the publisher.

    ``models`` leads from every name and alias to the name; None: the built-in ones.

    Raises:
        CatalogError: unknown, or short for several; the message says what to do.

    >>> full_model_name("qwen3-8b")
    'Qwen/Qwen3-8B'
    """
    models = _names() if models is None else models
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
    _refuse_no_decoder(model_id)
    raise UnknownModelError(
        f"model {model_id!r} is not in the catalogue{_near(asked, models)}; "
        "any other model needs its config.json (spec.model.config; for plan and compare also "
        "--model-config FILE or --hub)"
    )


def _refuse_no_decoder(name: str) -> None:
    """Refuse what by its name does not answer texts with texts: its config often does not say."""
    if deed := no_decoder(name):
        raise UnknownArchitectureError(f"model {name}: by its name it {deed}")


def _matching(models: Mapping[str, str], accept: Callable[[str], bool]) -> list[str]:
    return sorted({models[name] for name in models if accept(name.casefold())})


def _near(asked: str, models: Mapping[str, str]) -> str:
    """Return the nearest names; where none is, those near or alike but for the publisher."""
    by_folded = {name.casefold(): name for name in models}
    by_stem = {name.rpartition("/")[2]: known for name, known in by_folded.items()}
    near = [by_folded[name] for name in get_close_matches(asked, by_folded, n=3)]
    stem = asked.rpartition("/")[2]
    near = near or [by_stem[name] for name in get_close_matches(stem, by_stem, n=3)]
    begun = _letters(stem)
    if begun and not near:
        near = [by_stem[name] for name in by_stem if _letters(name).startswith(begun)]
    known = list(dict.fromkeys(name if "/" in name else models[name] for name in near))[:3]
    return f" (did you mean {', '.join(known)}?)" if known else ""


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name))


def read_model_config(text: str, *, name: str, overrides: str = "") -> ModelShape:
    """Return the shape that the text of a ``config.json`` describes.

    ``overrides``: the value of ``--hf-overrides``.

    Raises:
        ModelConfigError: it is no JSON object, or one that cannot be right.
        UnknownArchitectureError: the model has parts that no formula here covers.
    """
    _refuse_no_decoder(name)
    size_bytes = len(text.encode("utf-8", "surrogatepass"))
    if size_bytes > MAX_CONFIG_BYTES:
        raise ModelConfigError(
            f"model {name}: config.json has {size_bytes} bytes; at most {MAX_CONFIG_BYTES} are read"
        )
    try:
        config = read_json(text, is_finite=False)
    except ValueError as error:
        raise ModelConfigError(f"model {name}: config.json: {error}") from error
    if not isinstance(config, dict):
        raise ModelConfigError(f"model {name}: config.json is no object")
    return shape_from_config(with_overrides(config, overrides), name=name)


def with_second_file(config: str, beside: Callable[[str], str | None]) -> str:
    """Return the text of a config.json with the quantization that a file beside it has.

    ``beside``: the text of such a file by its name; None: there is none. A text that is no
    config.json, or has a quantization of its own, is returned as it is.

    Raises:
        ModelConfigError: the second file is no JSON object.

    Sources:
        [vllm-source] transformers_utils/config.py get_config: hf_quant_config.json only if
        config.json has no quantization_config; auto_gptq.py get_config_filenames.
    """
    try:
        values = read_json(config, is_finite=False)
    except ValueError:
        return config
    if not isinstance(values, dict) or values.get("quantization_config") is not None:
        return config
    for name, method in SECOND_FILES.items():
        text = beside(name)
        if text is None:
            continue
        try:
            found = read_json(text)
        except ValueError as error:
            raise ModelConfigError(f"{name}: {error}") from error
        if not isinstance(found, dict):
            raise ModelConfigError(f"{name} is no object")
        return json.dumps(
            {**values, "quantization_config": {"quant_method": method, READ_FROM: name, **found}}
        )
    return config


@cache
def _names() -> Mapping[str, str]:
    """Return the name that each name and alias stands for."""
    return {
        known: name
        for models in _read("index").values()
        for name, aliases in models.items()
        for known in (name, *(aliases or ()))
    }


@cache
def _read(stem: str) -> Mapping[str, Any]:
    text = (MODELS_FOLDER / f"{stem}.yaml").read_text()
    values: Mapping[str, Any] = yaml.load(text, Loader=_Loader)  # noqa: S506 (a safe loader)
    return values


def _blocks(name: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the block of the shape and that of the checkpoint."""
    family = next(family for family, models in _read("index").items() if name in models)
    content = _read(family)
    checkpoint = content["models"][name]
    return content["shapes"][checkpoint["shape"]], checkpoint


@cache
def _shape(name: str, overrides: str) -> ModelShape:
    config = with_overrides(built_in_config(name), overrides)
    return shape_from_config(config, name=name, encoder_parameters=encoder_parameters(name))


def encoder_parameters(name: str) -> int | None:
    """Return how many parameters the encoders of a built-in model have; None: it has none."""
    number: int | None = _blocks(name)[0].get("encoder_parameters")
    return number


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
