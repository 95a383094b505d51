"""Manifests from files, folders and standard input: ModelDeployments and what they refer to."""

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from tonnage.api.base import GROUP, KIND
from tonnage.api.objects import InvalidSpecError, ModelDeployment, parse_model_deployment
from tonnage.cli.console import ManifestError, raise_all, remark
from tonnage.cli.read.strict_yaml import AmbiguousScalar, read_documents
from tonnage.manifests.names import WORKLOADS
from tonnage.sizing.provenance import Figure
from tonnage.units import MIB

Object = Mapping[str, Any]


def block(content: object, *keys: str) -> Object:
    """Return a nested mapping; one that is absent, or no mapping, is empty."""
    for key in keys:
        content = content.get(key) if isinstance(content, Mapping) else None
    return content if isinstance(content, Mapping) else {}


def objects(content: Object, key: str) -> list[Object]:
    """Return a list of mappings; absent: none."""
    found = content.get(key)
    return [each for each in found if isinstance(each, Mapping)] if isinstance(found, list) else []


MAX_FILE_BYTES: Final = MIB
STANDARD_INPUT: Final = "-"
SUFFIXES: Final = frozenset({".yaml", ".yml", ".json"})
RATES: Final = ("requestsPerSecond", "tokensPerSecond", "tokensPerDay")
DEFAULT_NAMESPACE: Final = "default"
_NAMESPACE: Final = re.compile("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")

ObjectKey = tuple[str, str, str]
"""Kind, namespace and name."""


