"""A live OpenAI-compatible endpoint: what it says of itself, one answer at a time."""

import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp

from tonnage.cli.console import Failure
from tonnage.cli.load.engine_page import EnginePage, read_page
from tonnage.units import MIB

TIMEOUT_S: Final = 10
MAX_BYTES: Final = 16 * MIB
"""Of one answer; a page of metrics has less than a tenth of it."""
KEY_VARIABLES: Final = ("TONNAGE_API_KEY", "OPENAI_API_KEY")
NO_KEY: Final = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model that the endpoint answers for."""

    id: str
    root: str | None
    max_model_len: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where it is, and what opens it."""

    url: str
    """Without ``/v1``."""
    api_key: str | None = field(default=None, repr=False)

    @property
    def headers(self) -> Mapping[str, str]:
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}


class EndpointProbe:
    """Asks an endpoint about itself. Each request has a connection of its own: a router chooses."""

    def __init__(self, session: aiohttp.ClientSession, endpoint: Endpoint) -> None:
        self._session, self._endpoint = session, endpoint

    async def models(self) -> tuple[ServedModel, ...]:
        """Return what it serves.

        Raises:
            Failure: it does not answer, or not as the API says.
        """
        listed = (await self._json("/v1/models")).get("data")
        entries: list[Any] = listed if isinstance(listed, list) else []
        return tuple(
            ServedModel(
                id=str(entry.get("id")),
                root=_text(entry.get("root")),
                max_model_len=_count(entry.get("max_model_len")),
            )
            for entry in entries
            if isinstance(entry, dict)
        )

    async def version(self) -> str | None:
        """Return the version of vLLM; None where nothing says it."""
        status, body = await self._get("/version")
        if status != HTTPStatus.OK:
            return None
        try:
            said = json.loads(body)
        except (ValueError, RecursionError):
            return None
        return _text(said.get("version")) if isinstance(said, dict) else None

    async def page(self) -> EnginePage | None:
        """Return the engine's metrics; None where it shows none."""
        status, body = await self._get("/metrics")
        return read_page(body.decode(errors="replace")) if status == HTTPStatus.OK else None

    async def _json(self, path: str) -> Mapping[str, Any]:
        address = self._endpoint.url + path
        status, body = await self._get(path)
        if status in NO_KEY:
            raise Failure(
                f"{address} answers {status}: the key is missing or wrong; it is read from "
                f"--api-key-file, {' or '.join(KEY_VARIABLES)}"
            )
        if status != HTTPStatus.OK:
            raise Failure(f"{address} answers {status}, not 200")
        try:
            content = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise Failure(f"{address}: no JSON: {error}") from error
        if not isinstance(content, dict):
            raise Failure(f"{address}: no JSON object")
        return content

    async def _get(self, path: str) -> tuple[int, bytes]:
        """Return status and body."""
        address = self._endpoint.url + path
        asked = self._session.get(address, headers=self._endpoint.headers, allow_redirects=False)
        try:
            async with asked as answer:
                body = b""
                async for chunk in answer.content.iter_any():
                    body += chunk
                    if len(body) > MAX_BYTES:
                        raise Failure(f"{address}: more than {MAX_BYTES} bytes")
                return answer.status, body
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Failure(f"{address} does not answer: {type(error).__name__}") from error


@asynccontextmanager
async def probing(endpoint: Endpoint) -> AsyncIterator[EndpointProbe]:
    """Ask an endpoint; each answer has so many seconds, however it drips."""
    connector = aiohttp.TCPConnector(force_close=True)
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        yield EndpointProbe(session, endpoint)


def endpoint_at(url: str, key_file: Path | None) -> Endpoint:
    """Return the endpoint at a URL, ``/v1`` or not, with the key of a file or the environment.

    Raises:
        Failure: no http address, or the file cannot be read.
    """
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.username:
        raise Failure("--url is not an address like http://vllm:8000, without user or password")
    path = parts.path.rstrip("/").removesuffix("/v1")
    return Endpoint(url=f"{parts.scheme}://{parts.netloc}{path}", api_key=_key(key_file))


def _key(key_file: Path | None) -> str | None:
    if key_file is None:
        found = (os.environ.get(name) for name in KEY_VARIABLES)
        key = next((value for value in found if value), "")
    else:
        try:
            key = key_file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise Failure(f"--api-key-file {key_file} cannot be read") from error
    key = key.strip()
    if not (key.isascii() and key.isprintable()):
        raise Failure("the API key has characters that no header takes")
    return key or None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
