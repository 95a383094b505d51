"""One request: prompted with random tokens, streamed, and timed token by token."""

import json
import random
import time
from array import array
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

import aiohttp

from tonnage.units import count_of

EVENT: Final = b"\ndata: {"
DONE: Final = b"\ndata: [DONE]"
TAIL_BYTES: Final = 4096
"""Of a stream, kept to read its last events."""
SHOWN: Final = 200
"""Characters of an error that are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSize:
    """The lengths of one request."""

    prompt_tokens: int
    output_tokens: int


@dataclass(slots=True, kw_only=True)
class RequestResult:
    """What became of one request."""

    asked: RequestSize
    due_s: float
    """On the clock of the event loop, like all times here."""
    status: int | None = None
    """None: no answer."""
    error: str = ""
    is_late: bool = False
    """Nothing came for as long as the client waits."""
    output_tokens: int = 0
    event_s: "array[float]" = field(default_factory=lambda: array("d"))
    """When events with tokens came; usually one token each."""

    @property
    def is_complete(self) -> bool:
        return self.status == HTTPStatus.OK and not self.error

    @property
    def first_s(self) -> float:
        return self.event_s[0]

    @property
    def last_s(self) -> float:
        return self.event_s[-1]

    @property
    def ttft_s(self) -> float:
        return self.first_s - self.due_s

    @property
    def tpot_s(self) -> float:
        """0 where there was no second token, as vLLM's histogram observes it."""
        later = self.output_tokens - 1
        return (self.last_s - self.first_s) / later if later > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """Random prompts, none of which shares a beginning with another."""

    vocab_size: int
    generator: random.Random = field(default_factory=random.Random)
    """Seeded by the system: a second run must not find the prompts of the first in the cache."""

    def draw(self, num_tokens: int) -> list[int]:
        """Return token ids from the middle of the vocabulary: special ones stand at its ends."""
        low, high = self.vocab_size // 10, max(2, self.vocab_size * 9 // 10)
        return self.generator.choices(range(low, high), k=num_tokens)


class Streamer:
    """Sends requests for one model to one endpoint."""

    def __init__(
        self, session: aiohttp.ClientSession, url: str, *, model: str, prompts: Prompts
    ) -> None:
        self._session, self._url = session, url
        self._model, self._prompts = model, prompts

    def body(self, asked: RequestSize) -> bytes:
        """Return a request with a new prompt; made ahead, since long ones take their time."""
        content = {
            "model": self._model,
            "prompt": self._prompts.draw(asked.prompt_tokens),
            "max_tokens": asked.output_tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return json.dumps(content).encode()

    async def send(
        self, body: bytes, asked: RequestSize, *, due_s: float | None = None
    ) -> RequestResult:
        """Send a request that was due at some time, else now; what fails is in the answer."""
        answer = RequestResult(asked=asked, due_s=time.monotonic() if due_s is None else due_s)
        try:
            await self._stream(answer, body)
        except TimeoutError:
            answer.is_late = True
            answer.error = "no token in time"
        except aiohttp.ClientError as error:
            answer.error = f"{type(error).__name__}: {error}"[:SHOWN]
        if answer.is_complete and answer.output_tokens != asked.output_tokens:
            wanted = count_of(asked.output_tokens, "token")
            answer.error = f"{answer.output_tokens} of {wanted} came"
        return answer

    async def _stream(self, answer: RequestResult, body: bytes) -> None:
        async with self._session.post(
            f"{self._url}/v1/completions",
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


def _conclude(answer: RequestResult, tail: bytes) -> None:
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
