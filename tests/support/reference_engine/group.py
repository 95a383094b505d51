"""Engines that step together: the data-parallel ranks of one replica of a mixture of experts.

Each rank has a queue and a cache of its own, and schedules for itself. The experts are spread over
all ranks, so that none can pass a layer before all have: every step takes as long as the whole
group's, on a rank without any work too. One engine alone is a group of one.

Sources:
    [vllm-source] v1/engine/core.py DPEngineCoreProc (dummy batches); v1/engine/core_client.py
    DPLBAsyncMPClient (what waits counts four times; counts there are up to 100 ms old, here not).
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain

from reference_engine.core import Accepted, Batch, Engine, StepResult
from reference_engine.limits import EngineLimits, Request

StepTime = Callable[[Sequence[Batch]], float]
"""Seconds of a step of all ranks together, by what each works on."""
WAITING_WEIGHT = 4


class EngineGroup:
    """Engines in lock step. ``submit`` requests, then ``step`` while ``idle`` is false."""

    def __init__(
        self,
        limits: EngineLimits,
        step_time: StepTime,
        *,
        num_ranks: int = 1,
        accepted: Accepted = lambda _, __: 0,
    ) -> None:
        self.ranks = tuple(Engine(limits, accepted) for _ in range(num_ranks))
        self._step_time = step_time

    @property
    def idle(self) -> bool:
        """True when a step would have nothing to do."""
        return all(rank.idle for rank in self.ranks)

    def submit(self, request: Request) -> None:
        """Put a request at the end of the queue of the rank that has the least to do."""
        min(self.ranks, key=_outstanding).submit(request)

    def step(self) -> StepResult:
        """Schedule each rank, and compute one step of all."""
        batches = [rank.schedule() for rank in self.ranks]
        duration_s = self._step_time(batches)
        pairs = zip(self.ranks, batches, strict=True)
        results = [rank.compute(batch, duration_s) for rank, batch in pairs]
        return StepResult(
            duration_s=duration_s,
            started=_all(each.started for each in results),
            emitted=_all(each.emitted for each in results),
            finished=_all(each.finished for each in results),
            preempted=_all(each.preempted for each in results),
        )


def _outstanding(rank: Engine) -> int:
    return WAITING_WEIGHT * rank.num_waiting + rank.num_running


def _all(numbers: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(chain.from_iterable(numbers))
