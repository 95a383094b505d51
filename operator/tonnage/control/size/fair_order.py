"""In which order objects are searched for, where the time of a tick is short. Pure."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from tonnage.control.input.memory import ObjectMemory
from tonnage.control.input.state import ModelState

T = TypeVar("T")


def search_in_fair_order(
    models: Iterable[ModelState], objects: Mapping[str, ObjectMemory]
) -> Sequence[ModelState]:
    """Return objects in the order in which they are sized.

    1. Namespaces take turns: the first of each, then the second. Who makes many objects waits for
       them, and nobody else does.
    2. Within a namespace, and among those whose turn it is: who has waited longest for a search.
       What was not waiting comes last; most of it is remembered and takes no time.
    3. Namespace and name.
    """

    def waits(state: ModelState) -> tuple[float, tuple[str, str]]:
        since_s = objects[state.view.uid].sizing.waiting_since_s
        return math.inf if since_s is None else since_s, state.view.key

    return round_robin(sorted(models, key=waits), namespace=lambda state: state.view.namespace)


def round_robin(ordered: Iterable[T], *, namespace: Callable[[T], str]) -> list[T]:
    """Return the first of each namespace, then the second of each, as far as there are any.

    >>> round_robin(["a1", "a2", "a3", "b1"], namespace=lambda each: each[0])
    ['a1', 'b1', 'a2', 'a3']
    """
    turns, places = list[tuple[int, T]](), defaultdict[str, int](int)
    for each in ordered:
        turns.append((places[namespace(each)], each))
        places[namespace(each)] += 1
    return [each for _, each in sorted(turns, key=lambda turn: turn[0])]
