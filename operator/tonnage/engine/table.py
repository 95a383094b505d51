"""The requests of a run, as columns: what was asked, how far each has come, what its client saw."""

import math
from array import array
from collections.abc import Iterable, Sequence

INTEGERS = (
    "prompt_tokens", "output_tokens", "cached_tokens", "state", "emitted", "computed",
    "start_step", "finish_step", "knot", "knot_step", "preemptions",
)  # fmt: skip
REALS = ("arrival_s", "blocks", "rate", "started_s", "first_token_s", "lag_s", "ended_s")
FEWEST_ROWS = 64


class RequestTable:
    """One row for each request, by number. The columns below ``arrival_s`` belong to the engine.

    All requests may be known from the start, or be added one by one; then columns have rows to
    spare beyond ``size``, and a row that ``Engine.release`` gives back is used again.
    """

    def __init__(
        self,
        prompt_tokens: Sequence[int],
        output_tokens: Sequence[int],
        cached_tokens: Sequence[int],
        arrival_s: Sequence[float],
    ) -> None:
        """Take the requests, in order of arrival; ``cached_tokens`` are found in the cache."""
        size = len(arrival_s)
        self.size = size
        self.capacity = size
        self.free: list[int] = []
        self.prompt_tokens = array("q", prompt_tokens)
        self.output_tokens = array("q", output_tokens)
        self.cached_tokens = array("q", cached_tokens)
        self.arrival_s = array("d", arrival_s)
        whole, real = array("q", bytes(8 * size)), array("d", bytes(8 * size))
        self.state = array("q", whole)
        self.emitted = array("q", whole)
        self.computed = array("q", whole)
        self.blocks = array("d", real)
        self.rate = array("d", real)
        self.start_step = array("q", whole)
        self.finish_step = array("q", whole)
        self.knot = array("q", whole)
        self.knot_step = array("q", whole)
        self.preemptions = array("q", whole)
        self.started_s = array("d", real)
        self.first_token_s = array("d", real)
        self.lag_s = array("d", real)
        self.ended_s = array("d", real)

    def add(
        self, *, prompt_tokens: int, output_tokens: int, cached_tokens: int = 0, arrival_s: float
    ) -> int:
        """Note one more request and return its number, maybe that of one forgotten."""
        if self.free:
            number = self.free.pop()
        else:
            if self.size == self.capacity:
                self._grow()
            number = self.size
            self.size += 1
        self.prompt_tokens[number] = prompt_tokens
        self.output_tokens[number] = output_tokens
        self.cached_tokens[number] = cached_tokens
        self.arrival_s[number] = arrival_s
        self.state[number] = self.emitted[number] = self.computed[number] = 0
        self.start_step[number] = self.finish_step[number] = 0
        self.blocks[number] = self.rate[number] = 0.0
        self.knot[number] = self.knot_step[number] = self.preemptions[number] = 0
        self.started_s[number] = self.first_token_s[number] = self.ended_s[number] = 0.0
        self.lag_s[number] = 0.0
        return number

    def _grow(self) -> None:
        more = bytes(8 * max(FEWEST_ROWS, self.capacity))
        for name in INTEGERS:
            setattr(self, name, array("q", bytes(getattr(self, name)) + more))
        for name in REALS:
            setattr(self, name, array("d", bytes(getattr(self, name)) + more))
        self.capacity += max(FEWEST_ROWS, self.capacity)

    def late_starts(self, first: int, last: int, limit_s: float) -> int:
        """Return how many requests from ``first`` to before ``last`` waited longer for a token."""
        late = 0
        for number in range(first, last):
            if self.first_token_s[number] - self.arrival_s[number] > limit_s:
                late += 1
        return late

    def slow_outputs(self, first: int, last: int, limit_s: float) -> int:
        """Return how many of them took longer per token after the first, in the mean."""
        slow = 0
        for number in range(first, last):
            later = self.output_tokens[number] - 1
            if later and self.ended_s[number] - self.first_token_s[number] > limit_s * later:
                slow += 1
        return slow

    def latencies_s(self, numbers: Iterable[int]) -> tuple["array[float]", "array[float]"]:
        """Return TTFT and TPOT of these requests, which have ended, in their order.

        TPOT of an answer of one token is 0, as in vLLM's histogram: its percentiles are over all
        finished requests (vllm/v1/metrics/stats.py, ``mean_time_per_output_token``).
        """
        ttft_s, tpot_s = array("d"), array("d")
        for number in numbers:
            ttft_s.append(self.first_token_s[number] - self.arrival_s[number])
            later = max(1, self.output_tokens[number] - 1)
            tpot_s.append((self.ended_s[number] - self.first_token_s[number]) / later)
        return ttft_s, tpot_s

    def spread_s(
        self, first: int, last: int, quantiles: Sequence[float]
    ) -> tuple[list[float], list[float]]:
        """Return, for each quantile, the least TTFT and TPOT that this share does not exceed."""
        count = last - first
        ttft_s, tpot_s = array("d", bytes(8 * count)), array("d", bytes(8 * count))
        starts_s, gaps_s = ttft_s, tpot_s
        for index in range(count):
            number = first + index
            starts_s[index] = self.first_token_s[number] - self.arrival_s[number]
            later = max(1, self.output_tokens[number] - 1)
            gaps_s[index] = (self.ended_s[number] - self.first_token_s[number]) / later
        places = [max(0, math.ceil(quantile * count) - 1) for quantile in quantiles]
        return (
            [_value_at(starts_s, place) for place in places],
            [_value_at(gaps_s, place) for place in places],
        )

    def num_preempted(self) -> int:
        """Return how often requests were preempted, together."""
        total = 0
        for number in range(self.size):
            total += self.preemptions[number]
        return total

    def wait_s(self, first: int, last: int) -> float:
        """Return how long they waited for their first token, together."""
        total_s = 0.0
        for number in range(first, last):
            total_s += self.first_token_s[number] - self.arrival_s[number]
        return total_s


def _value_at(values: "array[float]", place: int) -> float:
    """Return what stands at a place in ascending order; the values change theirs (Hoare's find)."""
    low, high = 0, len(values) - 1
    while low < high:
        pivot, left, right = values[(low + high) // 2], low, high
        while left <= right:
            while values[left] < pivot:
                left += 1
            while values[right] > pivot:
                right -= 1
            if left <= right:
                values[left], values[right] = values[right], values[left]
                left += 1
                right -= 1
        if place <= right:
            high = right
        elif place >= left:
            low = left
        else:
            break
    return values[place]
