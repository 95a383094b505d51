"""Prometheus as a function from an expression to series."""

from collections.abc import Callable, Sequence

from tonnage.cluster.answer import Answer
from tonnage.cluster.errors import PrometheusError
from tonnage.cluster.questions import Gathering, Outcome
from tonnage.estimate.samples import Series
from tonnage.fleet.scrape import Ask


def asking(one: Callable[[str], Sequence[Series]]) -> Ask:
    """Ask one expression after the other; each that raises fails by itself."""

    def ask(sets, kept):
        gathering = Gathering()
        for queries in sets:
            for name, text in queries.expressions.items():
                try:
                    outcome = Outcome(answer=Answer(series=one(text)))
                except PrometheusError as error:
                    gathering.fail(name, queries, error)
                else:
                    gathering.add(name, queries, outcome)
        return gathering.answers()

    return ask
