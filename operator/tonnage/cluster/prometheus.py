"""Prometheus, wrapped: time-outs, no redirects, a size limit, no body in any message."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests
from prometheus_api_client.exceptions import PrometheusApiClientException
from prometheus_api_client.prometheus_connect import PrometheusConnect
from urllib3.util.retry import Retry

from tonnage.cluster.errors import PrometheusError
from tonnage.settings import Settings
from tonnage.units import MIB

TIMEOUT_S = 10
MAX_ANSWER_BYTES = 32 * MIB
CHUNK_BYTES = MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One series of an instant vector: its labels, its value and when it was evaluated."""

    labels: Mapping[str, str]
    value: float
    evaluated_at_s: float


class _GuardedSession(requests.Session):
    """A session that follows no redirect, reads no more than the limit."""

    def request(self, method: str | bytes, url: str | bytes, **more: Any) -> requests.Response:  # type: ignore[override]
        more |= {"allow_redirects": False, "stream": True}
        more["timeout"] = more.get("timeout") or TIMEOUT_S
        response = super().request(method, url, **more)
        body = bytearray()
        for chunk in response.iter_content(CHUNK_BYTES):
            body += chunk
            if len(body) > MAX_ANSWER_BYTES:
                response.close()
                raise PrometheusError(
                    f"answer exceeds {MAX_ANSWER_BYTES} bytes", reason="ResponseTooLarge"
                )
        response._content = bytes(body)
        return response


class Prometheus:
    """Instant queries against one server."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._session = _GuardedSession()
        self._session.trust_env = False
        if settings.prometheus_ca_file:
            self._session.verify = settings.prometheus_ca_file
        self._connection = PrometheusConnect(
            url=settings.prometheus_url.rstrip("/"),
            session=self._session,
            retry=Retry(total=1, connect=1, read=0, status=0, redirect=0, backoff_factor=0.2),
            timeout=TIMEOUT_S,
            method="POST",
        )

    def query(self, expression: str) -> list[Series]:
        """Return an instant vector; samples that are no finite number are left out.

        Raises:
            PrometheusError: unreachable, refused, or an answer that is no vector.
        """
        self._connection.headers = self._headers()
        try:
            answer = self._connection.custom_query(expression)
        except PrometheusApiClientException as error:
            # The library puts the whole body into the text: say only that it refused.
            raise PrometheusError("Prometheus refused a query", reason="QueryRefused") from error
        except (requests.RequestException, OSError) as error:
            raise PrometheusError(
                f"Prometheus: {type(error).__name__}", reason="PrometheusUnreachable"
            ) from error
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise PrometheusError(
                "Prometheus answered with something else than a result", reason="BadAnswer"
            ) from error
        return [series for series in map(_series, answer) if series is not None]

    def _headers(self) -> dict[str, str]:
        file = self._settings.prometheus_token_file
        return {"Authorization": f"Bearer {Path(file).read_text().strip()}"} if file else {}


def _series(item: Any) -> Series | None:
    try:
        evaluated_at_s, value = item["value"]
        series = Series(
            labels=dict(item["metric"]),
            value=float(value),
            evaluated_at_s=float(evaluated_at_s),
        )
    except (KeyError, TypeError, ValueError):
        return None
    return series if math.isfinite(series.value) else None
