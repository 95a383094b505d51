"""A ModelDeployment as the operator and the command line read it."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from tonnage.api.fields import flag_refusal
from tonnage.api.group import GROUP, KIND, VERSION
from tonnage.api.spec import (
    MAX_TOPOLOGY_NAME_LENGTH,
    NAME_MESSAGE,
    NAME_PATTERN,
    TOPOLOGY_NAME_MESSAGE,
    Spec,
)

MAX_ERRORS_SHOWN = 5
_DURATIONS = frozenset({"p50", "p90", "p95", "p99", "duration"})
MAX_VALUE_SHOWN = 80
"""Characters of what was read that a message repeats."""


class InvalidSpecError(Exception):
    """The manifest is not a valid ModelDeployment; the message names each field."""


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
        raise InvalidSpecError(describe_errors(error, root=field)) from error
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
    errors = error.errors(include_url=False, include_context=False)
    lines = [_describe_error(each, root) for each in errors[:MAX_ERRORS_SHOWN]]
    more = len(errors) - len(lines)
    return "; ".join(lines) + (f"; and {more} more" if more > 0 else "")


def _describe_error(error: ErrorDetails, root: str) -> str:
    path = "".join(f".{_printable(str(part))}" for part in error["loc"])
    if error["type"] == "extra_forbidden":
        return f"{root}{path}: unknown field"
    if error["type"] == "pod_template":
        return f"{root}{path}{error['msg']}"
    if error["type"] == "string_pattern_mismatch" and "args" in error["loc"]:
        return f"{root}{path}: {_printable_text(flag_refusal(str(error['input'])))}"
    if error["type"] == "string_pattern_mismatch" and error["loc"][-2:] == ("model", "id"):
        shown = _format_value(error["input"])
        return f"{root}{path}: must be ORGANISATION/NAME, as on Hugging Face (read: {shown})"
    if error["type"] == "string_type" and isinstance(error["input"], int | float):
        return f"{root}{path}: {_quoting(str(error['loc'][-1]), error['input'])}"
    is_secret = any(str(part).startswith("prometheus") for part in error["loc"])
    is_shown = not isinstance(error["input"], Mapping) and not is_secret
    read = f" (read: {_format_value(error['input'])})" if is_shown else ""
    return f"{root}{path}: {error['msg'].removeprefix('Value error, ')}{read}"


def _quoting(field: str, number: float) -> str:
    """Say how to write as text what YAML takes for a number."""
    if field in _DURATIONS:
        return f"quote it, with a unit, such as {number:g}s or {number:g}ms (read: {number})"
    return f'quote it, such as "{number}": YAML turns an unquoted 0.30 into 0.3 (read: {number})'


def _printable_text(text: str) -> str:
    return "".join(each if each.isprintable() else "?" for each in text)


def _format_value(value: object) -> str:
    """Write a value so that its type is seen and it can neither flood nor forge a line."""
    text = repr(value)
    return text if len(text) <= MAX_VALUE_SHOWN else f"{text[:MAX_VALUE_SHOWN]}..."


def _printable(name: str) -> str:
    is_plain = name.isascii() and name.isalnum() and len(name) <= MAX_VALUE_SHOWN
    return name if is_plain else _format_value(name)
