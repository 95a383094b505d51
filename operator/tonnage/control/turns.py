"""In which order objects are searched for, where the time of a tick is short. Pure."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from tonnage.control.state import ModelState, ObjectMemory


def searched_in_turn(
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
        since_s = objects[state.view.uid].waiting_since_s
        return math.inf if since_s is None else since_s, state.view.key

    turns, places = dict[str, int](), defaultdict[str, int](int)
    ordered = sorted(models, key=waits)
    for state in ordered:
        turns[state.view.uid] = places[state.view.namespace]
        places[state.view.namespace] += 1
    return sorted(ordered, key=lambda state: turns[state.view.uid])
