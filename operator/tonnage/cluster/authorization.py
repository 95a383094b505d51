"""Who asks Prometheus: one function makes the headers of a request, whichever client sends it.

Files are read again each time, so a Secret that is rotated counts from the next tick on. No message
has a word of a file or of an answer of a token endpoint.
"""

import asyncio
import base64
import json
import re
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from http import HTTPStatus
from math import isfinite
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote_plus, urlsplit

import aiohttp

from tonnage.cluster.calls import PrometheusError
from tonnage.settings import OAuth2, PrometheusAuth, Settings
from tonnage.units import KIB

RENEW_S: Final = 10.0
"""For all of a token endpoint's answer."""
EARLY_S: Final = 60.0
"""Before a token ends, another is asked for: a round of questions lasts 20 s at most."""
UNKNOWN_LIFE_S: Final = 300.0
"""Of a token whose endpoint says none."""
FILE_BYTES: Final = 64 * KIB
ANSWER_BYTES: Final = 64 * KIB
HEADER_VALUE: Final = re.compile(r"[!-~]([ -~]*[!-~])?")
OAUTH_ERRORS: Final = (
    "invalid_client", "invalid_grant", "invalid_request", "invalid_scope", "unauthorized_client",
    "unsupported_grant_type",
)  # fmt: skip
"""RFC 6749, section 5.2: what an endpoint may say that is repeated."""
REASON: Final = "PrometheusUnreachable"
AUTH: Final = "settings.prometheusAuth"
CREDENTIALS: Final = "check prometheusTokenFile and prometheusAuth of the settings"


@lru_cache(maxsize=4)
def authorization(settings: Settings) -> "Authorization":
    """Return the one of these settings, whose token all clients share."""
    return Authorization(settings=settings)


