"""What Kopf and our own watches read of the API server: no object in it is larger than one may be.

Both read through sessions whose answers are of this class. Kopf parses a whole page, and each line
of a watch, and has many objects in memory for a moment. So bytes are counted, and objects reduced,
before it sees them; of a ModelDeployment it sees what a decision can depend on.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any, ClassVar, cast

import aiohttp
import msgspec
from aiohttp.connector import Connection

from tonnage.cluster.calls import MESSAGE_LENGTH
from tonnage.cluster.kube import MODEL_DEPLOYMENTS
from tonnage.cluster.pages import (
    MOST_OBJECT_BYTES,
    Lines,
    Metadata,
    Object,
    Reduce,
    read_object,
    read_page,
    reduce_event,
    reduce_object,
)
from tonnage.fleet.logs import Line
from tonnage.manifests.names import APPROVE_ANNOTATION, DIGEST_ANNOTATION

LOG = logging.getLogger("tonnage.bounded")


class _Annotations(msgspec.Struct, omit_defaults=True):
    approve: str | None = msgspec.field(name=APPROVE_ANNOTATION, default=None)
    digest: str | None = msgspec.field(name=DIGEST_ANNOTATION, default=None)


class _Metadata(Metadata, omit_defaults=True, rename="camel"):
    """Without managers, finalizers and labels, which nobody reads and anybody fills."""

    annotations: _Annotations | None = None


class _Model(msgspec.Struct, omit_defaults=True, rename="camel"):
    """What is read of a ModelDeployment."""

    metadata: _Metadata
    api_version: str | None = None
    kind: str | None = None
    spec: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    status: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


def slim_model(text: bytes) -> bytes:
    """Return the JSON of a ModelDeployment without what nobody reads.

    Raises:
        ValueError: it is no ModelDeployment.
    """
    if len(text) > MOST_OBJECT_BYTES:
        return reduce_object(text)
    return msgspec.json.encode(msgspec.json.decode(text, type=_Model))


class BoundedLines:
    """The body of a watch, in the place of aiohttp's reader: what else that can do, nobody uses."""

    def __init__(self, content: aiohttp.StreamReader, reduce: Reduce) -> None:
        self._content, self._reduce = content, reduce
        self.exception, self.set_exception = content.exception, content.set_exception

    async def iter_chunked(self, n: int) -> AsyncIterator[bytes]:
        """Yield one line at a time. ``n``: bytes that are read at once, at most."""
        lines = Lines()
        async for piece in self._content.iter_chunked(n):
            for line, num_bytes in lines.take(piece):
                try:
                    yield reduce_event(line, self._reduce) + b"\n"
                except (ValueError, RecursionError) as error:  # of one object: the others go on
                    _tell_unread(num_bytes, error)


class BoundedResponse(aiohttp.ClientResponse):
    """An answer of which each object is reduced where it is too large."""

    reading: ClassVar[asyncio.Semaphore]
    """Lets one list be read at a time: those of many namespaces would be in memory at once."""

    async def start(self, connection: Connection) -> aiohttp.ClientResponse:
        await super().start(connection)
        if "watch" in self.url.query and self.ok:
            reduce = slim_model if self._is_of_models else reduce_object
            self.content = cast(aiohttp.StreamReader, BoundedLines(self.content, reduce))
        return self

    @property
    def _is_of_models(self) -> bool:
        return self.url.path.endswith(f"/{MODEL_DEPLOYMENTS.plural}")

    async def json(self, **decoding: Any) -> Any:
        """Return what is served, a list of ModelDeployments without what nobody reads."""
        if not self._is_of_models or not self.ok:
            return await super().json(**decoding)
        async with self.reading:
            page = read_page(await self.read())
            items = [each for raw in page.items or () if (each := _read_model(raw)) is not None]
            page.items = []
            return json.loads(msgspec.json.encode(page)) | {"items": items}


def _read_model(text: msgspec.Raw) -> Object | None:
    try:
        return read_object(text, slim_model)
    except (ValueError, RecursionError) as error:
        _tell_unread(len(bytes(text)), error)
        return None


def _tell_unread(num_bytes: int, error: Exception) -> None:
    message = f"{num_bytes} bytes: {error}"[:MESSAGE_LENGTH]
    LOG.warning(Line("an object cannot be read", message=message))


def bounded_responses() -> type[BoundedResponse]:
    """Return the class for the answers of one session, in one event loop."""
    return type("Answer", (BoundedResponse,), {"reading": asyncio.Semaphore(1)})
