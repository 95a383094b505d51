"""The parts in which a fleet is queried: a thousand pods each, and namespaces alone.

Which namespace of a part makes a query fail is not known. So each is queried alone for ten minutes
after it; those that failed last come last.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set

from tonnage.cluster.prometheus import CUT_OFF, THROTTLED, UNREACHABLE
from tonnage.cluster.queries import Answers, QuerySet
from tonnage.estimate.fleet_scrapes import PodKey
from tonnage.estimate.metrics import HISTORY
from tonnage.units import KB, MINUTE_S

ALONE_S = 10.0 * MINUTE_S
PART_PODS = KB
"""A thousand: a larger fleet is queried in parts, of namespaces that have no more together."""
PART_NAMES = 32
"""Namespaces of a part: queried alone, they take one round."""
OF_NO_NAMESPACE = frozenset({UNREACHABLE, THROTTLED})
"""Failures that none can bring about."""
NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""As the API server has it: nothing else gets into a query."""

Expressions = Callable[[Sequence[str]], Mapping[str, str]]
"""PromQL by name, limited to these namespaces; to none where none is named."""
Alone = Mapping[str, float]
"""Until when each of these namespaces is queried alone."""


def parts_of(
    expressions: Expressions,
    pods: Collection[PodKey],
    alone: Alone,
    now_s: float,
    *,
    first: str = "",
) -> list[QuerySet]:
    """Return the same queries for each part of a fleet; for all at once where it is small.

    ``first``: a namespace that was kept waiting: its part comes before its like, then those that
    follow it. Who failed last comes last.
    """
    counted = Counter(namespace for namespace, _ in pods)
    num_pods = {name: counted[name] for name in sorted(counted) if NAMESPACE.fullmatch(name)}
    until_s = {name: alone[name] for name in num_pods if now_s < alone.get(name, now_s)}
    is_small = len(pods) <= PART_PODS and len(num_pods) <= PART_NAMES
    if len(num_pods) <= 1 or (is_small and not until_s):
        return [QuerySet(expressions=expressions(()), num_pods=len(pods))]
    others = {name: number for name, number in num_pods.items() if name not in until_s}
    sets = [
        QuerySet(
            expressions=expressions(names),
            namespaces=tuple(names),
            num_pods=sum(num_pods[name] for name in names),
        )
        for names in (*_together(others), *([name] for name in until_s))
    ]
    begin = next((place for place, each in enumerate(sets) if first in each.namespaces), 0)
    in_turn = [*sets[begin:], *sets[:begin]]
    return sorted(in_turn, key=lambda each: until_s.get(each.namespaces[0], 0.0))


def _together(num_pods: Mapping[str, int]) -> Iterator[Sequence[str]]:
    names, room = list[str](), PART_PODS
    for name, number in num_pods.items():
        if names and (number > room or len(names) == PART_NAMES):
            yield names
            names, room = [], PART_PODS
        names.append(name)
        room -= number
    if names:
        yield names


def alone_after(
    alone: Alone, sets: Sequence[QuerySet], pods: Collection[PodKey], answers: Answers, now_s: float
) -> Alone:
    """Return who is queried alone after a round that asked these sets about these pods.

    Where the time was too short to ask all, it is only those whose own answers failed.
    """
    everybody = {namespace for namespace, _ in pods}
    failed = {
        name
        for each in sets
        if _is_failed(each, answers, is_first=each is sets[0])
        for name in each.namespaces or everybody
    }
    known = {} if first_kept_waiting(sets, answers) else alone
    still = {name: until_s for name, until_s in known.items() if now_s < until_s}
    return still | dict.fromkeys(failed, now_s + ALONE_S)


def first_kept_waiting(sets: Sequence[QuerySet], answers: Answers) -> str:
    """Return a namespace of the first part for which others took the time, if any."""
    waiting = (each for each in sets if _reasons(each, answers) == {CUT_OFF})
    return next((each.namespaces[0] for each in waiting if each.namespaces), "")


def _is_failed(part: QuerySet, answers: Answers, *, is_first: bool) -> bool:
    """Tell whether one of its namespaces may be why an answer is missing, or is not whole.

    What the end of a round cut off was kept waiting by others, unless it came first.
    """
    blameless = OF_NO_NAMESPACE if is_first else OF_NO_NAMESPACE | {CUT_OFF}
    is_partial = any(next(part.keys(name)) in answers.partial for name in _blamed(part))
    return is_partial or not _reasons(part, answers) <= blameless


def _blamed(part: QuerySet) -> Iterator[str]:
    """Yield the queries that must be answered: a history that is too large is begun anew."""
    return (name for name in part.expressions if name != HISTORY)


def _reasons(part: QuerySet, answers: Answers) -> Set[str]:
    """Return why answers of a part are missing."""
    keys = (next(part.keys(name)) for name in _blamed(part))
    return {answers.problems[key][0] for key in keys if key in answers.problems}
