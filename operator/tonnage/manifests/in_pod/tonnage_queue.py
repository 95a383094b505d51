"""Lets vLLM admit the newest class of arrivals first: its priority queue takes lower numbers first.

Runs in vLLM's server, by --middleware. A request with a priority of its own keeps it: of two equal
keys the last one counts. On other paths the header says it, from vLLM 0.28 on.
"""

import os
import time
from codecs import BOM_UTF8 as BOM
from typing import Any

CLASS_S = float(os.environ["TONNAGE_QUEUE_CLASS_S"])
PATHS = (
    "/completions", "/completions/batch", "/responses", "/generate", "/invocations", "/chat",
    "/render", "/generative_scoring", "/systemone",
)  # fmt: skip
HEADER = b"x-vllm-priority"


class NewestFirst:
    """Writes the priority into the body of requests for answers, or beside it."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"].endswith(PATHS):
            receive = marked(receive)
        elif scope["type"] == "http" and not any(name == HEADER for name, _ in scope["headers"]):
            scope = {**scope, "headers": [*scope["headers"], (HEADER, b"%d" % priority())]}
        await self.app(scope, receive, send)


def priority() -> int:
    return -int(time.time() / CLASS_S)


def marked(receive: Any) -> Any:
    is_begun = False

    async def receive_marked() -> Any:
        nonlocal is_begun
        message = await receive()
        body = b"" if is_begun else message.get("body", b"").removeprefix(BOM).lstrip()
        if body:
            is_begun = True
            if body[:1] == b"{" and body[1:2] != b"\0" and body[1:].lstrip()[:1] != b"}":
                message = {**message, "body": b'{"priority":%d,' % priority() + body[1:]}
        return message

    return receive_marked
