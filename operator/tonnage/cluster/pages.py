"""Objects of a list or a watch, one by one: of one that is too large little is read.

Whoever may write an object can fill it with 1.5 MB, and what a parser makes of that takes ten times
as much. So the bytes of one are counted before it is parsed, and one that is too large is reduced
to what it is called, how old it is, and what was last said of it. Parsers recurse, and give up a
whole list for an object that nests too deep: of that what lies deep is not read.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec

from tonnage.units import KIB, MIB

MOST_OBJECT_BYTES: Final = 256 * KIB
"""Of one object, as JSON. Deployments and pods of ours have 10 to 30 KiB."""
MOST_STATUS_BYTES: Final = 32 * KIB
"""Of the status of an object that is too large: a larger one is left out."""
MOST_LINE_BYTES: Final = 16 * MIB
"""Of a watch: etcd takes 1.5 MiB, which JSON may write six times as long."""
MOST_LEVELS: Final = 100
"""Of nesting that is read: Kubernetes' own kinds have some 40, and the API server takes 10,000."""
OVERSIZED: Final = "oversizedBytes"
"""Field of a reduced object. The API server lets nobody write such a field: no kind has it."""
Object = dict[str, Any]
_TEXT: Final = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
_BARE_TEXT: Final = re.compile(rb'"[^"]*"')
_TEXTS_OR_BRACKETS: Final = re.compile(_TEXT + rb"|[][{}]", re.DOTALL)
_OTHERS: Final = bytes({*range(256)} - {*b'[]{}"'})


class Owner(msgspec.Struct, omit_defaults=True, rename="camel"):
    """An entry of ownerReferences."""

    uid: str = ""
    kind: str = ""
    name: str = ""
    controller: bool | None = None


class Metadata(msgspec.Struct, omit_defaults=True, rename="camel"):
    """What is read of the metadata: each of these is short, whoever writes the object."""

    name: str
    namespace: str | None = None
    uid: str | None = None
    resource_version: str | None = None
    generation: int | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    owner_references: list[Owner] | None = None
    """The controller alone: of others there may be thousands."""


class _Spec(msgspec.Struct, omit_defaults=True, rename="camel"):
    """What is read of the spec: which release is to read the rest."""

    operator_class: str | None = None


class _Object(msgspec.Struct, omit_defaults=True, rename="camel"):
    metadata: Metadata
    api_version: str | None = None
    kind: str | None = None
    spec: _Spec | None = None
    status: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    oversized_bytes: int = 0


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class Page(msgspec.Struct, omit_defaults=True, rename="camel"):
    """One answer to a list, of which no object is parsed yet."""

    metadata: Object | None = None
    items: list[msgspec.Raw] | msgspec.UnsetType | None = msgspec.UNSET
    kind: str | None = None
    api_version: str | None = None


def oversized_bytes(body: Mapping[str, Any]) -> int | None:
    """Return the bytes of an object that was reduced; None: it is whole."""
    return body.get(OVERSIZED)


def reduce_object(text: bytes) -> bytes:
    """Return the JSON of an object, reduced where it has more bytes than one may have.

    Raises:
        ValueError: it is too large, and no object of the API.
    """
    if len(text) <= MOST_OBJECT_BYTES:
        return text
    found = msgspec.json.decode(text, type=_Object)
    found.oversized_bytes = len(text)
    owners = found.metadata.owner_references or ()
    found.metadata.owner_references = [each for each in owners if each.controller] or None
    if found.status and len(bytes(found.status)) > MOST_STATUS_BYTES:
        found.status = msgspec.UNSET
    return msgspec.json.encode(found)


Reduce = Callable[[bytes], bytes]
"""From the JSON of an object to what is read of it."""


def without_depths(data: bytes) -> bytes:
    """Return JSON with null for what nests deeper than is read.

    Most is as it was, and is looked at from the inside out: each step takes the innermost brackets.
    """
    bare = data.replace(rb"\\", b"").replace(rb"\"", b"").translate(None, _OTHERS)
    brackets = _BARE_TEXT.sub(b"", bare.replace(b'""', b""))
    for _ in range(MOST_LEVELS):
        brackets = brackets.replace(b"{}", b"").replace(b"[]", b"")
        if not brackets:
            return data
    kept, level, begin = list[bytes](), 0, 0
    for found in _TEXTS_OR_BRACKETS.finditer(data):
        if found[0] in (b"{", b"["):
            level += 1
            if level == MOST_LEVELS + 1:
                kept += data[begin : found.start()], b"null"
        elif found[0] in (b"}", b"]"):
            if level == MOST_LEVELS + 1:
                begin = found.end()
            level -= 1
    return b"".join([*kept, data[begin:]])


def read_page(data: bytes) -> Page:
    """Return one answer to a list.

    Raises:
        ValueError: this is no JSON object.
    """
    return msgspec.json.decode(without_depths(data), type=Page)


def read_object(text: msgspec.Raw, reduce: Reduce = reduce_object) -> Object:
    """Return an object, as ``reduce`` leaves it.

    Raises:
        ValueError: it is none.
    """
    read: Object = json.loads(reduce(bytes(text)).decode(errors="replace"))
    return read


def reduce_event(line: bytes, reduce: Reduce = reduce_object) -> bytes:
    """Return a line of a watch with its object reduced.

    Raises:
        ValueError: it is too large, and no event.
    """
    is_small = len(line) <= MOST_OBJECT_BYTES
    if is_small and reduce is reduce_object:
        return line
    line = without_depths(line)
    event = msgspec.json.decode(line, type=_Event)
    try:
        event.object = msgspec.Raw(reduce(bytes(event.object)))
    except msgspec.ValidationError:
        if is_small:
            return line  # a bookmark, or an error
        raise
    return msgspec.json.encode(event)


class Lines:
    """The lines of a watch as they come in; of one that is too long only the beginning."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._num_bytes = 0

    def take(self, piece: bytes) -> Iterator[tuple[bytes, int]]:
        """Yield (line, bytes that it had) for each that ends in this piece."""
        *ended, rest = piece.split(b"\n")
        for part in ended:
            self._add(part)
            line, num_bytes = bytes(self._line), self._num_bytes
            self._line, self._num_bytes = bytearray(), 0
            if line.strip():
                yield line, num_bytes
        self._add(rest)

    def _add(self, part: bytes) -> None:
        self._num_bytes += len(part)
        if self._num_bytes <= MOST_LINE_BYTES:
            self._line += part
