"""Which loads a sweep has: enough to tell the constants apart, few enough for its time. Pure."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from tonnage.cli.load.sweep import REPEATS, Load

TINY_PROMPT: Final = 16
"""Tells what passes outside the engine's steps: its own prefill is next to nothing."""
LONG_PROMPTS: Final = (4096, 2048, 1280, 512, 256)
"""For batches that differ in context and in nothing else; the first that the time allows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepScale:
    """How large the loads of a sweep are."""

    prefill: tuple[int, ...]
    """Lengths of prompts that come alone."""
    prompt: int
    """Of batches, where the context is to be small."""
    plateau: int
    """Steps in which all sequences of a batch decode."""


SCALES: Final = (
    SweepScale(prefill=(512, 1280, 2048), prompt=128, plateau=64),
    SweepScale(prefill=(512, 1280, 2048), prompt=128, plateau=32),
    SweepScale(prefill=(256, 512, 1280), prompt=64, plateau=32),
    SweepScale(prefill=(128, 256, 512), prompt=32, plateau=32),
    SweepScale(prefill=(64, 128, 256), prompt=32, plateau=16),
)
"""The first that the time allows, and the limit on the first token; the last where none does."""
LEAST_CHUNK: Final = 2048
"""Tokens of prompts that a step takes at least, by every version's default for servers."""
KV_SHARE: Final = 0.9
TIME_SHARE: Final = 0.4
"""Of the time allowed, that a sweep may take by the prior: engines are slower than hoped."""
TTFT_SHARE: Final = 0.3
"""The same of the longest that a first token may take."""
WIDEST: Final = 64
"""Requests at once where nothing else is asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What the engine takes, and the time there is."""

    context_tokens: int
    max_concurrency: int
    max_seconds: float
    max_ttft_s: float
    kv_tokens: float | None = None
    """Of all ranks; None: unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hopes:
    """What the prior says of a load, in seconds."""

    seconds_of: Callable[[Load], float]
    ttft_of: Callable[[Load], float]
    """Of its last request."""


def loads_for(room: Room, hopes: Hopes) -> tuple[Load, ...]:
    """Return the loads of a sweep in the order to run them.

    Where even the smallest set takes longer than the share of the time, it is returned all the
    same: the limit then ends it.
    """
    kept: tuple[Load, ...] = ()
    longest_s = TTFT_SHARE * room.max_ttft_s
    for scale in SCALES:
        for long_prompt in LONG_PROMPTS:
            loads = tuple(_loads(room, scale, long_prompt))
            kept = tuple(load for load in loads if hopes.ttft_of(load) <= longest_s)
            takes_s = sum(map(hopes.seconds_of, kept))
            if _is_whole(loads, kept, scale) and takes_s <= TIME_SHARE * room.max_seconds:
                return kept
    return kept


def _is_whole(loads: tuple[Load, ...], kept: tuple[Load, ...], scale: SweepScale) -> bool:
    """Tell whether every batch is left, prompts of two lengths, and a batch with long ones."""
    batches = [
        load for load in loads if load.kind == "decode" and load.prompt_tokens <= scale.prompt
    ]
    longer = any(load.kind == "decode" and load.prompt_tokens > scale.prompt for load in kept)
    alone = sum(load.kind == "prefill" and load.prompt_tokens > TINY_PROMPT for load in kept)
    return set(batches) <= set(kept) and longer and alone > 1


def _loads(room: Room, scale: SweepScale, long_prompt: int) -> Iterator[Load]:
    longest = room.context_tokens - 1
    lengths = [each for each in scale.prefill if each <= longest] or [longest // 2, longest]
    for length in (min(TINY_PROMPT, longest), *lengths):
        yield Load(kind="prefill", sequences=1, prompt_tokens=length, output_tokens=1)
    ladder = list(_ladder(room.max_concurrency))
    for number in ladder:
        yield from _decode(room, number, scale.prompt, scale.plateau)
    for number in dict.fromkeys((ladder[len(ladder) // 2], ladder[-1])):
        yield from _decode(room, number, long_prompt, scale.plateau)


def _ladder(most: int) -> Iterator[int]:
    number = 1
    while number < most:
        yield number
        number *= 2
    yield most


def _decode(room: Room, sequences: int, prompt: int, plateau: int) -> Iterator[Load]:
    """Yield the load if the engine holds it; answers last until the last prompt is done, and on."""
    waits = math.ceil(sequences * prompt / LEAST_CHUNK)
    outputs = plateau + waits
    prompt = min(prompt, room.context_tokens - outputs)
    held = room.kv_tokens is None or sequences * (prompt + outputs) <= KV_SHARE * room.kv_tokens
    if prompt > 0 and held:
        yield Load(kind="decode", sequences=sequences, prompt_tokens=prompt, output_tokens=outputs)


def repeats_of(load: Load) -> int:
    """Return how often a load is sent."""
    return REPEATS if load.kind == "prefill" else 1
