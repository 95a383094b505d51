"""A proxy before a real API server that fails as a test says. It listens on loopback.

Whoever asks it is the user that the proxy is told to be: rights are those of that user.
"""

import http.client
import socket
import ssl
import tempfile
import threading
import time
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import yaml

from http_double import Reply, showing
from tonnage_lab.certificates import Pair

WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})
KEPT = ("Accept", "Content-Type", "User-Agent")


class Trouble(Enum):
    """What may happen beside another answer."""

    REFUSED = "the connection ends with no answer"
    CUT_AFTER = "it is done, and the connection ends with no answer"
    SILENT = "of a watch nothing comes, and the connection stays"
    ENDS = "a watch ends after a second"


SILENT_S, ENDS_S = 600, 1


@dataclass(frozen=True, kw_only=True)
class Passed:
    """One request, and what was answered: 0 for nothing."""

    method: str
    path: str
    query: dict[str, str]
    at_s: float
    status: int = 0

    @property
    def is_watch(self) -> bool:
        return "watch" in self.query

    @property
    def is_write(self) -> bool:
        is_asked = "/selfsubjectaccessreviews" in self.path
        return self.method in WRITES and "/leases" not in self.path and not is_asked


Fault = Callable[[Passed], Reply | Trouble | None]


def none(_: Passed) -> None:
    return None


@dataclass(kw_only=True)
class ApiProxy:
    """Where it listens, what passed, and what goes wrong from now on."""

    user: str
    url: str = ""
    fault: Fault = none
    passed: list[Passed] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)
    upstream: set[http.client.HTTPSConnection] = field(default_factory=set)
    context: ssl.SSLContext | None = None
    """With which it shows who it is; None: it speaks plain HTTP."""

    def certify(self, pair: Pair) -> None:
        """Show this certificate from now on, and end what is under way."""
        assert self.context is not None
        self.context.load_cert_chain(pair.certificate, pair.key)
        self.drop()

    def fail(self, fault: Fault) -> None:
        """From now on, for what is under way too: its connections end."""
        self.fault = fault
        self.drop()

    def drop(self) -> None:
        for each in list(self.upstream):
            _end(each)

    def writes(self, *, since_s: float = 0) -> list[Passed]:
        """What was asked for that changes something, Leases apart, whatever came of it."""
        return [each for each in self.passed if each.is_write and each.at_s >= since_s]

    def per_s(self, *, since_s: float) -> float:
        """Requests per second."""
        return len([p for p in self.passed if p.at_s >= since_s]) / (time.time() - since_s)


def _end(upstream: http.client.HTTPSConnection) -> None:
    if upstream.sock is not None:
        with suppress(OSError):
            upstream.sock.shutdown(socket.SHUT_RDWR)


def _tls(kubeconfig: Path) -> tuple[str, int, ssl.SSLContext]:
    told = yaml.safe_load(kubeconfig.read_text())
    cluster, user = told["clusters"][0]["cluster"], told["users"][0]["user"]
    context = ssl.create_default_context(
        cadata=b64decode(cluster["certificate-authority-data"]).decode()
    )
    with tempfile.NamedTemporaryFile() as pair:
        for name in ("client-certificate-data", "client-key-data"):
            pair.write(b64decode(user[name]) + b"\n")
        pair.flush()
        context.load_cert_chain(pair.name)
    server = urlsplit(cluster["server"])
    return str(server.hostname), int(server.port or 443), context


class _Server(ThreadingHTTPServer):
    """Listens, and knows whom to ask."""

    daemon_threads = True

    def __init__(self, proxy: ApiProxy, kubeconfig: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.proxy = proxy
        self._host, self._port, self._context = _tls(kubeconfig)

    @contextmanager
    def asking(self) -> Iterator[http.client.HTTPSConnection]:
        upstream = http.client.HTTPSConnection(self._host, self._port, context=self._context)
        self.proxy.upstream.add(upstream)
        try:
            yield upstream
        finally:
            self.proxy.upstream.discard(upstream)
            upstream.close()


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def pass_on(self) -> None:
        parts = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        asked = Passed(
            method=self.command,
            path=parts.path,
            query=dict(parse_qsl(parts.query)),
            at_s=time.time(),
        )
        self.close_connection = True
        status = self.answer(asked, body, self.server.proxy.fault(asked))
        self.server.proxy.passed.append(replace(asked, status=status))

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = pass_on  # noqa: N815 - names of the base class

    def answer(self, asked: Passed, body: bytes, trouble: Reply | Trouble | None) -> int:
        """Answer, or not; return with what status."""
        if isinstance(trouble, Reply):
            with suppress(OSError):  # nobody reads it any more
                self.say(trouble.status, trouble.headers, trouble.body)
            return trouble.status
        if trouble is Trouble.REFUSED:
            return 0
        with suppress(OSError, http.client.HTTPException), self.server.asking() as upstream:
            headers = {name: self.headers[name] for name in KEPT if name in self.headers}
            headers |= {"Impersonate-User": self.server.proxy.user}
            upstream.request(asked.method, self.path, body or None, headers)
            answer = upstream.getresponse()
            if trouble is Trouble.ENDS:
                threading.Timer(ENDS_S, _end, (upstream,)).start()
            return self.pass_back(asked, answer, trouble)
        return 0

    def pass_back(
        self, asked: Passed, answer: http.client.HTTPResponse, trouble: Trouble | None
    ) -> int:
        if trouble is Trouble.CUT_AFTER:
            answer.read()
            return 0
        if asked.is_watch and answer.status == HTTPStatus.OK:
            self.stream(answer, trouble)
        else:
            kind = {"Content-Type": answer.getheader("Content-Type", "")}
            self.say(answer.status, kind, answer.read())
        return answer.status

    def stream(self, answer: http.client.HTTPResponse, trouble: Trouble | None) -> None:
        """Hand on a watch, or nothing of it."""
        self.say(answer.status, {"Content-Type": "application/json"}, None)
        stopping = self.server.proxy.stopping
        if trouble is Trouble.SILENT:
            stopping.wait(SILENT_S)
            return
        while not stopping.is_set() and (piece := answer.read1(65536)):
            self.wfile.write(piece)
            self.wfile.flush()

    def say(self, status: int, headers: dict[str, str], body: bytes | None) -> None:
        """Send the head and the body of an answer; without one it lasts as long as we stay."""
        self.send_response(status)
        length = {} if body is None else {"Content-Length": str(len(body))}
        for name, value in (headers | length).items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """A test shows what passed itself."""


@contextmanager
def proxying(kubeconfig: Path, *, user: str, pair: Pair | None = None) -> Iterator[ApiProxy]:
    """Stand before the API server of this kubeconfig until the end of the block.

    ``pair``: the certificate that it shows; without one it speaks plain HTTP.
    """
    proxy = ApiProxy(user=user)
    server = _Server(proxy, kubeconfig)
    if pair is not None:
        proxy.context = showing(pair)
        server.socket = proxy.context.wrap_socket(server.socket, server_side=True)
    proxy.url = f"http{'s' if pair else ''}://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield proxy
    finally:
        proxy.stopping.set()
        proxy.drop()
        server.shutdown()
        server.server_close()
        thread.join()
