"""Fields of the CustomResourceDefinition as tables, a heading for each group of them."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tonnage.api.crd import crd

Schema = Mapping[str, Any]
COLUMNS: Final = ("field", "type", "what it is")
WORDS: Final = {
    "default": "default {}",
    "minimum": "at least {}",
    "maximum": "at most {}",
    "maxLength": "at most {} characters",
    "maxItems": "at most {} entries",
    "maxProperties": "at most {} entries",
}
"""Keywords of a schema that are told, and how."""


def spec_page() -> str:
    intro = (
        "What a ModelDeployment asks for, written from the CustomResourceDefinition. A field that "
        "is not here is refused.\n\n`tonnage crd --json-schema` prints it as a schema for editors."
    )
    return _page("spec", intro)


def status_page() -> str:
    intro = "What the operator writes: observed, planned and why. No decision reads it back."
    return _page("status", intro)


def _page(part: str, intro: str) -> str:
    version = crd()["spec"]["versions"][0]
    schema = version["schema"]["openAPIV3Schema"]["properties"][part]
    return "\n".join([f"# Fields of {part}", "", intro, "", *_groups(schema, part)])


def _groups(schema: Schema, path: str) -> Iterator[str]:
    """Yield the table of a group, then those of the groups in it."""
    yield from (f"## {path}", "", cell(schema.get("description", "")), "")
    yield from (f"- {cell(each['message'])}" for each in _rules(schema))
    yield from ("", *table(COLUMNS, (_row(*each, schema) for each in _fields(schema))), "")
    for name, field in _fields(schema):
        inner, mark = _inner(field)
        if "properties" in inner:
            yield from _groups(inner, f"{path}.{name}{mark}")


def _fields(schema: Schema) -> Iterator[tuple[str, Schema]]:
    yield from schema.get("properties", {}).items()


def _inner(field: Schema) -> tuple[Schema, str]:
    """Return what a list or a map holds, and how that is written; else the field itself."""
    if "items" in field:
        return field["items"], "[]"
    if isinstance(more := field.get("additionalProperties"), Mapping):
        return more, ".*"
    return field, ""


def _row(name: str, field: Schema, group: Schema) -> tuple[str, str, str]:
    inner, mark = _inner(field)
    is_required = name in group.get("required", ())
    told = [field.get("description") or inner.get("description", "")]
    if "properties" not in inner:
        told += [each["message"] for each in _rules(field)]
    limits = [*_limits(field), *(_limits(inner) if inner is not field else ())]
    told += [f"({', '.join(limits)})"] if limits else []
    kind = _kind(inner) + {"": "", "[]": ", a list", ".*": ", by name"}[mark]
    return f"`{name}`" + (" (required)" if is_required else ""), kind, " ".join(told)


def _kind(field: Schema) -> str:
    if "enum" in field:
        return " or ".join(f"`{each}`" for each in field["enum"])
    if field.get("x-kubernetes-int-or-string"):
        return "integer or string"
    return str(field.get("format") or field.get("type", ""))


def _limits(field: Schema) -> list[str]:
    return [
        word.format(f"`{_written(field[key])}`")
        for key, word in WORDS.items()
        if field.get(key, "") != ""
    ]


def _written(value: object) -> str:
    return json.dumps(value) if isinstance(value, bool | dict | list) else str(value)


def _rules(field: Schema) -> list[Schema]:
    return [each for each in field.get("x-kubernetes-validations", ()) if "message" in each]


def cell(text: str) -> str:
    """Return a text that keeps within the cell of a table; backticks keep what is in them."""
    words = " ".join(text.replace("``", "`").split()).split("`")
    words[::2] = [each.replace("|", r"\|").replace("<", "&lt;") for each in words[::2]]
    return "`".join(words)


def table(columns: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    """Yield the lines of a table."""
    yield f"| {' | '.join(columns)} |"
    yield "|" + " --- |" * len(columns)
    for row in rows:
        yield f"| {' | '.join(map(cell, row))} |"
