"""How long decode steps and prompts take on one replica, whatever its load.

Data-parallel ranks step together: they count as one engine that decodes the sequences of all. A
prompt is on one of them and holds up all, but the work of its experts is shared out.
"""

import copy
import math
from collections.abc import Hashable
from functools import cached_property, lru_cache
from typing import Protocol

from tonnage.sizing.outputs import Outputs
from tonnage.sizing.step_time.step import Step, StepTime
from tonnage.sizing.workload import Workload

POINTS_PER_DOUBLING = 2
"""Batch sizes at which a decode step is worked out; between them it is nearly a line."""
FEWEST = 1.0
BESIDE = 16.0
"""Decoding sequences per rank beside which a prompt is priced at first (``Pace.among``)."""
LONG = 0.99
"""Quantile of the prompts' lengths."""


def together(chunks_per_step: float) -> float:
    """Return the chunks of prompts in a step that has any, in the mean.

    Prompts come at random, so that with ``x`` of them in a mean step some steps have none, and
    those that have any hold ``x / (1 - exp(-x))``.

    >>> round(together(0.1), 2), round(together(20.0), 2)
    (1.05, 20.0)
    """
    return chunks_per_step / -math.expm1(-chunks_per_step) if chunks_per_step > 0 else 1.0


class Stepping(Hashable, Protocol):
    """What takes steps: a replica."""

    @property
    def max_batched_tokens(self) -> int: ...

    @property
    def num_queues(self) -> int: ...

    @property
    def tokens_judged(self) -> int: ...

    @property
    def steps_scv(self) -> float: ...

    def steps(self, tokens: float) -> float: ...

    def step(self, step: Step) -> StepTime: ...


