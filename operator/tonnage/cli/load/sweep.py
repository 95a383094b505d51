"""The sweep: prompts of some lengths one by one, then batches that decode together."""

import asyncio
import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Final, Literal

from tonnage.cli.load.stream import RequestResult, RequestSize, Streamer
from tonnage.cli.load.watch import EngineWatch, StoppedError
from tonnage.units import count_of, format_s

MOST_TOGETHER: Final = 4
"""Events read at the same moment, in the mean of an answer."""
REPEATS: Final = 3
"""Of each prompt alone: the first of a length may compile something."""
FEWEST_STEPS: Final = 8
"""In which all sequences decode, for a batch to tell anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One point of the sweep: so many requests at once."""

    kind: Literal["prefill", "decode"]
    sequences: int
    prompt_tokens: int
    output_tokens: int

    @property
    def request_size(self) -> RequestSize:
        return RequestSize(prompt_tokens=self.prompt_tokens, output_tokens=self.output_tokens)

    def __str__(self) -> str:
        if self.kind == "prefill":
            return f"prefill of {self.prompt_tokens} tokens"
        return f"decode of {self.sequences} at once, prompts of {self.prompt_tokens} tokens"


WARM_UP: Final = Load(kind="decode", sequences=1, prompt_tokens=16, output_tokens=8)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadMeasurement:
    """What a load showed."""

    load: Load
    seconds: float
    """Of prefill until the first token, in the median; of decode for one step."""
    num_steps: float
    """Timed."""
    context_tokens: float = 0.0
    """Of all decoding sequences together, in the mean of the steps timed."""


async def sweep(
    loads: Sequence[Load], streamer: Streamer, watch: EngineWatch, *, tell: Callable[[str], None]
) -> tuple[list[LoadMeasurement], str]:
    """Run the loads in order; a batch that the engine does not run at once ends the ladder.

    Returns what was measured, and a remark on what ended the ladder early, if anything did.

    Raises:
        StoppedError: one of the bounds was reached.
    """
    watch.note(await _together(WARM_UP, streamer))
    found: list[LoadMeasurement] = []
    refused = math.inf
    for number, planned in enumerate(loads, start=1):
        load = _limit_sequences(planned, refused, found)
        known = [replace(each.load, output_tokens=load.output_tokens) for each in found]
        if load in known:  # the same batch, however long its answers are
            continue
        measured = await _measure(load, streamer, watch)
        await watch.check()
        if measured is None:
            refused = min(refused, load.sequences)
            continue
        found.append(measured)
        tell(f"{number}/{len(loads)} {load}: {format_s(measured.seconds)}")
    remark = (
        ""
        if math.isinf(refused)
        else f"the engine does not run {count_of(f'{refused:.0f}', 'request')} at once"
    )
    return found, remark


def _limit_sequences(load: Load, refused: float, found: Sequence[LoadMeasurement]) -> Load:
    """Return the load, with as many sequences as ran where that many did not."""
    if load.sequences < refused:
        return load
    most = max((each.load.sequences for each in found if each.load.kind == "decode"), default=1)
    return replace(load, sequences=most)


async def _measure(load: Load, streamer: Streamer, watch: EngineWatch) -> LoadMeasurement | None:
    if load.kind == "prefill":
        return await _prefill(load, streamer, watch)
    answers = await _together(load, streamer)
    watch.note(answers)
    complete = [answer for answer in answers if answer.is_complete]
    _check_streamed(complete)
    return plateau(load, complete)


def _check_streamed(answers: Sequence[RequestResult]) -> None:
    """Refuse tokens that come many at a time: when they were made is then unknown."""
    for answer in answers:
        moments = len(set(answer.event_s))
        if len(answer.event_s) >= FEWEST_STEPS and moments * MOST_TOGETHER < len(answer.event_s):
            raise StoppedError(
                f"{len(answer.event_s)} tokens came at {count_of(moments, 'moment')}: something "
                "between holds the stream back, or this machine is too slow to read it"
            )


async def _prefill(load: Load, streamer: Streamer, watch: EngineWatch) -> LoadMeasurement | None:
    times_s = []
    for _ in range(REPEATS):
        answers = await _together(load, streamer)
        watch.note(answers)
        times_s += [answer.ttft_s for answer in answers if answer.is_complete]
    if not times_s:
        return None
    return LoadMeasurement(load=load, seconds=median(times_s), num_steps=len(times_s))


async def _together(load: Load, streamer: Streamer) -> list[RequestResult]:
    bodies = [streamer.body(load.request_size) for _ in range(load.sequences)]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(streamer.send(body, load.request_size)) for body in bodies]
    return [task.result() for task in tasks]


def plateau(load: Load, answers: Sequence[RequestResult]) -> LoadMeasurement | None:
    """Return the step time while all of them decode: after the last began, before the first ends.

    None: too short, since they did not run at once. An event may hold several tokens; the share of
    tokens per event is that of the whole answer.
    """
    if not answers:
        return None
    start_s = max(answer.first_s for answer in answers)
    end_s = min(answer.last_s for answer in answers)
    each = [_within(answer, start_s, end_s) for answer in answers]
    if min(steps for _, steps, _ in each) < FEWEST_STEPS:
        return None
    return LoadMeasurement(
        load=load,
        seconds=fmean(step_s for step_s, _, _ in each),
        num_steps=fmean(steps for _, steps, _ in each),
        context_tokens=sum(load.prompt_tokens + emitted for _, _, emitted in each),
    )


def _within(answer: RequestResult, start_s: float, end_s: float) -> tuple[float, float, float]:
    """Return step time, steps, and tokens out in the middle of one answer's share of a window."""
    first = bisect_left(answer.event_s, start_s)
    last = bisect_right(answer.event_s, end_s) - 1
    if last <= first:
        return 0.0, 0.0, 0.0
    tokens_per_event = (answer.output_tokens - 1) / max(1, len(answer.event_s) - 1)
    steps = (last - first) * tokens_per_event
    took_s = answer.event_s[last] - answer.event_s[first]
    return took_s / steps, steps, 1 + tokens_per_event * (first + last) / 2
