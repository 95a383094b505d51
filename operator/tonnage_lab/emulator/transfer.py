"""KV caches of prompts that one emulator hands over to another: kept for a while, and pulled once.

As with vLLM's NixlConnector the answer of the engine that read a prompt says where its cache is,
and a proxy gives that to the engine which makes the answer. That one renews the lease from when
the request comes, pulls when its own cache has room, and says when it has all. Here the HTTP port
is asked, and a transfer is a wait, as long as the hidden constants say.

Sources:
    [vllm-source] docs/design/nixl_kv_cache_lease.md.

The processes of a replica over several nodes, which find each other as vLLM's do.

The first one waits at its port for the others, and serves when all have come. Like vLLM's, whose
``MultiprocExecutor`` watches the processes of its own node only, it does not end when another does:
its steps stop, and whoever waits for an answer waits on.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import aiohttp
from aiohttp import web

from tonnage_lab.emulator.arguments import Arguments

logger = logging.getLogger(__name__)

RETRY_S: Final = 0.1


class Group:
    """What the first process knows of the others. Needs a running event loop."""

    def __init__(self, arguments: Arguments, *, on_loss: Callable[[], None]) -> None:
        self._arguments = arguments
        self._on_loss = on_loss
        self._missing = set(range(1, arguments.num_nodes))
        self._is_whole = asyncio.Event()

    async def gather(self) -> None:
        """Wait until every other process has come."""
        if self._missing:
            await asyncio.start_server(self._welcome, port=self._arguments.master_port)
            await self._is_whole.wait()

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        rank = int(await reader.readline())
        logger.info("node %d of %d has joined", rank, self._arguments.num_nodes)
        self._missing.discard(rank)
        if not self._missing:
            self._is_whole.set()
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await reader.read()  # nothing more comes until it ends
        logger.info("node %d has gone: no step ends any more", rank)
        self._on_loss()
        writer.close()


async def join(arguments: Arguments) -> asyncio.StreamWriter:
    """Find the first process by its address, however long that takes."""
    while True:
        try:
            _, writer = await asyncio.open_connection(
                arguments.master_address, arguments.master_port
            )
        except OSError as error:
            logger.info("%s is not there yet: %s", arguments.master_address, error)
            await asyncio.sleep(RETRY_S)
            continue
        writer.write(f"{arguments.node_rank}\n".encode())
        await writer.drain()
        logger.info("joined %s as node %d", arguments.master_address, arguments.node_rank)
        return writer


LEASE_S: Final = 30.0
"""For which a cache is kept: ``kv_lease_duration`` of vLLM since 0.22."""
RENEWAL_S: Final = LEASE_S / 6
HOST_VARIABLE: Final = "VLLM_NIXL_SIDE_CHANNEL_HOST"
PATH: Final = "/kv/{id}"
ANSWER: Final = aiohttp.ClientTimeout(total=5)
"""In which the other engine must answer."""


class Leases:
    """The caches that this engine keeps until somebody has pulled them."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._kept: dict[str, tuple[Callable[[], None], asyncio.TimerHandle]] = {}

    def keep(self, request_id: str, let_go: Callable[[], None]) -> None:
        """Keep the cache of a request that ended; ``let_go`` frees its blocks."""
        self._kept[request_id] = let_go, self._timer(request_id)

    def parameters(self, request_id: str, prompt_tokens: int) -> dict[str, Any]:
        """Return what the proxy passes on."""
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_request_id": request_id,
            "remote_num_tokens": prompt_tokens,
            "remote_host": os.environ.get(HOST_VARIABLE, "localhost"),
            "remote_port": self._port,
        }

    async def renew(self, request: web.Request) -> web.Response:
        """Keep a cache for longer: 404 where it is unknown, was pulled, or its lease is over."""
        request_id = request.match_info["id"]
        if request_id not in self._kept:
            return web.Response(status=404)
        let_go, timer = self._kept[request_id]
        timer.cancel()
        self._kept[request_id] = let_go, self._timer(request_id)
        return web.Response(status=204)

    async def give(self, request: web.Request) -> web.Response:
        """Let go of a cache that was pulled: 404 as above."""
        is_there = self._end(request.match_info["id"])
        return web.Response(status=204 if is_there else 404)

    def _timer(self, request_id: str) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(LEASE_S, self._end, request_id)

    def _end(self, request_id: str) -> bool:
        if request_id not in self._kept:
            return False
        let_go, timer = self._kept.pop(request_id)
        timer.cancel()
        let_go()
        return True


class RemoteCache:
    """The cache of a prompt that another engine keeps."""

    def __init__(self, session: aiohttp.ClientSession, parameters: Mapping[str, Any]) -> None:
        self._session, self._parameters = session, parameters

    async def renew(self) -> bool:
        """Ask for it to be kept for longer; False: it cannot be had."""
        return await self._ask("POST")

    async def pull(self, *, takes_s: float) -> bool:
        """Move it; False: it cannot be had."""
        if not await self.renew():
            return False
        await asyncio.sleep(takes_s)
        return await self._ask("DELETE")

    async def _ask(self, method: str) -> bool:
        try:
            place = PATH.format(id=self._parameters["remote_request_id"])
            url = (
                f"http://{self._parameters['remote_host']}:{self._parameters['remote_port']}{place}"
            )
            async with self._session.request(method, url) as reply:
                return reply.status == web.HTTPNoContent.status_code
        except (aiohttp.ClientError, TimeoutError, KeyError):
            return False


@contextmanager
def renewed(session: aiohttp.ClientSession, parameters: Mapping[str, Any]) -> Iterator[RemoteCache]:
    """Yield a cache whose lease is renewed until the block ends."""
    cache = RemoteCache(session, parameters)
    renewing = asyncio.create_task(_renew(cache))
    try:
        yield cache
    finally:
        renewing.cancel()


async def _renew(cache: RemoteCache) -> None:
    while True:
        await asyncio.sleep(RENEWAL_S)
        await cache.renew()
