"""Checks a pod template of a user by a table: ``pod_rules.yaml`` beside this module."""

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Annotated, Any, Final

import yaml
from pydantic import AfterValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from tonnage.units import KIB, quantity

ENGINE: Final = "vllm"
"""Name of the engine's container."""
HTTP_PORT: Final = 8000
"""Where it answers."""
MOST_BYTES: Final = 32 * KIB
"""Of a template as JSON: the Deployment has it twice, and ``kubectl apply`` once more."""
MOST_SHOWN: Final = 3
"""Refused fields in one message."""
MOST_CHARACTERS: Final = 700
_TEXTS: Final = frozenset({"labels", "annotations"})

Problems = Iterator[tuple[str, str]]
"""(path below the template, what is wrong and the cure)."""


@cache
def rules() -> Mapping[str, Any]:
    """Return the table; of ``fields`` {kind: {name: kind of what is below, or empty}}."""
    text = files("tonnage.api").joinpath("pod_rules.yaml").read_text()
    found: dict[str, Any] = yaml.safe_load(text)
    fields = {
        kind: dict(each.partition(":")[::2] for each in names.split())
        for kind, names in found["fields"].items()
    }
    return found | {"fields": fields}


def checked_template(template: dict[str, Any]) -> dict[str, Any]:
    """Return a template that keeps every rule.

    Raises:
        PydanticCustomError: the message names each refused field, the first few.
    """
    is_large = len(json.dumps(template)) > MOST_BYTES
    large = [("", f"must have {MOST_BYTES} bytes at most as JSON")]
    found = large if is_large else list(_walk("", template, "template"))
    if found:
        more = f"; and {len(found) - MOST_SHOWN} more" if len(found) > MOST_SHOWN else ""
        shown = "; spec.pods.template".join(f"{path}: {why}" for path, why in found[:MOST_SHOWN])
        text = printable(shown + more)[:MOST_CHARACTERS]
        raise PydanticCustomError("pod_template", "{text}", {"text": text})
    return template


def printable(text: str) -> str:
    return "".join(each if each.isprintable() else "?" for each in text)


PodTemplate = Annotated[
    dict[str, Any],
    AfterValidator(checked_template),
    WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True}),
]
"""One object to the API server: the schema of a PodTemplateSpec is larger than all of ours."""


def _walk(path: str, node: Any, kind: str) -> Problems:
    """Yield what is wrong with a node and below it."""
    if kind.endswith("[]"):
        if not isinstance(node, list):
            yield path, "must be a list"
            return
        for number, each in enumerate(node):
            yield from _walk(f"{path}[{number}]", each, kind.removesuffix("[]"))
    elif not isinstance(node, dict):
        yield path, "must be an object"
    elif kind in rules()["fields"]:
        is_engine = kind == "container" and node.get("name") == ENGINE
        yield from _in_object(path, node, "engine" if is_engine else kind)
    elif kind in rules()["names"]:
        yield from _in_names(path, node, kind)


def _in_object(path: str, node: dict[str, Any], kind: str) -> Problems:
    table = rules()
    fields = table["fields"][kind]
    for name, value in node.items():
        if name not in fields:
            yield f"{path}.{name}", _why(name, kind)
        elif fields[name]:
            yield from _walk(f"{path}.{name}", value, fields[name])
    for name in table["required"].get(kind, ()):
        if not node.get(name) or not isinstance(node[name], list if name == "items" else str):
            yield f"{path}.{name}", "must be given"
    for name, rule in table["values"].get(kind, {}).items():
        if name in node and (wrong := _mistake(node[name], rule)):
            yield f"{path}.{name}", wrong


def _why(name: str, kind: str) -> str:
    """Say why a field is refused, and what to do instead."""
    table = rules()
    if found := table["why"].get(name):
        return f"must not be set: {found}"
    if any(name in fields for fields in table["fields"].values()):
        return "must not be set: Tonnage sets it, or nobody"
    return f"is none of {', '.join(table['fields'][kind])}"


def _mistake(value: Any, rule: Mapping[str, str]) -> str | None:
    text = value if isinstance(value, str) else json.dumps(value)
    if "only" in rule and not re.fullmatch(rule["only"], text):
        return f"must be {rule['only']}"
    if "not" in rule and re.fullmatch(rule["not"], text):
        return f"must not be {text}: it is Tonnage's, or opens the node or its GPUs"
    return None


def _in_names(path: str, node: dict[str, Any], kind: str) -> Problems:
    for name, value in node.items():
        if re.fullmatch(rules()["names"][kind], name):
            yield f"{path}[{name}]", "must not be set: it is Tonnage's, or opens the node's GPUs"
        elif kind in _TEXTS and not isinstance(value, str):
            yield f"{path}[{name}]", f'quote it, such as "{value}"'
        elif kind not in _TEXTS and not _is_quantity(value):
            yield f"{path}[{name}]", "must be a quantity, such as 500m or 64Gi"


def _is_quantity(value: Any) -> bool:
    try:
        quantity(str(value))
    except ValueError:
        return False
    return True