class Pace:
    """The time of decode steps by their batch, and of prompts by their length."""

    def __init__(self, replica: Stepping, workload: Workload) -> None:
        self._replica = replica
        self._context_tokens = workload.mean_context_tokens
        self._points: dict[int, float] = {}
        self._lines: dict[int, tuple[float, float, float, float]] = {}
        self._longer: dict[int, float] = {}
        self.workload = workload
        self.steps = replica.steps
        self.steps_scv = replica.steps_scv
        self.outputs = Outputs(workload)
        self._prices: dict[int, tuple[float, float]] = {}
        self._prompt_moments = [workload.prompt.moment(order) for order in range(1, 7)]
        self._price(*self._prompt_costs(BESIDE * replica.num_queues, 1.0))

    def among(self, num_decoding: float) -> "Pace":
        """Return the pace with prompts priced beside so many sequences; inf: all there can be.

        Experts that others need are read anyway, and a rank that prefills holds up the others
        whether they prefill or not: the more there are the less each adds.
        """
        num = min(max(num_decoding, FEWEST), self.most_decoding / 2)
        position = POINTS_PER_DOUBLING * math.log2(num)
        below = math.floor(position)
        low, high = self._priced(below), self._priced(below + 1)
        share = position - below
        other = copy.copy(self)
        other._price(*(a + (b - a) * share for a, b in zip(low, high, strict=True)))
        return other

    def _priced(self, point: int) -> tuple[float, float]:
        found = self._prices.get(point)
        if found is None:
            num = self._batch(point)
            chunks = max(1.0, self.workload.new_prompt_tokens / self.room_tokens(num))
            in_step = num / self.steps(self.outputs.mean_tokens) * chunks
            found = self._prices[point] = self._prompt_costs(num, together(in_step))
        return found

    def _price(self, per_token_s: float, per_pair_s: float) -> None:
        self.per_token_s, self.per_pair_s = per_token_s, per_pair_s
        self.work_moments = self._work_moments()

    def decode_s(self, num_sequences: float) -> float:
        """Return the time of a step with so many decoding sequences and no prefill."""
        if num_sequences <= FEWEST:
            return self._point(0)
        below = math.floor(POINTS_PER_DOUBLING * math.log2(num_sequences))
        low, low_s, width, more_s = self._lines.get(below) or self._line(below)
        return low_s + more_s * (num_sequences - low) / width

    def context_s(self, num_sequences: float) -> float:
        """Return what a step of so many sequences would add if each were twice as long."""
        nearest = max(0, round(POINTS_PER_DOUBLING * math.log2(max(FEWEST, num_sequences))))
        found = self._longer.get(nearest)
        if found is None:
            twice_s = self._decode_s(self._batch(nearest), 2 * self._context_tokens)
            found = self._longer[nearest] = twice_s - self._point(nearest)
        return found * num_sequences / self._batch(nearest)

    def prompt_s(self, prompt_tokens: float) -> float:
        """Return what one prompt adds to steps: each token, and its look at all before it."""
        return (self.per_token_s + self.per_pair_s * prompt_tokens) * prompt_tokens

    def room_tokens(self, num_decoding: float) -> float:
        """Return the prompt tokens of one rank that fit a step beside its share of so many."""
        own = num_decoding * self._replica.tokens_judged / self._replica.num_queues
        return max(1.0, self._replica.max_batched_tokens - own)

    @property
    def most_decoding(self) -> float:
        """Sequences of all ranks that the token budget has room for."""
        ranks, judged = self._replica.num_queues, self._replica.tokens_judged
        return ranks * self._replica.max_batched_tokens / judged

    def _line(self, below: int) -> tuple[float, float, float, float]:
        """Return where the line from this point to the next begins, and how far it goes."""
        low, high = self._batch(below), self._batch(below + 1)
        low_s, high_s = self._point(below), self._point(below + 1)
        line = self._lines[below] = low, low_s, high - low, high_s - low_s
        return line

    @cached_property
    def held_scv(self) -> float:
        """Squared coefficient of variation of the tokens that a decoding sequence holds."""
        prompt, outputs = self.workload.prompt, self.outputs
        age = outputs.moment(2) / (2 * outputs.mean_tokens)
        age_second = outputs.moment(3) / (3 * outputs.mean_tokens)
        variance = prompt.scv * prompt.mean_tokens**2 + age_second - age**2
        return variance / (prompt.mean_tokens + age) ** 2

    @cached_property
    def held_work_scv(self) -> float:
        """That of the tokens that a request holds, summed up over its steps."""
        prompt, moment = self.workload.prompt, self.outputs.moment
        mean = prompt.mean_tokens * moment(1) + moment(2) / 2
        second = prompt.second_moment * moment(2) + prompt.mean_tokens * moment(3) + moment(4) / 4
        return second / mean**2 - 1

    @staticmethod
    def _batch(point: int) -> float:
        batch: float = 2 ** (point / POINTS_PER_DOUBLING)
        return batch

    def _point(self, point: int) -> float:
        found = self._points.get(point)
        if found is None:
            found = self._points[point] = self._decode_s(self._batch(point), self._context_tokens)
        return found

    def _decode_s(self, num_sequences: float, context_tokens: float) -> float:
        step = Step(num_sequences=num_sequences, context_tokens=num_sequences * context_tokens)
        return self._replica.step(step).total_s

    def _prompt_costs(self, num_decoding: float, num_prompts: float) -> tuple[float, float]:
        """Return seconds per prompt token, cached or not, and per pair of tokens that attend.

        Of prompts of the mean length and of long ones: between them sparse attention looks at ever
        fewer of the pairs.
        """
        workload, ranks = self.workload, self._replica.num_queues
        new = 1 - workload.cached_fraction
        chunk = min(workload.new_prompt_tokens, float(self._replica.max_batched_tokens))
        if chunk <= 0:
            return 0.0, 0.0
        mean = max(1.0, workload.prompt.mean_tokens)
        long = max(2 * mean, workload.prompt.quantile(LONG))
        together = min(num_prompts, ranks * self._replica.max_batched_tokens / chunk)
        earlier_share = workload.cached_fraction + new / 2
        alone_s, mean_s, long_s = (
            self._replica.step(
                Step(
                    num_sequences=num_decoding,
                    context_tokens=0,
                    prefill_tokens=tokens * together,
                    prefill_context_tokens=earlier_share * length,
                    prefill_ranks=min(ranks, together),
                )
            ).total_s
            / together
            for tokens, length in ((0.0, 0.0), (chunk, mean), (chunk, long))
        )
        per_pair_s = new * (long_s - mean_s) / chunk / (long - mean)
        return new * (mean_s - alone_s) / chunk - per_pair_s * mean, per_pair_s

    def _work_moments(self) -> tuple[float, float, float]:
        """Return the raw moments of a prompt's work."""
        a, b = self.per_token_s, self.per_pair_s
        m1, m2, m3, m4, m5, m6 = self._prompt_moments
        return (
            a * m1 + b * m2,
            a * a * m2 + 2 * a * b * m3 + b * b * m4,
            a**3 * m3 + 3 * a * a * b * m4 + 3 * a * b * b * m5 + b**3 * m6,
        )


@lru_cache(maxsize=256)
def pace_of(replica: Stepping, workload: Workload) -> Pace:
    """Return the pace of a replica. Give it without places: its cache and slots have no part."""
    return Pace(replica, workload)
