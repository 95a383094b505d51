"""A pipeline to judge the engine model's by: one microbatch, one stage and one request at a time.

The scheduler of vLLM V1 with a batch queue: as long as fewer batches are in flight than there are
stages, it schedules one more, of what can be: running sequences whose token has come back, the next
chunk of a prompt whether or not the one before is through, then who waits. Batches pass the stages
in order. It shares no code with ``tonnage.engine``, whose steps are rounds of such batches. KV
blocks never run out here.

Sources:
    [vllm-source] v1/engine/core.py step_with_batch_queue; v1/core/sched/scheduler.py schedule.
"""

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from reference_engine import Request, Served
from tonnage.sizing.serving.replica import Replica
from tonnage.sizing.step_time.step import Step


@dataclass(slots=True, eq=False)
class _Running:
    served: Served
    scheduled: int = 0
    """Prompt tokens in this batch or one before."""
    emitted: int = 0
    is_out: bool = False
    """Its last prompt token, or the last token that it got, is in a batch in flight."""

    @property
    def context_tokens(self) -> int:
        return self.served.request.prompt_tokens + self.emitted


@dataclass(slots=True)
class _Batch:
    decoding: list[_Running] = field(default_factory=list)
    ending: list[_Running] = field(default_factory=list)
    """Whose last chunk it has."""
    prefill_tokens: int = 0
    prefill_pairs: float = 0.0

    def chunk(self, one: _Running, tokens: int) -> None:
        self.prefill_tokens += tokens
        self.prefill_pairs += tokens * (one.scheduled + tokens / 2)
        one.scheduled += tokens
        if one.scheduled == one.served.request.prompt_tokens:
            one.is_out = True
            self.ending.append(one)


def stage_time(replica: Replica) -> Callable[[_Batch], float]:
    """Return the seconds of one stage with one batch, by the formula of a step."""
    model, stages = replica.model, replica.model.num_microbatches
    split = replace(model.shard.parallelism, pipeline=1)
    # What a step takes whatever it does is once for all stages.
    constants = replace(model.constants, per_step_s=model.constants.per_step_s / stages)
    one = replace(model, shard=replace(model.shard, parallelism=split), constants=constants)

    def stage_s(batch: _Batch) -> float:
        tokens = batch.prefill_tokens
        step = Step(
            num_sequences=len(batch.decoding),
            context_tokens=sum(each.context_tokens for each in batch.decoding),
            prefill_tokens=tokens,
            prefill_context_tokens=batch.prefill_pairs / tokens if tokens else 0.0,
        )
        return one.step(step).total_s

    return stage_s


def serve(replica: Replica, requests: Sequence[Request]) -> list[Served]:
    """Serve requests, and return them in the order in which they came."""
    stage_s, stages = stage_time(replica), replica.model.num_microbatches
    slots, arrived = replica.max_num_seqs or len(requests), deque(Served(each) for each in requests)
    all_served, running = list(arrived), list[_Running]()
    free_s, in_flight = [0.0] * stages, list[tuple[float, int, _Batch]]()
    now_s, number = 0.0, 0
    while arrived or running:
        batch = None
        if len(in_flight) < stages:
            batch = _schedule(replica.max_batched_tokens, slots, arrived, running, now_s)
        if batch is not None:
            through_s, each_s = now_s, stage_s(batch)
            for stage in range(stages):
                through_s = max(through_s, free_s[stage]) + each_s
                free_s[stage] = through_s
            number += 1
            heapq.heappush(in_flight, (through_s, number, batch))
            continue
        if in_flight:
            now_s, _, done = heapq.heappop(in_flight)
            _end(done, running, now_s)
        else:
            now_s = max(now_s, arrived[0].request.arrival_s)
    return all_served


def _schedule(
    budget: int, slots: int, arrived: deque[Served], running: list[_Running], now_s: float
) -> _Batch | None:
    batch = _Batch()
    for each in running:
        if each.is_out or budget == 0:
            continue
        pending = each.served.request.prompt_tokens - each.scheduled
        if pending:
            tokens = min(pending, budget)
            batch.chunk(each, tokens)
            budget -= tokens
        else:
            each.is_out = True
            batch.decoding.append(each)
            budget -= 1
    while budget and len(running) < slots and arrived and arrived[0].request.arrival_s <= now_s:
        new = _Running(arrived.popleft())
        new.served.started_s = now_s
        running.append(new)
        tokens = min(new.served.request.prompt_tokens, budget)
        batch.chunk(new, tokens)
        budget -= tokens
    return batch if batch.decoding or batch.prefill_tokens else None


def _end(batch: _Batch, running: list[_Running], now_s: float) -> None:
    for each in (*batch.decoding, *batch.ending):
        each.is_out = False
        if not each.emitted:
            each.served.first_token_s = now_s
        each.emitted += 1
        if each.emitted == each.served.request.output_tokens:
            each.served.ended_s = now_s
            running.remove(each)
