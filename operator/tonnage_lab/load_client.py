"""Requests of one shape, drawn and sent to the endpoints of one Service."""

import contextlib
import json
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

import aiohttp

from tonnage.units import count_of
from tonnage_lab.load_endpoints import Endpoints, PodChoice, PodEndpoint
from tonnage_lab.load_records import RequestRecord
from tonnage_lab.load_stream import StreamedAnswer, stream

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
        self._prompts = random.Random()  # noqa: S311 -- not seeded: see ``_body``

    async def send(self, due_s: float) -> RequestRecord:
        """Send a request that was due at this time; one that nobody took is tried once more."""
        record = RequestRecord(
            start_s=due_s,
            prompt_tokens=self._shape.prompt.draw(self._generator),
            output_tokens=self._shape.output.draw(self._generator),
        )
        endpoint = self._choose()
        if endpoint is None:
            return replace(record, error="no endpoint is ready")
        answer = await self._to(endpoint, record)
        if answer.status is None and not answer.is_late:  # nobody took it
            endpoint = self._choose(but=endpoint) or endpoint
            answer = await self._to(endpoint, record)
        return _told(replace(record, pod=endpoint.pod), answer)

    def _choose(self, *, but: PodEndpoint | None = None) -> PodEndpoint | None:
        return self._endpoints.choose(self._shape.routing, self._generator, but=but)

    async def _to(self, endpoint: PodEndpoint, asked: RequestRecord) -> StreamedAnswer:
        with _counted(self._endpoints, endpoint):
            try:
                body = await self._read(self._body(asked))
            except KeyError as error:
                return StreamedAnswer(error=f"prefill: {error!r}")
            return await stream(self._session, endpoint.url, body)

    def _body(self, asked: RequestRecord) -> bytes:
        """Return a request with a new prompt, which shares no beginning with another.

        A second run must not find the prompts of the first in the cache. Tokens are from the middle
        of the vocabulary: special ones are at its ends.
        """
        size = self._shape.vocab_size
        low, high = size // 10, max(2, size * 9 // 10)
        content = {
            "model": self._shape.model,
            "prompt": self._prompts.choices(range(low, high), k=asked.prompt_tokens),
            "max_tokens": asked.output_tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return json.dumps(content).encode()

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


def _told(asked: RequestRecord, answer: StreamedAnswer) -> RequestRecord:
    """Return the record of a request with what became of it."""
    error = answer.error
    if not error and answer.output_tokens != asked.output_tokens:
        error = f"{answer.output_tokens} of {count_of(asked.output_tokens, 'token')} came"
    if error:
        return replace(asked, status=answer.status, error=error)
    due_s = asked.start_s - (time.time() - time.monotonic())
    return replace(
        asked,
        status=answer.status,
        ttft_s=answer.event_s[0] - due_s,
        tpot_s=answer.tpot_s,
        e2e_s=answer.event_s[-1] - due_s,
    )
