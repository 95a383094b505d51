"""A trace sent as it came: open loop, each request at its time, until the time is up."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tonnage.cli.load.stream import RequestResult, RequestSize, Streamer
from tonnage.cli.load.watch import EngineWatch, StoppedError
from tonnage.replay.traces import Trace
from tonnage.units import count_of

TOLD_EVERY_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledRequest:
    """A request, and when it is due, from the first one of the trace."""

    at_s: float
    asked: RequestSize


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What was sent of a trace."""

    requests: tuple[ScheduledRequest, ...]
    """That the engine worked on, in order of arrival: those cut off too, those that failed not."""
    ended: Mapping[int, RequestResult]
    """Complete answers, by the number of their request among these."""
    num_left: int
    """Requests of the trace that were due after the time was up."""
    num_too_long: int
    """Longer than the engine takes, and left out."""
    num_cut: int
    """Still without their last token when the time was up."""
    num_failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayLimits:
    """How long a replay lasts at most, and what it sends."""

    sending_s: float
    draining_s: float
    """Beyond that, for what is in flight."""
    max_model_len: int
    """Longer requests are left out."""


async def replay(
    trace: Trace,
    streamer: Streamer,
    watch: EngineWatch,
    *,
    limits: ReplayLimits,
    tell: Callable[[str], None],
) -> Sent:
    """Send a trace for so long, then wait for what is in flight.

    Raises:
        StoppedError: one of the bounds was reached.
    """
    due = _due(trace)
    fitting = [
        each
        for each in due
        if each.asked.prompt_tokens + each.asked.output_tokens <= limits.max_model_len
    ]
    timely = [each for each in fitting if each.at_s <= limits.sending_s]
    answers = await _send_all(timely, streamer, watch, limits, tell=tell)
    served = [
        (each, answers.get(number))
        for number, each in enumerate(timely)
        if number not in answers or answers[number].is_complete
    ]
    num_cut = len(timely) - len(answers)
    watch.note_cut(num_cut)
    return Sent(
        requests=tuple(each for each, _ in served),
        ended={number: answer for number, (_, answer) in enumerate(served) if answer},
        num_left=len(fitting) - len(timely),
        num_too_long=len(due) - len(fitting),
        num_cut=num_cut,
        num_failed=len(timely) - len(served),
    )


def _due(trace: Trace) -> list[ScheduledRequest]:
    return [
        ScheduledRequest(
            at_s=at_s - trace.arrival_s[0],
            asked=RequestSize(prompt_tokens=prompt, output_tokens=output),
        )
        for at_s, prompt, output in zip(
            trace.arrival_s, trace.prompt_tokens, trace.output_tokens, strict=True
        )
    ]


async def _send_all(
    due: list[ScheduledRequest],
    streamer: Streamer,
    watch: EngineWatch,
    limits: ReplayLimits,
    *,
    tell: Callable[[str], None],
) -> dict[int, RequestResult]:
    """Return the answers by the number of their request; those that were cut off have none."""
    answers: dict[int, RequestResult] = {}
    start_s = told_s = time.monotonic()

    async def one(number: int, body: bytes, each: ScheduledRequest) -> None:
        answer = await streamer.send(body, each.asked, due_s=start_s + each.at_s)
        answers[number] = answer
        watch.note([answer])

    try:
        with contextlib.suppress(TimeoutError):
            async with (
                asyncio.timeout(limits.sending_s + limits.draining_s),
                asyncio.TaskGroup() as group,
            ):
                for number, each in enumerate(due):
                    body = streamer.body(each.asked)
                    await asyncio.sleep(max(0.0, start_s + each.at_s - time.monotonic()))
                    group.create_task(one(number, body, each))
                    if time.monotonic() - told_s > TOLD_EVERY_S:
                        told_s = time.monotonic()
                        tell(f"replay: {number + 1} of {count_of(len(due), 'request')} sent")
    except* StoppedError as stopped:
        raise stopped.exceptions[0] from None
    return answers
