"""How the world fails: one base class, so that a tick or an object can hold and try again."""

import re
from http import HTTPStatus

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
    {
        0,
        HTTPStatus.BAD_GATEWAY,
        HTTPStatus.SERVICE_UNAVAILABLE,
        HTTPStatus.GATEWAY_TIMEOUT,
    }
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
