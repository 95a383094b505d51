"""What sizing answered: a question that was asked a while ago is not searched again."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

from tonnage.explain.report import moved_by
from tonnage.memoize import memoize
from tonnage.sizing.errors import SizingError
from tonnage.sizing.nearby import can_extrapolate, extrapolate
from tonnage.sizing.plan import OnSearch, Sizing, keep_searching
from tonnage.sizing.request import SizingRequest
from tonnage.sizing.search import size


@dataclass(frozen=True, slots=True, kw_only=True)
class SizingRefused:
    """A request that was refused, and why."""

    kind: type[SizingError]
    message: str


Answers = Mapping[SizingRequest, Sizing | SizingRefused]
"""By question, a request without the words about where its figures come from; the one that was
asked last comes last."""
REMEMBERED = 800
"""Answers with those of the last tick, all of which stay: lengths waver, and come back."""


@memoize
def _question(request: SizingRequest) -> SizingRequest:
    return replace(request, inputs=())


class SizingCache:
    """Asks sizing for all objects of one tick, each question once.

    What sizing remembers itself is bounded and shared with every split and flag that a search
    tries: a large fleet would push its own answers out in each round.
    """

    def __init__(
        self,
        last: Answers | None = None,
        on_search: OnSearch = keep_searching,
    ) -> None:
        self._last, self.on_search = dict(last or {}), on_search
        self.answers: dict[SizingRequest, Sizing | SizingRefused] = {}
        """To what was asked in this tick."""
        self.num_searched = 0

    def size(
        self, request: SizingRequest, *, near: Callable[[], SizingRequest] | None = None
    ) -> Sizing:
        """Return the answer that is remembered, or what that to one ``near`` it says, else search.

        ``near`` is called only where the answer is not remembered.

        Raises:
            SizingError: there is none, and the message says why.
            SearchAbandonedError: the time for searches is spent; none is begun without any.
        """
        if near is None:
            return self._recall(request, lambda: self._search(request))
        return self._recall(request, lambda: self._extrapolate(request, near()))

    def _recall(
        self, request: SizingRequest, search: Callable[[], Sizing | SizingRefused]
    ) -> Sizing:
        question = _question(request)
        answer = self.answers.get(question)
        if answer is None:
            answer = self._last.pop(question) if question in self._last else search()
            self.answers[question] = answer
        if isinstance(answer, SizingRefused):
            raise answer.kind(f"{answer.message}{moved_by(request, answer.kind)}")
        is_same = answer.request.inputs == request.inputs
        return answer if is_same else replace(answer, request=request)

    @property
    def all_answers(self) -> Answers:
        """The answers of this tick, and before them the newest of those from earlier."""
        surplus = max(0, len(self._last) + len(self.answers) - REMEMBERED)
        older = dict(islice(self._last.items(), surplus, None)) if surplus else self._last
        return older | self.answers

    def _extrapolate(self, request: SizingRequest, near: SizingRequest) -> Sizing | SizingRefused:
        """Answer by a neighbour; where that is refused, it may be over an edge alone.

        Neither is run again at the rates that it comes to: what is read between searches is none of
        them, and demand is measured.
        """
        search = partial(self._search, confirms=False)
        try:
            known = self._recall(near, partial(search, near))
            return extrapolate(known, request) if can_extrapolate(known) else search(request)
        except SizingError:
            return search(request)

    def _search(self, request: SizingRequest, *, confirms: bool = True) -> Sizing | SizingRefused:
        self.on_search()
        self.num_searched += 1
        try:
            return size(request, confirms=confirms, on_search=self.on_search)
        except SizingError as refusal:
            return SizingRefused(kind=type(refusal), message=str(refusal))
