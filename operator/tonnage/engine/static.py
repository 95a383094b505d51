"""Static batching: what continuous batching replaced, kept to show what that is worth."""

from collections.abc import Iterable, Iterator, Sequence

from tonnage.engine.core import StepTime
from tonnage.engine.limits import Request
from tonnage.engine.simulation import Completion


def simulate_static(
    arrivals: Iterable[Request], *, batch_size: int, step_time: StepTime
) -> list[Completion]:
    """Serve requests in fixed batches, in order of arrival; a batch waits for its longest member.

    A batch starts when its last member has arrived and the batch before has ended. One step
    computes all prompts and the first token of each member; then every slot decodes, the finished
    ones as padding, until the longest member has its last token, and all answers leave together.
    """
    requests = sorted(arrivals, key=lambda request: request.arrival_s)
    completions: list[Completion] = []
    now_s = 0.0
    for start in range(0, len(requests), batch_size):
        members = requests[start : start + batch_size]
        started_s = max(now_s, members[-1].arrival_s)
        first_token_s, now_s = _batch_times(members, started_s, step_time)
        completions += _completions(members, started_s, first_token_s, now_s)
    return completions


def _batch_times(
    members: Sequence[Request], started_s: float, step_time: StepTime
) -> tuple[float, float]:
    """Return when every member has its first token, and when the longest has its last."""
    context_tokens = sum(request.prompt_tokens for request in members)
    prefill_tokens = context_tokens - sum(request.cached_tokens for request in members)
    first_token_s = started_s + step_time(0, 0, prefill_tokens)
    ended_s = first_token_s
    for _ in range(max(request.output_tokens for request in members) - 1):
        context_tokens += len(members)
        ended_s += step_time(len(members), context_tokens, 0)
    return first_token_s, ended_s


def _completions(
    members: Sequence[Request], started_s: float, first_token_s: float, ended_s: float
) -> Iterator[Completion]:
    for request in members:
        later_tokens = request.output_tokens - 1
        yield Completion(
            id=request.id,
            arrival_s=request.arrival_s,
            prompt_tokens=request.prompt_tokens,
            output_tokens=request.output_tokens,
            queue_s=started_s - request.arrival_s,
            ttft_s=first_token_s - request.arrival_s,
            tpot_s=(ended_s - first_token_s) / later_tokens if later_tokens else None,
            e2e_s=ended_s - request.arrival_s,
            num_preemptions=0,
        )
