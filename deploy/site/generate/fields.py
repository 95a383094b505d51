"""Fields of the CustomResourceDefinition, a heading for each group of them."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tonnage.api.crd import crd

Schema = Mapping[str, Any]
INTRO: Final = """Every field of a ModelDeployment (`tonnage.dev/v1alpha1`), written from the
CustomResourceDefinition. `spec` is what you ask for; a field that is not here is refused.
`status` is what the operator writes. `kubectl explain mdep.spec` prints the same in a cluster,
and `tonnage crd --json-schema` prints a schema for editors. `[]` marks the entries of a list,
`.*` those of a map by name."""
LIMITS: Final = {
    "maxLength": "at most {} characters",
    "maxItems": "at most {} entries",
    "maxProperties": "at most {} entries",
}
"""Keywords of a schema that bound a text, a list or a map."""


def fields_page() -> str:
    """Return the page of all fields, those of spec and of status; equal groups are told once."""
    schema = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    paths: dict[str, list[str]] = {}
    for part in ("spec", "status"):
        for path, group in _groups(schema[part], part):
            equal = json.dumps([group["properties"], _rules(group)])
            paths.setdefault(equal, []).append(path)
    heading = {path: equal[0] for equal in paths.values() for path in equal}
    lines = ["# Fields", "", INTRO, ""]
    for part in ("spec", "status"):
        for path, group in _groups(schema[part], part):
            if heading[path] == path:
                others = [each for each in heading if each != path and heading[each] == path]
                lines += [*_group(path, group, others, heading), ""]
    return "\n".join(lines)


def _groups(schema: Schema, path: str) -> Iterator[tuple[str, Schema]]:
    """Yield path and schema of a group of fields, then those of the groups in it."""
    yield path, schema
    for name, field in _fields(schema):
        inner, mark = _inner(field)
        if "properties" in inner:
            yield from _groups(inner, f"{path}.{name}{mark}")


def _group(
    path: str, group: Schema, others: list[str], heading: Mapping[str, str]
) -> Iterator[str]:
    yield from (f"## {path}", "")
    if others:
        yield from (f"The same fields: {', '.join(f'`{each}`' for each in others)}.", "")
    for name, field in _fields(group):
        yield f"- {_field(f'{path}.{name}', field, name in group.get('required', ()), heading)}"
    if rules := dict.fromkeys(f"- {_sentence(each['message'])}" for each in _rules(group)):
        yield from ("", "What is refused, and why:", "", *rules)


def _fields(schema: Schema) -> Iterator[tuple[str, Schema]]:
    yield from schema.get("properties", {}).items()


def _inner(field: Schema) -> tuple[Schema, str]:
    """Return what a list or a map holds, and how that is written; else the field itself."""
    if "items" in field:
        return field["items"], "[]"
    if isinstance(more := field.get("additionalProperties"), Mapping):
        return more, ".*"
    return field, ""


def _field(path: str, field: Schema, is_required: bool, heading: Mapping[str, str]) -> str:
    """Return path, type, limits and default of a field, and what its description says."""
    inner, mark = _inner(field)
    kind = _kind(inner)
    if group := heading.get(path + mark):
        kind = f"[{kind}](#{re.sub(r'[^a-z-]', '', group.lower())})"
    facts = [kind + {"": "", "[]": " list", ".*": " by name"}[mark], *_limits(field)]
    facts += _limits(inner) if inner is not field else ()
    facts += ["required"] if is_required else ()
    if field.get("default", "") != "":
        facts.append(f"default `{_written(field['default'])}`")
    texts = [field.get("description") or inner.get("description", "")]
    if "properties" not in inner:
        texts += [_sentence(each["message"]) for each in _rules(field)]
    text = cell(" ".join(filter(None, texts)))
    return f"**`{path}{mark}`** ({', '.join(facts)}): {text}"


def _sentence(text: str) -> str:
    """Return the message of a rule as a sentence; a field's name at its start stays as it is."""
    first, _, rest = text.partition(" ")
    first = first.capitalize() if first in {"every", "must", "needs", "this"} else first
    return f"{first} {rest}".removesuffix(".") + "."


def _kind(field: Schema) -> str:
    if "enum" in field:
        return " or ".join(f"`{each}`" for each in field["enum"])
    if field.get("x-kubernetes-int-or-string"):
        return "integer or string"
    return str(field.get("format") or field.get("type", "")) + _range(field)


def _range(field: Schema) -> str:
    least, most = field.get("minimum"), field.get("maximum")
    above = "above" if field.get("exclusiveMinimum") else "from"
    below = "below" if field.get("exclusiveMaximum") else "to"
    if least is not None and most is not None:
        return f" {above} `{least}` {below} `{most}`"
    if least is not None:
        return f" above `{least}`" if above == "above" else f" of at least `{least}`"
    if most is not None:
        return f" below `{most}`" if below == "below" else f" of at most `{most}`"
    return ""


def _limits(field: Schema) -> list[str]:
    return [word.format(f"`{field[key]}`") for key, word in LIMITS.items() if key in field]


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
