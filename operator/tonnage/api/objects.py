"""A ModelDeployment as the operator and the command line read it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from tonnage.api.spec import GROUP, KIND, MAX_NAME_LENGTH, VERSION, Spec

MAX_ERRORS_SHOWN = 5


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

    @property
    def key(self) -> tuple[str, str]:
        return self.namespace, self.name


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
    metadata = manifest.get("metadata") or {}
    try:
        spec = Spec.model_validate_json(
            json.dumps(manifest.get("spec") or {}, allow_nan=False),
            extra="ignore" if tolerate_unknown else "forbid",
        )
    except ValidationError as error:
        raise InvalidSpecError(describe_errors(error, root="spec")) from error
    except (TypeError, ValueError) as error:
        raise InvalidSpecError(f"spec: {error}") from error
    name = str(metadata.get("name", ""))
    if not 0 < len(name) <= MAX_NAME_LENGTH:
        raise InvalidSpecError(
            f"metadata.name {name[:80]!r} must have 1 to {MAX_NAME_LENGTH} characters"
        )
    return ModelDeployment(
        namespace=str(metadata.get("namespace", "default")),
        name=name,
        uid=str(metadata.get("uid", "")),
        generation=int(metadata.get("generation", 0)),
        spec=spec,
    )


def _check_kind(manifest: Mapping[str, Any]) -> None:
    expected = {"apiVersion": f"{GROUP}/{VERSION}", "kind": KIND}
    for field, value in expected.items():
        if manifest.get(field) != value:
            raise InvalidSpecError(f"{field} is {manifest.get(field)!r}, expected {value!r}")
    for field in ("metadata", "spec"):
        if not isinstance(manifest.get(field), Mapping):
            raise InvalidSpecError(f"{field} is missing or no mapping")


def describe_errors(error: ValidationError, *, root: str) -> str:
    """Write validation errors as ``spec.field: what is wrong (read: value)``, the first few."""
    lines = []
    for each in error.errors(include_url=False)[:MAX_ERRORS_SHOWN]:
        path = ".".join([root, *(str(part) for part in each["loc"])])
        read = "" if isinstance(each["input"], Mapping) else f" (read: {str(each['input'])[:80]!r})"
        lines.append(f"{path}: {each['msg'].removeprefix('Value error, ')}{read}")
    more = error.error_count() - len(lines)
    return "; ".join(lines) + (f"; and {more} more" if more > 0 else "")
