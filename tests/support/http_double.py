"""An HTTP server on the loopback interface that answers as a test says."""

import json
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tonnage_lab.certificates import Certificates, Pair, issue


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One request as it came."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Message
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def form(self) -> Mapping[str, str]:
        return dict(parse_qsl(self.body.decode()))


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What is sent back."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    pieces: Iterable[bytes] = ()
    """Sent one by one after the body, whose length is then not told."""


def json_reply(value: object, status: int = 200, **headers: str) -> Reply:
    return Reply(status=status, body=json.dumps(value).encode(), headers=headers)


@dataclass(kw_only=True)
class Server:
    """Where it listens, what it was asked, and an event that is set when it stops."""

    url: str
    asked: list[Asked] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)


@contextmanager
def serving(
    answer: Callable[[Asked], Reply],
    *,
    tls: ssl.SSLContext | None = None,
) -> Iterator[Server]:
    """Serve until the end of the block; requests that still hang are let go then.

    A connection takes one request after the other, as those of Prometheus and Kubernetes do.
    """
    server = Server(url="")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def handle(self) -> None:
            with suppress(ConnectionError):  # the client has read enough
                super().handle()

        def answer(self) -> None:
            parts = urlsplit(self.path)
            size = int(self.headers.get("Content-Length") or 0)
            asked = Asked(
                method=self.command,
                path=parts.path,
                query=dict(parse_qsl(parts.query)),
                headers=self.headers,
                body=self.rfile.read(size),
            )
            server.asked.append(asked)
            reply = answer(asked)
            if "Date" in reply.headers:
                self.send_response_only(reply.status)
            else:
                self.send_response(reply.status)
            length = {} if reply.pieces else {"Content-Length": len(reply.body)}
            told = length | reply.headers
            self.close_connection |= told.get("Content-Length") != length.get("Content-Length", -1)
            for name, value in told.items():
                self.send_header(name, str(value))
            self.end_headers()
            for piece in chain([reply.body], reply.pieces):
                self.wfile.write(piece)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer  # noqa: N815 - names of the base class

        def log_message(self, *_: Any) -> None:
            """A test shows what it was asked itself."""

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.url = f"http://127.0.0.1:{http.server_port}"
    if tls:
        http.socket = tls.wrap_socket(http.socket, server_side=True)
        server.url = server.url.replace("http:", "https:")
    thread = threading.Thread(target=http.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.stopping.set()
        http.shutdown()
        http.server_close()
        thread.join()


def new_certificates(folder: Path) -> Certificates:
    return issue(folder, now=datetime.fromtimestamp(time.time(), UTC))


def showing(pair: Pair) -> ssl.SSLContext:
    """The side of a server that shows this certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    return context


def answering(*replies: Reply) -> Callable[[Asked], Reply]:
    """Give these replies one after the other, the last one from then on."""
    left = list(replies)

    def answer(_: Asked) -> Reply:
        return left.pop(0) if len(left) > 1 else left[0]

    return answer


def a_kubeconfig(url: str, **trust: str) -> str:
    """The text of a kubeconfig by which a client finds a server that plays the API server."""
    return json.dumps(
        {
            "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": url, **trust}}],
            "users": [{"name": "u", "user": {"token": "secret"}}],
        }
    )
