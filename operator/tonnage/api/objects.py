"""A ModelDeployment as the operator and the command line read it."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from tonnage.api.base import GROUP, KIND, VERSION
from tonnage.api.fields import DECIDED_ELSEWHERE, NAMED_BY_OTHERS, flag_refusal
from tonnage.api.pod_rules import printable
from tonnage.api.spec import (
    MAX_TOPOLOGY_NAME_LENGTH,
    NAME_MESSAGE,
    NAME_PATTERN,
    TOPOLOGY_NAME_MESSAGE,
    Spec,
)
from tonnage.units import tokens_hint

MAX_ERRORS_SHOWN = 5
_DURATIONS = frozenset({"p50", "p90", "p95", "p99", "duration"})
MAX_VALUE_SHOWN = 80
"""Characters of what was read that a message repeats."""


class InvalidSpecError(Exception):
    """The manifest is not a valid ModelDeployment; the message names the first few fields."""

    def __init__(self, *problems: str) -> None:
        """Take what is wrong with each field."""
        super().__init__(_first_of(problems))
        self.problems = problems


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDeployment:
    """Identity and spec; nothing of the status."""

    namespace: str
    name: str
    uid: str
    generation: int
    spec: Spec
    problem: str = ""
    """What is wrong with a pod template that was left out of ``spec``: nothing is made of it."""

    @property
    def key(self) -> tuple[str, str]:
        return self.namespace, self.name


def _checked_name(name: str) -> str:
    if not re.fullmatch(NAME_PATTERN, name):
        raise ValueError(NAME_MESSAGE)
    return name


class Metadata(BaseModel):
    """The part of the metadata that is read."""

    model_config = ConfigDict(strict=True, extra="ignore")

    name: Annotated[str, AfterValidator(_checked_name)]
    namespace: str | None = None
    uid: str | None = None
    generation: int | None = None


Part = TypeVar("Part", bound=BaseModel)


def parse_model_deployment(
    manifest: Mapping[str, Any], *, tolerate_unknown: bool = False
) -> ModelDeployment:
    """Read and validate a manifest.

    ``tolerate_unknown``: fields that this version does not know are skipped, as a reader of
    stored objects must; a manifest on the command line is held to the letter.

    Raises:
        InvalidSpecError: with every offending field and what is wrong with it.
    """
    _check_kind(manifest)
    metadata = _read(Metadata, manifest, "metadata", extra="ignore")
    spec = _read(Spec, manifest, "spec", extra="ignore" if tolerate_unknown else "forbid")
    if spec.topology and len(metadata.name) > MAX_TOPOLOGY_NAME_LENGTH:
        raise InvalidSpecError(f"metadata.name: {TOPOLOGY_NAME_MESSAGE}")
    return ModelDeployment(
        namespace=metadata.namespace or "default",
        name=metadata.name,
        uid=metadata.uid or "",
        generation=metadata.generation or 0,
        spec=spec,
    )


def _read(
    kind: type[Part], manifest: Mapping[str, Any], field: str, *, extra: Literal["ignore", "forbid"]
) -> Part:
    """Validate one part as JSON, the form that the API server knows.

    What YAML has and JSON lacks is turned so that it is refused where it stands, and a date is
    the string that it was.
    """
    try:
        text = json.dumps(manifest[field], default=str)
        return kind.model_validate_json(text, extra=extra)
    except ValidationError as error:
        raise InvalidSpecError(*_problems(error, root=field)) from error
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidSpecError(f"{field}: {error}") from error


def _check_kind(manifest: Mapping[str, Any]) -> None:
    expected = {"apiVersion": f"{GROUP}/{VERSION}", "kind": KIND}
    for field, value in expected.items():
        if manifest.get(field) != value:
            raise InvalidSpecError(
                f"{field} is {_format_value(manifest.get(field))}, expected {value!r}"
            )
    for field in ("metadata", "spec"):
        if not isinstance(manifest.get(field), Mapping):
            raise InvalidSpecError(f"{field} is missing or not an object")


def describe_errors(error: ValidationError, *, root: str) -> str:
    """Write validation errors as ``spec.field: what is wrong (read: value)``, the first few."""
    return _first_of(_problems(error, root))


def _first_of(problems: Sequence[str]) -> str:
    more = len(problems) - MAX_ERRORS_SHOWN
    return "; ".join(problems[:MAX_ERRORS_SHOWN]) + (f"; and {more} more" if more > 0 else "")


def _problems(error: ValidationError, root: str) -> tuple[str, ...]:
    errors = error.errors(include_url=False, include_context=False)
    return tuple(_describe_error(each, root) for each in errors)


def _describe_error(error: ErrorDetails, root: str) -> str:
    path = "".join(f".{_printable(str(part))}" for part in error["loc"])
    if error["type"] == "extra_forbidden":
        return f"{root}{path}: unknown field{_near(error['loc']) if root == 'spec' else ''}"
    if error["type"] == "pod_template":
        return f"{root}{path}{error['msg']}"
    if error["type"] == "string_pattern_mismatch" and "args" in error["loc"]:
        return f"{root}{path}: {printable(flag_refusal(str(error['input'])))}"
    if error["type"] == "string_pattern_mismatch" and error["loc"][-2:] == ("model", "id"):
        shown = _format_value(error["input"])
        return f"{root}{path}: must be ORGANISATION/NAME, as on Hugging Face (read: {shown})"
    if error["type"] == "string_type" and isinstance(error["input"], int | float):
        return f"{root}{path}: {_quoting(str(error['loc'][-1]), error['input'])}"
    is_secret = any(str(part).startswith("prometheus") for part in error["loc"])
    is_shown = not isinstance(error["input"], Mapping) and not is_secret
    read = f" (read: {_format_value(error['input'])})" if is_shown else ""
    meant = tokens_hint(error["input"]) if error["type"].startswith("int_") else ""
    return f"{root}{path}: {error['msg'].removeprefix('Value error, ')}{meant}{read}"


def _near(place: Sequence[str | int]) -> str:
    """Name the field of the spec that may be meant: alike beside it, or of that name elsewhere.

    Of a flag of vLLM and of others' names say what decides about it.
    """
    *parents, name = (str(each) for each in place if isinstance(each, str))
    flag = re.sub("(?<=[a-z])(?=[A-Z])|_", "-", name).lower()
    is_near = len(parents) <= 1 and {*parents} <= NAMED_BY_OTHERS
    if is_near and flag in DECIDED_ELSEWHERE:
        return f"; {DECIDED_ELSEWHERE[flag]}"
    known = _spec_fields()
    beside = [path[-1] for path in known if list(path[:-1]) == parents]
    near = [(*parents, each) for each in get_close_matches(name, beside, n=1)]
    near += sorted((path for path in known if path[-1] == name), key=len)
    return f"; did you mean spec.{'.'.join(near[0])}?" if near else ""


@cache
def _spec_fields() -> list[tuple[str, ...]]:
    return _fields_of(Spec.model_json_schema())


def _fields_of(schema: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the path of every field, through lists as if they were not there."""
    definitions, found = schema["$defs"], list[tuple[str, ...]]()

    def walk(node: Mapping[str, Any], path: tuple[str, ...]) -> None:
        reference = node.get("$ref", "").rpartition("/")[2]
        for inner in (definitions.get(reference), node.get("items"), *node.get("anyOf", ())):
            if inner:
                walk(inner, path)
        for name, inner in node.get("properties", {}).items():
            found.append((*path, name))
            walk(inner, (*path, name))

    walk(schema, ())
    return found


def _quoting(field: str, number: float) -> str:
    """Say how to write as text what YAML takes for a number."""
    if field in _DURATIONS:
        return f"quote it, with a unit, such as {number:g}s or {number:g}ms (read: {number})"
    return f'quote it, such as "{number}": YAML turns an unquoted 0.30 into 0.3 (read: {number})'


def _format_value(value: object) -> str:
    """Write a value so that its type is seen and it can neither flood nor forge a line."""
    text = repr(value)
    return text if len(text) <= MAX_VALUE_SHOWN else f"{text[:MAX_VALUE_SHOWN]}..."


def _printable(name: str) -> str:
    is_plain = name.isascii() and name.isalnum() and len(name) <= MAX_VALUE_SHOWN
    return name if is_plain else _format_value(name)
