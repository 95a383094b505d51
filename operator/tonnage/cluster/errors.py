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


class KubernetesError(WorldError):
    """The API server refused or failed."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status

    @property
    def is_refusal(self) -> bool:
        is_client_error = HTTPStatus.BAD_REQUEST <= self.status < HTTPStatus.INTERNAL_SERVER_ERROR
        return is_client_error and self.status not in PASSING


class ConflictError(KubernetesError):
    """The object changed since it was read: read again and decide again."""


class PrometheusError(WorldError):
    """Prometheus gave no answer that can be used; the reason is a condition's reason."""

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason
