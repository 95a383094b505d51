"""Prometheus, wrapped: time-outs, no redirects, a size limit, no body in any message."""

import json
import math
from pathlib import Path
from typing import Any

import requests
from prometheus_api_client.exceptions import PrometheusApiClientException
from prometheus_api_client.prometheus_connect import PrometheusConnect
from urllib3.util.retry import Retry

from tonnage.cluster.errors import PrometheusError
from tonnage.estimate.samples import Series
from tonnage.settings import Settings
from tonnage.units import MIB

TIMEOUT_S = 10
MAX_ANSWER_BYTES = 32 * MIB
CHUNK_BYTES = MIB
NO_RESULT = (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, RecursionError)
"""How reading fails what is no answer of Prometheus: a page of a proxy, half a document."""


class _GuardedSession(requests.Session):
    """A session that follows no redirect, waits no longer and reads no more than the limits."""

    def __init__(self, *, timeout_s: float, max_answer_bytes: int) -> None:
        super().__init__()
        self._timeout_s, self._max_answer_bytes = timeout_s, max_answer_bytes

    def request(self, method: str | bytes, url: str | bytes, **more: Any) -> requests.Response:  # type: ignore[override]
        more |= {"allow_redirects": False, "stream": True, "timeout": self._timeout_s}
        response = super().request(method, url, **more)
        body = bytearray()
        for chunk in response.iter_content(CHUNK_BYTES):
            body += chunk
            if len(body) > self._max_answer_bytes:
                response.close()
                raise PrometheusError(
                    f"answer exceeds {self._max_answer_bytes} bytes", reason="ResponseTooLarge"
                )
        response._content = bytes(body)
        return response


class Prometheus:
    """Instant queries against one server."""

    def __init__(
        self,
        settings: Settings,
        *,
        timeout_s: float = TIMEOUT_S,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
    ) -> None:
        self._settings = settings
        self._session = _GuardedSession(timeout_s=timeout_s, max_answer_bytes=max_answer_bytes)
        self._session.trust_env = False
        if settings.prometheus_ca_file:
            self._session.verify = settings.prometheus_ca_file
        self._connection = PrometheusConnect(
            url=settings.prometheus_url.rstrip("/"),
            session=self._session,
            retry=Retry(total=1, connect=1, read=0, status=0, redirect=0, backoff_factor=0.2),
            method="POST",
        )

    def query(self, expression: str) -> list[Series]:
        """Return an instant vector; samples that are no finite number are left out.

        Raises:
            PrometheusError: unreachable, refused, or an answer that is no vector.
        """
        try:
            self._connection.headers = self._headers()
            answer = self._connection.custom_query(expression)
        except PrometheusApiClientException as error:
            # The library puts the whole body into the text: say only that it refused.
            raise PrometheusError("Prometheus refused a query", reason="QueryRefused") from error
        except NO_RESULT as error:  # before the next: a JSON error is one of requests too
            raise _bad_answer() from error
        except (requests.RequestException, OSError) as error:
            raise PrometheusError(
                f"Prometheus: {type(error).__name__}", reason="PrometheusUnreachable"
            ) from error
        if not isinstance(answer, list):
            raise _bad_answer()
        return [series for series in map(_series, answer) if series is not None]

    def _headers(self) -> dict[str, str]:
        file = self._settings.prometheus_token_file
        return {"Authorization": f"Bearer {Path(file).read_text().strip()}"} if file else {}


def _bad_answer() -> PrometheusError:
    message = "Prometheus answered with something else than a result"
    return PrometheusError(message, reason="BadAnswer")


def _series(item: Any) -> Series | None:
    try:
        evaluated_at_s, value = item["value"]
        series = Series(
            labels={name: text for name, text in item["metric"].items() if isinstance(text, str)},
            value=float(value),
            evaluated_at_s=float(evaluated_at_s),
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    are_finite = math.isfinite(series.value) and math.isfinite(series.evaluated_at_s)
    return series if are_finite else None
