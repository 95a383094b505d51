"""Whose question is next: of sets that share a few places, none keeps the others from theirs.

Sets are asked in their order, at few places each, until slow questions of one have taken as long as
a single one may; then it comes after all of which they have not. A question under way is not taken
back, so namespaces with a recent failure have a few places only while others wait.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tonnage.cluster.questions import QuerySet, Standing

HOPELESS: Final = 2
"""Questions of a set that are asked, one of them late, before the rest is not: none is answered."""
HOPELESS_DOUBTED: Final = 1
"""Of one that is doubted, whether any was answered or not."""
MOST_PLACES: Final[Mapping[Standing, int]] = {Standing.APART: 2, Standing.DOUBTED: 1}
"""Of those of a standing and of all that are worse, together, while any better one waits."""
USUAL_PLACES: Final = 2
"""Of one set at first: where the time is short for all, some are through."""


@dataclass(slots=True, kw_only=True, eq=False)
class Account:
    """What one set may take, what it has taken, and how it fares."""

    queries: QuerySet
    share: float
    """Of all bytes, and of the time of all places: 0 to 1."""
    slow_s: float
    """A question that takes longer is slow."""
    num_answered: int = 0
    num_late: int = 0
    num_bytes: int = 0
    _waiting: deque[tuple[str, str]] = field(init=False)
    _under_way: list["RunningQuery"] = field(default_factory=list)
    _taken_s: float = 0.0
    """By questions that are over."""
    _slowly_s: float = 0.0
    """By those of them that were slow."""

    def __post_init__(self) -> None:
        self._waiting = deque(self.queries.expressions.items())

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_under_way(self) -> int:
        return len(self._under_way)

    @property
    def is_hopeless(self) -> bool:
        """The rest would only wait as long as the first ones did."""
        if self.queries.standing == Standing.DOUBTED:
            return self.num_late >= HOPELESS_DOUBTED
        num_asked = self.num_late + self.num_under_way
        return not self.num_answered and self.num_late > 0 and num_asked > HOPELESS

    def taken_s(self, now_s: float) -> float:
        """Return for how long it has held places, all together."""
        return self._taken_s + sum(now_s - each.begun_s for each in self._under_way)

    def slowly_s(self, now_s: float) -> float:
        """Return for how long questions held places of which each takes long."""
        under_way = (now_s - each.begun_s for each in self._under_way)
        return self._slowly_s + sum(map(self._if_slow, under_way))

    def begin(self, now_s: float) -> "RunningQuery":
        name, text = self._waiting.popleft()
        question = RunningQuery(account=self, name=name, text=text, begun_s=now_s)
        self._under_way.append(question)
        return question

    def end(self, question: "RunningQuery", now_s: float) -> None:
        self._under_way.remove(question)
        self._taken_s += now_s - question.begun_s
        self._slowly_s += self._if_slow(now_s - question.begun_s)

    def _if_slow(self, took_s: float) -> float:
        return took_s if took_s > self.slow_s else 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunningQuery:
    """One that holds a place."""

    account: Account
    name: str
    text: str
    begun_s: float

    def end(self, now_s: float) -> None:
        self.account.end(self, now_s)


class Turns:
    """The questions of some sets, each once.

    ``patience_s``: for how long slow questions of a set hold places before it comes last, each of
    them longer than a quarter of it.
    """

    def __init__(self, sets: Sequence[QuerySet], *, patience_s: float) -> None:
        self._accounts = [
            Account(queries=each, share=share, slow_s=patience_s / 4)
            for each, share in zip(sets, shares(sets), strict=True)
        ]
        self._patience_s = patience_s

    def begin(self, now_s: float) -> RunningQuery | None:
        """Return the next question, which holds a place until its end; none: all are asked."""
        with_a_place = list(self._with_a_place())
        if not with_a_place:
            return None
        return min(with_a_place, key=lambda each: self._order(each, now_s)).begin(now_s)

    def _order(self, account: Account, now_s: float) -> tuple[int, int]:
        at_once = USUAL_PLACES if account.queries.standing == Standing.USUAL else 1
        return int(account.slowly_s(now_s) / self._patience_s), account.num_under_way // at_once

    def _with_a_place(self) -> Iterator[Account]:
        waiting = [each for each in self._accounts if each.num_waiting]
        best = min((each.queries.standing for each in waiting), default=Standing.USUAL)
        for each in waiting:
            standing = each.queries.standing
            if standing == best or self._num_under_way(standing) < MOST_PLACES[standing]:
                yield each

    def _num_under_way(self, standing: Standing) -> int:
        """Count the places of those of this standing and of worse ones."""
        return sum(
            each.num_under_way for each in self._accounts if each.queries.standing >= standing
        )


def shares(sets: Sequence[QuerySet]) -> list[float]:
    """Return what part of everything each set may take: half of it alike, half by its pods.

    One set that is flooded, or slow, then leaves the others what they need.

    >>> shares([QuerySet(expressions={}, num_pods=300), QuerySet(expressions={}, num_pods=100)])
    [0.625, 0.375]
    """
    num_pods = sum(each.num_pods for each in sets)
    if num_pods == 0:
        return [1 / len(sets) for _ in sets]
    return [1 / (2 * len(sets)) + each.num_pods / (2 * num_pods) for each in sets]
