"""The HTTP side: the OpenAI completions endpoint, health and metrics."""

import asyncio
import json
import secrets
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

import aiohttp
from aiohttp import HttpVersion11, web
from aiohttp.typedefs import Handler, Middleware
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from tonnage.units import MIB
from tonnage_lab.emulator import VLLM_VERSION
from tonnage_lab.emulator.arguments import Arguments
from tonnage_lab.emulator.loop import EngineLoop
from tonnage_lab.emulator.metrics import MetricsPage
from tonnage_lab.emulator.step import Prompt
from tonnage_lab.emulator.transfer import ANSWER, PATH, Leases, renewed
from tonnage_lab.emulator.truth import EngineTruth

VARIABLE: Final = "VLLM_API_KEY"
GUARDED: Final = "/v1"


def authentication(api_key: str) -> Middleware:
    """Return a middleware that asks for this key as a bearer token.

    Sources:
        [vllm-source] entrypoints/openai/server_utils.py AuthenticationMiddleware.
    """

    @web.middleware
    async def ask(request: web.Request, handler: Handler) -> web.StreamResponse:
        is_open = request.method == "OPTIONS" or not request.path.startswith(GUARDED)
        if is_open or _is_brought(request.headers.get("Authorization", ""), api_key):
            return await handler(request)
        return web.json_response({"error": "Unauthorized"}, status=401)

    return ask


def _is_brought(header: str, api_key: str) -> bool:
    scheme, _, token = header.partition(" ")
    is_same = secrets.compare_digest(token.encode(), api_key.encode())
    return scheme.lower() == "bearer" and is_same


DEFAULT_MAX_TOKENS: Final = 16
"""Of the completions endpoint, when the request does not say."""
EACH_TEXT: Final = " token"
REJECTIONS: Final = {
    "max_num_queued_reqs": "is currently busy and cannot accept new requests",
    "max_num_queued_tokens": "has reached its prefill token backlog limit",
}
"""What an engine says to whom it refuses, by reason."""


class ReplyError(Exception):
    """An answer that is an error, in the form that vLLM gives it."""

    def __init__(
        self, *, status: int, kind: str, message: str, parameter: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.message = message
        self.parameter = parameter

    def body(self) -> dict[str, Any]:
        """Return the JSON object."""
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.parameter,
                "code": self.status,
            }
        }


def bad_request(message: str, parameter: str | None = None) -> ReplyError:
    """Return the error for a request that is wrong in itself."""
    return ReplyError(status=400, kind="BadRequestError", message=message, parameter=parameter)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest:
    """A request that can be served."""

    id: str
    model: str
    prompt_tokens: int
    max_tokens: int
    stream: bool
    include_usage: bool
    transfer: Mapping[str, Any] = field(default_factory=dict)
    """``kv_transfer_params``: empty where nothing is handed over."""


def parse(body: object, *, models: tuple[str, ...], max_model_len: int) -> CompletionRequest:
    """Read a request's JSON.

    Raises:
        ApiError: the model is not served (404), or the request cannot be (400).
    """
    if not isinstance(body, Mapping):
        raise bad_request("the body must be a JSON object")
    model = body.get("model", models[0])
    if model not in models:
        raise ReplyError(
            status=404,
            kind="NotFoundError",
            message=f"The model `{model}` does not exist.",
            parameter="model",
        )
    if body.get("n", 1) != 1:
        raise bad_request(f"only n = 1 is served here, not {body['n']}", "n")
    prompt_tokens = num_prompt_tokens(body.get("prompt"))
    max_tokens = _max_tokens(body.get("max_tokens"))
    if prompt_tokens + max_tokens > max_model_len:
        raise bad_request(
            f"This model's maximum context length is {max_model_len} tokens, but "
            f"{prompt_tokens} prompt and {max_tokens} output tokens were requested.",
            "input_tokens" if prompt_tokens >= max_model_len else "max_tokens",
        )
    return CompletionRequest(
        id=f"cmpl-{uuid.uuid4().hex}",
        model=model,
        prompt_tokens=prompt_tokens,
        max_tokens=max_tokens,
        stream=bool(body.get("stream", False)),
        include_usage=bool((body.get("stream_options") or {}).get("include_usage", False)),
        transfer=body.get("kv_transfer_params") or {},
    )


def num_prompt_tokens(prompt: object) -> int:
    """Return the length of a prompt: of a list of token ids, or the words of a text.

    Raises:
        ApiError: it is neither, or empty.

    >>> num_prompt_tokens([1, 5, 6]), num_prompt_tokens("to be or")
    (3, 3)
    """
    if isinstance(prompt, str):
        length = len(prompt.split())
    elif isinstance(prompt, list) and all(isinstance(each, int) for each in prompt):
        length = len(prompt)
    else:
        raise bad_request("prompt must be one text or one list of token ids", "prompt")
    if not length:
        raise bad_request("the prompt is empty", "prompt")
    return length


def _max_tokens(value: object) -> int:
    if value is None:
        return DEFAULT_MAX_TOKENS
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise bad_request(f"max_tokens must be at least 1, not {value!r}", "max_tokens")
    return value


def usage(request: CompletionRequest, output_tokens: int) -> dict[str, int]:
    """Return the usage object."""
    return {
        "prompt_tokens": request.prompt_tokens,
        "total_tokens": request.prompt_tokens + output_tokens,
        "completion_tokens": output_tokens,
    }


def answer(
    request: CompletionRequest, text: str, reason: str | None, *, created_s: int
) -> dict[str, Any]:
    """Return a whole answer, or one piece of a streamed one."""
    return {
        "id": request.id,
        "object": "text_completion",
        "created": created_s,
        "model": request.model,
        "choices": [{"index": 0, "text": text, "logprobs": None, "finish_reason": reason}],
    }


class Frames:
    """The bytes of a streamed answer, made once per request: a token costs one write."""

    def __init__(self, request: CompletionRequest, *, chunked: bool) -> None:
        self._request = request
        self._chunked = chunked
        self._created_s = int(time.time())
        self.token = self._frame(self._answer(EACH_TEXT, None))

    def last(self, reason: str, output_tokens: int) -> bytes:
        """Return what ends the stream: the last token, the usage if asked for, and [DONE]."""
        frames = [self._frame(self._answer(EACH_TEXT, reason))]
        if self._request.include_usage:
            ending = self._answer("", None) | {
                "choices": [],
                "usage": usage(self._request, output_tokens),
            }
            frames.append(self._frame(ending))
        frames.append(self._encode(b"data: [DONE]\n\n"))
        return b"".join(frames)

    def _answer(self, text: str, reason: str | None) -> dict[str, Any]:
        return answer(self._request, text, reason, created_s=self._created_s)

    def _frame(self, content: Mapping[str, Any]) -> bytes:
        return self._encode(b"data: %s\n\n" % json.dumps(content, separators=(",", ":")).encode())

    def _encode(self, data: bytes) -> bytes:
        return b"%x\r\n%s\r\n" % (len(data), data) if self._chunked else data


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
        most, limit = self._arguments.max_num_queued_reqs, self._arguments.max_num_queued_tokens
        num_servers = self._arguments.data_parallel_size  # of vLLM: one for each rank
        if most is not None and self._loop.num_requests >= most:
            self._reject("max_num_queued_reqs")
        if limit is not None and self._loop.queued_tokens() >= num_servers * limit:
            self._reject("max_num_queued_tokens")

    def _reject(self, reason: str) -> NoReturn:
        self._page.count_rejection(reason)
        raise ReplyError(
            status=503,
            kind="ServiceUnavailable",
            message=f"The engine {REJECTIONS[reason]}. "
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
