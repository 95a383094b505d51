"""Prometheus asked for a time instead of a moment: range queries, in parts that a server takes.

For people at a terminal, and for what is asked once beside the loop: a part that fails ends the
whole, with what the server says of it.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

import msgspec
import requests
from urllib3 import Retry
from urllib3.exceptions import HTTPError

from tonnage.cluster.authorization import CREDENTIALS, authorization
from tonnage.cluster.calls import PrometheusError
from tonnage.cluster.queries import LABELS, read_matrix
from tonnage.redaction import redacted_line
from tonnage.settings import Settings
from tonnage.units import KIB, MIB

if TYPE_CHECKING:
    from prometheus_api_client import PrometheusConnect

POINTS: Final = 1440
"""Of a series in one answer: a day of minutes. Prometheus gives 11,000 at most."""
TIMEOUT_S: Final = 60.0
"""For each piece of an answer; Prometheus itself gives up after two minutes."""
ANSWER_BYTES: Final = 32 * MIB
REFUSAL_BYTES: Final = 64 * KIB
KEPT_BYTES: Final = 64 * MIB
"""Of an answer in memory, at ``ENTRY_BYTES`` for each value and for half a label."""
ENTRY_BYTES: Final = 128
VALUES: Final = msgspec.json.Decoder(list[tuple[float, str]])
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


class _Error(msgspec.Struct):
    error: str = ""


def ask_range(settings: Settings, expression: str, steps: Steps) -> list[Series]:
    """Return what an expression came to at the end of each step.

    Raises:
        PrometheusError: an answer is missing, refused, too large or none.
    """
    found: dict[tuple[tuple[str, str], ...], dict[int, float]] = {}
    with _connection(settings, steps) as prometheus:
        for first in range(0, steps.number, POINTS):
            last = min(steps.number, first + POINTS) - 1
            for labels, points in _series(prometheus, expression, steps, first, last):
                found.setdefault(tuple(sorted(labels.items())), {}).update(points)
    return [(dict(labels), points) for labels, points in found.items()]


class _Answer(requests.Response):
    """One that was read: the library would parse it whole, and a second time."""

    def __init__(self, series: list[Series]) -> None:
        super().__init__()
        self.status_code, self._series = HTTPStatus.OK, series

    def json(self, **_: Any) -> Any:
        return {"data": {"result": self._series}}


class _Session(requests.Session):
    """One that follows no redirect, bounds an answer, and refuses what is no whole result."""

    def __init__(self, settings: Settings, steps: Steps) -> None:
        super().__init__()
        self._steps, self._authorization = steps, authorization(settings)
        self.verify = settings.prometheus_ca_file or True
        self.cert = self._authorization.certificate

    def send(self, request: requests.PreparedRequest, **more: Any) -> requests.Response:
        self._authorization.renew()
        request.headers.update(self._authorization.headers())
        more |= {"stream": True, "allow_redirects": False}
        url = (request.url or "").partition("?")[0]
        with super().send(request, **more) as response:
            if response.status_code != HTTPStatus.OK:
                body = response.raw.read(REFUSAL_BYTES, decode_content=True)
                raise _refusal(url, response.status_code, body)
            body = response.raw.read(ANSWER_BYTES + 1, decode_content=True)
        if len(body) > ANSWER_BYTES:
            raise _too_large(ANSWER_BYTES)
        return _Answer(_read(url, body, self._steps))


def _connection(settings: Settings, steps: Steps) -> "PrometheusConnect":
    # Who asks no ranges need not load what this brings.
    from prometheus_api_client import PrometheusConnect  # noqa: PLC0415

    return PrometheusConnect(
        url=settings.prometheus_url.rstrip("/"),
        session=_Session(settings, steps),
        timeout=TIMEOUT_S,
        method="POST",
        retry=Retry(0),
    )


def _series(
    prometheus: "PrometheusConnect", expression: str, steps: Steps, first: int, last: int
) -> list[Series]:
    """Return the series of the steps from ``first`` to ``last``."""
    start_s, end_s = (steps.from_s + (number + 1) * steps.step_s for number in (first, last))
    try:
        found: list[Series] = prometheus.custom_query_range(
            expression,
            datetime.fromtimestamp(start_s, UTC),
            datetime.fromtimestamp(end_s, UTC),
            step=f"{steps.step_s:g}",
            params={"start": f"{start_s:.3f}", "end": f"{end_s:.3f}"},  # it rounds to seconds
        )
    except (requests.RequestException, HTTPError, OSError) as error:
        message = f"{prometheus.url}/ cannot be reached: {type(error).__name__}"
        raise PrometheusError(message, reason="PrometheusUnreachable") from error
    return found


def _refusal(url: str, status: int, body: bytes) -> PrometheusError:
    try:
        detail = redacted_line(msgspec.json.decode(body, type=_Error).error, SHOWN)
    except (msgspec.MsgspecError, UnicodeError):
        detail = ""
    if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
        detail = f"{detail}; {CREDENTIALS}" if detail else CREDENTIALS
    detail = f": {detail}" if detail else ""
    return PrometheusError(f"{url} answered {status}{detail}", reason="QueryRefused")


def _read(url: str, body: bytes, steps: Steps) -> list[Series]:
    found, kept_bytes = list[Series](), 0

    def take(metric: bytes, values: bytes) -> None:
        nonlocal kept_bytes
        labels, points = LABELS.decode(metric), dict(_points(VALUES.decode(values), steps))
        # The text of a label takes up to four bytes a character.
        kept_bytes += 4 * len(metric) + ENTRY_BYTES * (4 + 2 * len(labels) + len(points))
        if kept_bytes > KEPT_BYTES:
            raise _too_large(KEPT_BYTES)
        found.append((labels, points))

    try:
        is_partial = read_matrix(body, take)
    except (ValueError, RecursionError) as error:
        message = f"{url} answered with something other than the result of a range query"
        raise PrometheusError(message, reason="BadAnswer") from error
    if is_partial:
        message = "the answer is partial: a store behind Prometheus did not answer"
        raise PrometheusError(message, reason="MetricsPartial")
    return found


def _too_large(limit_bytes: int) -> PrometheusError:
    message = f"an answer exceeds {limit_bytes} bytes: ask for longer steps"
    return PrometheusError(message, reason="ResponseTooLarge")


def _points(values: list[tuple[float, str]], steps: Steps) -> Iterator[tuple[int, float]]:
    """Yield numbers of steps and values; what is no finite number is missing."""
    for at_s, text in values:
        number = round((at_s - steps.from_s) / steps.step_s) - 1
        with suppress(ValueError):
            if isfinite(value := float(text)) and 0 <= number < steps.number:
                yield number, value
