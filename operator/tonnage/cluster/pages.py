"""Objects of a list or a watch, one by one: what is larger than an object may be is a name.

Whoever may create Deployments can fill each of them with 1.5 MB, and what a parser makes of that
takes ten times as much. So the text of a page is bounded, one object of it is parsed at a time, and
of one that is too large no more is handed on than what it is called.
"""

import json
import re
from collections.abc import Generator, Iterator
from typing import Any, Final

import ijson  # type: ignore[import-untyped]

from tonnage.units import KIB

MOST_OBJECT_BYTES: Final = 256 * KIB
"""Of one object, as JSON. Deployments and pods of ours have 10 to 30 KiB."""
HEAD_BYTES: Final = 4 * KIB
"""In which name, namespace and UID of an object are found: labels come after them."""
NAMES: Final = ("name", "namespace", "uid", "resourceVersion")
_DECODER: Final = json.JSONDecoder()
_SPACE: Final = re.compile(r"[ \t\n\r]*")
Object = dict[str, Any]


class Oversized(dict[str, Any]):
    """In the place of an object that is too large: its metadata with nothing but names."""

    def __init__(self, metadata: Object, num_bytes: int) -> None:
        super().__init__(metadata={name: metadata[name] for name in NAMES if name in metadata})
        self.num_bytes = num_bytes
        """At least."""


def bounded(body: Object, num_bytes: int) -> Object:
    """Return an object, or its name where it has more bytes than one may have."""
    is_small = num_bytes <= MOST_OBJECT_BYTES
    return body if is_small else Oversized(body.get("metadata") or {}, num_bytes)


class Page:
    """The JSON of a list. ``metadata`` is known when all objects were read."""

    def __init__(self, data: bytes) -> None:
        self._text = data.decode(errors="replace")
        self.metadata: Object = {}
        self.is_list = False

    def items(self) -> Iterator[Object]:
        """Yield each object.

        Raises:
            ValueError: this is no JSON object.
        """
        place = self._after("{", 0)
        while self._text[place : place + 1] != "}":
            name, place = _DECODER.raw_decode(self._text, place)
            place = self._after(":", place)
            if name == "items" and self._text[place : place + 1] == "[":
                self.is_list = True
                place = yield from self._each(place)
            else:
                value, place = _DECODER.raw_decode(self._text, place)
                self.is_list |= name == "items"
                self.metadata = value or {} if name == "metadata" else self.metadata
            place = self._next(place)

    def _each(self, place: int) -> Generator[Object, None, int]:
        place = self._after("[", place)
        while self._text[place : place + 1] != "]":
            value, end = _DECODER.raw_decode(self._text, place)
            yield bounded(value, len(self._text[place:end].encode(errors="replace")))
            place = self._next(end)
        return place + 1

    def _next(self, place: int) -> int:
        """Return where the next member is, or what ends them."""
        place = self._skipped(place)
        return self._after(",", place) if self._text[place : place + 1] == "," else place

    def _after(self, mark: str, place: int) -> int:
        place = self._skipped(place)
        if self._text[place : place + 1] != mark:
            raise ValueError(f"no {mark}")
        return self._skipped(place + 1)

    def _skipped(self, place: int) -> int:
        found = _SPACE.match(self._text, place)
        return found.end() if found else place


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
    return _named(line[:HEAD_BYTES], num_bytes)


def _named(head: bytes, num_bytes: int) -> tuple[str, Object]:
    """Return the same by the beginning of a line."""
    told: Object = {}
    try:
        for prefix, event, value in ijson.parse(head):
            if event == "string":
                told.setdefault(prefix, value)
    except ijson.JSONError:
        pass  # it breaks off
    metadata = {name: told.get(f"object.metadata.{name}") for name in NAMES}
    known = {name: value for name, value in metadata.items() if value is not None}
    if "name" not in known:
        raise ValueError(f"an object of {num_bytes} bytes without a name")
    return told.get("type", ""), Oversized(known, num_bytes)


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
