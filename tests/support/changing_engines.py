"""Engines whose costs change while they work: another one goes on with all that each has.

The engine model holds its costs fixed, so its requests move to a new engine between two steps. A
sequence that decodes is moved as if it had been preempted with its whole context in the cache: it
computes one token in its next step, as it would have, only that this step counts as prefill. What
the step under way has done is done again.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tonnage.engine.core import Engine
from tonnage.engine.schedule import Rank
from tonnage.replay.cluster import ReplayedModel, SimulatedCluster, Template
from tonnage.replay.ground_truth import GroundTruth, Machine, machine
from tonnage.replay.prometheus import DECODING, PREFILLING, WAITING, EngineCounters
from tonnage.replay.simulation import Simulation


class ChangingCounters(EngineCounters):
    """The page of an engine that others may go on from; counters go on too."""

    def __init__(self, *args: Any, **figures: Any) -> None:
        super().__init__(*args, **figures)
        self._cached = dict[int, int]()
        """Prompt tokens that the cache held before what was computed was counted with them."""
        self._moves = dict[int, int]()
        """How often a request was taken over."""

    def go_on_with(self, kind: Machine, at_s: float) -> Engine:
        """Let another engine go on from here, and return it."""
        self._settle()
        engine, table = self._engine, self._engine.table
        steps, last_end_s = self._ended(at_s)
        live = (*self._starting, *self._decoding)
        before = {number: table.cached_tokens[number] for number in live}
        begun = {number for number in live if table.state[number] in {PREFILLING, DECODING}}
        self._engine = taken_over(engine, kind, steps=steps, from_s=last_end_s, seed=0)
        self._engine.num_steps = engine.num_steps + steps
        for number in begun:
            self._cached.setdefault(number, before[number])
            self._moves[number] = self._moves.get(number, 0) + 1
        return self._engine

    def _of(self, name: str, numbers: Iterable[int]) -> list[Any]:
        numbers = list(numbers)
        rows = zip(numbers, super()._of(name, numbers), strict=True)
        if name == "cached_tokens":
            return [self._cached.get(number, own) for number, own in rows]
        if name == "preemptions":
            return [own - self._moves.get(number, 0) for number, own in rows]
        return [own for _, own in rows]


def taken_over(engine: Engine, kind: Machine, *, steps: int, from_s: float, seed: int) -> Engine:
    """Return an engine of this kind with all requests of another, as of a time.

    ``steps``: of those under way, that have ended by ``from_s``. Requests that have begun count one
    preemption more, and what they have computed as cached, in the table.
    """
    (rank,) = engine.ranks
    running = [n for n in rank.order if engine.table.state[n] in {PREFILLING, DECODING}]
    _suspend(engine, running, steps)
    found = Engine(kind.limits, kind.costs, engine.table, seed)
    found.now_s = from_s
    for number in dict.fromkeys((*running, *rank.waiting)):
        found.submit(number)
    _take_line_of(found.ranks[0], rank, running)
    return found


def _take_line_of(rank: Rank, other: Rank, running: list[int]) -> None:
    """Let all wait as they do at another engine, behind what runs there."""
    waiting = [number for number in other.waiting if number not in running]
    rank.waiting = deque([*running, *waiting])
    rank.queued_tokens = other.queued_tokens


def _suspend(engine: Engine, numbers: Iterable[int], steps: int) -> None:
    table, (rank,) = engine.table, engine.ranks
    for number in numbers:
        computed = table.computed[number]
        if number == rank.partial:
            computed += steps * rank.prefill_tokens
        if table.state[number] == DECODING:
            table.emitted[number] += engine.step_number + steps - table.start_step[number]
            computed = table.prompt_tokens[number] + table.emitted[number] - 1
        most = table.prompt_tokens[number] + table.emitted[number] - 1
        table.cached_tokens[number] = min(computed, most)
        table.state[number], table.computed[number], table.blocks[number] = WAITING, 0, 0.0
        table.preemptions[number] += 1


@dataclass(slots=True, kw_only=True)
class ChangingCluster(SimulatedCluster):
    """A cluster whose engines may come to cost something else."""

    def change(self, truth: GroundTruth, at_s: float) -> None:
        """Let all engines cost something else from now on."""
        self.served = replace(self.served, truth=truth)
        if self.template is not None:
            flags = self.template.flags
            self.template = replace(self.template, machine=machine(self.request, flags, truth))
        for pod in self.live:
            pod.engine.advance(at_s)
            pod.machine = machine(self.request, pod.flags, truth).times(pod.speed)
            pod.engine = pod.counters.go_on_with(pod.machine, at_s)

    def _create(self, template: Template, at_s: float) -> None:
        SimulatedCluster._create(self, template, at_s)
        pod = self.pods[-1]
        pod.counters = ChangingCounters(
            pod.engine,
            pod.machine.limits,
            model_name=self.model.name,
            kv_tokens=pod.machine.kv_tokens,
            ladders=self.ladders,
        )


class ChangingSimulation(Simulation):
    """A simulation in which all engines become others at some times."""

    def __init__(
        self,
        served: ReplayedModel,
        *,
        changes: Sequence[tuple[float, GroundTruth]],
        **settings: Any,
    ) -> None:
        """``changes``: when, and what they are from then on."""
        super().__init__(served, **settings)
        self.record.cluster = ChangingCluster(served=served)
        for at_s, truth in changes:
            self._at(at_s, partial(self.record.cluster.change, truth))
