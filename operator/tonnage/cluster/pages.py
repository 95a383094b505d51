"""Objects of a list or a watch, one by one: what is larger than an object may be is a name.

Whoever may create Deployments can fill each of them with 1.5 MB, and what a parser makes of that
takes ten times as much. So the text of a page is bounded, one object of it is parsed at a time, and
of one that is too large no more is handed on than what it is called.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from tonnage.units import KIB

MOST_OBJECT_BYTES: Final = 256 * KIB
"""Of one object, as JSON. Deployments and pods of ours have 10 to 30 KiB."""
HEAD_BYTES: Final = 4 * KIB
"""In which name, namespace and UID of an object are found: labels come after them."""
NAMES: Final = ("name", "namespace", "uid", "resourceVersion")
_TEXTS: Final = rb'(?:"\w+": ?"[^"\\]*",? ?)*'
_HEAD: Final = re.compile(
    rb'\{"type": ?"(\w+)", ?"object": ?\{' + _TEXTS + rb'"metadata": ?\{(' + _TEXTS + rb")"
)
"""Of a watch's line, as the API server writes it: the names come first in the metadata."""
Object = dict[str, Any]


class Oversized(dict[str, Any]):
    """In the place of an object that is too large: its metadata with nothing but names."""

    def __init__(self, metadata: Object, num_bytes: int) -> None:
        super().__init__(metadata={name: metadata[name] for name in NAMES if name in metadata})
        self.num_bytes = num_bytes
        """At least."""


def limit_size(body: Object, num_bytes: int) -> Object:
    """Return an object, or its name where it has more bytes than one may have."""
    is_small = num_bytes <= MOST_OBJECT_BYTES
    return body if is_small else Oversized(body.get("metadata") or {}, num_bytes)


class _List(msgspec.Struct):
    metadata: Object | None = None
    items: list[msgspec.Raw] | msgspec.UnsetType | None = msgspec.UNSET


class ListPage:
    """The JSON of a list. ``metadata`` is known when all objects were read."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.metadata: Object = {}
        self.is_list = False

    def items(self) -> Iterator[Object]:
        """Yield each object.

        Raises:
            ValueError: this is no JSON object.
        """
        page = msgspec.json.decode(self._data, type=_List)
        self.metadata, self.is_list = page.metadata or {}, page.items is not msgspec.UNSET
        for raw in page.items or ():
            text = bytes(raw)
            yield limit_size(json.loads(text.decode(errors="replace")), len(text))


def read_event(line: bytes, num_bytes: int) -> tuple[str, Object]:
    """Return (type, object) of a line of a watch. ``num_bytes``: of the whole line.

    Raises:
        ValueError: it is none.
    """
    if num_bytes <= MOST_OBJECT_BYTES:
        told = json.loads(line)
        if not isinstance(told, dict) or not isinstance(told.get("object"), dict):
            raise ValueError("no event")
        return str(told.get("type")), told["object"]
    return _oversized_event(line[:HEAD_BYTES], num_bytes)


def _oversized_event(head: bytes, num_bytes: int) -> tuple[str, Object]:
    """Return the same by the beginning of a line."""
    found = _HEAD.match(head)
    metadata = json.loads(b"{%b}" % found[2].rstrip(b", ")) if found else {}
    if not found or "name" not in metadata:
        raise ValueError(f"an object of {num_bytes} bytes without a name")
    return found[1].decode(), Oversized(metadata, num_bytes)


class Lines:
    """The lines of a watch as they come in; of one that is too long only the head is held."""

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
        self._line += part
        if self._num_bytes > MOST_OBJECT_BYTES:
            del self._line[HEAD_BYTES:]
