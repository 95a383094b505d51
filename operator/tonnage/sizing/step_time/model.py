"""The time of a step of an engine group, by its formula and as figures for the engine model."""

import itertools
import math
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, lru_cache

from tonnage.catalog.engine_speed import SpeedConstants
from tonnage.engine.step_costs import PrefillGrid, StepCosts
from tonnage.sizing.options import Speculation
from tonnage.sizing.parallelism.kv import KvShare
from tonnage.sizing.parallelism.shard import Shard
from tonnage.sizing.step_time.speeds import Speeds
from tonnage.sizing.step_time.step import (
    Step,
    StepTime,
    fullest_microbatch,
    num_microbatches,
    step_time,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeModel:
    """The time of any step of one engine group."""

    shard: Shard
    speeds: Speeds
    constants: SpeedConstants
    speculation: Speculation | None = None

    @property
    def dp_size(self) -> int:
        """Data-parallel ranks, each with requests and a cache of its own."""
        return self.shard.parallelism.data

    @property
    def num_microbatches(self) -> int:
        """Of a pipeline: as many as stages that overlap, each with a token budget of its own."""
        return num_microbatches(self.shard.parallelism, self.constants)

    @property
    def num_batches(self) -> int:
        """Of all data-parallel ranks, in one step."""
        return self.dp_size * self.num_microbatches

    @property
    def tokens_per_step(self) -> float:
        """That a decoding sequence gets in the mean."""
        return self.speculation.tokens_per_step if self.speculation else 1.0

    @property
    def tokens_verified(self) -> int:
        """Of the token budget that a decoding sequence takes."""
        return self.speculation.tokens_verified if self.speculation else 1

    def steps(self, tokens: float) -> float:
        """Return the steps in which so many tokens are decoded, in the mean."""
        return self.speculation.steps(tokens) if self.speculation else tokens

    def step(self, step: Step) -> StepTime:
        """Return the time of a step, the passes of draft layers included."""
        if self.speculation:
            step = replace(step, tokens_per_sequence=self.tokens_verified)
        time = step_time(self.shard, self.speeds, self.constants, step)
        draft = self.shard.draft
        return time if draft is None else self._with_drafts(time, step, draft)

    def _with_drafts(self, time: StepTime, step: Step, draft: Shard) -> StepTime:
        """Add the passes after the first: of one token each, and none of them schedules."""
        constants = replace(self.constants, per_step_s=0.0, per_sequence_s=0.0)
        one = Step(num_sequences=step.num_sequences, context_tokens=step.context_tokens)
        each = step_time(draft, self.speeds, constants, one)
        passes = self.tokens_verified - 2
        return replace(
            time,
            draft_s=passes * each.total_s,
            draft_bytes=passes * each.decode_bytes,
            decode_flop=time.decode_flop + passes * each.decode_flop,
        )


GRID_RATIO = 1.15
"""Of neighbouring numbers decoding: the line between them is within 0.1 % of the formula."""
PREFILL_RATIO = 1.5
ROW_RATIO = 1.7
BEYOND_TOKENS = 2_000_000
"""Behind the last knot."""


@lru_cache(maxsize=32)
def step_costs(model: StepTimeModel, *, max_num_seqs: int, max_batched_tokens: int) -> StepCosts:
    """Return what the engine model adds up, of up to so many sequences on each data-parallel rank.

    What does not depend on contexts is told by the number of sequences decoding, exactly at some
    and on the line between them at others; what a context costs is exact for each sequence.
    """
    most = max_num_seqs * model.dp_size
    known = list(_geometric(most, GRID_RATIO))
    knots = _knots(model)
    prices = _Prices(model)
    memory_s, compute_s = [prices.memory_s(k) for k in knots], [prices.compute_s(k) for k in knots]
    base, memory, compute = _by_sequences(model, known, (memory_s[0], compute_s[0]))
    return StepCosts(
        base_s=_every(known, base),
        memory_s=_every(known, memory),
        compute_s=_every(known, compute),
        context_factor=array("d", (_factor(model, number) for number in range(most + 1))),
        knots_tokens=tuple(knots),
        memory_price_s=tuple(memory_s),
        memory_slope_s=tuple(_slopes(knots, prices.memory_s)),
        compute_price_s=tuple(compute_s),
        compute_slope_s=tuple(_slopes(knots, prices.compute_s)),
        pairs_slope_s=tuple(_slopes(knots, prices.pairs_s)),
        prefill=_prefill_grid(model, most, max_batched_tokens),
        own_prefill_s_per_token=_own_prefill_s(model, max_batched_tokens),
        num_microbatches=model.num_microbatches,
    )


def _geometric(most: int, ratio: float) -> Iterator[int]:
    number = 0
    while number < most:
        yield number
        number = max(number + 1, math.floor(number * ratio))
    yield most


def _by_sequences(
    model: StepTimeModel, known: list[int], at_0_s: tuple[float, float]
) -> tuple[list[float], list[float], list[float]]:
    """Return what a step takes without context, reads and work apart where they overlap as one."""
    base, memory, compute = [], [], []
    for number in known:
        time = model.step(Step(num_sequences=number, context_tokens=0))
        factor = number * _factor(model, number) / model.dp_size
        states_s, state_work_s = (factor * price_s for price_s in at_0_s)
        if model.constants.overlap_power is None:
            memory.append(time.memory_s - states_s)
            compute.append(time.compute_s - state_work_s)
            base.append(time.total_s - max(time.memory_s, time.compute_s))
        else:
            memory.append(0.0)
            compute.append(0.0)
            base.append(time.total_s - max(states_s, state_work_s))
    return base, memory, compute


def _every(known: list[int], values: list[float]) -> "array[float]":
    """Return the values at all whole numbers, on the lines between those that are known."""
    found = array("d", values[:1])
    for (left, right), (low, high) in zip(
        itertools.pairwise(known), itertools.pairwise(values), strict=True
    ):
        width = right - left
        found.extend(low + (high - low) * step / width for step in range(1, width + 1))
    return found


def _factor(model: StepTimeModel, num_decoding: int) -> float:
    """Return how often a context is read: all microbatches last as long as the fullest."""
    on_rank, stages = max(1.0, num_decoding / model.dp_size), model.shard.parallelism.pipeline
    return stages * fullest_microbatch(on_rank, model.num_microbatches) / on_rank


def _kinds(shard: Shard | None) -> tuple[KvShare, ...]:
    return shard.kv if shard else ()


def _knots(model: StepTimeModel) -> list[int]:
    kinds = (*model.shard.kv, *_kinds(model.shard.draft))
    full = {kind.window_tokens for kind in kinds} | {kind.attended_tokens for kind in kinds}
    return [0, *sorted({math.ceil(tokens) for tokens in full if tokens})]


class _Prices:
    """What the context of one sequence adds to a step."""

    def __init__(self, model: StepTimeModel) -> None:
        constants, speeds, shard = model.constants, model.speeds, model.shard
        self._bytes_per_s = (
            speeds.memory_bytes_per_s
            * constants.bandwidth_efficiency
            * constants.cache_bandwidth_factor
        )
        self._flop_per_s = speeds.peak_flop_per_s * constants.compute_efficiency
        wide_flop_per_s = (
            speeds.peak_flop_per_s * constants.prefill_efficiency * constants.wide_prefill_factor
        )
        # A chunk passes all stages.
        stages = shard.parallelism.pipeline
        self._exposed = stages * constants.prefill_exposed_fraction / wide_flop_per_s
        self._kv, self._draft_kv = shard.kv, _kinds(shard.draft)
        self._passes = model.tokens_verified - 2 if shard.draft else 0
        self._verified = model.tokens_verified

    def memory_s(self, tokens: float) -> float:
        read = sum(kind.read_bytes(tokens) for kind in self._kv)
        drafts = sum(kind.read_bytes(tokens) for kind in self._draft_kv)
        return (read + self._passes * drafts) / self._bytes_per_s

    def compute_s(self, tokens: float) -> float:
        work = sum(kind.decode_flop(tokens) for kind in self._kv)
        drafts = sum(kind.decode_flop(tokens) for kind in self._draft_kv)
        return (self._verified * work + self._passes * drafts) / self._flop_per_s

    def pairs_s(self, tokens: float) -> float:
        return sum(kind.prefill_flop(tokens) for kind in self._kv) * self._exposed


def _slopes(knots: list[int], price_s: Callable[[float], float]) -> Iterator[float]:
    for low, high in itertools.pairwise((*knots, knots[-1] + BEYOND_TOKENS)):
        yield (price_s(high) - price_s(low)) / (high - low)


@lru_cache(maxsize=64)
def _times_of(model: StepTimeModel) -> Callable[[int, float, float | None], float]:
    """Return what tells a step's time by the number decoding, prompt tokens and their ranks.

    Grids of all slots and token budgets have most of their cells in common.
    """

    @cache
    def total_s(number: int, tokens: float, ranks: float | None) -> float:
        step = Step(
            num_sequences=number,
            context_tokens=0,
            prefill_tokens=tokens,
            prefill_ranks=ranks,
            prefill_microbatches=1,
        )
        return model.step(step).total_s

    return total_s


def _prefill_s(
    model: StepTimeModel, number: int, chunks_tokens: Iterable[float], ranks: float
) -> Iterator[float]:
    """Yield what so many prompt tokens add to a step of a number decoding."""
    total_s = _times_of(model)
    beside_s = total_s(number, 0.0, None)
    for tokens in chunks_tokens:
        yield total_s(number, tokens, ranks) - beside_s if tokens else 0.0


def _prefill_grid(model: StepTimeModel, most: int, max_batched_tokens: int) -> PrefillGrid:
    """Return what prompt tokens in one microbatch of one rank add.

    A line, unless they touch more experts or wait for the host.
    """
    columns, rows = [0, max_batched_tokens], [0, most]
    if model.shard.experts or model.constants.prefill_launch_s:
        columns = list(_geometric(max_batched_tokens, PREFILL_RATIO))
        rows = list(_geometric(most, ROW_RATIO))
    return PrefillGrid(
        num_decoding=tuple(rows),
        prefill_tokens=tuple(float(tokens) for tokens in columns),
        seconds=tuple(tuple(_prefill_s(model, number, columns, 1)) for number in rows),
    )


def _own_prefill_s(model: StepTimeModel, tokens: int) -> float:
    """Return what a prompt token adds only on its own rank, by spreading the same over all."""
    if model.dp_size == 1:
        return 0.0
    spread = model.dp_size
    [alone_s], [spread_s] = (_prefill_s(model, 1, [tokens], ranks) for ranks in (1, spread))
    return (alone_s - spread_s) / (tokens - tokens / spread)
