"""One request: drawn, sent, streamed, timed."""

import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

import aiohttp

from tonnage_lab.load_endpoints import Endpoints, PodChoice, PodEndpoint
from tonnage_lab.load_records import RequestRecord

_NO_ANSWER: Final = (aiohttp.ClientConnectorError, aiohttp.ServerDisconnectedError)
"""Nothing of the request was served: another endpoint may take it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthDistribution:
    """A distribution of token counts, always at least one."""

    mean_tokens: float
    exponential: bool = False
    """Else every request has the mean."""
    maximum_tokens: int | None = None

    def draw(self, generator: random.Random) -> int:
        value = self.mean_tokens
        if self.exponential:
            value = generator.expovariate(1 / self.mean_tokens)
        if self.maximum_tokens is not None:
            value = min(value, self.maximum_tokens)
        return max(1, round(value))


WORDS: Final = range(100, 32_000)
"""Token ids that prompts are drawn from: most vocabularies begin with special ones, and few are
smaller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestShape:
    """What all requests of a load have in common."""

    model: str
    prompt: LengthDistribution
    output: LengthDistribution
    words: range = WORDS
    """Every prompt is drawn anew: one that an engine has seen costs it nothing."""
    routing: PodChoice = PodChoice.RANDOM
    timeout_s: float = 600.0
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draft:
    due_s: float
    prompt: Sequence[int]
    output_tokens: int

    @property
    def prompt_tokens(self) -> int:
        return len(self.prompt)

    def body(self, model: str) -> bytes:
        prompt = ",".join(map(str, self.prompt))
        rest = {
            "model": model,
            "max_tokens": self.output_tokens,
            "ignore_eos": True,
            "stream": True,
        }
        return f'{{"prompt":[{prompt}],{json.dumps(rest)[1:]}'.encode()

    def failure(self, error: str, *, status: int | None = None, pod: str = "") -> RequestRecord:
        return RequestRecord(
            start_s=self.due_s,
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            status=status,
            pod=pod,
            error=error,
        )


class Client:
    """Sends requests of one shape to the endpoints of one Service."""

    def __init__(
        self, session: aiohttp.ClientSession, endpoints: Endpoints, shape: RequestShape
    ) -> None:
        self._session = session
        self._endpoints = endpoints
        self._shape = shape
        self._generator = random.Random(shape.seed)  # noqa: S311 -- a load has no secrets
        self._words = random.Random()  # noqa: S311 -- another run must not repeat the prompts

    async def send(self, due_s: float) -> RequestRecord:
        """Send a request that was due at this time; one that nobody took is tried once more."""
        num_words = self._shape.prompt.draw(self._generator)
        draft = _Draft(
            due_s=due_s,
            prompt=self._words.choices(self._shape.words, k=num_words),
            output_tokens=self._shape.output.draw(self._generator),
        )
        endpoint = self._choose()
        if endpoint is None:
            return draft.failure("no endpoint is ready")
        try:
            return await self._to(endpoint, draft)
        except _NO_ANSWER:
            other = self._choose(but=endpoint) or endpoint
        try:
            return await self._to(other, draft)
        except _NO_ANSWER as error:
            return draft.failure(str(error), pod=other.pod)

    def _choose(self, *, but: PodEndpoint | None = None) -> PodEndpoint | None:
        return self._endpoints.choose(self._shape.routing, self._generator, but=but)

    async def _to(self, endpoint: PodEndpoint, draft: _Draft) -> RequestRecord:
        self._endpoints.outstanding[endpoint] += 1
        try:
            return await self._stream(endpoint, draft)
        except _NO_ANSWER:
            raise
        except (aiohttp.ClientError, TimeoutError) as error:
            return draft.failure(str(error) or type(error).__name__, pod=endpoint.pod)
        finally:
            self._endpoints.outstanding[endpoint] -= 1
            if not self._endpoints.outstanding[endpoint]:
                del self._endpoints.outstanding[endpoint]

    async def _stream(self, endpoint: PodEndpoint, draft: _Draft) -> RequestRecord:
        async with self._session.post(
            f"{endpoint.url}/v1/completions",
            data=draft.body(self._shape.model),
            headers={"Content-Type": "application/json"},
            timeout=aiohttp.ClientTimeout(total=self._shape.timeout_s),
        ) as response:
            if response.status != HTTPStatus.OK:
                text = await response.text()
                return draft.failure(text, status=response.status, pod=endpoint.pod)
            first_s = last_s = 0.0
            tail = b""
            async for chunk in response.content.iter_any():
                last_s = time.time()
                first_s = first_s or last_s
                tail = (tail + chunk)[-4 * len(_ABORTED) :]
        return self._record(endpoint, draft, first_s=first_s, last_s=last_s, tail=tail)

    @staticmethod
    def _record(
        endpoint: PodEndpoint, draft: _Draft, *, first_s: float, last_s: float, tail: bytes
    ) -> RequestRecord:
        if b"[DONE]" not in tail:
            return draft.failure("the stream broke off", status=HTTPStatus.OK, pod=endpoint.pod)
        later_tokens = draft.output_tokens - 1
        return RequestRecord(
            start_s=draft.due_s,
            prompt_tokens=draft.prompt_tokens,
            output_tokens=draft.output_tokens,
            status=HTTPStatus.OK,
            ttft_s=first_s - draft.due_s,
            tpot_s=(last_s - first_s) / later_tokens if later_tokens else 0.0,
            e2e_s=last_s - draft.due_s,
            pod=endpoint.pod,
            error="aborted" if _ABORTED in tail else "",
        )


_ABORTED: Final = b'"finish_reason":"abort"'
