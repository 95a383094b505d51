"""Requests of one shape, drawn and sent to the endpoints of one Service."""

import contextlib
import json
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import aiohttp

from tonnage_lab.load_endpoints import Endpoints, PodChoice, PodEndpoint
from tonnage_lab.load_records import RequestRecord
from tonnage_lab.load_stream import Prompts, RequestResult, RequestSize, Streamer

TRANSFER: Final = "kv_transfer_params"
"""By which engines tell where the KV cache of a prompt is."""
VOCAB_SIZE: Final = 32_000
"""Few vocabularies are smaller."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestShape:
    """What all requests of a load have in common."""

    model: str
    prompt: LengthDistribution
    output: LengthDistribution
    vocab_size: int = VOCAB_SIZE
    """Every prompt is drawn anew: one that an engine has seen costs it nothing."""
    routing: PodChoice = PodChoice.RANDOM
    seed: int = 0


class Client:
    """Sends requests of one shape to the endpoints of one Service.

    With a second one, whose engines read the prompts, it is the proxy in front of both roles. What
    none of them reads is sent to the first alone.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        endpoints: Endpoints,
        shape: RequestShape,
        prefill: Endpoints | None = None,
    ) -> None:
        self._session, self._endpoints, self._shape = session, endpoints, shape
        self._prefill = prefill
        self._generator = random.Random(shape.seed)  # noqa: S311 -- a load has no secrets
        self._prompts = Prompts(vocab_size=shape.vocab_size)

    async def send(self, due_s: float) -> RequestRecord:
        """Send a request that was due at this time; one that nobody took is tried once more."""
        asked = RequestSize(
            prompt_tokens=self._shape.prompt.draw(self._generator),
            output_tokens=self._shape.output.draw(self._generator),
        )
        endpoint = self._choose()
        if endpoint is None:
            nobody = RequestResult(asked=asked, due_s=due_s, error="no endpoint is ready")
            return _record(nobody, due_s=due_s)
        answer = await self._to(endpoint, asked, due_s)
        if answer.status is None and not answer.is_late:  # nobody took it
            endpoint = self._choose(but=endpoint) or endpoint
            answer = await self._to(endpoint, asked, due_s)
        return _record(answer, due_s=due_s, pod=endpoint.pod)

    def _choose(self, *, but: PodEndpoint | None = None) -> PodEndpoint | None:
        return self._endpoints.choose(self._shape.routing, self._generator, but=but)

    async def _to(self, endpoint: PodEndpoint, asked: RequestSize, due_s: float) -> RequestResult:
        """Return the answer of an endpoint to a request that was due then, since the epoch."""
        streamer = Streamer(
            self._session, endpoint.url, model=self._shape.model, prompts=self._prompts
        )
        due_s -= time.time() - time.monotonic()
        with _counted(self._endpoints, endpoint):
            try:
                body = await self._read(streamer.body(asked))
            except KeyError as error:
                return RequestResult(asked=asked, due_s=due_s, error=f"prefill: {error!r}")
            return await streamer.send(body, asked, due_s=due_s)

    async def _read(self, body: bytes) -> bytes:
        """Have an engine of the other role read the prompt, and another if it fails.

        Raises:
            KeyError: the engine keeps no cache for others.
        """
        prefill, endpoint = self._prefill or Endpoints(), None
        for _ in range(2):
            endpoint = prefill.choose(self._shape.routing, self._generator, but=endpoint)
            if endpoint is None:
                break
            with (
                contextlib.suppress(aiohttp.ClientError, TimeoutError),
                _counted(prefill, endpoint),
            ):
                return await self._read_by(endpoint, body)
        return body

    async def _read_by(self, endpoint: PodEndpoint, body: bytes) -> bytes:
        content = json.loads(body)
        first = {key: value for key, value in content.items() if key != "stream_options"}
        first |= {"max_tokens": 1, "stream": False, TRANSFER: {"do_remote_decode": True}}
        url = f"{endpoint.url}/v1/completions"
        async with self._session.post(url, json=first, raise_for_status=True) as response:
            answer = await response.json()
        return json.dumps(content | {TRANSFER: answer[TRANSFER]}).encode()


@contextmanager
def _counted(endpoints: Endpoints, endpoint: PodEndpoint) -> Iterator[None]:
    """Count a request that an endpoint has in flight."""
    endpoints.outstanding[endpoint] += 1
    try:
        yield
    finally:
        endpoints.outstanding[endpoint] -= 1
        if not endpoints.outstanding[endpoint]:
            del endpoints.outstanding[endpoint]


def _record(answer: RequestResult, *, due_s: float, pod: str = "") -> RequestRecord:
    is_complete = answer.is_complete
    return RequestRecord(
        start_s=due_s,
        prompt_tokens=answer.asked.prompt_tokens,
        output_tokens=answer.asked.output_tokens,
        status=answer.status,
        ttft_s=answer.ttft_s if is_complete else None,
        tpot_s=answer.tpot_s if is_complete else None,
        e2e_s=answer.last_s - answer.due_s if is_complete else None,
        pod=pod,
        error=answer.error,
    )
