"""The schedule of vLLM V1, a step at a time or, while all of them do the same, many at once.

The order of a step: running sequences first, oldest first; when KV blocks run out, the newest is
preempted, to be recomputed, and is the first to be admitted again; then, unless one was preempted,
waiting requests are admitted first come first served. At most one sequence is in the middle of its
prompt, the newest.

Between two events every decoding sequence gains one token a step, so counts, sums of prices and the
number of sequences that need a block at each phase of a block say all there is to say. A prompt
that none of these steps ends has a chunk of the same size in each. With draft
tokens the steps of an answer are drawn when it begins to decode, and it grows by as many tokens in
each of them; its blocks then grow by a share of one.

With a pipeline a step is one round of its microbatches, each with the token budget of a step and
its part of the decoding sequences. Prompts fill one after the other, so that the chunks of one
prompt follow each other through the stages. All last as long as the fullest; what ends in the
``k``-th ends ``k - 1`` stages after the round, and a whole stage after what it follows. The next
round has to wait for these stages as far as its own are shorter.

Left out: sharing of prefix blocks between sequences; asynchronous scheduling, which hides the
scheduler's time and changes no count here.

Sources:
    [vllm-source] v1/core/sched/scheduler.py schedule; v1/engine/core.py step_with_batch_queue.
"""

import math
from array import array
from collections import deque

from tonnage.engine.chance import Chance
from tonnage.engine.limits import EngineLimits
from tonnage.engine.step_costs import StepCosts, with_knot
from tonnage.engine.table import RequestTable

WAITING = 0
PREFILLING = 1
DECODING = 2
DONE = 3
NUMBER_BITS = 24
"""Of an entry of a heap: the step above, the request's number below."""
NUMBER_MASK = (1 << NUMBER_BITS) - 1
ROUNDING = 1e-9
"""Parts of tokens and of blocks add up to whole ones within this."""
MANY_TOKENS = 64
"""Of an answer: beyond them the steps with draft tokens are drawn together."""
SLACK = 64
"""Requests that have ended and are still in the order of the running ones."""


class Heap:
    """Whole numbers, the least at hand."""

    def __init__(self) -> None:
        self.size = 0
        self.entries = array("q", bytes(8 * SLACK))

    def least(self) -> int:
        return self.entries[0]

    def push(self, entry: int) -> None:
        """Add a number."""
        if self.size == len(self.entries):
            self.entries = array("q", bytes(self.entries) + bytes(8 * self.size))
        entries, at = self.entries, self.size
        self.size += 1
        while at > 0 and entries[(at - 1) >> 1] > entry:
            entries[at] = entries[(at - 1) >> 1]
            at = (at - 1) >> 1
        entries[at] = entry

    def pop(self) -> None:
        """Take the least away."""
        self.size -= 1
        entries, at, below = self.entries, 0, 1
        entry = entries[self.size]
        while below < self.size:
            if below + 1 < self.size and entries[below + 1] < entries[below]:
                below += 1
            if entries[below] >= entry:
                break
            entries[at] = entries[below]
            at, below = below, 2 * below + 1
        entries[at] = entry


