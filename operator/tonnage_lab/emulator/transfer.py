"""KV caches of prompts that one emulator hands over to another: kept for a while, and pulled once.

As with vLLM's NixlConnector the answer of the engine that read a prompt says where its cache is,
and a proxy gives that to the engine which makes the answer. Here the HTTP port is asked, and a
transfer is a wait, as long as the hidden constants say. Blocks that wait to be pulled take no room
in the emulated cache.
"""

import asyncio
import os
import time
from collections.abc import Mapping
from typing import Any, Final

import aiohttp
from aiohttp import web

LEASE_S: Final = 30.0
"""For which a cache is kept: ``kv_lease_duration`` of vLLM since 0.22."""
HOST_VARIABLE: Final = "VLLM_NIXL_SIDE_CHANNEL_HOST"
PATH: Final = "/kv/{id}"
ANSWER_S: Final = 5.0
"""In which the other engine must answer."""


class Leases:
    """The caches that this engine keeps until somebody pulls them."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._until_s: dict[str, float] = {}

    def keep(self, request_id: str, prompt_tokens: int) -> dict[str, Any]:
        """Keep the cache of a request that ended, and return what the proxy passes on."""
        now_s = time.monotonic()
        self._until_s = {key: end_s for key, end_s in self._until_s.items() if end_s > now_s}
        self._until_s[request_id] = now_s + LEASE_S
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_request_id": request_id,
            "remote_num_tokens": prompt_tokens,
            "remote_host": os.environ.get(HOST_VARIABLE, "localhost"),
            "remote_port": self._port,
        }

    async def give(self, request: web.Request) -> web.Response:
        """Let go of a cache: 404 where it is unknown, was pulled before, or its lease is over."""
        end_s = self._until_s.pop(request.match_info["id"], 0.0)
        return web.Response(status=204 if end_s > time.monotonic() else 404)


async def pull(parameters: Mapping[str, Any], *, takes_s: float) -> bool:
    """Move a cache from the engine that keeps it; False: it cannot be had."""
    timeout = aiohttp.ClientTimeout(total=ANSWER_S)
    try:
        place = PATH.format(id=parameters["remote_request_id"])
        url = f"http://{parameters['remote_host']}:{parameters['remote_port']}{place}"
        async with aiohttp.ClientSession(timeout=timeout) as session, session.delete(url) as reply:
            is_there = reply.status == web.HTTPNoContent.status_code
    except (aiohttp.ClientError, TimeoutError, KeyError):
        return False
    await asyncio.sleep(takes_s if is_there else 0.0)
    return is_there
