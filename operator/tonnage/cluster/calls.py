"""One request to the API server: what is asked, what of an answer is read, what a refusal is."""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from tonnage.redaction import is_name, names_said, redacted_line
from tonnage.units import KIB, MIB

PASSING = frozenset(
    {
        HTTPStatus.UNAUTHORIZED,  # the token was just renewed
        HTTPStatus.NOT_FOUND,
        HTTPStatus.CONFLICT,
        HTTPStatus.TOO_MANY_REQUESTS,
    }
)
"""Refusals of a moment."""
NO_SERVER = frozenset(
    {0, HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT}
)
"""No answer, or one of what stands before a server that is not there."""
DENIED = re.compile('admission webhook ".*" denied the request')
"""A webhook names any status with that, a busy server's too."""
BY_NAME = re.compile("request is too large|failed to create typed patch object|" + DENIED.pattern)
"""Refusals with any status: of etcd, of a field that is unknown or mistyped, of a webhook. The API
server answers the first two as its own failure: 500."""
WORDS_LENGTH = 200


class WorldError(Exception):
    """Kubernetes or Prometheus did not do what was asked. Nothing is given up for good."""

    is_refusal = False
    """The server understood and refused: trying again will not help."""
    is_undone = False
    """What was asked is certainly not done: without an answer it may be."""
    is_overload = False
    """The whole server is busy or away, whatever it is asked."""
    is_of_object = False
    """It lies in what was asked: others are answered, and it alone backs off."""

    @property
    def words(self) -> str:
        """Return what a person reads of it, in one short line."""
        return str(self)[:WORDS_LENGTH]


class BugError(WorldError):
    """A bug of ours, on the way to a write or after it: it stays with its object."""

    is_of_object = True


class WriteFencedError(WorldError):
    """A write that we did not send: it is not ours to make."""

    is_undone = True


class KubernetesError(WorldError):
    """The API server refused or failed."""

    retry_after_s: float | None = None
    """When to try again; None: it would say the same."""

    def __init__(
        self, message: str, *, status: int, detail: str = "", is_alone: bool = False
    ) -> None:
        """``detail``: by the server itself. ``is_alone``: it answered others meanwhile."""
        super().__init__(message)
        self.status, self.detail, self.is_alone = status, detail, is_alone
        answer = detail or message
        is_refused_by_name = BY_NAME.search(answer) is not None
        is_client_error = HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR
        is_away = status in NO_SERVER and not is_alone
        is_busy = status == HTTPStatus.TOO_MANY_REQUESTS or is_away
        self.is_refusal = is_refused_by_name or (is_client_error and status not in PASSING)
        self.is_undone = is_client_error or is_refused_by_name
        self.is_overload = is_busy and not is_refused_by_name
        self.is_of_object = self.is_refusal or not (self.is_undone or self.is_overload)

    @property
    def words(self) -> str:
        return self.detail[:WORDS_LENGTH] or super().words


class TooLargeError(KubernetesError):
    """An answer has more bytes than are read of it."""


class ConflictError(KubernetesError):
    """The object changed since it was read: read again and decide again."""


class PrometheusError(WorldError):
    """Prometheus gave no answer that can be used; the reason is a condition's reason."""

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


Object = dict[str, Any]

ATTEMPTS = 3
LONGEST_RETRY_AFTER_S = 5.0
MOST_BYTES = 16 * MIB
"""Of one object, and of every other answer. etcd takes 1.5 MiB, in JSON up to six times as long."""
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
        refused.retry_after_s = 0.0
        with suppress(TypeError, ValueError):
            asked_s = float((headers or {}).get("Retry-After", 0))
            refused.retry_after_s = min(LONGEST_RETRY_AFTER_S, asked_s)
    return refused


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
