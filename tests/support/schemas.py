"""Schemas that manifests are held against: of a package, by version, and of an API server."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from kubernetes_validate.utils import all_versions, major_minor

Schema = dict[str, Any]
FILES = "{{ .ResourceKind }}{{ .KindSuffix }}.json"
"""As kubeconform names what it looks for."""
QUANTITY = "io.k8s.apimachinery.pkg.api.resource.Quantity"
OPEN = ("additionalProperties", "x-kubernetes-preserve-unknown-fields")
REFERENCE = "#/definitions/"


SERVED = [
    f"1.{minor}"
    for minor in sorted({int(major_minor(str(each)).split(".")[1]) for each in all_versions()})
    if minor >= 30  # as the README says
]
"""Versions of Kubernetes that are served, of those that kubernetes-validate holds."""


def of_server(openapi: Mapping[str, Any]) -> dict[str, Schema]:
    """Return {file: schema} for kubeconform, of every kind in an OpenAPI v2 document.

    Unknown fields are refused.
    """
    definitions = {name: _strict(name, each) for name, each in openapi["definitions"].items()}
    files = {}
    for name, each in openapi["definitions"].items():
        kinds = each.get("x-kubernetes-group-version-kind") or ()
        for kind in kinds if len(kinds) == 1 else ():
            needed = sorted(_needed(name, definitions))
            schema = {"definitions": {one: definitions[one] for one in needed}}
            files[_file(kind)] = schema | {"$ref": f"{REFERENCE}{name}"}
    return files


def _file(kind: Mapping[str, str]) -> str:
    parts = [kind["kind"], kind["group"].partition(".")[0], kind["version"]]
    return "-".join(part.lower() for part in parts if part) + ".json"


def _strict(name: str, node: Any) -> Any:
    """Refuse fields that are not named, and take numbers where the API server does."""
    if isinstance(node, list):
        return [_strict("", each) for each in node]
    if not isinstance(node, dict):
        return node
    if node.get("format") == "int-or-string":
        return {"type": ["string", "integer"]}
    if name == QUANTITY:
        return {"type": ["string", "number"]}
    made = {key: _strict("", each) for key, each in node.items()}
    if isinstance(node.get("properties"), dict) and not any(key in node for key in OPEN):
        made["additionalProperties"] = False
    return made


def _needed(name: str, definitions: Mapping[str, Schema]) -> set[str]:
    """Return a definition and all that it refers to."""
    found, todo = set[str](), [name]
    while todo:
        if (one := todo.pop()) not in found:
            found.add(one)
            todo += _references(definitions[one])
    return found


def _references(node: Any) -> Iterator[str]:
    text = json.dumps(node)
    yield from (part.partition('"')[0] for part in text.split(f'"$ref": "{REFERENCE}')[1:])
