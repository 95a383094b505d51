"""A YAML reader for files from strangers: strict, bounded, and with the line of every field.

Values are built from the parser's events, so that nothing is expanded or built before it was
looked at. Refused: tags, duplicate keys and deep nesting. What an alias or a merge key stands for
counts each time that it stands, so that a short file cannot mean a long one. A plain
scalar that YAML readers disagree on (``on``, ``012``, ``1e3``) is kept as text and put on record
as a doubt; whether it matters is for the caller to say.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

import yaml
from yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from tonnage.cli.console import ManifestError

MAX_DEPTH: Final = 50
MAX_DIGITS: Final = 30
"""Of a number. No field holds a longer one."""
MAX_FIELDS: Final = 100_000
"""Of one document, list items and keys counted alike."""
BYTE_ORDER_MARK: Final = "\ufeff"
STRING_TAG: Final = "tag:yaml.org,2002:str"

_WORDS: Final[Mapping[str, object]] = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True,
    "false": False, "False": False, "FALSE": False,
}  # fmt: skip
_INTEGER: Final = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_DECIMAL: Final = re.compile(r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+)")
_DOUBTFUL: Final = (
    (re.compile(r"(?i)y|n|yes|no|on|off"), "true or false to some YAML readers, text to others"),
    (re.compile(r"[-+]?0[0-9_]+"), "octal to some YAML readers, decimal or text to others"),
    (
        re.compile(r"[-+]?[0-9]+(:[0-5]?[0-9])+(\.[0-9]*)?"),
        "a number to base 60 to some YAML readers, text to others",
    ),
    (
        re.compile(
            r"[-+]?([0-9][0-9.]*_[0-9_.]*|0[xob][0-9a-fA-F_]+"
            r"|([0-9]+(\.[0-9]*)?|\.[0-9]+)[eE][-+]?[0-9]+)"
        ),
        "a number to some YAML readers, text to others",
    ),
    (re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"), "no finite number"),
    (re.compile(rf"[-+]?[0-9.]{{{MAX_DIGITS},}}"), "longer than any number that a field holds"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AmbiguousScalar:
    """A plain scalar that does not mean the same to every YAML reader."""

    path: str
    line: int
    text: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One document of a file."""

    content: Any
    line: int
    lines: Mapping[str, int]
    """Where each field stands: its dotted path, and its line."""
    doubts: tuple[AmbiguousScalar, ...]


def read_documents(text: str, *, source: str) -> list[Document]:
    """Read every document of a text.

    ``source``: the name of the file, for messages.

    Raises:
        ManifestError: it is no YAML, or has something in it that manifests do without.

    >>> [document] = read_documents("spec: {replicas: 2}", source="a.yaml")
    >>> document.content, dict(document.lines)
    ({'spec': {'replicas': 2}}, {'spec': 1, 'spec.replicas': 1})
    """
    text = text.removeprefix(BYTE_ORDER_MARK)
    if BYTE_ORDER_MARK in text:
        line = text[: text.index(BYTE_ORDER_MARK)].count("\n") + 1
        raise ManifestError(f"{source}:{line}: a byte order mark; save the file as plain UTF-8")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # absent without libyaml
    try:
        return list(_documents(yaml.parse(text, Loader=loader), source))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise ManifestError(f"{source}:{line}: {_problem(error, text, line)}") from error
    except yaml.reader.ReaderError as error:
        raise ManifestError(f"{source}: {error.reason} (at byte {error.position})") from error


def _problem(error: yaml.MarkedYAMLError, text: str, line: int) -> str:
    lines = text.splitlines()
    here = lines[line - 1] if line <= len(lines) else ""
    if "\t" in here[: len(here) - len(here.lstrip())]:
        return "a tab in the indentation; YAML takes spaces only"
    return ", ".join(part for part in (error.context, error.problem) if part)


def _documents(events: Iterator[Event], source: str) -> Iterator[Document]:
    for event in events:
        if isinstance(event, DocumentStartEvent):
            start = next(events)
            builder = _Builder(events=events, source=source)
            content = builder.value(start, ())
            yield Document(
                content=content,
                line=_line(start),
                lines=builder.lines,
                doubts=tuple(builder.doubts),
            )


def _line(event: Event) -> int:
    mark = event.start_mark
    return int(mark.line) + 1 if mark else 1


