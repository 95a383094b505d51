"""Prometheus asked for a time instead of a moment: range queries, in parts that a server takes.

For people at a terminal, and for what is asked once beside the loop: a part that fails ends the
whole, with what the server says of it.
"""

import io
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from math import isfinite
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
import requests
from urllib3 import Retry
from urllib3.exceptions import HTTPError

from tonnage.cluster.authorization import CREDENTIALS, authorization
from tonnage.cluster.calls import PrometheusError
from tonnage.redaction import redacted_line
from tonnage.settings import Settings
from tonnage.units import MIB

if TYPE_CHECKING:
    from prometheus_api_client import PrometheusConnect

POINTS: Final = 1440
"""Of a series in one answer: a day of minutes. Prometheus gives 11,000 at most."""
TIMEOUT_S: Final = 60.0
"""For each piece of an answer; Prometheus itself gives up after two minutes."""
ANSWER_BYTES: Final = 32 * MIB
SHOWN: Final = 300
"""Characters of what a server says."""

Series = tuple[Mapping[str, str], Mapping[int, float]]
"""Labels, and values by the number of the step that ends there, from 0 on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Steps, counted from a unix time on."""

    from_s: float
    step_s: float
    number: int


class _OneSeries(msgspec.Struct):
    metric: dict[str, str]
    values: list[tuple[float, str]]


class _Matrix(msgspec.Struct):
    resultType: Literal["matrix"]  # noqa: N815
    result: list[_OneSeries]


class _Result(msgspec.Struct):
    """What a range query comes to."""

    status: Literal["success"]
    data: _Matrix
    warnings: list[str] | None = None
    isPartial: bool | None = None  # noqa: N815


class _Error(msgspec.Struct):
    error: str = ""


def ask_range(settings: Settings, expression: str, steps: Steps) -> list[Series]:
    """Return what an expression came to at the end of each step.

    Raises:
        PrometheusError: an answer is missing, refused, too large or none.
    """
    found: dict[tuple[tuple[str, str], ...], dict[int, float]] = {}
    with _connection(settings) as prometheus:
        for first in range(0, steps.number, POINTS):
            last = min(steps.number, first + POINTS) - 1
            for each in _series(prometheus, expression, steps, first, last):
                points = found.setdefault(tuple(sorted(each["metric"].items())), {})
                points.update(_points(each["values"], steps))
    return [(dict(labels), points) for labels, points in found.items()]


class _Session(requests.Session):
    """One that follows no redirect, bounds an answer, and refuses what is no whole result."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self._authorization = authorization(settings)
        self.verify = settings.prometheus_ca_file or True
        self.cert = self._authorization.certificate

    def send(self, request: requests.PreparedRequest, **more: Any) -> requests.Response:
        self._authorization.renew()
        path, mark, query = str(request.url).partition("?")
        request.url = path + mark + query.replace("+", "%20")  # what is signed has no other blank
        request.headers.update(self._authorization.headers("POST", request.url, b""))
        more |= {"stream": True, "allow_redirects": False}
        with super().send(request, **more) as response:
            body = response.raw.read(ANSWER_BYTES + 1, decode_content=True)
        if len(body) > ANSWER_BYTES:
            message = f"an answer exceeds {ANSWER_BYTES} bytes: ask for longer steps"
            raise PrometheusError(message, reason="ResponseTooLarge")
        url = (request.url or "").partition("?")[0]
        if response.status_code != HTTPStatus.OK:
            raise _refusal(url, response.status_code, body)
        _check_result(url, body)
        response.raw, response.encoding = io.BytesIO(body), "utf-8"
        return response


def _connection(settings: Settings) -> "PrometheusConnect":
    # Who asks no ranges need not load what this brings.
    from prometheus_api_client import PrometheusConnect  # noqa: PLC0415

    return PrometheusConnect(
        url=settings.prometheus_url.rstrip("/"),
        session=_Session(settings),
        timeout=TIMEOUT_S,
        method="POST",
        retry=Retry(0),
    )


def _series(
    prometheus: "PrometheusConnect", expression: str, steps: Steps, first: int, last: int
) -> list[Any]:
    """Return the series of the steps from ``first`` to ``last``."""
    start_s, end_s = (steps.from_s + (number + 1) * steps.step_s for number in (first, last))
    try:
        found: list[Any] = prometheus.custom_query_range(
            expression,
            datetime.fromtimestamp(start_s, UTC),
            datetime.fromtimestamp(end_s, UTC),
            step=f"{steps.step_s:g}",
            params={"start": f"{start_s:.3f}", "end": f"{end_s:.3f}"},  # it rounds to seconds
        )
    except requests.JSONDecodeError as error:
        raise _no_result(prometheus.url) from error
    except (requests.RequestException, HTTPError, OSError) as error:
        message = f"{prometheus.url}/ cannot be reached: {type(error).__name__}"
        raise PrometheusError(message, reason="PrometheusUnreachable") from error
    except (ValueError, RecursionError) as error:
        raise _no_result(prometheus.url) from error
    return found


def _no_result(url: str) -> PrometheusError:
    message = f"{url} answered with something other than the result of a range query"
    return PrometheusError(message, reason="BadAnswer")


def _refusal(url: str, status: int, body: bytes) -> PrometheusError:
    try:
        detail = redacted_line(msgspec.json.decode(body, type=_Error).error, SHOWN)
    except (msgspec.MsgspecError, UnicodeError):
        detail = ""
    if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
        detail = f"{detail}; {CREDENTIALS}" if detail else CREDENTIALS
    detail = f": {detail}" if detail else ""
    return PrometheusError(f"{url} answered {status}{detail}", reason="QueryRefused")


def _check_result(url: str, body: bytes) -> None:
    try:
        result = msgspec.json.decode(body, type=_Result)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise _no_result(url) from error
    if result.warnings or result.isPartial:
        message = "the answer is partial: a store behind Prometheus did not answer"
        raise PrometheusError(message, reason="MetricsPartial")


def _points(values: list[tuple[float, str]], steps: Steps) -> Iterator[tuple[int, float]]:
    """Yield numbers of steps and values; what is no finite number is missing."""
    for at_s, text in values:
        number = round((at_s - steps.from_s) / steps.step_s) - 1
        with suppress(ValueError):
            if isfinite(value := float(text)) and 0 <= number < steps.number:
                yield number, value
