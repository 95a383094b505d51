"""What Kopf and our own watches read of the API server: no object in it is larger than one may be.

Both read through one session, whose answers are of this class. Kopf parses a whole page, and each
line of a watch, so their bytes are counted, and objects reduced, before it sees them.
"""

import logging
from collections.abc import AsyncIterator
from typing import Any, cast

import aiohttp
from aiohttp.connector import Connection

from tonnage.cluster.calls import MESSAGE_LENGTH
from tonnage.cluster.pages import MOST_OBJECT_BYTES, Lines, ListPage, reduce_event
from tonnage.fleet.logs import Line

LOG = logging.getLogger("tonnage.bounded")


class BoundedLines:
    """The body of a watch, in the place of aiohttp's reader: what else that can do, nobody uses."""

    def __init__(self, content: aiohttp.StreamReader) -> None:
        self._content = content
        self.exception, self.set_exception = content.exception, content.set_exception

    async def iter_chunked(self, n: int) -> AsyncIterator[bytes]:
        """Yield one line at a time. ``n``: bytes that are read at once, at most."""
        lines = Lines()
        async for piece in self._content.iter_chunked(n):
            for line, num_bytes in lines.take(piece):
                try:
                    yield reduce_event(line) + b"\n"
                except (ValueError, RecursionError) as error:  # of one object: the others go on
                    message = f"{num_bytes} bytes: {error}"[:MESSAGE_LENGTH]
                    LOG.warning(Line("an event cannot be read", message=message))


class BoundedResponse(aiohttp.ClientResponse):
    """An answer of which each object is reduced where it is too large."""

    async def start(self, connection: Connection) -> aiohttp.ClientResponse:
        await super().start(connection)
        if "watch" in self.url.query and self.ok:
            self.content = cast(aiohttp.StreamReader, BoundedLines(self.content))
        return self

    async def json(self, **decoding: Any) -> Any:
        """Return what is served, a list without anything large in it."""
        data = await self.read()
        if len(data) <= MOST_OBJECT_BYTES:
            return await super().json(**decoding)
        page = ListPage(data)
        return {"items": list(page.items()), **page.head, "metadata": page.metadata}
