"""The processes of a replica over several nodes, which find each other as vLLM's do.

The first one waits at its port for the others, and serves when all have come. Like vLLM's, whose
``MultiprocExecutor`` watches the processes of its own node only, it does not end when another does:
its steps stop, and whoever waits for an answer waits on.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

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
