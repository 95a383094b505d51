"""In which parts a fleet is asked for: of a thousand pods, and alone those whom a failure met.

What fails a part leaves all of its namespaces without figures. So each of them is asked for alone
after it: ten minutes at first, and twice as long each time that it happens again within a day.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tonnage.cluster.prometheus import LATE, UNREACHABLE
from tonnage.cluster.questions import Answers, QuerySet
from tonnage.estimate.samples import PodKey
from tonnage.units import HOUR_S, KB, KIB, MIB, MINUTE_S

PART_PODS = KB
"""A thousand: a larger fleet is asked for in parts, of namespaces that have no more together."""
PART_NAMES = 200
"""Namespaces of a part: a query names all of them."""
MOST_ALONE = 32
"""Parts of namespaces that are asked for alone: where there are more of these, some share one."""
ALONE_S = 10.0 * MINUTE_S
MOST_ALONE_S = REMEMBERED_S = 24 * HOUR_S
TOO_LARGE = frozenset({"ResponseTooLarge", "QueryTooLarge"})
LEAST_FLOOD_BYTES, POD_BYTES = MIB, 32 * KIB
"""Of all answers of a round: a pod's own series take some 7 KiB."""
NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""As the API server has it: nothing else gets into a query."""

Expressions = Callable[[Sequence[str]], Mapping[str, str]]
"""PromQL by name, limited to these namespaces; to none where none is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """That a namespace is asked for alone."""

    until_s: float
    for_s: float
    is_doubted: bool = False
    """In the last round it failed alone, too."""

    def is_alone(self, now_s: float) -> bool:
        return now_s < self.until_s


Aparts = Mapping[str, Apart]
"""By namespace; those for whom it is over are remembered for a day."""


def parts_of(
    expressions: Expressions,
    pods: Collection[PodKey],
    aparts: Aparts,
    now_s: float,
    *,
    turn: int = 0,
) -> list[QuerySet]:
    """Return the same queries for each part of a fleet; for all at once where it is small.

    ``turn``: of the round: another part comes first in each.
    """
    counted = Counter(namespace for namespace, _ in pods)
    num_pods = {name: number for name, number in counted.items() if NAMESPACE.fullmatch(name)}
    alone = sorted(name for name in num_pods if name in aparts and aparts[name].is_alone(now_s))
    if not num_pods or (len(pods) <= PART_PODS and not alone):
        return [QuerySet(expressions=expressions(()), num_pods=len(pods))]
    others = {name: num_pods[name] for name in sorted(num_pods.keys() - set(alone))}
    sets = [
        QuerySet(
            expressions=expressions(names),
            namespaces=tuple(names),
            num_pods=sum(num_pods[name] for name in names),
            is_doubted=all(name in aparts and aparts[name].is_doubted for name in names),
        )
        for names in (*_together(others), *_alone(alone))
    ]
    # Of those that share a place the first may take all of its time.
    first = turn % len(sets)
    return [*sets[first:], *sets[:first]]


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


def _alone(names: Sequence[str]) -> Iterable[Sequence[str]]:
    return [names[share::MOST_ALONE] for share in range(min(len(names), MOST_ALONE))]


def after_round(
    aparts: Aparts,
    sets: Sequence[QuerySet],
    answers: Answers,
    pods: Collection[PodKey],
    *,
    now_s: float,
) -> Aparts:
    """Return who is asked for alone after a round that asked these sets for these pods.

    Where more are than there are parts for, those who share one that went well are not any more: so
    the others come to have one each.
    """
    failed = {name for each in _failed(sets, answers, pods) for name in each}
    shared = {name for each in sets if len(each.namespaces) > 1 for name in each.namespaces}
    known = {name: each for name, each in aparts.items() if now_s < each.until_s + REMEMBERED_S}
    answered = {
        name: Apart(
            until_s=min(each.until_s, now_s) if name in shared else each.until_s,
            for_s=each.for_s,
        )
        for name, each in known.items()
    }
    return answered | {
        name: _apart(known.get(name), now_s, is_doubted=name in known and name not in shared)
        for name in failed
    }


def _apart(before: Apart | None, now_s: float, *, is_doubted: bool) -> Apart:
    if before is None:
        for_s = ALONE_S
    else:
        for_s = before.for_s if before.is_alone(now_s) else min(MOST_ALONE_S, 2 * before.for_s)
    return Apart(until_s=now_s + for_s, for_s=for_s, is_doubted=is_doubted)


def _failed(
    sets: Sequence[QuerySet], answers: Answers, pods: Collection[PodKey]
) -> Iterator[Iterable[str]]:
    """Yield the namespaces of each part that failed by itself, or all that were asked for at once.

    By itself: another part has the answer. Where none has, more questions would not help. That
    Prometheus is not reached no namespace can bring about.
    """
    for each in sets:
        if not each.namespaces:
            if is_flooded(answers, num_pods=len(pods)):
                yield {namespace for namespace, _ in pods}
        elif any(_fails(name, each, sets, answers) for name in each.expressions):
            yield each.namespaces


def _fails(name: str, part: QuerySet, sets: Sequence[QuerySet], answers: Answers) -> bool:
    key = next(part.keys(name))
    if key in answers.problems:
        reason = answers.problems[key][0]
        return reason in TOO_LARGE or (name in answers.series and reason != UNREACHABLE)
    keys = (next(each.keys(name)) for each in sets)
    are_whole = (each not in answers.partial and each not in answers.problems for each in keys)
    return key in answers.partial and any(are_whole)


def is_flooded(answers: Answers, *, num_pods: int) -> bool:
    """Tell whether somebody's series kept us from reading those of others.

    Answers that come late are no sign of it by themselves: Prometheus may be slow, and would not
    be faster for more questions.
    """
    reasons = {reason for reason, _ in answers.problems.values()}
    are_many = answers.bytes_read > max(LEAST_FLOOD_BYTES, num_pods * POD_BYTES)
    return bool(reasons & TOO_LARGE) or (LATE in reasons and are_many)
