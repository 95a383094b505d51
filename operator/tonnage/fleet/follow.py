"""Watches of what is kept small: Deployments, ReplicaSets, pods and autoscalers.

A watch that begins without a version is first told of all that is there, which makes a list of its
own unnecessary; those versions come in no order, so none is gone on from before the API server has
sent a bookmark. What vanished before it began is found by the lists of the loop, which are read
then. What is large is reduced before it comes here (``bounded``).
"""

import asyncio
import json
import logging
import random
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus

import aiohttp
import kopf
from yarl import URL

from tonnage.cluster.calls import MESSAGE_LENGTH, PIECE_BYTES, KubernetesError
from tonnage.cluster.kube import Resource
from tonnage.cluster.pages import Object
from tonnage.control.input.times import backoff_s
from tonnage.fleet.logs import Line
from tonnage.fleet.store import Kind, Store

LOG = logging.getLogger("tonnage.follow")
TIMEOUT = aiohttp.ClientTimeout(total=600, sock_connect=10, sock_read=70)
"""The API server sends a bookmark each minute: what is silent for longer is asked anew."""
SERVER_TIMEOUT_S = 540
RETRY_S = 1.0
"""Before a watch that ended is asked for again; twice as long after each that failed."""
LONGEST_RETRY_S = 30.0
FAILURES_OF_A_VERSION = 3
"""After which the version that a watch goes on from may be the cause."""
HEADERS = {"Accept": "application/json", "Accept-Encoding": "identity"}
CHANGES = frozenset({"ADDED", "MODIFIED", "DELETED"})


class _EndedError(Exception):
    """The watch ended with an error; it is begun again without a version."""


@dataclass(slots=True, kw_only=True)
class Follower:
    """One kind, in one namespace or in all of them."""

    store: Store
    kind: Kind
    resource: Resource
    namespace: str | None
    selector: str
    _version: str | None = None
    _failures: int = 0

    async def follow(self, given: kopf.AiohttpSession) -> None:
        """Watch for ever.

        Raises:
            KubernetesError: we may not.
        """
        while True:
            try:
                await self._watch(given)
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                self._note_failure(error)
            except _EndedError as error:
                self._lose_version()
                self._note_failure(error)
            await asyncio.sleep(self._pause_s())

    def _note_failure(self, error: Exception) -> None:
        self._failures += 1
        if self._failures >= FAILURES_OF_A_VERSION:
            self._lose_version()
        LOG.debug(Line("watch ended", kind=self.kind, message=f"{type(error).__name__}: {error}"))

    def _lose_version(self) -> None:
        self._version = None
        self.store.has_gap.set()

    def _pause_s(self) -> float:
        longest_s = backoff_s(self._failures + 1, first_s=RETRY_S, longest_s=LONGEST_RETRY_S)
        return random.uniform(RETRY_S, longest_s)  # noqa: S311 - no secret

    async def _watch(self, given: kopf.AiohttpSession) -> None:
        url = URL(f"{given.server.rstrip('/')}{self.resource.path(self.namespace)}", encoded=True)
        asked = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(SERVER_TIMEOUT_S),
            "labelSelector": self.selector,
            "resourceVersion": self._version or "",
        }
        url = url.with_query({name: value for name, value in asked.items() if value})
        async with given.aiohttp_session.get(url, headers=HEADERS, timeout=TIMEOUT) as answer:
            self._check(answer)
            async for line in answer.content.iter_chunked(PIECE_BYTES):
                self._take_line(line)

    def _check(self, answer: aiohttp.ClientResponse) -> None:
        if answer.status == HTTPStatus.FORBIDDEN:
            where = f" in {self.namespace}" if self.namespace else ""
            message = f"no right to watch {self.resource.plural}{where}"
            raise KubernetesError(message, status=answer.status)
        if answer.status == HTTPStatus.GONE:
            raise _EndedError("the version is too old")
        answer.raise_for_status()

    def _take_line(self, line: bytes) -> None:
        try:
            record = json.loads(line)
            event, body = str(record["type"]), {**record["object"]}
        except (LookupError, TypeError, ValueError, RecursionError) as error:
            # of one object: the others go on
            message = f"{type(error).__name__}: {error}"[:MESSAGE_LENGTH]
            LOG.warning(Line("an event cannot be read", kind=self.kind, message=message))
        else:
            self._take(event, body)
            self._failures = 0

    def _take(self, event: str, body: Object) -> None:
        if event in CHANGES:
            self.store.note(self.kind, event, body)
        elif event != "BOOKMARK":
            raise _EndedError(f"{event} {body.get('message')}"[:MESSAGE_LENGTH])
        if event == "BOOKMARK" or self._version is not None:
            self._version = (body.get("metadata") or {}).get("resourceVersion", self._version)


async def end_all(tasks: set[asyncio.Task[None]]) -> None:
    """Cancel them; raise what one of them ended with."""
    for each in tasks:
        each.cancel()
    for each in tasks:
        with suppress(asyncio.CancelledError):
            await each
