"""Engines that step together: the data-parallel ranks of one replica of a mixture of experts.

Each rank has a queue and a cache of its own, and schedules for itself. The experts are spread over
all ranks, so that none can pass a layer before all have: every step takes as long as the whole
group's, on a rank without any work too.

Sources:
    [vllm-source] v1/engine/core.py DPEngineCoreProc (dummy batches); v1/engine/core_client.py
    DPLBAsyncMPClient (what waits counts four times; counts there are up to 100 ms old, here not).
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain

from tonnage.engine.core import Batch, Engine, StepResult
from tonnage.engine.limits import EngineLimits, Request, RequestError

GroupStepTime = Callable[[Sequence[Batch]], float]
"""Seconds of a step of all ranks together, by what each works on."""
WAITING_WEIGHT = 4


class EngineGroup:
    """Engines in lock step. ``submit`` requests, then ``step`` while ``idle`` is false."""

    def __init__(self, limits: EngineLimits, step_time: GroupStepTime, *, num_ranks: int) -> None:
        self.ranks = tuple(Engine(limits, _no_step_time) for _ in range(num_ranks))
        self._step_time = step_time

    @property
    def idle(self) -> bool:
        """True when a step would have nothing to do."""
        return all(rank.idle for rank in self.ranks)

    def submit(self, request: Request) -> None:
        """Put a request at the end of the queue of the rank that has the least to do.

        Raises:
            RequestError: it can never be served, or its id is in use on that rank.
        """
        min(self.ranks, key=_outstanding).submit(request)

    def step(self) -> StepResult:
        """Schedule each rank, and compute one step of all.

        Raises:
            RequestError: the group is idle; ask ``idle`` first.
        """
        if self.idle:
            raise RequestError("there is no request to step")
        batches = [rank.schedule() for rank in self.ranks]
        duration_s = self._step_time(batches)
        pairs = zip(self.ranks, batches, strict=True)
        return _together([rank.compute(batch, duration_s) for rank, batch in pairs])


def _outstanding(rank: Engine) -> int:
    return WAITING_WEIGHT * rank.num_waiting + rank.num_running


def _no_step_time(_: int, __: int, ___: int) -> float:
    raise NotImplementedError("a rank steps with its group")


def _together(results: Sequence[StepResult]) -> StepResult:
    return StepResult(
        duration_s=results[0].duration_s,
        num_decoding=sum(each.num_decoding for each in results),
        context_tokens=sum(each.context_tokens for each in results),
        prefill_tokens=sum(each.prefill_tokens for each in results),
        prompt_tokens=sum(each.prompt_tokens for each in results),
        started=_all(each.started for each in results),
        emitted=_all(each.emitted for each in results),
        finished=_all(each.finished for each in results),
        preempted=_all(each.preempted for each in results),
    )


def _all(names: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(chain.from_iterable(names))
