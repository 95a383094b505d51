"""Requests of one shape, drawn and sent to the endpoints of one Service."""

import contextlib
import json
import math
import random
import time
from array import array
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any, Final

import aiohttp

from tonnage.units import count_of
from tonnage_lab.load_endpoints import Endpoints, PodChoice, PodEndpoint

EVENT: Final = b"\ndata: {"
DONE: Final = b"\ndata: [DONE]"
TAIL_BYTES: Final = 4096
"""Of a stream, kept to read its last events."""
SHOWN: Final = 200
"""Characters of an error that are shown."""


@dataclass(slots=True, kw_only=True)
class StreamedAnswer:
    """What became of one request. Times are on the monotonic clock."""

    status: int | None = None
    """None: no answer."""
    error: str = ""
    is_late: bool = False
    """Nothing came for as long as the client waits."""
    output_tokens: int = 0
    event_s: "array[float]" = field(default_factory=lambda: array("d"))
    """When events with tokens came; usually one token each."""

    @property
    def tpot_s(self) -> float:
        """0 where there was no second token, as vLLM's histogram observes it."""
        later = self.output_tokens - 1
        return (self.event_s[-1] - self.event_s[0]) / later if later > 0 else 0.0


async def stream(session: aiohttp.ClientSession, url: str, body: bytes) -> StreamedAnswer:
    """Send a request; what fails is in the answer."""
    answer = StreamedAnswer()
    try:
        await _stream(answer, session, url, body)
    except TimeoutError:
        answer.is_late = True
        answer.error = "no token in time"
    except aiohttp.ClientError as error:
        answer.error = f"{type(error).__name__}: {error}"[:SHOWN]
    return answer


async def _stream(
    answer: StreamedAnswer, session: aiohttp.ClientSession, url: str, body: bytes
) -> None:
    async with session.post(
        f"{url}/v1/completions",
        data=body,
        headers={"Content-Type": "application/json"},
        allow_redirects=False,
    ) as response:
        answer.status = response.status
        if response.status != HTTPStatus.OK:
            said = (await response.content.read(SHOWN)).decode(errors="replace")
            answer.error = f"{response.status}: {said}"
            return
        tail = b"\n"
        async for chunk in response.content.iter_any():
            now_s = time.monotonic()
            seen, tail = tail.count(EVENT), tail + chunk
            answer.event_s.extend([now_s] * (tail.count(EVENT) - seen))
            tail = tail[-TAIL_BYTES:]
    _conclude(answer, tail)


def _conclude(answer: StreamedAnswer, tail: bytes) -> None:
    """Read the last events: the usage, which has no token, and how it ended."""
    if DONE not in tail:
        answer.error = "the stream broke off"
        return
    last = _last_event(tail)
    usage = last.get("usage")
    if isinstance(usage, dict) and not last.get("choices"):
        answer.event_s.pop()
        answer.output_tokens = int(usage.get("completion_tokens", 0))
    elif "error" in last:
        answer.error = str(last["error"])[:SHOWN]
    else:
        answer.output_tokens = len(answer.event_s)
    if not answer.event_s and not answer.error:
        answer.error = "no token came"


def _last_event(tail: bytes) -> dict[str, Any]:
    begins = tail.rfind(EVENT)
    line = tail[begins + len(EVENT) - 1 :].partition(b"\n")[0] if begins >= 0 else b""
    try:
        event = json.loads(line)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One request as its client saw it."""

    start_s: float
    """When it was due, in seconds since the epoch."""
    prompt_tokens: int
    output_tokens: int
    status: int | None = None
    """Of the HTTP answer; None when there was none."""
    ttft_s: float | None = None
    tpot_s: float | None = None
    """None without an answer. Of one token 0, as vLLM's histogram observes it."""
    e2e_s: float | None = None
    pod: str = ""
    error: str = ""

    @property
    def is_complete(self) -> bool:
        """True when all tokens came."""
        return self.status == HTTPStatus.OK and not self.error


def within(
    records: Iterable[RequestRecord], *, since_s: float = -math.inf, until_s: float = math.inf
) -> list[RequestRecord]:
    """Return the requests that were due in a window of time."""
    return [each for each in records if since_s <= each.start_s < until_s]


def attainment(
    records: Iterable[RequestRecord],
    *,
    ttft_s: float = math.inf,
    tpot_s: float = math.inf,
    since_s: float = -math.inf,
    until_s: float = math.inf,
) -> float | None:
    """Return the share of the requests due in a window that met both SLO targets.

    A request that failed met none. None when no request was due.
    """
    due = within(records, since_s=since_s, until_s=until_s)
    if not due:
        return None
    return sum(_meets_slo(each, ttft_s=ttft_s, tpot_s=tpot_s) for each in due) / len(due)


def _meets_slo(record: RequestRecord, *, ttft_s: float, tpot_s: float) -> bool:
    if not record.is_complete or record.ttft_s is None or record.tpot_s is None:
        return False
    return record.ttft_s <= ttft_s and record.tpot_s <= tpot_s


def quantile(values: Iterable[float | None], fraction: float) -> float | None:
    """Return the smallest value that this share of the values does not exceed; None without any.

    >>> quantile([3, 1, None, 2], 0.5), quantile([], 0.5)
    (2, None)
    """
    known = sorted(value for value in values if value is not None)
    if not known:
        return None
    return known[max(0, math.ceil(fraction * len(known)) - 1)]


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
