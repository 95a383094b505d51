"""Who is asked for alone: those whom a failure met, for ever longer.

What fails a part leaves all of its namespaces without figures. So each of them is asked for alone
after it: ten minutes at first, and twice as long each time that it happens again within a day. A
fleet that is one part is halved for as long, to see whether the failure is of one half.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace

from tonnage.cluster.prometheus import CUT_OFF, LATE, UNREACHABLE
from tonnage.cluster.questions import Answers, QuerySet, Standing, namespace_of, query_of
from tonnage.units import HOUR_S, MINUTE_S

ALONE_S = 10.0 * MINUTE_S
MOST_ALONE_S = REMEMBERED_S = 24 * HOUR_S
LEAST_IN_VAIN = 8
"""Namespaces that fail alone: where they are more than half of all, it is for none of them."""
TOO_LARGE = frozenset({"ResponseTooLarge", "QueryTooLarge"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """That a namespace is asked for alone."""

    until_s: float
    for_s: float
    num_failed: int = 0
    """Rounds in a row in which a part failed that it was in."""
    queries: frozenset[str] = frozenset()
    """Of everybody: that failed alike in halves."""

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


def is_halved(aparts: Aparts, now_s: float) -> bool:
    """Tell whether a fleet of one part is asked for in halves."""
    everybody = aparts.get(EVERYBODY)
    return everybody is not None and everybody.is_alone(now_s) and not everybody.is_doubted


def first_cut_off(sets: Sequence[QuerySet], answers: Answers) -> str:
    """Return a namespace of the first part for which others took the time, if any."""
    late = {namespace_of(key) for key, (reason, _) in answers.problems.items() if reason == LATE}
    kept_waiting = _cut_off(answers) - late
    return next((name for each in sets for name in each.namespaces if name in kept_waiting), "")


def _cut_off(answers: Answers) -> Set[str]:
    problems = answers.problems.items()
    return {namespace_of(key) for key, (reason, _) in problems if reason == CUT_OFF}


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
    known = {name: each for name, each in aparts.items() if now_s < each.until_s + REMEMBERED_S}
    failed, queries = [each for each in sets if _is_failed(each, sets, answers)], _failing(answers)
    if _are_most(failed, sets):
        over = {
            name: replace(each, until_s=min(now_s, each.until_s)) for name, each in known.items()
        }
        return over | {EVERYBODY: _in_vain(known, queries, now_s)}
    stay = _cut_off(answers) | {EVERYBODY}
    answered = {
        name: replace(each, num_failed=0) for name, each in known.items() if name not in stay
    }
    is_vain = _is_in_vain(known, queries, now_s)
    met = {
        name: _apart(known.get(name), now_s)
        for each in failed
        for name in each.namespaces
        if each.standing > Standing.USUAL or not is_vain
    }
    halved = {} if failed or is_vain else _halved(known, sets, queries, now_s)
    return {**known, **answered, **met, **halved}


def _are_most(failed: Sequence[QuerySet], sets: Sequence[QuerySet]) -> bool:
    """Tell whether more than half of all failed alone: then it is not for what they have."""
    num_failed = sum(len(each.namespaces) for each in failed if each.standing > Standing.USUAL)
    num_all = sum(len(each.namespaces) for each in sets)
    return num_failed >= LEAST_IN_VAIN and 2 * num_failed > num_all


def _over(apart: Apart, now_s: float) -> Apart:
    return replace(apart, until_s=min(now_s, apart.until_s), num_failed=0)


def _apart(before: Apart | None, now_s: float) -> Apart:
    if before is None:
        return Apart(until_s=now_s + ALONE_S, for_s=ALONE_S, num_failed=1)
    if before.is_alone(now_s):
        return replace(before, until_s=now_s + before.for_s, num_failed=before.num_failed + 1)
    for_s = min(MOST_ALONE_S, 2 * before.for_s)
    return Apart(until_s=now_s + for_s, for_s=for_s, num_failed=1)


def _failing(answers: Answers) -> frozenset[str]:
    """Return the queries that failed for what a namespace can bring about."""
    problems = answers.problems.items()
    refused = {query_of(key) for key, (reason, _) in problems if reason != UNREACHABLE}
    return frozenset(refused.union(map(query_of, answers.partial)))


def _halved(
    aparts: Aparts, sets: Sequence[QuerySet], queries: frozenset[str], now_s: float
) -> Aparts:
    """Return when to ask in halves, after a failure that is of no part by itself."""
    are_parts = bool(sets[0].namespaces)
    if not queries or is_halved(aparts, now_s) != are_parts:
        return {}
    if are_parts:
        return {EVERYBODY: _in_vain(aparts, queries, now_s)}
    return {EVERYBODY: replace(_apart(aparts.get(EVERYBODY), now_s), num_failed=1)}


def _in_vain(aparts: Aparts, queries: frozenset[str], now_s: float) -> Apart:
    """Return that for ten minutes nobody is set apart for these queries, which fail alike.

    Prometheus would not be faster for more questions.
    """
    before = aparts.get(EVERYBODY, Apart(until_s=now_s, for_s=ALONE_S))
    more = before.queries | queries
    return replace(before, until_s=now_s + ALONE_S, num_failed=2, queries=more)


def _is_in_vain(aparts: Aparts, queries: frozenset[str], now_s: float) -> bool:
    everybody = aparts.get(EVERYBODY)
    if everybody is None or not everybody.is_alone(now_s):
        return False
    return everybody.is_doubted and queries <= everybody.queries


def _is_failed(part: QuerySet, sets: Sequence[QuerySet], answers: Answers) -> bool:
    """Tell whether a part failed by itself: another one has the answer.

    Where none has, more questions would not help. That Prometheus is not reached no namespace can
    bring about, nor that the tick was over.
    """
    if not part.namespaces:
        return False
    return any(_fails(name, part, sets, answers) for name in part.expressions)


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
