"""An engine whose costs change while it works: another one goes on with all that it has.

The engine model holds its costs fixed, so its requests move to a new engine between two steps. A
sequence that decodes is moved as if it had been preempted with its whole context in the cache: it
computes one token in its next step, as it would have, only that this step counts as prefill. What
the step under way has done is done again.
"""

from collections.abc import Iterable
from typing import Final

from tonnage.engine.core import Engine
from tonnage.replay.truth import Machine

WAITING: Final = 0
PREFILLING: Final = 1
DECODING: Final = 2


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
    found.ranks[0].take_line_of(rank, running)
    return found


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
