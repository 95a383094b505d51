"""The query API of Prometheus: figures by pod, and faults as a test says."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fleet_builders import NOW_S
from http_double import Asked, Reply
from tonnage.estimate.metrics import (
    BUSY_SCRAPES,
    FAST_SCRAPES,
    SLOW_SCRAPES,
    TABLE,
    WINDOWS,
    queries,
)
from tonnage.settings import Settings

LOOSE = re.compile(r'(?:\w+_)?(namespace|le)=~"([^"]*)",?')
"""Matchers that differ from tick to tick."""


def compact(value: object) -> str:
    """JSON without blanks, as Prometheus writes it."""
    return json.dumps(value, separators=(",", ":"))


def _without_loose(text: str) -> str:
    return LOOSE.sub("", text).replace(",}", "}").replace("{}", "")


def names_of_queries(**settings: float) -> dict[str, str]:
    """Return the name of each expression that an operator with such settings asks."""
    known = Settings(prometheus_url="http://prometheus.test:9090", **settings)
    asked = queries(known, ttft_limits_s=[1], tpot_limits_s=[1])
    return {_without_loose(text): name for name, text in asked.items()}


NAMES = names_of_queries()
ARRIVALS = {"running_growth": 0, "waiting_growth": 0, "rejections": 0}
LENGTHS = {
    "finished": 2,
    "finished_prompt_tokens": 8000,
    "finished_output_tokens": 2000,
    "started": 2,
    "started_prompt_tokens": 8000,
    "computed_prompt_tokens": 8000,
}


def over(windows: Iterable[int], figures: Mapping[str, float]) -> dict[str, float]:
    """Name the same figures over each of these windows."""
    return {f"{name}_{each}": value for name, value in figures.items() for each in windows}


BUSY = {
    "running": 20,
    "waiting": 0,
    **over(WINDOWS, ARRIVALS),
    **over((FAST_SCRAPES, SLOW_SCRAPES), LENGTHS),
    f"computed_prompt_tokens_{BUSY_SCRAPES}": LENGTHS["computed_prompt_tokens"],
}
"""What each pod reports beside its completions: lengths that the specs of tests expect."""
Figures = Mapping[str, str | float]
"""Values by query, or by the query without its window for all of them."""
Fault = Callable[[str, tuple[str, ...]], Reply | None]
"""From a query's name and the namespaces that it is limited to, to what goes wrong with it."""


@dataclass(kw_only=True)
class QueryApi:
    """Answers like Prometheus, for ``serving`` of http_double."""

    completions_per_s: dict[tuple[str, str], float]
    """By (namespace, pod)."""
    now_s: float = NOW_S
    names: Mapping[str, str] = field(default_factory=lambda: NAMES)
    fault: Fault = lambda name, namespaces: None
    figures: Figures = field(default_factory=dict)
    """Instead of those of every pod."""
    of_pod: Mapping[tuple[str, str], Figures] = field(default_factory=dict)
    """Instead of those, by (namespace, pod)."""
    engines: Mapping[tuple[str, str], Sequence[str]] = field(default_factory=dict)
    """Labels of the engines that a pod reports, where it is not one, all alike."""
    labels: Mapping[tuple[str, str], Mapping[str, str]] = field(default_factory=dict)
    """Further labels of a pod's series."""
    copies: Sequence[Mapping[str, str]] = ({},)
    """Labels of each of the copies in which every series comes."""
    asked: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)

    def __call__(self, request: Asked) -> Reply:
        text = request.form["query"]
        limited = dict(LOOSE.findall(text)).get("namespace", "")
        namespaces = tuple(filter(None, limited.split("|")))
        name = self.names[_without_loose(text)]
        self.asked.append((name, namespaces))
        return self.fault(name, namespaces) or self.reply(name, namespaces)

    def reply(self, name: str, namespaces: tuple[str, ...] = (), **more: object) -> Reply:
        """What a Prometheus that is well says; ``more``: beside the data."""
        result = [
            {
                "metric": {"namespace": key[0], "pod": key[1], "engine": engine, **own, **copy},
                "value": [self.now_s, value],
            }
            for key, rate in self.completions_per_s.items()
            if not namespaces or key[0] in namespaces
            if (value := self._value(name, key, rate)) is not None
            for engine in self.engines.get(key, ("0",))
            for own in [self.labels.get(key, {})]
            for copy in self.copies
        ]
        data = {"resultType": "vector", "result": result}
        found = {"status": "success", "data": data, **more}
        return Reply(body=compact(found).encode())

    def _value(self, name: str, key: tuple[str, str], rate: float) -> str | None:
        told = {"timestamp": self.now_s - 5, **over(WINDOWS, {"completions": rate})}
        figures = BUSY | told
        for own in (self.figures, self.of_pod.get(key, {})):
            figures |= {query: own[short] for query in TABLE if (short := short_of(query)) in own}
            figures |= own
        value = figures.get(name)
        return None if value is None else str(value)


def short_of(query: str) -> str:
    """Return a query's name without its window.

    >>> short_of("completions_60"), short_of("kv_usage")
    ('completions', 'kv_usage')
    """
    return re.sub(r"_\d+$", "", query)


assert set(NAMES.values()) == set(TABLE), "two queries differ by their loose matchers only"
