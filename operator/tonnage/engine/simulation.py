"""Run an engine on a list of arrivals, in simulated time."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from tonnage.engine.core import Engine, StepResult
from tonnage.engine.group import EngineGroup
from tonnage.engine.limits import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What one client would have seen."""

    id: str
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    queue_s: float
    """Arrival to the first step that computed something for it."""
    ttft_s: float
    """Arrival to the first token."""
    tpot_s: float | None
    """Mean seconds per token after the first; None when there is only one."""
    e2e_s: float
    """Arrival to the last token."""
    num_preemptions: int


@dataclass(slots=True, kw_only=True)
class _Progress:
    request: Request
    started_s: float = 0.0
    first_token_s: float | None = None
    num_preemptions: int = 0

    def completed(self, now_s: float) -> Completion:
        request = self.request
        first_token_s = now_s if self.first_token_s is None else self.first_token_s
        later_tokens = request.output_tokens - 1
        return Completion(
            id=request.id,
            arrival_s=request.arrival_s,
            prompt_tokens=request.prompt_tokens,
            output_tokens=request.output_tokens,
            queue_s=self.started_s - request.arrival_s,
            ttft_s=first_token_s - request.arrival_s,
            tpot_s=(now_s - first_token_s) / later_tokens if later_tokens else None,
            e2e_s=now_s - request.arrival_s,
            num_preemptions=self.num_preemptions,
        )


def simulate(engine: Engine | EngineGroup, arrivals: Iterable[Request]) -> list[Completion]:
    """Serve all arrivals and return their completions in the order in which they ended.

    A request that arrives during a step is seen by the engine when that step ends, as in vLLM.
    """
    pending = deque(sorted(arrivals, key=lambda request: request.arrival_s))
    progress: dict[str, _Progress] = {}
    completions: list[Completion] = []
    now_s = 0.0
    while pending or not engine.idle:
        if engine.idle:
            now_s = max(now_s, pending[0].arrival_s)
        while pending and pending[0].arrival_s <= now_s:
            request = pending.popleft()
            engine.submit(request)
            progress[request.id] = _Progress(request=request)
        result = engine.step()
        completions += _note(progress, result, started_s=now_s, ended_s=now_s + result.duration_s)
        now_s += result.duration_s
    return completions


def _note(
    progress: dict[str, _Progress], result: StepResult, *, started_s: float, ended_s: float
) -> list[Completion]:
    for request_id in result.started:
        progress[request_id].started_s = started_s
    for request_id in result.preempted:
        progress[request_id].num_preemptions += 1
    for request_id in result.emitted:
        if progress[request_id].first_token_s is None:
            progress[request_id].first_token_s = ended_s
    return [progress.pop(request_id).completed(ended_s) for request_id in result.finished]
