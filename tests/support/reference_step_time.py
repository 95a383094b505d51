"""The product's step-time formula as the reference engine asks for it.

The only place of the references that knows the product's types. ``formula`` is the formula itself,
as a callback by what each rank works on: decoding sequences as if all had the mean context.
``Figures`` are the same formula taken apart into what ranks share and what a sequence reads, each
remembered: attention is there priced sequence by sequence and token by token, so that windows and
sparse attention are priced at the contexts that occur and not at their mean. Where attention is in
proportion to the context both are the same, which a test holds them to.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from reference_engine import Batch, BlockTable, EngineLimits, StepTime
from reference_fast import Floats
from tonnage.sizing.serving.replica import Replica
from tonnage.sizing.step_time.step import Step

ROUNDING = 1e-9
MOST_REMEMBERED = 200_000
FEW, MANY = 64, 4096
"""Prompt tokens whose seconds must lie on one line with those of none."""


def formula(replica: Replica) -> StepTime:
    """Return the step time of a group: of its slowest rank, the experts being everyone's."""

    def step_s(batches: Sequence[Batch]) -> float:
        return max(_rank_s(replica, batches, each) for each in batches)

    return step_s


def _rank_s(replica: Replica, batches: Sequence[Batch], slowest: Batch) -> float:
    """Return what a step takes with the cache and the prefill of one rank.

    Weights are read, and experts work, for the tokens of all.
    """
    prefill, own = sum(each.prefill_tokens for each in batches), slowest.prefill_tokens
    return _seconds(
        replica,
        num_decoding=sum(each.num_decoding for each in batches),
        context_tokens=slowest.context_tokens * len(batches),
        prefill_tokens=prefill,
        own_tokens=own,
        earlier_tokens=slowest.prefill_pairs / own if own else 0.0,
    )


def _seconds(  # noqa: PLR0913
    replica: Replica,
    *,
    num_decoding: float,
    context_tokens: float = 0.0,
    prefill_tokens: float = 0.0,
    own_tokens: float = 0.0,
    earlier_tokens: float = 0.0,
) -> float:
    step = Step(
        num_sequences=num_decoding,
        context_tokens=context_tokens,
        prefill_tokens=prefill_tokens,
        prefill_context_tokens=earlier_tokens,
        prefill_ranks=prefill_tokens / own_tokens if own_tokens else math.inf,
    )
    return replica.model.step(step).total_s


@dataclass(slots=True, eq=False)
class Figures:
    """The formula in parts that add up, for contexts up to the longest."""

    replica: Replica
    attention_s: Floats
    prompt_attention_s: Floats
    _decode_s: dict[int, float] = field(default_factory=dict)
    _mixed_s: dict[tuple[int, int, int], float] = field(default_factory=dict)
    _token_s: float | None = None
    """Of one prompt token, where all cost the same whatever is beside them."""

    def decode_s(self, num_decoding: int) -> float:
        known = self._decode_s.get(num_decoding)
        if known is None:
            known = self._decode_s[num_decoding] = _seconds(self.replica, num_decoding=num_decoding)
        return known

    def mixed_s(self, num_decoding: int, prefill_tokens: int, own_tokens: int) -> float:
        if self._token_s is not None:
            return self.decode_s(num_decoding) + prefill_tokens * self._token_s
        key = num_decoding, prefill_tokens, own_tokens
        known = self._mixed_s.get(key)
        if known is None:
            if len(self._mixed_s) > MOST_REMEMBERED:
                self._mixed_s.clear()
            known = self._mixed_s[key] = _seconds(
                self.replica,
                num_decoding=num_decoding,
                prefill_tokens=prefill_tokens,
                own_tokens=own_tokens,
            )
        return known


