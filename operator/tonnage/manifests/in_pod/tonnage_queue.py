"""Lets vLLM admit first who comes behind late requests: lower priorities go first.

Requests of one class are admitted in order. The next class begins when the last request of this one
that got a token came CLASS_S ago: who waits is late by now. Runs in each of vLLM's servers, by
--middleware; those of a pod share a file. A request with a priority of its own keeps it: of two
equal keys the last one counts. On other paths the header says it, from vLLM 0.28 on.
"""

import mmap
import os
import time
from codecs import BOM_UTF8 as BOM
from pathlib import Path
from typing import Any

CLASS_S = float(os.environ["TONNAGE_QUEUE_CLASS_S"])
PATHS = (
    "/completions", "/completions/batch", "/responses", "/generate", "/invocations", "/chat",
    "/render", "/generative_scoring", "/systemone",
)  # fmt: skip
HEADER = b"x-vllm-priority"
STREAM = (b"content-type", b"text/event-stream")
OK, FAILED = 200, b'data: {"error"'
NEWEST, SERVED_S = range(2)
"""Of the line: its newest class, and when the last of it that got a token came."""


def shared_line(file: Path) -> Any:
    """Return two numbers that all servers of a pod see."""
    with file.open("a+b") as opened:
        opened.truncate(16)
        return memoryview(mmap.mmap(opened.fileno(), 16)).cast("d")


LINE = shared_line(Path(__file__).with_suffix(".line"))


class NewestFirst:
    """Writes the priority into the body of requests for answers, or beside it."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"].endswith(PATHS):
            mine = Place()
            receive, send = marked(receive, mine), watched(send, mine, scope["path"])
        elif scope.get("method") == "POST" and all(name != HEADER for name, _ in scope["headers"]):
            scope = {**scope, "headers": [*scope["headers"], (HEADER, b"%d" % Place().take())]}
        await self.app(scope, receive, send)


class Place:
    """Where a request is in the line: its class, and when it came. The clock is the node's."""

    number, came_s = -1.0, 0.0

    def take(self) -> int:
        """Return the priority of a request that comes now."""
        self.came_s = time.monotonic()
        if self.came_s - LINE[SERVED_S] > CLASS_S:
            LINE[NEWEST], LINE[SERVED_S] = LINE[NEWEST] + 1, self.came_s
        self.number = LINE[NEWEST]
        return -int(self.number)

    def serve(self) -> None:
        """Note that a request has its first token."""
        if self.number == LINE[NEWEST]:
            LINE[SERVED_S] = max(LINE[SERVED_S], self.came_s)


def marked(receive: Any, mine: Place) -> Any:
    is_begun = False

    async def receive_marked() -> Any:
        nonlocal is_begun
        message = await receive()
        body = b"" if is_begun else message.get("body", b"").removeprefix(BOM).lstrip()
        if body:
            is_begun, number = True, mine.take()
            if b'"priority"' in body:
                mine.number = -1.0  # it is not served in its place
            if body[:1] == b"{" and body[1:2] != b"\0" and body[1:].lstrip()[:1] != b"}":
                message = {**message, "body": b'{"priority":%d,' % number + body[1:]}
        return message

    return receive_marked


def watched(send: Any, mine: Place, path: str) -> Any:
    """Return what sends an answer on, and notes its first token: that of a stream, or its end."""
    is_waiting = False

    async def send_watched(message: Any) -> None:
        nonlocal is_waiting
        if message["type"] == "http.response.start" and message["status"] == OK:
            is_waiting = any(
                name.lower() == STREAM[0] and value.startswith(STREAM[1])
                for name, value in message.get("headers", ())
            )
            if not is_waiting:
                mine.serve()
            is_waiting = is_waiting and path.endswith("/completions")
        elif is_waiting and message.get("body", b"").startswith(b"data:"):
            is_waiting = False
            if not message["body"].startswith(FAILED):
                mine.serve()
        await send(message)

    return send_watched