@dataclass(slots=True, kw_only=True)
class Authorization:
    """What to send to Prometheus with each request: ``renew`` before some, ``headers`` of each."""

    settings: Settings
    now: Callable[[], float] = time.time
    limit_s: float = RENEW_S
    _fixed: Mapping[str, str] = field(default_factory=dict)
    _token: tuple[str, float, float] = ("", 0.0, 0.0)
    """Of OAuth2: it, when to ask for another, and when it ends."""

    @property
    def auth(self) -> PrometheusAuth:
        return self.settings.prometheus_auth or PrometheusAuth()

    @property
    def certificate(self) -> tuple[str, str] | None:
        """Return the files of our own certificate and its key."""
        given = self.auth.client_certificate
        return (given.certificate_file, given.key_file) if given else None

    def renew(self) -> None:
        """Read files, and get what is about to expire: blocks for ``limit_s`` at most.

        Raises:
            PrometheusError: a file cannot be read, or nobody gives a token. The message names the
                setting.
        """
        self._fixed = dict(self._fixed_headers())
        if self.auth.oauth2 and self.now() >= self._token[1]:
            self._renew_token(self.auth.oauth2)

    def headers(self) -> dict[str, str]:
        """Return what identifies us in one request."""
        found = dict(self._fixed)
        if self.auth.oauth2:
            found["Authorization"] = f"Bearer {self._token[0]}"
        return found

    def forget(self) -> None:
        """Get another token next time: this one was refused."""
        self._token = ("", 0.0, 0.0)

    def _fixed_headers(self) -> Iterator[tuple[str, str]]:
        auth = self.auth
        yield from auth.headers.items()
        for name, file in auth.header_files.items():
            yield name, _header(file, f"{AUTH}.headerFiles.{name}")
        if token := self.settings.prometheus_token_file:
            yield "Authorization", f"Bearer {_header(token, 'settings.prometheusTokenFile')}"
        if auth.basic:
            user = _secret(auth.basic.username_file, f"{AUTH}.basic.usernameFile")
            password = _secret(auth.basic.password_file, f"{AUTH}.basic.passwordFile")
            if ":" in user:
                raise _problem(f"{AUTH}.basic.usernameFile has a colon")
            yield "Authorization", _basic(user, password)

    def _renew_token(self, oauth2: OAuth2) -> None:
        loop = asyncio.new_event_loop()
        try:
            token, life_s = loop.run_until_complete(self._new_token(oauth2))
        except PrometheusError:
            if self.now() >= self._token[2]:
                raise
        else:
            now_s = self.now()
            early_s = min(EARLY_S, life_s / 2)
            self._token = (token, now_s + life_s - early_s, now_s + life_s)
        finally:
            loop.close()  # asyncio.run would wait for a name look-up that hangs

    async def _new_token(self, oauth2: OAuth2) -> tuple[str, float]:
        place = f"{AUTH}.oauth2"
        client = _secret(oauth2.client_id_file, f"{place}.clientIdFile")
        secret = _secret(oauth2.client_secret_file, f"{place}.clientSecretFile")
        form = dict(oauth2.parameters) | {"grant_type": "client_credentials"}
        if oauth2.scopes:
            form["scope"] = " ".join(oauth2.scopes)
        endpoint = f"the token endpoint {urlsplit(oauth2.token_url).netloc} of {place}"
        header = {"Authorization": _basic(quote_plus(client), quote_plus(secret))}
        in_form = {"client_id": client, "client_secret": secret}
        try:
            async with asyncio.timeout(self.limit_s), self._session() as session:
                # Endpoints know clients by one of the two, and few say by which.
                for headers, more in ((header, {}), ({}, in_form)):
                    async with session.post(
                        oauth2.token_url, data=form | more, headers=headers, allow_redirects=False
                    ) as response:
                        body = await _read(response)
                    if response.status not in {HTTPStatus.BAD_REQUEST, HTTPStatus.UNAUTHORIZED}:
                        break
        except TimeoutError as error:
            raise _problem(f"{endpoint} gave no answer within {self.limit_s:g} s") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _problem(f"{endpoint}: {type(error).__name__}") from error
        found = _object(body)
        if response.status != HTTPStatus.OK:
            code = found.get("error")
            why = f" ({code})" if code in OAUTH_ERRORS else ""
            message = f"{endpoint} answered {response.status}{why}: check the client and its scopes"
            raise _problem(message)
        token, life_s = found.get("access_token"), found.get("expires_in", UNKNOWN_LIFE_S)
        if not isinstance(token, str) or not HEADER_VALUE.fullmatch(token):
            raise _problem(f"{endpoint} answered without an access_token")
        return token, _life_s(life_s)

    def _session(self) -> aiohttp.ClientSession:
        """Return one for a token endpoint: public authorities are trusted, and that of Prometheus.

        Raises:
            OSError: the file of that cannot be read.
        """
        context = ssl.create_default_context()
        if self.settings.prometheus_ca_file:
            context.load_verify_locations(self.settings.prometheus_ca_file)
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context),
            headers={"Accept-Encoding": "identity"},
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
        )


def _problem(message: str) -> PrometheusError:
    return PrometheusError(message, reason=REASON)


def _secret(file: str, place: str) -> str:
    """Return what a file has, without white space around it."""
    try:
        with Path(file).open(encoding="utf-8") as opened:
            text = opened.read(FILE_BYTES).strip()
    except (OSError, UnicodeDecodeError) as error:
        what = error.strerror if isinstance(error, OSError) else "no text"
        raise _problem(f"{place}: {file}: {what}") from error
    if not text:
        raise _problem(f"{place}: {file} is empty")
    return text


def _header(file: str, place: str) -> str:
    text = _secret(file, place)
    if not HEADER_VALUE.fullmatch(text):
        raise _problem(f"{place}: {file} has characters that no header may have")
    return text


def _basic(user: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """Return the body of an answer.

    Raises:
        ValueError: it is too large.
    """
    body = b""
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > ANSWER_BYTES:
            raise ValueError("too large")
    return body


def _object(body: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _life_s(value: object) -> float:
    try:
        life_s = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return UNKNOWN_LIFE_S
    return life_s if isfinite(life_s) and life_s > 0 else UNKNOWN_LIFE_S