class Rank:
    """The queue, the running batch and the KV blocks of one data-parallel rank."""

    def __init__(
        self, limits: EngineLimits, costs: StepCosts, table: RequestTable, seed: int
    ) -> None:
        self.table = table
        self.max_num_seqs = limits.max_num_seqs
        self.max_batched_tokens = limits.max_num_batched_tokens
        self.num_microbatches = costs.num_microbatches
        self.block_size = limits.block_size
        self.num_tables = limits.num_tables
        self.fixed_blocks = limits.fixed_blocks
        self.window_tables = limits.window_tables
        self.window_blocks = limits.window_blocks
        self.tokens_verified = limits.tokens_verified
        self.queued_tokens = 0
        self.is_drafting = limits.num_draft_tokens > 0
        self.free_blocks = float(limits.num_blocks)
        self.growing_blocks = 0.0
        self.growing_tokens = 0.0
        self.num_blocks = limits.num_blocks
        self.waiting: deque[int] = deque()
        self.order: list[int] = []
        self.finishing = Heap()
        self.crossing = Heap()
        self.started: list[int] = []
        self.preempted: list[int] = []
        self.prefilled: list[int] = []
        self.prefilled_in: list[int] = []
        self.finished: list[int] = []
        self.is_logged = False
        self.num_finished = 0
        self.partial = -1
        self.num_running = 0
        self.num_decoding = 0
        self.context_tokens = 0.0
        self.decode_tokens = self.chunk_budget = 0
        self.prefill_tokens = self.fullest_tokens = 0
        self.drained_s, self.num_before_last = 0.0, 0
        self.pairs_s = self.pairs_slope_s = 0.0
        self.needing = array("q", bytes(8 * limits.block_size))
        self.round_blocks = 0
        self.full_knot = -1
        self._take_prices(costs)
        self.memory_s = self.memory_slope_s = 0.0
        self.compute_s = self.compute_slope_s = 0.0
        self.chance = Chance(seed, skipped=0)
        rate = limits.acceptance_rate
        powers = [rate**k for k in range(1, limits.tokens_verified)]
        self.accepted_above = array("d", powers)
        mean = 1 + sum(powers)
        square = 1 + sum((2 * k + 3) * power for k, power in enumerate(powers))
        self.tokens_per_step = mean
        self.steps_scv = square / mean**2 - 1

    def _take_prices(self, costs: StepCosts) -> None:
        """Note what contexts cost; where windows are full, they take no more blocks either."""
        if self.window_tables:
            full = self.window_blocks * self.block_size + 1
            costs = with_knot(costs, full)
            self.full_knot = costs.knots_tokens.index(full)
        self.num_knots = len(costs.knots_tokens)
        self.knots_tokens = array("q", costs.knots_tokens)
        self.memory_price_s = array("d", costs.memory_price_s)
        self.memory_slopes_s = array("d", costs.memory_slope_s)
        self.compute_price_s = array("d", costs.compute_price_s)
        self.compute_slopes_s = array("d", costs.compute_slope_s)
        self.pairs_slopes_s = array("d", costs.pairs_slope_s)

    def queue(self, number: int) -> None:
        """Let a request wait that has arrived after all others."""
        self.queued_tokens += self.table.prompt_tokens[number]
        self.waiting.append(number)

    def schedule(self, step: int, now_s: float) -> bool:
        """Choose what this step computes; true when a sequence had to be preempted for it."""
        self.prefill_tokens = 0
        self.pairs_s = self.pairs_slope_s = 0.0
        self.num_finished = 0
        if self.prefilled:
            self.prefilled, self.prefilled_in = [], []
        if self.is_logged:
            self.started, self.preempted, self.finished = [], [], []
        if len(self.order) > 2 * self.num_running + SLACK:
            self._forget_ended()
        is_short = self._make_room(step)
        budget = self.num_microbatches * self.chunk_budget
        if self.partial >= 0:
            budget -= self._prefill(self.partial, budget)
        if self.waiting and not is_short:
            self._admit(step, now_s, budget)
        self.fullest_tokens = min(self.prefill_tokens, self.chunk_budget)
        if self.fullest_tokens < self.prefill_tokens:
            self.pairs_s *= self.fullest_tokens / self.prefill_tokens
        return is_short

    def steps_alike(self, step: int, most: int) -> int:
        """Return how many steps from this one on do the same, and cost a constant more each."""
        if self.num_decoding:
            most = min(most, self._decodes_alike(step))
        if self.partial >= 0:
            most = min(most, self._chunks_alike())
        return self._affordable(step, max(1, most))

    def decode_blocks(self, step: int, steps: int) -> float:
        """Return the KV blocks that decoding sequences take in so many steps."""
        if self.is_drafting or not self.num_decoding:
            return steps * self.growing_blocks
        size = self.block_size
        rounds, phase = steps // size, step % size
        blocks = rounds * self.round_blocks
        for _ in range(steps - rounds * size):
            blocks += self.needing[phase]
            phase += 1
            if phase == size:
                phase = 0
        return blocks

    def chunk_blocks(self, steps: int) -> float:
        """Return the KV blocks that a chunk of the prompt in each of so many more steps takes."""
        number = self.partial
        if number < 0 or not steps:
            return 0.0
        table = self.table
        computed = table.computed[number] + steps * self.prefill_tokens
        return self._blocks_for(computed) - table.blocks[number]

    def taken_s(self, step: int, steps: int, first_s: float, more_s: float) -> float:
        """Return the blocks taken since the first of these steps began, times seconds."""
        total, decoding = 0.0, 0.0
        for later in range(1, steps):
            decoding += self._needed(step + later - 1)
            total += (first_s + later * more_s) * (decoding + self.chunk_blocks(later))
        return total

    def end(self, step: int, steps: int, now_s: float, last_s: float, prompts_s: float) -> None:
        """Note what so many steps from this one on computed.

        ``now_s``: when the last of them ended, ``last_s``: what it took, of which ``prompts_s`` for
        prompts; without the wait for stages.
        """
        self.free_blocks -= self.decode_blocks(step, steps) + self.chunk_blocks(steps - 1)
        if self.partial >= 0:
            self.table.blocks[self.partial] += self.chunk_blocks(steps - 1)
            self.table.computed[self.partial] += (steps - 1) * self.prefill_tokens
        if self.num_decoding:
            self.memory_s += steps * self.memory_slope_s
            self.compute_s += steps * self.compute_slope_s
            self.context_tokens += steps * self.growing_tokens
            self._cross(step + steps)
            self._finish(step + steps, now_s)
        for index in range(len(self.prefilled)):
            lag_s = self._lag_s(self.prefilled_in[index], now_s, last_s, prompts_s)
            self._first_token(self.prefilled[index], step + steps, now_s, lag_s)
        self.num_before_last = 0
        if self.num_microbatches > 1 and self.prefill_tokens:
            self.num_before_last = (self.prefill_tokens - 1) // self.chunk_budget
            lag_s = self._lag_s(self.num_before_last, now_s, last_s, prompts_s)
            self.drained_s = now_s + lag_s

    def _lag_s(self, before: int, now_s: float, last_s: float, prompts_s: float) -> float:
        """Return by how much a microbatch with so many before it ends after the step."""
        if self.num_microbatches == 1:
            return 0.0
        tokens = min(self.fullest_tokens, self.prefill_tokens - before * self.chunk_budget)
        shorter_s = prompts_s * (1 - tokens / self.fullest_tokens)
        stage_s = last_s / self.num_microbatches
        own_s = stage_s - shorter_s / self.num_microbatches
        after_s = (before - 1) * stage_s + own_s if before else 0.0
        return max(after_s, self.drained_s + before * stage_s + own_s - now_s)

    def abort(self, number: int, step: int) -> None:
        """Forget a request between two steps."""
        state = self.table.state[number]
        if not self.table.emitted[number]:
            self.queued_tokens -= self.table.prompt_tokens[number]
        if state == WAITING:
            self.waiting.remove(number)
        else:
            self._leave(number, step)
            self.num_running -= 1
        self.table.state[number] = DONE

    def decoding(self) -> list[int]:
        """Return the numbers of the sequences that decode, oldest first."""
        return [number for number in self.order if self.table.state[number] == DECODING]

    def emitting(self) -> list[int]:
        """Return the numbers of those that got tokens from the step that has ended, if logged."""
        return self.decoding() + self.finished

    def forget_ended(self) -> None:
        """Drop each mention of requests that have ended."""
        self._forget_ended()
        self.finishing = self._live(self.finishing)
        self.crossing = self._live(self.crossing)

    def _live(self, heap: "Heap") -> "Heap":
        live = Heap()
        while heap.size:
            entry = heap.least()
            heap.pop()
            if self.table.state[entry & NUMBER_MASK] != DONE:
                live.push(entry)
        return live

    def _make_room(self, step: int) -> bool:
        """Preempt the newest until the step has its blocks."""
        before = self.num_running
        while self._needed(step) > self.free_blocks + ROUNDING:
            self._preempt(self._newest(), step)
        self.decode_tokens = self.num_decoding * self.tokens_verified
        # The chunk stays as large as it is here, whoever is preempted for its blocks.
        number = self.num_microbatches
        self.chunk_budget = self.max_batched_tokens - (self.decode_tokens + number - 1) // number
        while self._needed(step) + self._partial_need() > self.free_blocks + ROUNDING:
            self._preempt(self._newest(), step)
        self.decode_tokens = self.num_decoding * self.tokens_verified
        return self.num_running < before

    def _needed(self, step: int) -> float:
        """Return the blocks that decoding sequences take in this step and do not hold yet."""
        if self.is_drafting:
            return self.growing_blocks
        return self.needing[step % self.block_size]

    def _forget_ended(self) -> None:
        self.order = [number for number in self.order if self.table.state[number] != DONE]

    def _newest(self) -> int:
        number = self.order.pop()
        while self.table.state[number] == DONE:
            number = self.order.pop()
        return number

    def _preempt(self, number: int, step: int) -> None:
        self._leave(number, step)
        table = self.table
        table.state[number] = WAITING
        table.computed[number] = 0
        table.preemptions[number] += 1
        self.num_running -= 1
        self.waiting.appendleft(number)
        if self.is_logged:
            self.preempted.append(number)

    def _leave(self, number: int, step: int) -> None:
        """Take a running sequence out of the counts and free its blocks."""
        table = self.table
        if table.state[number] == PREFILLING:
            self.partial = -1
        else:
            done = step - table.start_step[number]
            rate = table.rate[number]
            tokens = table.prompt_tokens[number] + table.emitted[number] + done * rate
            grown = int(done * rate + ROUNDING)
            self.num_decoding -= 1
            if self.is_drafting:
                each = self._blocks_each(number)
                self.growing_blocks -= each
                table.blocks[number] += done * each
            else:
                self._need(number, -self._tables_of(number))
                table.blocks[number] = self._blocks_for(table.computed[number] + grown)
            table.emitted[number] += grown
            table.computed[number] += grown
            self._price(number, tokens, -1.0)
        self._free(number)

    def _free(self, number: int) -> None:
        self.free_blocks += self.table.blocks[number]
        self.table.blocks[number] = 0
        if self.num_running == 1:  # it was the last: nothing is held, nor is what rounding left
            self.free_blocks = self.num_blocks

    def _blocks_each(self, number: int) -> float:
        """Return the share of a block that a sequence with drafts takes in each of its steps."""
        table = self.table
        computed = table.computed[number]
        remaining = table.output_tokens[number] - table.emitted[number]
        blocks = self._blocks_for(computed + remaining) - self._blocks_for(computed)
        return table.rate[number] * blocks / remaining

    def _tables_of(self, number: int) -> int:
        """Return the tables of a decoding sequence that still grow."""
        is_full = 0 <= self.full_knot <= self.table.knot[number]
        return self.num_tables - self.window_tables if is_full else self.num_tables

    def _need(self, number: int, tables: int) -> None:
        """Let a decoding sequence take so many blocks more in each round of a block's tokens."""
        table = self.table
        phase = (table.start_step[number] - table.computed[number]) % self.block_size
        self.needing[phase] += tables
        self.round_blocks += tables

    def _price(self, number: int, tokens: float, sign: float) -> None:
        """Add, or take away, the price of a sequence's context and what a step adds to it."""
        table = self.table
        knot, rate = table.knot[number], sign * table.rate[number]
        beyond = tokens - self.knots_tokens[knot]
        memory_slope_s, compute_slope_s = self.memory_slopes_s[knot], self.compute_slopes_s[knot]
        self.memory_s += sign * (self.memory_price_s[knot] + beyond * memory_slope_s)
        self.compute_s += sign * (self.compute_price_s[knot] + beyond * compute_slope_s)
        self.memory_slope_s += rate * memory_slope_s
        self.compute_slope_s += rate * compute_slope_s
        self.growing_tokens += rate
        self.context_tokens += sign * tokens
        if not self.num_decoding:  # nothing is left: nor is what rounding left
            self.memory_s = self.compute_s = self.memory_slope_s = self.compute_slope_s = 0.0
            self.growing_tokens = self.growing_blocks = self.context_tokens = 0.0

    def _blocks_for(self, tokens: int) -> int:
        size = self.block_size
        blocks = (tokens + size - 1) // size
        found = self.fixed_blocks + self.num_tables * blocks
        if self.window_tables and blocks > self.window_blocks:
            found -= self.window_tables * (blocks - self.window_blocks)
        return found

    def _partial_need(self) -> float:
        number = self.partial
        if number < 0:
            return 0.0
        table = self.table
        pending = table.prompt_tokens[number] + table.emitted[number] - table.computed[number]
        tokens = min(pending, self.num_microbatches * self.chunk_budget)
        needed = self._blocks_for(table.computed[number] + tokens) - table.blocks[number]
        return max(0.0, needed)

    def _prefill(self, number: int, budget: int) -> int:
        """Compute a chunk of a prompt, as large as the budget allows; return its tokens."""
        table = self.table
        computed = table.computed[number]
        pending = table.prompt_tokens[number] + table.emitted[number] - computed
        tokens = min(pending, budget)
        needed = self._blocks_for(computed + tokens)
        self.free_blocks -= needed - table.blocks[number]
        table.blocks[number] = needed
        self.prefill_tokens += tokens
        self.pairs_s += tokens * self._pairs_price_s(computed + tokens / 2)
        table.computed[number] = computed + tokens
        if tokens == pending:
            self.partial = -1
            self.prefilled.append(number)
            self.prefilled_in.append((self.prefill_tokens - 1) // self.chunk_budget)
        else:
            self.partial = number
        return tokens

    def _pairs_price_s(self, earlier_tokens: float) -> float:
        price_s, knot = 0.0, 0
        while knot + 1 < self.num_knots and self.knots_tokens[knot + 1] <= earlier_tokens:
            width = self.knots_tokens[knot + 1] - self.knots_tokens[knot]
            price_s += width * self.pairs_slopes_s[knot]
            knot += 1
        beyond = earlier_tokens - self.knots_tokens[knot]
        return price_s + beyond * self.pairs_slopes_s[knot]

    def _admit(self, step: int, now_s: float, budget: int) -> None:
        table, decoding = self.table, self._needed(step)
        while self.waiting and budget > 0 and self.num_running < self.max_num_seqs:
            number = self.waiting[0]
            tokens = table.prompt_tokens[number] + table.emitted[number]
            if self._blocks_for(tokens) + decoding > self.free_blocks + ROUNDING:
                return
            self.waiting.popleft()
            self.num_running += 1
            self.order.append(number)
            table.state[number] = PREFILLING
            table.computed[number] = table.cached_tokens[number]
            if not table.preemptions[number]:
                table.started_s[number] = now_s
                if self.is_logged:
                    self.started.append(number)
            budget -= self._prefill(number, budget)

    def _decodes_alike(self, step: int) -> int:
        """Return the steps until a sequence ends, or reaches a context of another price."""
        table = self.table
        while True:
            entry = self.finishing.least()
            number, last = entry & NUMBER_MASK, entry >> NUMBER_BITS
            if table.state[number] == DECODING and table.finish_step[number] == last:
                break
            self.finishing.pop()
        steps = last - step + 1
        while self.crossing.size:
            entry = self.crossing.least()
            number, last = entry & NUMBER_MASK, entry >> NUMBER_BITS
            if table.state[number] == DECODING and table.knot_step[number] == last:
                return min(steps, last - step)
            self.crossing.pop()
        return steps

    def _chunks_alike(self) -> int:
        """Return the steps until the prompt's last chunk, or one of another price per token."""
        table, number, tokens = self.table, self.partial, self.prefill_tokens
        computed = table.computed[number]
        steps = 1 + (table.prompt_tokens[number] + table.emitted[number] - computed - 1) // tokens
        middle, knot = computed - tokens / 2, 0
        while knot + 1 < self.num_knots and self.knots_tokens[knot + 1] <= middle:
            knot += 1
        self.pairs_slope_s = tokens * self.fullest_tokens * self.pairs_slopes_s[knot]
        if knot + 1 < self.num_knots:
            steps = min(steps, 1 + int((self.knots_tokens[knot + 1] - middle) / tokens))
        return steps

    def _affordable(self, step: int, most: int) -> int:
        """Return for how many of these steps there are blocks: one at least."""
        steps, beyond, tried = 1, most + 1, most
        while beyond - steps > 1:
            taken = self.decode_blocks(step, tried) + self.chunk_blocks(tried - 1)
            if taken <= self.free_blocks + ROUNDING:
                steps = tried
            else:
                beyond = tried
            tried = (steps + beyond) // 2
        return steps

    def _cross(self, step: int) -> None:
        """Let sequences that have reached a knot cost what follows it."""
        table = self.table
        while self.crossing.size:
            entry = self.crossing.least()
            if entry >> NUMBER_BITS > step:
                break
            self.crossing.pop()
            number = entry & NUMBER_MASK
            is_live = table.state[number] == DECODING
            if is_live and table.knot_step[number] == entry >> NUMBER_BITS:
                knot, rate = table.knot[number], table.rate[number]
                done = step - table.start_step[number]
                tokens = table.prompt_tokens[number] + table.emitted[number] + done * rate
                beyond = tokens - self.knots_tokens[knot + 1]
                more_s = self.memory_slopes_s[knot + 1] - self.memory_slopes_s[knot]
                self.memory_s += beyond * more_s
                self.memory_slope_s += rate * more_s
                more_s = self.compute_slopes_s[knot + 1] - self.compute_slopes_s[knot]
                self.compute_s += beyond * more_s
                self.compute_slope_s += rate * more_s
                table.knot[number] = knot + 1
                if knot + 1 == self.full_knot and not self.is_drafting:
                    self._need(number, -self.window_tables)
                self._expect_knot(number, step, tokens)

    def _expect_knot(self, number: int, step: int, tokens: float) -> None:
        table = self.table
        knot = table.knot[number] + 1
        if knot < self.num_knots:
            missing = (self.knots_tokens[knot] - tokens) / table.rate[number]
            table.knot_step[number] = step + max(1, int(missing + 1.0 - ROUNDING))
            self.crossing.push(table.knot_step[number] << NUMBER_BITS | number)

    def _finish(self, step: int, now_s: float) -> None:
        table = self.table
        while self.finishing.size:
            entry = self.finishing.least()
            if entry >> NUMBER_BITS >= step:
                break
            self.finishing.pop()
            number = entry & NUMBER_MASK
            is_live = table.state[number] == DECODING
            if is_live and table.finish_step[number] == entry >> NUMBER_BITS:
                self._leave(number, step)
                self._complete(number, now_s)

    def _complete(self, number: int, now_s: float) -> None:
        self.table.state[number] = DONE
        self.table.ended_s[number] = now_s + self.table.lag_s[number]
        self.num_running -= 1
        self.num_finished += 1
        if self.is_logged:
            self.finished.append(number)

    def _first_token(self, number: int, step: int, now_s: float, lag_s: float) -> None:
        """Let a sequence whose prefill has ended emit a token, and decode from this step on.

        ``lag_s``: by which its microbatch ends after the step, and with it each of its tokens.
        """
        table = self.table
        table.lag_s[number] = lag_s
        if not table.emitted[number]:
            table.first_token_s[number] = now_s + lag_s
            self.queued_tokens -= table.prompt_tokens[number]
        table.emitted[number] += 1
        remaining = table.output_tokens[number] - table.emitted[number]
        if remaining == 0:
            self._free(number)
            self._complete(number, now_s)
            return
        table.state[number] = DECODING
        self.num_decoding += 1
        table.start_step[number] = step
        steps = remaining
        if self.is_drafting:
            steps = self._steps_of(remaining)
        table.rate[number] = remaining / steps
        tokens = table.prompt_tokens[number] + table.emitted[number]
        knot = 0
        while knot + 1 < self.num_knots and self.knots_tokens[knot + 1] <= tokens:
            knot += 1
        table.knot[number] = knot
        if self.is_drafting:
            self.growing_blocks += self._blocks_each(number)
        else:
            self._need(number, self._tables_of(number))
        self._price(number, tokens, 1.0)
        table.finish_step[number] = step + steps - 1
        self.finishing.push(table.finish_step[number] << NUMBER_BITS | number)
        self._expect_knot(number, step, tokens)

    def _steps_of(self, tokens: int) -> int:
        """Return the steps in which so many tokens are made.

        The first of many are drawn at once, from the normal distribution that counts of renewals
        approach; the last one by one, with what the last step gives beyond them.
        """
        steps, most_steps = 0, tokens
        fewest_steps = (tokens + self.tokens_verified - 1) // self.tokens_verified
        if tokens > MANY_TOKENS:
            most = (tokens - MANY_TOKENS) / self.tokens_per_step
            drawn = most + self._normal() * math.sqrt(most * self.steps_scv)
            steps = int(max(1.0, drawn) + 0.5)
            tokens = MANY_TOKENS
        while tokens > 0:
            tokens -= 1 + self._accepted()
            steps += 1
        return max(fewest_steps, min(most_steps, steps))

    def _normal(self) -> float:
        """Return a standard normal number, near enough: a sum of twelve shares."""
        total = -6.0
        for _ in range(12):
            total += self.chance.share()
        return total

    def _accepted(self) -> int:
        """Return how many of the draft tokens of a sequence are right."""
        share, right = self.chance.share(), 0
        while right < self.tokens_verified - 1 and share < self.accepted_above[right]:
            right += 1
        return right
