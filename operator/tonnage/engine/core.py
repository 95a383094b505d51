"""One engine of one or several ranks in lock step, on a clock of its own.

Steps that do the same are taken many at a time, exactly: between two events the seconds of a step
grow by a constant, on whichever rank and by whichever bound is the slowest. They all decode, beside
a chunk each of a prompt that none of them ends.

Sources:
    [vllm-source] v1/engine/core.py DPEngineCoreProc (ranks without work run dummy batches);
    v1/engine/core_client.py DPLBAsyncMPClient (what waits counts four times; its counts are up to
    100 ms old, here they are not).
"""

import math
from array import array

from tonnage.engine.limits import EngineLimits, LimitsError
from tonnage.engine.schedule import Rank
from tonnage.engine.step_costs import StepCosts
from tonnage.engine.table import RequestTable

DECODING = 2
DONE = 3
WAITING_WEIGHT = 4
ROUNDING = 1e-9
MOST_STEPS = 1 << 24
INFINITY = float("inf")


class Engine:
    """One engine: ``submit`` requests in order of arrival, ``advance`` to a time.

    Or ``step`` it, one step at a call, where the caller owns the clock.
    """

    def __init__(
        self,
        limits: EngineLimits,
        costs: StepCosts,
        table: RequestTable,
        seed: int = 0,
        *,
        is_logged: bool = False,
    ) -> None:
        """Make an idle engine; ``is_logged``: ranks tell by number what happened in a step."""
        num_decoding = limits.max_num_seqs * limits.num_ranks
        if len(costs.base_s) <= num_decoding:
            raise LimitsError(
                f"step costs are told for {len(costs.base_s) - 1} sequences, max_num_seqs is "
                f"{limits.max_num_seqs} on {limits.num_ranks} ranks"
            )
        self.ranks = [Rank(limits, costs, table, seed + n) for n in range(limits.num_ranks)]
        for rank in self.ranks:
            rank.is_logged = is_logged
        self.num_ranks = limits.num_ranks
        self.num_microbatches = costs.num_microbatches
        self.draining = 0
        self.drained_s = self.drain_s = self.prompts_s = 0.0
        self.max_queued_reqs = limits.max_queued_reqs
        self.max_queued_tokens = limits.num_ranks * limits.max_queued_tokens
        self.table = table
        self.now_s = 0.0
        self.ends_s = INFINITY
        self.num_outstanding = 0
        self.step_number = 0
        self.steps = 0
        self.first_s = 0.0
        self.more_s = 0.0
        self.has_chunks = False
        self.num_steps = 0
        self.busy_s = 0.0
        self.decoding_s = 0.0
        self.context_s = 0.0
        self.full_s = 0.0
        self.peak_running = 0
        self.base_s = array("d", costs.base_s)
        self.memory_s = array("d", costs.memory_s)
        self.compute_s = array("d", costs.compute_s)
        self.factor = array("d", costs.context_factor)
        self.own_s = costs.own_prefill_s_per_token
        grid = costs.prefill
        self.grid_num = array("q", grid.num_decoding)
        self.grid_tokens = array("d", grid.prefill_tokens)
        self.grid_s = array("d", [cell_s for row in grid.seconds for cell_s in row])
        self.grid_rows = len(self.grid_num)
        self.grid_columns = len(self.grid_tokens)

    def submit(self, number: int) -> int:
        """Queue a request on the rank with the least to do, and return which that is.

        It is seen when the step ends. -1: it is refused, as too much waits.
        """
        if (0 < self.max_queued_reqs <= self.num_outstanding) or (
            0 < self.max_queued_tokens <= self.queued_tokens()
        ):
            self.table.state[number] = DONE
            self.table.first_token_s[number] = self.table.ended_s[number] = INFINITY
            return -1
        found, least = 0, 0
        if self.num_ranks > 1:
            least = -1
            for index in range(self.num_ranks):
                chosen = self.ranks[index]
                outstanding = WAITING_WEIGHT * len(chosen.waiting) + chosen.num_running
                if least < 0 or outstanding < least:
                    found, least = index, outstanding
        chosen = self.ranks[found]
        self.num_outstanding += 1
        chosen.queue(number)
        arrival_s = self.table.arrival_s[number]
        if self.ends_s == INFINITY:
            self.now_s = max(self.now_s, arrival_s)
        elif self.steps > 1 and chosen.partial < 0 and chosen.waiting[0] == number:
            self._cut(arrival_s)
        return found

    def queued_tokens(self) -> int:
        """Return the tokens of all prompts whose first token is not there yet, begun or not.

        Sources:
            [vllm-source] v1/engine/output_processor.py get_num_queued_tokens, which
            v1/engine/async_llm.py check_admission holds against ``--max-num-queued-tokens``.
        """
        tokens = 0
        for rank in self.ranks:
            tokens += rank.queued_tokens
        return tokens

    def advance(self, until_s: float) -> None:
        """End all steps that end by this time, and begin those that begin before it."""
        while True:
            if self.ends_s == INFINITY:
                if not self.num_outstanding or self.now_s >= until_s:
                    return
                self._begin(False)
            if self.ends_s > until_s:
                return
            self._end()

    def advance_alike(self) -> None:
        """Begin and end one step, or all that follow in which nothing changes but lengths."""
        self._begin(False)
        self._end()

    def step(self) -> float:
        """Begin and end one step; return its seconds."""
        self._begin(True)
        self._end()
        return self.first_s

    def abort(self, number: int) -> None:
        """Forget a request between two steps; unknown ones and those that ended are left alone."""
        if self.table.state[number] == DONE:
            return
        for rank in self.ranks:
            if number in rank.waiting or number in rank.order:
                rank.abort(number, self.step_number)
                self.num_outstanding -= 1
                return

    def emitted(self, number: int) -> int:
        """Return the tokens that a request has got; only where the engine is stepped."""
        tokens: int = self.table.emitted[number]
        if self.table.state[number] == DECODING:
            done = self.step_number - self.table.start_step[number]
            tokens += int(done * self.table.rate[number] + ROUNDING)
        return tokens

    def release(self, numbers: list[int]) -> None:
        """Let the rows of requests that have ended be used for others."""
        for rank in self.ranks:
            rank.forget_ended()
        self.table.free.extend(numbers)

    def ended(self, at_s: float) -> int:
        """Return how many of the steps under way have ended by a time: the last one has not."""
        if self.ends_s == INFINITY:
            return 0
        elapsed_s = at_s - self.now_s
        # Not by the usual root: where what rounding leaves of a slope is all, that is noise.
        lead = self.first_s - self.more_s / 2
        root = math.sqrt(max(0.0, lead * lead + 2 * self.more_s * elapsed_s))
        passed = 2 * elapsed_s / (lead + root) if lead + root > 0 else 0.0
        steps = int(max(0.0, min(self.steps - 1, passed + ROUNDING)))
        while steps and self.lasts_s(steps) > elapsed_s:
            steps -= 1
        return steps

    def lasts_s(self, steps: int) -> float:
        """Return the seconds of so many of the steps under way, from the first."""
        return steps * self.first_s + self.more_s * (steps * (steps - 1) / 2)

    def _begin(self, is_single: bool) -> None:
        """Schedule the next step, or the next steps where they will all do the same."""
        num_decoding = prefill = running = 0
        for rank in self.ranks:
            if rank.schedule(self.step_number, self.now_s) or rank.prefilled:
                is_single = True
            num_decoding += rank.num_decoding
            prefill += rank.fullest_tokens
            running = max(running, rank.num_running)
        self.peak_running = max(self.peak_running, running)
        line = self._slowest(num_decoding, 0)
        shared_s = self.base_s[num_decoding]
        self.prompts_s = 0.0
        if prefill:
            self.prompts_s = self._prefill_s(num_decoding, prefill) - prefill * self.own_s
            shared_s += self.prompts_s
            self.prompts_s += self._own_prompts_s(line)
        self.first_s = shared_s + self._line_s(line, num_decoding, 0)
        self.drain_s = 0.0
        if self.draining:
            left_s = self.drained_s - self.now_s
            hidden_s = self.draining * self.first_s / self.num_microbatches
            self.drain_s = max(0.0, left_s - hidden_s)
            if self.drain_s:
                self.first_s += self.drain_s
                is_single = True
        self.steps, self.more_s, self.has_chunks = 1, 0.0, prefill > 0
        if not is_single and (num_decoding or prefill):
            self.steps = self._alike(line, num_decoding)
            self.more_s = self._slope_s(line, num_decoding)
        self.ends_s = self.now_s + self.lasts_s(self.steps)

    def _alike(self, line: int, num_decoding: int) -> int:
        """Return the steps until something changes, be it which rank or bound is the slowest."""
        steps = MOST_STEPS
        for rank in self.ranks:
            if rank.num_decoding or rank.partial >= 0:
                steps = rank.steps_alike(self.step_number, steps)
        while steps > 1 and self._slowest(num_decoding, steps - 1) != line:
            steps //= 2
        return steps

    def _slowest(self, num_decoding: int, later: int) -> int:
        """Return the line that is highest so many steps later: two of each rank."""
        found, highest_s = 0, -1.0
        for line in range(2 * self.num_ranks):
            value_s = self._line_s(line, num_decoding, later)
            if value_s > highest_s:
                found, highest_s = line, value_s
        return found

    def _line_s(self, line: int, num_decoding: int, later: int) -> float:
        """Return what a rank's reads (even lines) or its work (odd ones) take."""
        rank = self.ranks[line // 2]
        own_s = self._own_prompts_s(line) + later * rank.pairs_slope_s
        factor = self.factor[num_decoding]
        if line % 2:
            price_s = rank.compute_s + later * rank.compute_slope_s
            return own_s + self.compute_s[num_decoding] + factor * price_s
        price_s = rank.memory_s + later * rank.memory_slope_s
        return own_s + self.memory_s[num_decoding] + factor * price_s

    def _own_prompts_s(self, line: int) -> float:
        rank = self.ranks[line // 2]
        return rank.pairs_s + rank.fullest_tokens * self.own_s

    def _slope_s(self, line: int, num_decoding: int) -> float:
        rank = self.ranks[line // 2]
        slope_s = rank.compute_slope_s if line % 2 else rank.memory_slope_s
        return rank.pairs_slope_s + self.factor[num_decoding] * slope_s

    def _prefill_s(self, num_decoding: int, tokens: int) -> float:
        row = 0
        while row + 2 < self.grid_rows and self.grid_num[row + 1] <= num_decoding:
            row += 1
        column = 0
        while column + 2 < self.grid_columns and self.grid_tokens[column + 1] <= tokens:
            column += 1
        low, high = self.grid_num[row], self.grid_num[row + 1]
        share = (min(num_decoding, high) - low) / (high - low)
        left, right = self.grid_tokens[column], self.grid_tokens[column + 1]
        along = (tokens - left) / (right - left)
        at = row * self.grid_columns + column
        beyond = at + self.grid_columns
        first_s = self.grid_s[at] + along * (self.grid_s[at + 1] - self.grid_s[at])
        second_s = self.grid_s[beyond] + along * (self.grid_s[beyond + 1] - self.grid_s[beyond])
        return first_s + share * (second_s - first_s)

    def _cut(self, at_s: float) -> None:
        """Let the steps under way end with the one in which ``at_s`` falls."""
        steps = self.ended(at_s)
        if not steps or self.now_s + self.lasts_s(steps) < at_s:
            steps += 1
        self.steps = steps
        self.ends_s = self.now_s + self.lasts_s(steps)

    def _end(self) -> None:
        duration_s = self.ends_s - self.now_s
        last_s = self.first_s - self.drain_s + (self.steps - 1) * self.more_s
        self.busy_s += duration_s
        self.num_steps += self.steps
        self.now_s = self.ends_s
        finished, self.draining = 0, 0
        for rank in self.ranks:
            self.decoding_s += duration_s * rank.num_decoding
            self.context_s += duration_s * (rank.num_blocks - rank.free_blocks)
            if self.has_chunks:  # steps that only decode take few blocks
                self.context_s += rank.taken_s(
                    self.step_number, self.steps, self.first_s, self.more_s
                )
            if rank.num_running == rank.max_num_seqs:
                self.full_s += duration_s
            rank.end(self.step_number, self.steps, self.now_s, last_s, self.prompts_s)
            if rank.num_before_last > self.draining:
                self.draining, self.drained_s = rank.num_before_last, rank.drained_s
            finished += rank.num_finished
        self.num_outstanding -= finished
        self.step_number += self.steps
        self.ends_s = INFINITY
