"""Namespaces that are queried alone: those with a failure, for ever longer.

After a failure the fleet is watched for ten minutes: it is asked for in parts, in halves where it
is small, and about nobody too. A part that lacks an answer then that was lacking before, and that
another part has or that there is about nobody, failed by itself. Each of its namespaces is asked
for alone after it: ten minutes at first, and twice as long each time that it happens within a day.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from tonnage.cluster.prometheus import CUT_OFF, LATE, THROTTLED, UNREACHABLE
from tonnage.cluster.questions import NOBODY, Answers, QuerySet, Standing, namespace_of, query_of
from tonnage.units import HOUR_S, MINUTE_S

ALONE_S = 10.0 * MINUTE_S
MOST_ALONE_S = REMEMBERED_S = 24 * HOUR_S
LEAST_IN_VAIN = 8
"""Namespaces that fail alone: where they are more than half of all, it is for none of them."""
TOO_LARGE = frozenset({"ResponseTooLarge", "QueryTooLarge"})
OF_NO_NAMESPACE = frozenset({UNREACHABLE, THROTTLED})
"""Failures that none can bring about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """That a namespace is asked for alone."""

    until_s: float
    for_s: float
    num_failed: int = 0
    """Rounds in a row in which a part failed that it was in."""
    queries: frozenset[str] = frozenset()
    """Of everybody: that failed meanwhile."""

    @property
    def is_doubted(self) -> bool:
        """It failed among fewer, too. Of everybody: there is no answer about nobody either."""
        return self.num_failed > 1

    def is_alone(self, now_s: float) -> bool:
        return now_s < self.until_s


EVERYBODY = ""
"""In place of a namespace: that the fleet is watched."""

Aparts = Mapping[str, Apart]
"""By namespace; those for whom it is over are remembered for a day."""


def is_watched(aparts: Aparts, now_s: float) -> bool:
    """Tell whether the fleet is asked for in parts and about nobody, to see who fails."""
    everybody = aparts.get(EVERYBODY)
    return everybody is not None and everybody.is_alone(now_s) and not everybody.is_doubted


def first_cut_off(sets: Sequence[QuerySet], answers: Answers) -> str:
    """Return a namespace of the first part for which others took the time, if any."""
    late = {namespace_of(key) for key, (reason, _) in answers.problems.items() if reason == LATE}
    kept_waiting = _cut_off(answers) - late - {NOBODY}
    return next((name for each in sets for name in each.namespaces if name in kept_waiting), "")


def _cut_off(answers: Answers) -> Set[str]:
    problems = answers.problems.items()
    return {namespace_of(key) for key, (reason, _) in problems if reason == CUT_OFF}


def after_round(
    aparts: Aparts, sets: Sequence[QuerySet], answers: Answers, *, now_s: float
) -> Aparts:
    """Return who is asked for alone after a round that asked these sets.

    Who was not asked in time stays as before.
    """
    known = {name: each for name, each in aparts.items() if now_s < each.until_s + REMEMBERED_S}
    queries = _failing(answers)
    lacked = known[EVERYBODY].queries if is_watched(known, now_s) else frozenset[str]()
    failed = [each for each in sets if _is_failed(each, sets, answers, lacked)]
    if _are_most(failed, sets, answers):
        everybody = _in_vain(known, queries, now_s)
        return {name: _over(each, now_s) for name, each in known.items()} | {EVERYBODY: everybody}
    stay = _cut_off(answers) | {EVERYBODY}
    answered = {
        name: replace(each, num_failed=0) for name, each in known.items() if name not in stay
    }
    met = {
        name: _extend(known.get(name), each, answers, now_s)
        for each in failed
        for name in each.namespaces
    }
    watched = _watch_fleet(known, queries, now_s, is_clear=bool(failed)) if queries else {}
    return {**known, **answered, **met, **watched}


def _failing(answers: Answers) -> frozenset[str]:
    """Return the queries that failed for what a namespace can bring about."""
    problems = answers.problems.items()
    refused = {query_of(key) for key, (reason, _) in problems if reason not in OF_NO_NAMESPACE}
    return frozenset(refused.union(map(query_of, answers.partial)))


