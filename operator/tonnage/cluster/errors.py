"""How the world fails: one base class, so that a tick or an object can hold and try again."""

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


class WorldError(Exception):
    """Kubernetes or Prometheus did not do what was asked. Nothing is given up for good."""

    @property
    def is_refusal(self) -> bool:
        """Tell whether the server understood and said no: trying again will not help."""
        return False

    @property
    def is_undone(self) -> bool:
        """Tell whether what was asked is certainly not done: without an answer it may be."""
        return False


class HeldBackError(WorldError):
    """A write that we did not send: it is not ours to make."""

    @property
    def is_undone(self) -> bool:
        return True


class KubernetesError(WorldError):
    """The API server refused or failed."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status

    @property
    def is_refusal(self) -> bool:
        return self.is_undone and self.status not in PASSING

    @property
    def is_undone(self) -> bool:
        return HTTPStatus.BAD_REQUEST <= self.status < HTTPStatus.INTERNAL_SERVER_ERROR


class ConflictError(KubernetesError):
    """The object changed since it was read: read again and decide again."""


class PrometheusError(WorldError):
    """Prometheus gave no answer that can be used; the reason is a condition's reason."""

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason
