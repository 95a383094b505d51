"""One request: streamed, and timed token by token."""

import json
import time
from array import array
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

import aiohttp

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
