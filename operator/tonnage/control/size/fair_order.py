"""In which order objects are searched for, where the time of a tick is short. Pure."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
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
    2. Within a namespace, and among those whose turn it is: a changed spec, for which somebody
       waits; then who has waited longest for a search. What was not waiting comes last; most of it
       is remembered and takes no time.
    3. Namespace and name.
    """

    def waits(state: ModelState) -> tuple[bool, float, tuple[str, str]]:
        since_s = objects[state.view.uid].sizing.waiting_since_s
        since_s = math.inf if since_s is None else since_s
        return not _is_changed(state, objects), since_s, state.view.key

    return round_robin(sorted(models, key=waits), namespace=lambda state: state.view.namespace)


def changed_before_others(
    models: Iterable[ModelState], objects: Mapping[str, ObjectMemory]
) -> Set[str]:
    """Return the UIDs of changed specs where others wait for a search, else none."""
    changed = {each.view.uid for each in models if _is_changed(each, objects)}
    waiting = {uid for uid, each in objects.items() if each.sizing.waiting_since_s is not None}
    return changed if waiting - changed else frozenset()


def _is_changed(state: ModelState, objects: Mapping[str, ObjectMemory]) -> bool:
    """Tell whether no search has ended for the spec as it is now."""
    return objects[state.view.uid].sizing.generation != state.view.generation


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
