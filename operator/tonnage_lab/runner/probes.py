"""Probes: what they ask, and when so many answers in a row make a verdict."""

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp

from tonnage_lab.runner.environment import NotStartableError

Json = Mapping[str, Any]
Check = Callable[[], Awaitable[bool]]

_BAD_STATUS: Final = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpGet:
    """Success is a status from 200 to 399."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpSocket:
    """Success is a connection."""

    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Exec:
    """Success is an exit with 0, inside the container."""

    command: Sequence[str]


Target = HttpGet | TcpSocket | Exec


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One probe with Kubernetes' defaults filled in."""

    target: Target
    initial_delay_s: float
    period_s: float
    timeout_s: float
    success_threshold: int
    failure_threshold: int


def parse(probe: Json, container: Json, *, host: str, period_scale: float) -> Probe:
    """Read a probe of a pod spec.

    Raises:
        NotStartableError: it asks in a way that is not known here, or names an unknown port.
    """
    return Probe(
        target=parse_target(probe, container, host=host),
        initial_delay_s=probe.get("initialDelaySeconds", 0) * period_scale,
        period_s=probe.get("periodSeconds", 10) * period_scale,
        timeout_s=probe.get("timeoutSeconds", 1),
        success_threshold=probe.get("successThreshold", 1),
        failure_threshold=probe.get("failureThreshold", 3),
    )


def parse_target(handler: Json, container: Json, *, host: str) -> Target:
    """Read what a probe or a lifecycle hook asks.

    Raises:
        NotStartableError: it asks in a way that is not known here, or names an unknown port.
    """
    if get := handler.get("httpGet"):
        at = f"{get.get('host') or host}:{port_number(get['port'], container)}"
        return HttpGet(
            url=f"{get.get('scheme', 'HTTP').lower()}://{at}/{get.get('path', '/').lstrip('/')}",
            headers={each["name"]: each["value"] for each in get.get("httpHeaders") or []},
        )
    if tcp := handler.get("tcpSocket"):
        return TcpSocket(host=tcp.get("host") or host, port=port_number(tcp["port"], container))
    if "exec" in handler:
        return Exec(command=tuple(handler["exec"]["command"]))
    raise NotStartableError(
        "CreateContainerConfigError", f"a probe by {sorted(handler)} is not known here"
    )


def port_number(port: int | str, container: Json) -> int:
    """Return a port by number or by its name in the container.

    Raises:
        NotStartableError: the container has no port of that name.
    """
    if isinstance(port, int):
        return port
    for each in container.get("ports") or []:
        if each.get("name") == port:
            return int(each["containerPort"])
    raise NotStartableError(
        "CreateContainerConfigError", f"container {container['name']} has no port named {port}"
    )


@dataclass(slots=True, kw_only=True)
class ProbeTally:
    """Counts answers in a row; a verdict changes only when its threshold is reached."""

    probe: Probe
    verdict: bool | None = None
    _last: bool | None = None
    _in_a_row: int = 0

    def note(self, success: bool) -> bool | None:
        """Return the verdict after one more answer; None while there is none."""
        self._in_a_row = self._in_a_row + 1 if success == self._last else 1
        self._last = success
        threshold = self.probe.success_threshold if success else self.probe.failure_threshold
        if self._in_a_row >= threshold:
            self.verdict = success
        return self.verdict


async def follow(probe: Probe, check: Check, on_verdict: Callable[[bool], None]) -> None:
    """Ask for ever and report each verdict that is new."""
    tally = ProbeTally(probe=probe)
    reported: bool | None = None
    await asyncio.sleep(probe.initial_delay_s)
    while True:
        verdict = tally.note(await check())
        if verdict is not None and verdict != reported:
            reported = verdict
            on_verdict(verdict)
        await asyncio.sleep(probe.period_s)


async def first_verdict(probe: Probe, check: Check) -> bool:
    """Ask until there is a verdict, as a startup probe does."""
    tally = ProbeTally(probe=probe)
    await asyncio.sleep(probe.initial_delay_s)
    while True:
        verdict = tally.note(await check())
        if verdict is not None:
            return verdict
        await asyncio.sleep(probe.period_s)


async def ask_http(
    session: aiohttp.ClientSession, target: HttpGet, *, timeout_s: float | None
) -> bool:
    """Ask once over HTTP; certificates are not checked, as by a kubelet."""
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    tls: ssl.SSLContext | bool = not target.url.startswith("https")
    try:
        async with session.get(
            target.url,
            headers={"User-Agent": "kube-probe", "Connection": "close", **target.headers},
            timeout=timeout,
            ssl=tls,
            allow_redirects=False,
        ) as response:
            return response.status < _BAD_STATUS
    except (aiohttp.ClientError, TimeoutError, OSError):
        return False


async def ask_tcp(target: TcpSocket, *, timeout_s: float | None) -> bool:
    """Ask once whether the port takes connections."""
    try:
        async with asyncio.timeout(timeout_s):
            _, writer = await asyncio.open_connection(target.host, target.port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True
