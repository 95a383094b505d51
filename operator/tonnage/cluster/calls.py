"""One request to the API server: what is asked, what of an answer is read, what a refusal is."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from tonnage.cluster.errors import ConflictError, KubernetesError, TooLargeError
from tonnage.cluster.pages import without_depths
from tonnage.redaction import is_name, names_said, redacted_line
from tonnage.units import KIB, MIB

Object = dict[str, Any]

ATTEMPTS = 3
LONGEST_RETRY_AFTER_S = 5.0
MOST_BYTES = 16 * MIB
"""Of one object, and of every other answer. etcd takes 1.5 MiB, which JSON may write six times as
long."""
RETRIED = frozenset({429, 500, 502, 503, 504})
JSON = "application/json"
MESSAGE_LENGTH = 300
PIECE_BYTES = 64 * KIB
_NO_PATH = re.compile(r"[^\w./-]+")
"""Between words that may be paths of fields."""


@dataclass(frozen=True, slots=True)
class Call:
    method: str
    path: str
    body: Object | None = None
    query: Mapping[str, str] = field(default_factory=dict)
    content_type: str = JSON
    accept: str = JSON
    attempts: int = ATTEMPTS
    most_bytes: int = MOST_BYTES


def read_body(call: Call, response: Any) -> bytes:
    """Return the body of an answer.

    Raises:
        TooLargeError: it has more bytes than are read of it.
    """
    data = bytearray()
    for piece in response.stream(PIECE_BYTES):
        data += piece
        if len(data) > call.most_bytes:
            response.close()  # the rest is not waited for
            message = f"{call.method} {call.path}: more than {call.most_bytes} bytes"
            raise TooLargeError(message, status=0)
    response.release_conn()
    return bytes(data)


def refusal(
    call: Call, status: int, data: bytes, headers: Any, *, is_alone: bool
) -> KubernetesError:
    detail = _message(data, frozenset(call.path.split("/")), frozenset(_fields_in(call.body)))
    message = f"{call.method} {call.path}: {status} {detail}"[:MESSAGE_LENGTH]
    if status == HTTPStatus.CONFLICT:
        return ConflictError(message, status=status, detail=detail)
    refused = KubernetesError(message, status=status, detail=detail, is_alone=is_alone)
    if status in RETRIED and not refused.is_refusal:
        refused.retry_after_s = _retry_after_s(headers)
    return refused


def parsed_object(call: Call, data: bytes) -> Object:
    try:
        parsed = json.loads(without_depths(data))
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise KubernetesError(f"{call.method} {call.path}: not a JSON object", status=0)
    return parsed


def _message(body: Any, known: frozenset[str], fields: frozenset[str]) -> str:
    """Return what the server says, in one line: a webhook's words are anybody's.

    Paths of fields that we sent can be read, of those with a mistake in their names too.
    """
    try:
        detail = str(json.loads(body)["message"])
    except (TypeError, ValueError, KeyError):
        return ""
    paths = {
        each for each in _NO_PATH.split(detail) if fields.issuperset(each.strip(".").split("."))
    }
    return redacted_line(detail, 10 * MESSAGE_LENGTH, known | names_said(detail) | paths)


def _fields_in(body: Any) -> Iterator[str]:
    for name, each in body.items() if isinstance(body, dict) else ():
        if is_name(name):
            yield name
        yield from _fields_in(each)
    for each in body if isinstance(body, list) else ():
        yield from _fields_in(each)


def _retry_after_s(headers: Any) -> float:
    try:
        return min(LONGEST_RETRY_AFTER_S, float((headers or {}).get("Retry-After", 0)))
    except (TypeError, ValueError):
        return 0.0
