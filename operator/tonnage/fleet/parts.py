"""The parts in which a fleet is queried: a thousand pods each, namespaces with failures alone."""

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from hashlib import blake2b

from tonnage.cluster.questions import NOBODY, QuerySet, Standing
from tonnage.estimate.samples import PodKey
from tonnage.fleet.apart import Aparts, is_watched
from tonnage.units import KB

PART_PODS = KB
"""A thousand: a larger fleet is asked for in parts, of namespaces that have no more together."""
PART_NAMES = 200
"""Namespaces of a part: a query names all of them."""
MOST_ALONE, MOST_DOUBTED, MOST_WELL = 32, 24, 8
"""Parts of namespaces that are asked for alone, of those who are doubted while there are others,
and of those who went well since where time is short: of more namespaces some share one."""
NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""As the API server has it: nothing else gets into a query."""

Expressions = Callable[[Sequence[str]], Mapping[str, str]]
"""PromQL by name, limited to these namespaces; to none where none is named."""


def parts_of(
    expressions: Expressions,
    pods: Collection[PodKey],
    aparts: Aparts,
    now_s: float,
    *,
    first: str = "",
) -> list[QuerySet]:
    """Return the same queries for each part of a fleet; for all at once where it is small.

    ``first``: a namespace that was kept waiting: its part comes first, then those that follow it.
    """
    counted = Counter(namespace for namespace, _ in pods)
    num_pods = {name: number for name, number in counted.items() if NAMESPACE.fullmatch(name)}
    alone = sorted(name for name in num_pods if name in aparts and aparts[name].is_alone(now_s))
    others = {name: num_pods[name] for name in sorted(num_pods.keys() - set(alone))}
    watched = is_watched(aparts, now_s)
    most_pods = _half(others) if watched else PART_PODS
    if len(num_pods) <= 1 or (len(pods) <= most_pods and not alone):
        return [QuerySet(expressions=expressions(()), num_pods=len(pods))]
    sets = [
        QuerySet(
            expressions=expressions(names),
            namespaces=tuple(names),
            num_pods=sum(num_pods.get(name, 0) for name in names),
            standing=_standing(names, aparts, now_s),
        )
        for names in (
            *([[NOBODY]] if watched else []),
            *_together(others, most_pods),
            *_alone(alone, aparts, is_short=first != ""),
        )
    ]
    places = (place for place, each in enumerate(sets) if first in each.namespaces)
    begin = next(places, 0)
    return [*sets[begin:], *sets[:begin]]


def _half(num_pods: Mapping[str, int]) -> int:
    """Return the most pods of one of two halves."""
    return min(PART_PODS, math.ceil(sum(num_pods.values()) / 2))


def _standing(names: Sequence[str], aparts: Aparts, now_s: float) -> Standing:
    known = [aparts[name] for name in names if name in aparts and aparts[name].is_alone(now_s)]
    if len(known) < len(names):
        return Standing.USUAL
    return Standing.DOUBTED if all(each.is_doubted for each in known) else Standing.APART


def _together(num_pods: Mapping[str, int], most_pods: int) -> Iterator[Sequence[str]]:
    names, room = list[str](), most_pods
    for name, number in num_pods.items():
        if names and (number > room or len(names) == PART_NAMES):
            yield names
            names, room = [], most_pods
        names.append(name)
        room -= number
    if names:
        yield names


def _alone(names: Sequence[str], aparts: Aparts, *, is_short: bool) -> Iterator[Sequence[str]]:
    """Yield parts of one namespace each, or of some that are others after each failure."""
    seed = sum(aparts[name].until_s for name in names)
    mixed = sorted(names, key=lambda name: blake2b(f"{seed} {name}".encode()).digest())
    doubted = [name for name in mixed if aparts[name].is_doubted]
    others = [name for name in mixed if not aparts[name].is_doubted]
    num_doubted = min(len(doubted), MOST_DOUBTED if others else MOST_ALONE)
    left = MOST_ALONE - num_doubted
    num_well = min(MOST_WELL, left // 2) if is_short else 0
    well = [name for name in others if is_short and not aparts[name].num_failed]
    met = [name for name in others if not is_short or aparts[name].num_failed]
    for dealt, most in ((doubted, num_doubted), (met, left - num_well), (well, num_well)):
        yield from (sorted(dealt[share::most]) for share in range(min(len(dealt), most)))
