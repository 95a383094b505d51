"""In which parts a fleet is asked for: of a thousand pods, and alone those whom a failure met.

What fails a part leaves all of its namespaces without figures. So each of them is asked for alone
after it: ten minutes at first, and twice as long each time that it happens again within a day. A
fleet that is one part is halved for as long, to see whether the failure is of one half.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from zlib import crc32

from tonnage.cluster.prometheus import CUT_OFF, LATE, UNREACHABLE
from tonnage.cluster.questions import Answers, QuerySet, Standing
from tonnage.estimate.samples import PodKey
from tonnage.units import HOUR_S, KB, MINUTE_S

PART_PODS = KB
"""A thousand: a larger fleet is asked for in parts, of namespaces that have no more together."""
PART_NAMES = 200
"""Namespaces of a part: a query names all of them."""
MOST_ALONE, MOST_DOUBTED = 32, 24
"""Parts of namespaces that are asked for alone, and those of them for whom is doubted while there
are others: where there are more namespaces, some share one."""
ALONE_S = 10.0 * MINUTE_S
MOST_ALONE_S = REMEMBERED_S = 24 * HOUR_S
TOO_LARGE = frozenset({"ResponseTooLarge", "QueryTooLarge"})
NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""As the API server has it: nothing else gets into a query."""

