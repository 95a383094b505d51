"""Lets vLLM admit the newest class of arrivals first: its priority queue takes lower numbers first.

Runs in vLLM's server, by --middleware. A request with a priority of its own keeps it: of two equal
keys the last one counts.
"""

import os
import time
from typing import Any

CLASS_S = float(os.environ["TONNAGE_QUEUE_CLASS_S"])
PATHS = ("/completions", "/responses")


class NewestFirst:
    """Writes the priority into the body of requests for answers."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"].endswith(PATHS):
            receive = marked(receive)
        await self.app(scope, receive, send)


def marked(receive: Any) -> Any:
    is_begun = False

    async def receive_marked() -> Any:
        nonlocal is_begun
        message = await receive()
        body = message.get("body", b"").lstrip()
        if body and not is_begun:
            is_begun = True
            if body[:1] == b"{" and body[1:].lstrip()[:1] != b"}":
                priority = -int(time.time() / CLASS_S)
                message = {**message, "body": b'{"priority":%d,' % priority + body[1:]}
        return message

    return receive_marked
