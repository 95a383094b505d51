"""The requests of a run, as columns: what was asked, how far each has come, what its client saw."""

from array import array
from collections.abc import Sequence


class RequestTable:
    """One row for each request, by number. The columns below ``arrival_s`` belong to the engine."""

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
        self.ended_s = array("d", real)

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

    def several_outputs(self, first: int, last: int) -> int:
        """Return how many of them have tokens after the first."""
        several = 0
        for number in range(first, last):
            if self.output_tokens[number] > 1:
                several += 1
        return several

    def wait_s(self, first: int, last: int) -> float:
        """Return how long they waited for their first token, together."""
        total_s = 0.0
        for number in range(first, last):
            total_s += self.first_token_s[number] - self.arrival_s[number]
        return total_s