def figures(replica: Replica, max_model_len: int) -> Figures:
    """Take the formula of a replica apart.

    Raises:
        ValueError: its parts do not add up, as where all reads overlap with all work.
    """
    ranks, longest = replica.model.dp_size, max_model_len + 2

    def attention_s(context: float) -> float:
        one_each = _seconds(replica, num_decoding=ranks, context_tokens=ranks * context)
        return one_each - _seconds(replica, num_decoding=ranks)

    def earlier_s(earlier: float) -> float:
        some, none = (
            _seconds(
                replica,
                num_decoding=ranks,
                prefill_tokens=MANY,
                own_tokens=MANY,
                earlier_tokens=tokens,
            )
            for tokens in (earlier, 0.0)
        )
        return (some - none) / MANY

    each_s = curve(earlier_s, longest)
    whole_s = np.concatenate([[0.0], ((each_s[1:] + each_s[:-1]) / 2).cumsum()])
    found = Figures(replica, curve(attention_s, longest), whole_s)
    _check(found, max_model_len)
    if ranks == 1:
        found._token_s = _token_s(replica)
    return found


def curve(of_tokens: Callable[[float], float], longest: int) -> Floats:
    """Return the values at 0, 1, ... ``longest``: asked only where the function bends."""
    values = np.zeros(longest + 1)
    values[0] = of_tokens(0)
    low = 0
    for high in (*(1 << power for power in range(longest.bit_length())), longest):
        if low < high <= longest:
            _between(of_tokens, values, (low, high), of_tokens(high))
            low = high
    return values


def _between(
    of_tokens: Callable[[float], float], values: Floats, ends: tuple[int, int], at_high: float
) -> None:
    low, high = ends
    values[high], at_low = at_high, values[low]
    if high - low == 1:
        return
    # Not the middle alone: a bend there would hide a second one beside it.
    inner = {low + (high - low) * share // 7 for share in (2, 3, 5)} - {low, high}
    line = {each: at_low + (at_high - at_low) * (each - low) / (high - low) for each in inner}
    scale = max(abs(at_low), abs(at_high))
    if all(abs(of_tokens(each) - on_line) <= ROUNDING * scale for each, on_line in line.items()):
        values[low : high + 1] = np.linspace(at_low, at_high, high - low + 1)
        return
    middle = (low + high) // 2
    _between(of_tokens, values, (low, middle), of_tokens(middle))
    _between(of_tokens, values, (middle, high), at_high)


def _check(found: Figures, max_model_len: int) -> None:
    ranks = found.replica.model.dp_size
    for each in (1, 3, 40):
        for context in (100, max_model_len):
            whole_s = _seconds(
                found.replica,
                num_decoding=each * ranks,
                context_tokens=each * ranks * context,
            )
            parts_s = found.decode_s(each * ranks) + each * found.attention_s[context]
            if not math.isclose(whole_s, parts_s, rel_tol=1e-6):
                raise ValueError(f"{each} of {context} tokens: {whole_s} s, {parts_s} s in parts")


def _token_s(replica: Replica) -> float | None:
    """Return the seconds of a prompt token, None where they depend on what is beside it."""
    rates = [
        (
            _seconds(replica, num_decoding=beside, prefill_tokens=tokens, own_tokens=tokens)
            - _seconds(replica, num_decoding=beside)
        )
        / tokens
        for beside in (1, FEW)
        for tokens in (1, FEW, MANY)
    ]
    return rates[-1] if max(rates) - min(rates) <= 1e-7 * max(rates) else None


def limits_of(
    replica: Replica, *, max_num_seqs: int, max_model_len: int, num_draft_tokens: int = 0
) -> EngineLimits:
    """Return the limits of one rank; a window holds what it can see and no more, in prefill too."""
    layout = replica.layout
    tables = [
        BlockTable(
            block_tokens=group.block_tokens,
            most_blocks=_most_blocks(group.share.window_tokens, group.block_tokens),
            state_blocks=group.state_blocks,
        )
        for group in layout.groups
    ]
    return EngineLimits(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=replica.max_batched_tokens,
        num_blocks=math.floor(replica.kv_pool_bytes / layout.bytes_per_block),
        max_model_len=max_model_len,
        tables=tuple(tables),
        num_draft_tokens=num_draft_tokens,
    )


def _most_blocks(window_tokens: int | None, block_tokens: int) -> int | None:
    return None if window_tokens is None else -(-window_tokens // block_tokens) + 1
