"""Prometheus asked for a time instead of a moment: range queries, in parts that a server takes.

For people at a terminal, not for the loop: a part that fails ends the whole, with what the server
says of it.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import requests

from tonnage.cluster.errors import PrometheusError
from tonnage.settings import Settings
from tonnage.units import KIB, MIB

POINTS: Final = 1440
"""Of a series in one answer: a day of minutes. Prometheus gives 11,000 at most."""
TIMEOUT_S: Final = 60.0
"""For each piece of an answer; Prometheus itself gives up after two minutes."""
ANSWER_BYTES: Final = 32 * MIB
PIECE_BYTES: Final = 64 * KIB
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


def ask_range(settings: Settings, expression: str, steps: Steps) -> list[Series]:
    """Return what an expression came to at the end of each step.

    Raises:
        PrometheusError: an answer is missing, refused, too large or none.
    """
    found: dict[tuple[tuple[str, str], ...], dict[int, float]] = {}
    with requests.Session() as session:
        for first in range(0, steps.number, POINTS):
            last = min(steps.number, first + POINTS) - 1
            form = {
                "query": expression,
                "start": _ends(steps, first),
                "end": _ends(steps, last),
                "step": f"{steps.step_s:g}",
            }
            for labels, values in _matrix(_answer(session, settings, form)):
                points = found.setdefault(tuple(sorted(labels.items())), {})
                points.update(_points(values, steps))
    return [(dict(labels), points) for labels, points in found.items()]


def _ends(steps: Steps, number: int) -> str:
    return f"{steps.from_s + (number + 1) * steps.step_s:.3f}"


def _answer(session: requests.Session, settings: Settings, form: Mapping[str, str]) -> Any:
    url = f"{settings.prometheus_url.rstrip('/')}/api/v1/query_range"
    try:
        headers = _headers(settings)
        with session.post(
            url,
            data=form,
            headers=headers,
            timeout=TIMEOUT_S,
            stream=True,
            allow_redirects=False,
            verify=settings.prometheus_ca_file or True,
        ) as response:
            body = _body(response)
            status = response.status_code
    except (requests.RequestException, OSError) as error:
        message = f"{url} cannot be reached: {type(error).__name__}"
        raise PrometheusError(message, reason="PrometheusUnreachable") from error
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        if status != HTTPStatus.OK:
            raise _refused(url, status, "") from error
        raise _no_result(url) from error
    if status != HTTPStatus.OK:
        said = content.get("error") if isinstance(content, dict) else None
        raise _refused(url, status, f": {str(said)[:SHOWN]}" if said else "")
    return content


def _headers(settings: Settings) -> dict[str, str]:
    if not settings.prometheus_token_file:
        return {}
    return {"Authorization": f"Bearer {Path(settings.prometheus_token_file).read_text().strip()}"}


def _body(response: requests.Response) -> bytes:
    content = bytearray()
    for piece in response.iter_content(PIECE_BYTES):
        content += piece
        if len(content) > ANSWER_BYTES:
            message = f"an answer exceeds {ANSWER_BYTES} bytes: ask for longer steps"
            raise PrometheusError(message, reason="ResponseTooLarge")
    return bytes(content)


def _refused(url: str, status: int, said: str) -> PrometheusError:
    return PrometheusError(f"{url} answered {status}{said}", reason="QueryRefused")


def _no_result(url: str) -> PrometheusError:
    message = f"{url} answered with something else than the result of a range query"
    return PrometheusError(message, reason="BadAnswer")


def _matrix(content: Any) -> Iterator[tuple[Mapping[str, str], list[Any]]]:
    try:
        if content["status"] != "success" or content["data"]["resultType"] != "matrix":
            raise _no_result("Prometheus")
        if content.get("warnings") or content.get("isPartial"):
            message = "the answer is partial: a store behind Prometheus did not answer"
            raise PrometheusError(message, reason="MetricsPartial")
        for each in content["data"]["result"]:
            yield dict(each["metric"]), list(each["values"])
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise _no_result("Prometheus") from error


def _points(values: list[Any], steps: Steps) -> Iterator[tuple[int, float]]:
    """Yield numbers of steps and values; what is no finite number is missing."""
    for pair in values:
        try:
            at_s, value = float(pair[0]), float(pair[1])
        except (TypeError, ValueError, IndexError) as error:
            raise _no_result("Prometheus") from error
        number = round((at_s - steps.from_s) / steps.step_s) - 1
        if abs(value) < float("inf") and 0 <= number < steps.number:
            yield number, value