class UnreadableError(ManifestError):
    """A file is not there, or not to be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestObject:
    """One Kubernetes object as it stands in a file."""

    source: str
    line: int
    content: Mapping[str, Any]
    lines: Mapping[str, int] = field(default_factory=dict)
    doubts: tuple[AmbiguousScalar, ...] = ()
    guessed: frozenset[Figure] = frozenset()
    """What of a ModelDeployment nobody said."""

    @property
    def kind(self) -> str:
        return str(self.content.get("kind", ""))

    @property
    def api_version(self) -> str:
        return str(self.content.get("apiVersion", ""))

    @property
    def group(self) -> str:
        return self.api_version.rpartition("/")[0]

    @property
    def namespace(self) -> str:
        return str(block(self.content, "metadata").get("namespace") or DEFAULT_NAMESPACE)

    @property
    def name(self) -> str:
        return str(block(self.content, "metadata").get("name") or "")

    @property
    def key(self) -> ObjectKey:
        return self.kind, self.namespace, self.name

    @property
    def location(self) -> str:
        return f"{self.source}:{self.line}"

    def at(self, path: str) -> str:
        """Return where a field is: the file with the line, or the options."""
        return f"{self.source}:{line}" if (line := self.line_of(path)) else self.source

    def line_of(self, path: str) -> int:
        """Return the line of a field, or of the nearest one above it that stands in the file."""
        while path:
            if path in self.lines:
                return self.lines[path]
            path = path.rpartition(".")[0]
        return self.line


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifests:
    """What was found in all files."""

    model_deployments: tuple[ManifestObject, ...]
    config_maps: Mapping[ObjectKey, ManifestObject]
    deployments: Mapping[ObjectKey, ManifestObject]
    """What a ``scaleTarget`` may name."""
    others: tuple[ManifestObject, ...]
    problems: tuple[str, ...]
    """Files that could not be read, each in one line; the others stand."""


def load(names: Iterable[str]) -> Manifests:
    """Read files, folders (not their subfolders) and ``-``, standard input."""
    resources: list[ManifestObject] = []
    problems: list[str] = []
    for name in names:
        try:
            for file in _files(name):
                resources.extend(_resources(file, problems))
        except ManifestError as error:
            problems.append(error.message)
    return sort_by_kind(resources, problems)


def _files(name: str) -> list[str]:
    if name == STANDARD_INPUT or not Path(name).is_dir():
        return [name]
    with _reading(name):
        files = sorted(str(path) for path in Path(name).iterdir() if path.suffix in SUFFIXES)
    if not files:
        raise ManifestError(f"{name}: no {', '.join(sorted(SUFFIXES))} file in this folder")
    return files


def _resources(name: str, problems: list[str]) -> list[ManifestObject]:
    """Return the objects of one file, or none of them and one more problem."""
    try:
        source = "standard input" if name == STANDARD_INPUT else name
        documents = read_documents(read_text(name), source=source)
        return [
            resource
            for document in documents
            if document.content is not None
            for resource in _list_members(
                ManifestObject(
                    source=source,
                    line=document.line,
                    content=_mapping(document.content, f"{source}:{document.line}"),
                    lines=document.lines,
                    doubts=document.doubts,
                )
            )
        ]
    except ManifestError as error:
        problems.append(error.message)
        return []


@contextmanager
def _reading(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UnreadableError(f"{name}: {error.strerror or error}") from error


def _mapping(content: object, location: str) -> Mapping[str, Any]:
    if not isinstance(content, Mapping):
        raise ManifestError(f"{location}: not a Kubernetes object but {str(content)[:40]!r}")
    return content


def read_text(name: str, *, max_bytes: int = MAX_FILE_BYTES) -> str:
    """Return the text of a file, or of standard input.

    Raises:
        ManifestError: it is too large, or no UTF-8.
        UnreadableError: it cannot be read.
    """
    if name == STANDARD_INPUT:
        content = sys.stdin.buffer.read(max_bytes + 1)
    else:
        with _reading(name), Path(name).open("rb") as file:
            content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ManifestError(f"{name}: larger than {max_bytes / MIB:g} MiB")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ManifestError(f"{name}:{line}: not UTF-8 text") from error


def _list_members(resource: ManifestObject) -> Iterator[ManifestObject]:
    """Yield an object, or the members of a ``kind: List`` as ``kubectl get -o yaml`` prints it."""
    items = resource.content.get("items")
    if resource.kind != "List" or not isinstance(items, list):
        yield resource
        return
    for number, item in enumerate(items):
        prefix = f"items.{number}."
        line = resource.line_of(prefix.rstrip("."))
        yield ManifestObject(
            source=resource.source,
            line=line,
            content=_mapping(item, f"{resource.source}:{line}"),
            lines={
                path.removeprefix(prefix): line
                for path, line in resource.lines.items()
                if path.startswith(prefix)
            },
            doubts=tuple(
                replace(doubt, path=doubt.path.removeprefix(prefix))
                for doubt in resource.doubts
                if doubt.path.startswith(prefix)
            ),
        )


GROUPS_OF: Final[Mapping[str, tuple[str, ...]]] = {
    KIND: (GROUP, ""),
    "ConfigMap": ("",),
    **{kind: (each.api_version.partition("/")[0],) for kind, each in WORKLOADS.items()},
}
"""API groups of the kinds that count here."""


def sort_by_kind(resources: list[ManifestObject], problems: list[str]) -> Manifests:
    seen: dict[ObjectKey, ManifestObject] = {}
    found: dict[str, list[ManifestObject]] = {kind: [] for kind in (*GROUPS_OF, "")}
    for resource in resources:
        counts = resource.group in GROUPS_OF.get(resource.kind, ())
        kind = resource.kind if counts else ""
        earlier = seen.setdefault(resource.key, resource) if kind else resource
        if earlier is not resource:
            name = f"{resource.kind} {resource.namespace}/{resource.name}"
            problems.append(
                f"{resource.location}: {name} is given twice, first in {earlier.location}"
            )
            continue
        found[kind].append(resource)
    return Manifests(
        model_deployments=tuple(found[KIND]),
        config_maps={each.key: each for each in found["ConfigMap"]},
        deployments={each.key: each for kind in WORKLOADS for each in found[kind]},
        others=tuple(found[""]),
        problems=tuple(problems),
    )


def _with_rates(resource: ManifestObject) -> Mapping[str, Any]:
    """Return the manifest with rates as text where they are numbers with decimals: both mean one.

    It is said, for the API server takes none.
    """
    spec, demand = block(resource.content, "spec"), block(resource.content, "spec", "demand")
    if not demand:
        return resource.content
    texts = {
        name: text
        for name in RATES
        if isinstance(rate := demand.get(name), float)
        and float(text := f"{rate:.4f}".rstrip("0").rstrip(".")) == rate > 0
    }
    for name, text in texts.items():
        path = f"spec.demand.{name}"
        remark(
            f"Note: {resource.at(path)}: {path}: quote it, "
            f'"{text}": the API server takes no number with decimals'
        )
    return {**resource.content, "spec": {**spec, "demand": {**demand, **texts}}}


def parse(resource: ManifestObject) -> ModelDeployment:
    """Read a ModelDeployment as the API server would, to the letter.

    Raises:
        ManifestError: with the file, the line, the field and what is wrong with it.
    """
    for doubt in resource.doubts:
        if doubt.path.startswith(("spec.", "metadata.name")):
            raise ManifestError(
                f"{resource.source}:{doubt.line}: {doubt.path}: {doubt.text[:80]} is "
                f"{doubt.reason}; write it plainly, or in quotes if it is text"
            )
    try:
        deployment = parse_model_deployment(_with_rates(resource))
    except InvalidSpecError as error:
        raise_all([f"{resource.at(each.partition(':')[0])}: {each}" for each in error.problems])
        raise
    if not _NAMESPACE.fullmatch(deployment.namespace):
        where = resource.at("metadata.namespace")
        raise ManifestError(
            f"{where}: metadata.namespace: {deployment.namespace[:80]!r} is not "
            "the name of a namespace"
        )
    return deployment