@dataclass(slots=True, kw_only=True)
class _Builder:
    """Builds the values of one document, and remembers where they stood."""

    events: Iterator[Event]
    source: str
    lines: dict[str, int] = field(default_factory=dict)
    doubts: list[AmbiguousScalar] = field(default_factory=list)
    num_fields: int = 0
    anchored: dict[str, tuple[Any, int]] = field(default_factory=dict)
    """What each anchor is on, and how many fields that has."""

    def value(self, event: Event, path: tuple[str, ...]) -> Any:
        self._check(event, path)
        if path:
            self.lines.setdefault(".".join(path), _line(event))
        if isinstance(event, AliasEvent):
            return self._alias(event, path)
        before = self.num_fields
        match event:
            case MappingStartEvent():
                value: Any = self._mapping(path)
            case SequenceStartEvent():
                value = self._sequence(path)
            case _:
                value = self._scalar(event, path)
        if isinstance(event, NodeEvent) and event.anchor:
            self.anchored[event.anchor] = value, self.num_fields - before
        return value

    def _alias(self, event: AliasEvent, path: tuple[str, ...]) -> Any:
        if event.anchor not in self.anchored:
            self._refuse(event, path, f"alias *{event.anchor} comes before its anchor")
        value, num_fields = self.anchored[event.anchor]
        self._count(event, path, num_fields)
        return value

    def _refuse(self, event: Event, path: tuple[str, ...], why: str) -> NoReturn:
        where = f"{'.'.join(path[:4])}: " if path else ""
        raise ManifestError(f"{self.source}:{_line(event)}: {where}{why}")

    def _check(self, event: Event, path: tuple[str, ...]) -> None:
        tag = getattr(event, "tag", None)
        if tag not in {None, "!", STRING_TAG}:
            self._refuse(event, path, f"tag {tag[:80]} is not allowed")
        if len(path) > MAX_DEPTH:
            self._refuse(event, path, f"nested more than {MAX_DEPTH} deep")
        self._count(event, path, 1)

    def _count(self, event: Event, path: tuple[str, ...], num_fields: int) -> None:
        self.num_fields += num_fields
        if self.num_fields > MAX_FIELDS:
            self._refuse(event, path, f"more than {MAX_FIELDS} fields in one document")

    def _mapping(self, path: tuple[str, ...]) -> dict[str, Any]:
        content: dict[str, Any] = {}
        merged: dict[str, Any] | None = None
        while not isinstance(event := next(self.events), MappingEndEvent):
            key = self._key(event, path)
            if key in content or (_is_merge(event) and merged is not None):
                first = self.lines[".".join((*path, key))]
                self._refuse(event, (*path, key), f"is given twice, first in line {first}")
            self.lines[".".join((*path, key))] = _line(event)
            value = self.value(next(self.events), (*path, key))
            if _is_merge(event):
                merged = self._merge_keys(event, path, value)
            else:
                content[key] = value
        return {**(merged or {}), **content}

    def _key(self, event: Event, path: tuple[str, ...]) -> str:
        self._check(event, path)
        if not isinstance(event, ScalarEvent):
            self._refuse(event, path, "a key must be text")
        return str(event.value)

    def _merge_keys(self, event: Event, path: tuple[str, ...], value: object) -> dict[str, Any]:
        """Return the fields that ``<<`` brings: of several mappings the first that has one wins."""
        sources = value if isinstance(value, list) else [value]
        found: dict[str, Any] = {}
        for source in reversed(sources):
            if not isinstance(source, dict):
                self._refuse(event, path, "<< takes a mapping, or a list of mappings")
            found |= source
        for key in found:
            self.lines.setdefault(".".join((*path, key)), _line(event))
        return found

    def _sequence(self, path: tuple[str, ...]) -> list[Any]:
        content: list[Any] = []
        while not isinstance(event := next(self.events), SequenceEndEvent):
            content.append(self.value(event, (*path, str(len(content)))))
        return content

    def _scalar(self, event: Event, path: tuple[str, ...]) -> object:
        text = str(getattr(event, "value", ""))
        if not (isinstance(event, ScalarEvent) and event.implicit[0]):
            return text  # quoted, a block, or tagged as text
        for pattern, reason in _DOUBTFUL:
            if pattern.fullmatch(text):
                doubt = AmbiguousScalar(
                    path=".".join(path), line=_line(event), text=text, reason=reason
                )
                self.doubts.append(doubt)
                return text
        if text in _WORDS:
            return _WORDS[text]
        if _INTEGER.fullmatch(text):
            return int(text)
        return float(text) if _DECIMAL.fullmatch(text) else text


def _is_merge(event: Event) -> bool:
    """Tell whether a key is a plain ``<<``: quoted it is a name like any other."""
    return isinstance(event, ScalarEvent) and event.value == "<<" and bool(event.implicit[0])
