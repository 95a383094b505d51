"""The HTTP side: the OpenAI completions endpoint, health and metrics."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

import aiohttp
from aiohttp import HttpVersion11, web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from tonnage.units import MIB
from tonnage_lab.emulator import VLLM_VERSION
from tonnage_lab.emulator.arguments import Arguments
from tonnage_lab.emulator.authentication import authentication
from tonnage_lab.emulator.completions import (
    EACH_TEXT,
    CompletionRequest,
    Frames,
    ReplyError,
    answer,
    parse,
    usage,
)
from tonnage_lab.emulator.loop import EngineLoop
from tonnage_lab.emulator.metrics import MetricsPage
from tonnage_lab.emulator.step import Prompt
from tonnage_lab.emulator.transfer import ANSWER, PATH, Leases, renewed
from tonnage_lab.emulator.truth import EngineTruth

MAX_BODY_BYTES: Final = 16 * MIB


class Server:
    """One emulator. It answers 503 to everything until ``ready`` is set."""

    def __init__(
        self,
        *,
        arguments: Arguments,
        loop: EngineLoop,
        page: MetricsPage,
        max_model_len: int,
        hidden: EngineTruth,
    ) -> None:
        self.ready = False
        self.draining = False
        self._arguments = arguments
        self._loop = loop
        self._page = page
        self._max_model_len = max_model_len
        self._hidden = hidden
        self._leases = Leases(arguments.port)
        self._session: aiohttp.ClientSession

    def application(self, *, api_key: str | None = None) -> web.Application:
        """Return the routes; with a key, those that vLLM asks it for do."""
        middlewares = [self._guard, *([authentication(api_key)] if api_key else [])]
        application = web.Application(middlewares=middlewares, client_max_size=MAX_BODY_BYTES)
        application.cleanup_ctx.append(self._connected)
        application.add_routes(
            [
                web.post("/v1/completions", self._completions),
                web.get("/v1/models", self._models),
                web.get("/version", self._version),
                web.get("/health", self._health),
                web.get("/metrics", self._metrics),
                web.post(PATH, self._leases.renew),
                web.delete(PATH, self._leases.give),
            ]
        )
        return application

    async def _connected(self, _: web.Application) -> AsyncIterator[None]:
        """Have connections to the engines that keep caches."""
        async with aiohttp.ClientSession(timeout=ANSWER) as self._session:
            yield

    @web.middleware
    async def _guard(
        self,
        request: web.Request,
        handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
    ) -> web.StreamResponse:
        if not self.ready:
            return web.Response(status=503, text="the model is loading")
        try:
            return await handler(request)
        except ReplyError as error:
            return web.json_response(error.body(), status=error.status)

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(status=503 if self.draining else 200)

    async def _version(self, _: web.Request) -> web.Response:
        return web.json_response({"version": VLLM_VERSION})

    async def _models(self, _: web.Request) -> web.Response:
        models = [
            {
                "id": name,
                "object": "model",
                "owned_by": "vllm",
                "root": self._arguments.model,
                "max_model_len": self._max_model_len,
            }
            for name in self._arguments.served_model_names
        ]
        return web.json_response({"object": "list", "data": models})

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(self._page.registry),
            headers={"Content-Type": CONTENT_TYPE_LATEST},
        )

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        asked = parse(
            await self._json(request),
            models=self._arguments.served_model_names,
            max_model_len=self._max_model_len,
        )
        self._admit()
        if asked.stream:
            return await self._stream(request, asked)
        return await self._collect(asked)

    @staticmethod
    async def _json(request: web.Request) -> object:
        try:
            return await request.json()
        except json.JSONDecodeError as error:
            raise ReplyError(
                status=400, kind="BadRequestError", message=f"the body is no JSON: {error}"
            ) from error

    def _admit(self) -> None:
        if self.draining:
            raise ReplyError(
                status=503, kind="ServiceUnavailable", message="the server is shutting down"
            )
        limit = self._arguments.max_num_queued_tokens
        num_servers = self._arguments.data_parallel_size  # of vLLM: one for each rank
        if limit is not None and self._loop.queued_tokens() >= num_servers * limit:
            self._page.count_rejection("max_num_queued_tokens")
            raise ReplyError(
                status=503,
                kind="ServiceUnavailable",
                message="The engine has reached its prefill token backlog limit. "
                "Please try again later or on a different instance.",
            )

    async def _prompt(self, asked: CompletionRequest) -> Prompt:
        """Return the tokens of a prompt by where they come from, when those are there."""
        tokens, hidden = asked.prompt_tokens, self._hidden
        if await self._take(asked):
            return Prompt(tokens=tokens, taken_tokens=tokens, tier="p2p")
        if not self._arguments.enable_prefix_caching:
            return Prompt(tokens=tokens)
        local = min(int(hidden.cached_prompt_fraction * tokens), tokens - 1)
        if not self._arguments.host_cache_gib:
            return Prompt(tokens=tokens, local_tokens=local)
        taken = min(int(hidden.host_cached_prompt_fraction * tokens), tokens - 1 - local)
        if taken:
            with self._loop.deferred():
                await asyncio.sleep(self._transfer_s(taken))
        return Prompt(tokens=tokens, local_tokens=local, taken_tokens=taken, tier="host")

    async def _collect(self, asked: CompletionRequest) -> web.Response:
        is_kept = self._arguments.keeps_caches and bool(asked.transfer.get("do_remote_decode"))

        def listen(reason: str | None) -> None:
            if is_kept and reason == "length":
                self._leases.keep(asked.id, self._loop.hold(asked.prompt_tokens))

        reason = await self._generate(asked, listen)
        if reason == "abort":
            raise ReplyError(
                status=503, kind="ServiceUnavailable", message="the request was aborted"
            )
        text = EACH_TEXT * asked.max_tokens
        whole = answer(asked, text, reason, created_s=int(time.time()))
        kept = {}
        if is_kept:
            kept = {"kv_transfer_params": self._leases.parameters(asked.id, asked.prompt_tokens)}
        return web.json_response(whole | {"usage": usage(asked, asked.max_tokens)} | kept)

    async def _stream(self, request: web.Request, asked: CompletionRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        chunked = request.version >= HttpVersion11
        if chunked:
            response.enable_chunked_encoding()
        await response.prepare(request)
        frames = Frames(asked, chunked=chunked)
        transport = request.transport

        def write(reason: str | None) -> None:
            """Hand a token to the socket at once: no task is woken for it."""
            if transport is not None and not transport.is_closing():
                data = frames.token if reason is None else frames.last(reason, asked.max_tokens)
                transport.write(data)

        await self._generate(asked, write)
        await response.write_eof()
        return response

    async def _take(self, asked: CompletionRequest) -> bool:
        """Take a prompt's cache from the engine that read it.

        False: there is none to take, or it cannot be had, and is computed here.
        """
        if not (self._arguments.takes_caches and asked.transfer.get("do_remote_prefill")):
            return False
        tokens = asked.prompt_tokens
        with renewed(self._session, asked.transfer) as cache:
            async with self._loop.room(tokens):
                with self._loop.deferred():
                    return await cache.pull(takes_s=self._transfer_s(tokens))

    def _transfer_s(self, num_tokens: int) -> float:
        return self._hidden.now().transfer_s_per_token * num_tokens

    async def _generate(
        self, asked: CompletionRequest, listener: Callable[[str | None], None]
    ) -> str:
        """Wait for the last token; a client that goes away aborts its request."""
        ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        reasons: list[str] = []

        def listen(reason: str | None) -> None:
            listener(reason)
            if reason is not None:
                reasons.append(reason)
                if not ended.done():
                    ended.set_result(reason)

        await asyncio.sleep(self._hidden.server_s)
        arrived_s = asyncio.get_running_loop().time()
        prompt = await self._prompt(asked)
        number = self._loop.submit(
            prompt,
            output_tokens=asked.max_tokens,
            listener=listen,
            arrived_s=arrived_s,
        )
        try:
            return await ended
        finally:
            if not reasons:  # cut off, and it may end before this is reached
                self._loop.abort(number)
