"""A small client for the API server: plain dictionaries over one HTTP session."""

import asyncio
import base64
import json
import ssl
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
import yaml

Json = dict[str, Any]

MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH: Final = "application/strategic-merge-patch+json"
PAGE_SIZE: Final = 500
CLOSING_S: Final = 0.25
"""aiohttp's advice: TLS connections need the event loop a little longer than their session."""
NUM_TRIES: Final = 5
"""Of a request that the server was too busy for."""
_TOO_MANY_REQUESTS: Final = 429
_ERROR: Final = 400


class ApiError(Exception):
    """The API server said no."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Where the API server is, and who we are to it."""

    server: str
    headers: Mapping[str, str]
    tls: ssl.SSLContext


class Api:
    """Requests to one API server. ``open_api`` makes one."""

    def __init__(self, session: aiohttp.ClientSession, access: Access) -> None:
        self._session = session
        self._access = access

    @property
    def server(self) -> str:
        """Address of the API server."""
        return self._access.server

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: Json | None = None,
        parameters: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Json:
        """Send a request; one that the server was too busy for is sent again.

        Raises:
            ApiError: the server said no.
            aiohttp.ClientError: it could not be reached.
        """
        for tries_left in reversed(range(NUM_TRIES)):
            async with self._session.request(
                method,
                self._access.server + path,
                params=parameters,
                data=None if body is None else json.dumps(body),
                headers={**self._access.headers, "Content-Type": content_type},
                ssl=self._access.tls,
            ) as response:
                if response.status == _TOO_MANY_REQUESTS and tries_left:
                    await asyncio.sleep(float(response.headers.get("Retry-After", "1")))
                    continue
                return await _answer(response)
        raise ApiError(_TOO_MANY_REQUESTS, f"{method} {path}: the server stayed too busy")

    async def get(self, path: str, **parameters: str) -> Json:
        """Read an object."""
        return await self.request("GET", path, parameters=parameters)

    async def find(self, path: str) -> Json | None:
        """Read an object that may not exist."""
        try:
            return await self.get(path)
        except ApiError as error:
            if error.status == 404:  # noqa: PLR2004
                return None
            raise

    async def create(self, path: str, body: Json) -> Json:
        """Create an object, or a subresource such as a token."""
        return await self.request("POST", path, body=body)

    async def patch(self, path: str, body: Json, content_type: str = MERGE_PATCH) -> Json:
        """Patch an object or its status."""
        return await self.request("PATCH", path, body=body, content_type=content_type)

    async def delete(self, path: str, body: Json | None = None) -> Json:
        """Delete an object."""
        return await self.request("DELETE", path, body=body)

    async def list(self, path: str, **parameters: str) -> tuple[list[Json], str]:
        """Return all items, read in chunks, and the resource version to watch from."""
        items: list[Json] = []
        token = ""
        while True:
            page = await self.get(
                path, **parameters, limit=str(PAGE_SIZE), **({"continue": token} if token else {})
            )
            items += page.get("items") or []
            token = page["metadata"].get("continue", "")
            if not token:
                return items, page["metadata"]["resourceVersion"]

    async def watch(self, path: str, **parameters: str) -> AsyncIterator[Json]:
        """Return events until the server ends the stream.

        Raises:
            ApiError: the server said no, for example 410 for a version that is too old.
            aiohttp.ClientError: the connection broke.
        """
        async with self._session.get(
            self._access.server + path,
            params={"watch": "true", "allowWatchBookmarks": "true", **parameters},
            headers=self._access.headers,
            ssl=self._access.tls,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
        ) as response:
            if response.status >= _ERROR:
                await _answer(response)
            rest = b""
            async for chunk in response.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    yield json.loads(line)


async def _answer(response: aiohttp.ClientResponse) -> Json:
    text = await response.text()
    try:
        content = json.loads(text)
    except ValueError:
        content = {"message": text}
    if response.status >= _ERROR:
        raise ApiError(response.status, str(content.get("message", text)))
    return content  # type: ignore[no-any-return]


@asynccontextmanager
async def open_api(kubeconfig: Path) -> AsyncIterator[Api]:
    """Open a session as the current context of a kubeconfig says."""
    access = read_kubeconfig(kubeconfig)
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=30)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        yield Api(session, access)
    await asyncio.sleep(CLOSING_S)


def read_kubeconfig(path: Path) -> Access:
    """Read the current context: client certificate or token, files or data."""
    config = yaml.safe_load(path.read_text())
    context = _by_name(config["contexts"], config["current-context"])["context"]
    cluster = _by_name(config["clusters"], context["cluster"])["cluster"]
    user = _by_name(config["users"], context["user"])["user"]
    headers = {"Authorization": f"Bearer {user['token']}"} if "token" in user else {}
    return Access(server=cluster["server"].rstrip("/"), headers=headers, tls=_tls(cluster, user))


def _by_name(entries: list[Json], name: str) -> Json:
    return next(entry for entry in entries if entry["name"] == name)


def _tls(cluster: Json, user: Json) -> ssl.SSLContext:
    authority = _content(cluster, "certificate-authority")
    tls = ssl.create_default_context(cadata=authority.decode() if authority else None)
    if cluster.get("insecure-skip-tls-verify"):
        tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE
    certificate, key = _content(user, "client-certificate"), _content(user, "client-key")
    if certificate and key:
        with tempfile.NamedTemporaryFile() as pair:  # readable by us only, and gone at once
            pair.write(certificate + b"\n" + key)
            pair.flush()
            tls.load_cert_chain(pair.name)
    return tls


def _content(entry: Json, field: str) -> bytes | None:
    if data := entry.get(f"{field}-data"):
        return base64.b64decode(data)
    return Path(entry[field]).read_bytes() if field in entry else None
