"""The CustomResourceDefinition, generated from the pydantic types."""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

from pydantic import BaseModel

from tonnage.api.base import rule
from tonnage.api.spec import GROUP, KIND, MAX_NAME_LENGTH, NAME_PATTERN, PLURAL, VERSION, Spec
from tonnage.api.status import Status

Schema = dict[str, Any]

COLUMNS: tuple[tuple[str, str, str, int], ...] = (
    ("Model", "string", ".spec.model.id", 0),
    ("GPU", "string", ".spec.hardware.gpu", 0),
    ("Mode", "string", ".spec.scaling.mode", 0),
    ("Replicas", "string", ".status.replicas.summary", 0),
    ("Max-Seqs", "integer", ".status.plan.maxNumSeqs", 0),
    ("MBU", "string", ".status.display.mbu", 0),
    ("Queue", "string", ".status.display.queue", 0),
    ("SLO", "string", ".status.display.slo", 0),
    ("Reason", "string", ".status.display.reason", 0),
    ("Age", "date", ".metadata.creationTimestamp", 0),
    ("Limited-By", "string", ".status.plan.limitedBy", 1),
    ("GPUs/Replica", "integer", ".status.plan.gpusPerReplica", 1),
)


def crd() -> Schema:
    """Return the CRD of ModelDeployment."""
    columns = [
        {"name": name, "type": kind, "jsonPath": path} | ({"priority": wide} if wide else {})
        for name, kind, path, wide in COLUMNS
    ]
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": columns,
        "schema": {"openAPIV3Schema": _root_schema()},
    }
    names = {
        "kind": KIND,
        "listKind": f"{KIND}List",
        "plural": PLURAL,
        "singular": KIND.lower(),
        "shortNames": ["mdep"],
        "categories": ["tonnage"],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {"group": GROUP, "names": names, "scope": "Namespaced", "versions": [version]},
    }


def _root_schema() -> Schema:
    return {
        "type": "object",
        "description": "A model to serve, the hardware it runs on and the latency it promises.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": structural_schema(Spec),
            "status": structural_schema(Status),
        },
        "x-kubernetes-validations": [
            rule(
                f"size(self.metadata.name) <= {MAX_NAME_LENGTH} && "
                f"self.metadata.name.matches('{NAME_PATTERN}')",
                f"metadata.name must be a DNS label of at most {MAX_NAME_LENGTH} characters that "
                "starts with a letter",
            )
        ],
    }


def structural_schema(model: type[BaseModel]) -> Schema:
    """Return the model's schema with references inlined and JSON Schema turned into OpenAPI 3.0."""
    schema = model.model_json_schema(by_alias=True)
    definitions: Schema = schema.pop("$defs", {})
    converted: Schema = _convert(schema, definitions)
    return converted


def _convert(node: Any, definitions: Schema) -> Any:
    if isinstance(node, list):
        return [_convert(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        name = node["$ref"].rpartition("/")[2]
        rest = {key: value for key, value in node.items() if key != "$ref"}
        return _convert(definitions[name] | rest, definitions)
    if "anyOf" in node:
        return _optional(node, definitions)
    return dict(pair for key, value in node.items() for pair in _keyword(key, value, definitions))


def _optional(node: Schema, definitions: Schema) -> Any:
    """Turn "X or null" into X: Kubernetes drops a null for a field that is not nullable.

    Any other union fails loudly here, since the structural schema has none.
    """
    (only,) = [option for option in node["anyOf"] if option != {"type": "null"}]
    rest = {key: value for key, value in node.items() if key not in {"anyOf", "default"}}
    return _convert(only | rest, definitions)


def _keyword(key: str, value: Any, definitions: Schema) -> Iterator[tuple[str, Any]]:
    match key, value:
        case "properties", Mapping():
            yield "properties", {name: _convert(each, definitions) for name, each in value.items()}
        case ("title", _) | ("additionalProperties", False) | ("default", [] | {} | None):
            return
        case "const", only:
            yield "enum", [only]
        case "description", str():
            yield "description", " ".join(value.split())
        case "x-kubernetes-validations" | "default" | "required" | "enum", _:
            yield key, deepcopy(value)  # shared parts would become YAML anchors
        case _:
            yield key, _convert(value, definitions)
