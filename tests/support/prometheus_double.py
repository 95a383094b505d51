"""Prometheus as a function from an expression to series."""

from array import array
from collections.abc import Callable, Sequence

from tonnage.cluster.answer import InstantVector
from tonnage.cluster.errors import PrometheusError
from tonnage.cluster.questions import Gathering, QueryResult
from tonnage.estimate.series import Series, Vector
from tonnage.fleet.rounds import Ask


def by_column(series: Sequence[Series]) -> Vector:
    labels, values, times_s = zip(*series, strict=True) if series else ((), (), ())
    return Vector(labels, array("d", values), array("d", times_s))


def asking(one: Callable[[str], Sequence[Series]]) -> Ask:
    """Ask one expression after the other; each that raises fails by itself."""

    def ask(sets, kept):
        gathering = Gathering()
        for queries in sets:
            for name, text in queries.expressions.items():
                try:
                    outcome = QueryResult(answer=InstantVector(series=by_column(one(text))))
                except PrometheusError as error:
                    gathering.fail(name, queries, error)
                else:
                    gathering.add(name, queries, outcome)
        return gathering.answers()

    return ask