def _are_most(failed: Sequence[QuerySet], sets: Sequence[QuerySet], answers: Answers) -> bool:
    """Tell whether more than half of all had no answer alone: it is not for what they have."""
    cut_off = _cut_off(answers)
    num_failed = sum(
        len(each.namespaces)
        for each in sets
        if each.standing > Standing.USUAL and (each in failed or each.namespaces[0] in cut_off)
    )
    num_all = sum(len(each.namespaces) for each in sets)
    return num_failed >= LEAST_IN_VAIN and 2 * num_failed > num_all


def _extend(before: Apart | None, part: QuerySet, answers: Answers, now_s: float) -> Apart:
    """Return for how long a namespace is alone whose part failed.

    Who is late by the limits of those in doubt may have been in time by those of the others.
    """
    keys = (next(part.keys(name)) for name in part.expressions)
    reasons = {answers.problems[key][0] for key in keys if key in answers.problems}
    if before is not None and part.standing == Standing.DOUBTED and reasons <= {LATE, CUT_OFF}:
        return before
    return _apart(before, now_s)


def _over(apart: Apart, now_s: float) -> Apart:
    return replace(apart, until_s=min(now_s, apart.until_s), num_failed=0)


def _apart(before: Apart | None, now_s: float) -> Apart:
    if before is None:
        return Apart(until_s=now_s + ALONE_S, for_s=ALONE_S, num_failed=1)
    if before.is_alone(now_s):
        return replace(before, until_s=now_s + before.for_s, num_failed=before.num_failed + 1)
    for_s = min(MOST_ALONE_S, 2 * before.for_s)
    return Apart(until_s=now_s + for_s, for_s=for_s, num_failed=1)


def _watch_fleet(
    aparts: Aparts, queries: frozenset[str], now_s: float, *, is_clear: bool
) -> Aparts:
    """Return until when a fleet is watched in which these queries failed."""
    before = aparts.get(EVERYBODY)
    if before is None or not before.is_alone(now_s):
        return {EVERYBODY: replace(_apart(before, now_s), queries=queries)}
    if before.is_doubted and queries <= before.queries:
        return {}
    if before.is_doubted:
        until_s = now_s + before.for_s
        return {EVERYBODY: replace(before, until_s=until_s, num_failed=1, queries=queries)}
    if queries & before.queries and not is_clear:
        return {EVERYBODY: _in_vain(aparts, queries, now_s)}
    return {EVERYBODY: replace(before, queries=before.queries | queries)}


def _in_vain(aparts: Aparts, queries: frozenset[str], now_s: float) -> Apart:
    """Return that for ten minutes nobody is set apart for these queries, which fail for all.

    Prometheus would not be faster for more questions.
    """
    before = aparts.get(EVERYBODY, Apart(until_s=now_s, for_s=ALONE_S))
    more = before.queries | queries
    return replace(before, until_s=now_s + ALONE_S, num_failed=2, queries=more)


def _is_failed(
    part: QuerySet, sets: Sequence[QuerySet], answers: Answers, lacked: frozenset[str]
) -> bool:
    """Tell whether a part failed by itself: another has the answer, or there is one about nobody.

    One that was not apart before only in what was lacking before: much fails once, for no reason
    of theirs.
    """
    if not part.namespaces or part.is_about_nobody:
        return False
    is_usual = part.standing == Standing.USUAL
    names = [name for name in part.expressions if name in lacked or not is_usual]
    return any(_fails(name, part, sets, answers) for name in names)


def _fails(name: str, part: QuerySet, sets: Sequence[QuerySet], answers: Answers) -> bool:
    key, problems = next(part.keys(name)), answers.problems
    if key not in problems:
        return key in answers.partial and any(
            each not in answers.partial and each not in problems for each in _keys(name, sets)
        )
    reason, _ = problems[key]
    if reason == CUT_OFF:
        return part.standing == Standing.USUAL and _is_quick(sets, answers)
    if reason in TOO_LARGE:
        return True
    return reason not in OF_NO_NAMESPACE and any(each not in problems for each in _keys(name, sets))


def _keys(name: str, sets: Sequence[QuerySet]) -> Iterator[str]:
    return (next(each.keys(name)) for each in sets)


def _is_quick(sets: Sequence[QuerySet], answers: Answers) -> bool:
    """Tell whether there is every answer about nobody, which takes no time of its own."""
    of_nobody = [each for each in sets if each.is_about_nobody]
    keys = [next(each.keys(name)) for each in of_nobody for name in each.expressions]
    return bool(keys) and not any(key in answers.problems for key in keys)
