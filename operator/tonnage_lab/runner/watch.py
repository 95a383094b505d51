"""Follow a collection for ever: list it, watch it, and list it again when the watch is lost."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp

from tonnage_lab.runner.api import Api, ApiError

logger = logging.getLogger(__name__)

Json = dict[str, Any]
PAUSE_S: Final = 0.05
"""Before a stream that the server ended is opened again, lest one that it ends at once spin."""
_GONE: Final = 410


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchHandlers:
    """What to call, in the order in which things happened."""

    on_list: Callable[[list[Json]], None]
    """With everything there is: whatever was known and is not in it has gone."""
    on_event: Callable[[str, Json], None]
    """With ADDED, MODIFIED or DELETED and the object."""


@dataclass(slots=True, kw_only=True)
class Watch:
    """One collection, possibly narrowed by selectors."""

    api: Api
    path: str
    parameters: dict[str, str] = field(default_factory=dict)
    retry_s: float = 1.0

    async def follow(self, follower: WatchHandlers) -> None:
        """Never returns; an unreachable server is asked again."""
        version: str | None = None
        while True:
            try:
                if version is None:
                    items, version = await self.api.list(self.path, **self.parameters)
                    follower.on_list(items)
                version = await self._events(version, follower)
            except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
                logger.info("watch of %s broke: %s", self.path, error)
                await asyncio.sleep(self.retry_s)
            except ApiError as error:
                logger.info("watch of %s: %s", self.path, error)
                version = None
                await asyncio.sleep(0 if error.status == _GONE else self.retry_s)

    async def _events(self, version: str, follower: WatchHandlers) -> str:
        """Pass events on until the stream ends; return the version to go on from."""
        try:
            async for event in self.api.watch(
                self.path, **self.parameters, resourceVersion=version
            ):
                found = event["object"]
                if event["type"] == "ERROR":
                    raise ApiError(found.get("code", _GONE), found.get("message", ""))
                version = found["metadata"]["resourceVersion"]
                if event["type"] != "BOOKMARK":
                    follower.on_event(event["type"], found)
        except (aiohttp.ClientError, TimeoutError) as error:
            logger.info("watch of %s broke: %s", self.path, error)
            await asyncio.sleep(self.retry_s)
        await asyncio.sleep(PAUSE_S)
        return version
