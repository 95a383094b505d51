"""Prometheus as a function: pages of engines, without HTTP."""

from collections.abc import Callable, Iterable, Mapping

from page_builders import take_series
from tonnage.cluster.calls import PrometheusError
from tonnage.cluster.queries import Answers
from tonnage.estimate.fleet_scrapes import Answered
from tonnage.fleet.scrape import Ask

Said = Iterable[tuple[Mapping[str, str], list[tuple[float, float]]]]
"""Labels and samples of series."""


def asking(one: Callable[[str], Said]) -> Ask:
    """Ask one expression after the other; each that raises fails by itself."""

    def ask(sets, scrapes):
        answers = Answers()
        for queries in sets:
            for name, text in queries.expressions.items():
                try:
                    said = one(text)
                except PrometheusError as error:
                    answers.fail(name, queries, error)
                    continue
                answered = Answered()
                for labels, samples in said:
                    take_series(scrapes, answered, labels, samples)
                answers.add(name, queries, (answered, False, 0.0))
        return answers

    return ask