Expressions = Callable[[Sequence[str]], Mapping[str, str]]
"""PromQL by name, limited to these namespaces; to none where none is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """That a namespace is asked for alone."""

    until_s: float
    for_s: float
    num_failed: int = 0
    """Rounds in a row in which a part failed that it was in."""

    @property
    def is_doubted(self) -> bool:
        """It failed among fewer, too. Of everybody: halves failed alike."""
        return self.num_failed > 1

    def is_alone(self, now_s: float) -> bool:
        return now_s < self.until_s


EVERYBODY = ""
"""In place of a namespace: that the fleet is asked for in halves."""

Aparts = Mapping[str, Apart]
"""By namespace; those for whom it is over are remembered for a day."""


def parts_of(
    expressions: Expressions,
    pods: Collection[PodKey],
    aparts: Aparts,
    now_s: float,
    *,
    first: str = "",
) -> list[QuerySet]:
    """Return the same queries for each part of a fleet; for all at once where it is small.

    ``first``: a namespace whose part comes first, and then those that come after it.
    """
    counted = Counter(namespace for namespace, _ in pods)
    num_pods = {name: number for name, number in counted.items() if NAMESPACE.fullmatch(name)}
    alone = sorted(name for name in num_pods if name in aparts and aparts[name].is_alone(now_s))
    others = {name: num_pods[name] for name in sorted(num_pods.keys() - set(alone))}
    most_pods = _half(others) if _is_halved(aparts, now_s) else PART_PODS
    if not num_pods or (len(pods) <= most_pods and not alone):
        return [QuerySet(expressions=expressions(()), num_pods=len(pods))]
    sets = [
        QuerySet(
            expressions=expressions(names),
            namespaces=tuple(names),
            num_pods=sum(num_pods[name] for name in names),
            standing=_standing(names, aparts, now_s),
        )
        for names in (*_together(others, most_pods), *_alone(alone, aparts))
    ]
    places = (place for place, each in enumerate(sets) if first in each.namespaces)
    begin = next(places, 0)
    return [*sets[begin:], *sets[:begin]]


def first_cut_off(sets: Sequence[QuerySet], answers: Answers) -> str:
    """Return a namespace of the first part for which others took the time, if any."""
    late = {
        key.partition("@")[2] for key, (reason, _) in answers.problems.items() if reason == LATE
    }
    kept_waiting = _cut_off(answers) - late
    return next((name for each in sets for name in each.namespaces if name in kept_waiting), "")


def _cut_off(answers: Answers) -> Set[str]:
    problems = answers.problems.items()
    return {key.partition("@")[2] for key, (reason, _) in problems if reason == CUT_OFF}


def _half(num_pods: Mapping[str, int]) -> int:
    """Return the most pods of one of two halves; of a single namespace there are none."""
    total = sum(num_pods.values())
    return min(PART_PODS, total if len(num_pods) == 1 else math.ceil(total / 2))


def _is_halved(aparts: Aparts, now_s: float) -> bool:
    everybody = aparts.get(EVERYBODY)
    return everybody is not None and everybody.is_alone(now_s) and not everybody.is_doubted


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


def _alone(names: Sequence[str], aparts: Aparts) -> Iterator[Sequence[str]]:
    """Yield parts of one namespace each, or of some that are others after each failure."""
    seed = sum(aparts[name].until_s for name in names)
    mixed = sorted(names, key=lambda name: crc32(f"{seed} {name}".encode()))
    doubted = [name for name in mixed if aparts[name].is_doubted]
    others = [name for name in mixed if not aparts[name].is_doubted]
    num_doubted = min(len(doubted), MOST_DOUBTED if others else MOST_ALONE)
    for dealt, most in ((doubted, num_doubted), (others, MOST_ALONE - num_doubted)):
        yield from (sorted(dealt[share::most]) for share in range(min(len(dealt), most)))


def after_round(
    aparts: Aparts,
    sets: Sequence[QuerySet],
    answers: Answers,
    *,
    now_s: float,
) -> Aparts:
    """Return who is asked for alone after a round that asked these sets.

    Who was not asked in time stays as before.
    """
    failed = set(_failed(sets, answers))
    stay = _cut_off(answers) | {EVERYBODY}
    known = {name: each for name, each in aparts.items() if now_s < each.until_s + REMEMBERED_S}
    answered = {
        name: replace(each, num_failed=0) for name, each in known.items() if name not in stay
    }
    met = {name: _apart(known.get(name), now_s) for name in failed}
    is_unclear = not failed and _is_met(answers)
    halved = _halved(known, sets, now_s) if is_unclear else {}
    return {**known, **answered, **met, **halved}


def _apart(before: Apart | None, now_s: float) -> Apart:
    if before is None:
        return Apart(until_s=now_s + ALONE_S, for_s=ALONE_S, num_failed=1)
    if before.is_alone(now_s):
        return replace(before, until_s=now_s + before.for_s, num_failed=before.num_failed + 1)
    for_s = min(MOST_ALONE_S, 2 * before.for_s)
    return Apart(until_s=now_s + for_s, for_s=for_s, num_failed=1)


def _is_met(answers: Answers) -> bool:
    """Tell whether something failed that a namespace can bring about."""
    reasons = {reason for reason, _ in answers.problems.values()}
    return bool(answers.partial or reasons - {UNREACHABLE})


def _halved(aparts: Aparts, sets: Sequence[QuerySet], now_s: float) -> Aparts:
    """Return when to ask in halves, after a failure that is of no part by itself.

    Halves that fail alike are asked for together for ten minutes: Prometheus would not be faster
    for more questions.
    """
    before, is_in_halves = aparts.get(EVERYBODY), bool(sets[0].namespaces)
    if before is not None and before.is_alone(now_s):
        in_vain = replace(before, until_s=now_s + ALONE_S, num_failed=before.num_failed + 1)
        return {EVERYBODY: in_vain} if is_in_halves else {}
    return {} if is_in_halves else {EVERYBODY: _apart(before, now_s)}


def _failed(sets: Sequence[QuerySet], answers: Answers) -> Iterator[str]:
    """Yield the namespaces of each part that failed by itself: another one has the answer.

    Where none has, more questions would not help. That Prometheus is not reached no namespace can
    bring about, nor that the tick was over.
    """
    for each in sets:
        if any(_fails(name, each, sets, answers) for name in each.expressions):
            yield from each.namespaces


def _fails(name: str, part: QuerySet, sets: Sequence[QuerySet], answers: Answers) -> bool:
    key = next(part.keys(name))
    if key in answers.problems:
        reason = answers.problems[key][0]
        return reason in TOO_LARGE or (
            name in answers.series and reason not in {UNREACHABLE, CUT_OFF}
        )
    keys = (next(each.keys(name)) for each in sets)
    are_whole = (each not in answers.partial and each not in answers.problems for each in keys)
    return key in answers.partial and any(are_whole)
