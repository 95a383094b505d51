"""The query API of Prometheus: pages by pod, and faults as a test says."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime

from fleet_builders import NOW_S
from http_double import Asked, Reply
from page_builders import STEADY, PageHistory, labels_of
from tonnage.estimate.metrics import BUCKETS, CACHE, GPUS, HISTORY, LATENCIES, LONG, PLACES, SCRAPES
from tonnage.estimate.past import LABEL

LIMITED = re.compile(r'(?:\w+_)?namespace=~"([^"]*)"')
WINDOW = re.compile(r"\[(\d+)(ms|s)\]$")
LIMITED_PAST = re.compile(rf'namespace="([^"]*)",{LABEL}=~"([^"]*)"')
IN_TIME = tuple({"le": bound} for bound in ("0.01", "+Inf"))
HISTOGRAMS = {name: metric for metric, name in BUCKETS.items()}
Figures = Mapping[str, object]
"""By column: gauges, and counters per second; of a histogram rates by bound, of a cache labels."""
Fault = Callable[[str, tuple[str, ...]], Reply | None]
"""From a query's name and the namespaces that it is limited to, to what goes wrong with it."""


def compact(value: object) -> str:
    """JSON without blanks, as Prometheus writes it."""
    return json.dumps(value, separators=(",", ":"))


def name_of(text: str) -> str:
    """Return the name of a query.

    >>> name_of('{__name__=~"vllm:num_requests_running|vllm:prompt_tokens_total"}[915s]')
    'history'
    """
    if "_bucket" in text:
        return LATENCIES
    if "DCGM" in text:
        return GPUS
    return SCRAPES if CACHE in text else HISTORY


@dataclass(kw_only=True)
class QueryApi:
    """Answers like Prometheus, for ``serving`` of http_double."""

    completions_per_s: dict[tuple[str, str], float]
    """By (namespace, pod)."""
    now_s: float = NOW_S
    interval_s: float = 15.0
    fault: Fault = lambda name, namespaces: None
    figures: Figures = field(default_factory=dict)
    """Instead of those of every pod."""
    of_pod: Mapping[tuple[str, str], Figures] = field(default_factory=dict)
    """Instead of those, by (namespace, pod)."""
    engines: Mapping[tuple[str, str], Sequence[str]] = field(default_factory=dict)
    """Labels of the engines that a pod reports, where it is not one, all alike."""
    copies: Sequence[Mapping[str, str]] = ({},)
    """Labels of each of the copies in which every series comes."""
    late_s: float = 5.0
    """Age of the newest scrape."""
    asked: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    windows_s: dict[str, float] = field(default_factory=dict)
    """By query, as it was last asked."""
    histories: dict[tuple[str, str], PageHistory] = field(default_factory=dict)

    def __call__(self, request: Asked) -> Reply:
        if request.path.endswith("/query_range"):
            return self.past(request.query)
        text = request.form["query"]
        limited = LIMITED.search(text)
        namespaces = tuple(limited[1].split("|")) if limited else ()
        name = name_of(text)
        self.asked.append((name, namespaces))
        number, unit = WINDOW.search(text).groups()
        self.windows_s[name] = float(number) / (1000 if unit == "ms" else 1)
        return self.fault(name, namespaces) or self.reply(name, namespaces)

    def reply(self, name: str, namespaces: tuple[str, ...] = (), **more: object) -> Reply:
        """What a Prometheus that is well says; ``more``: beside the data."""
        result = [
            {"metric": metric | copy, "values": values}
            for key, rate in self.completions_per_s.items()
            if not namespaces or key[0] in namespaces
            for metric, values in self.series(name, key, rate)
            for copy in self.copies
        ]
        data = {"resultType": "matrix", "result": result}
        body = compact({"status": "success", "data": data, **more}).encode()
        date = format_datetime(datetime.fromtimestamp(self.now_s, UTC), usegmt=True)
        return Reply(body=body, headers={"Date": date})

    def past(self, query: Mapping[str, str]) -> Reply:
        """Answer about the past of objects: their pods always served what they do, all in time."""
        text, first_s, last_s, step_s = (query[name] for name in ("query", "start", "end", "step"))
        namespace, names = LIMITED_PAST.search(text).groups()
        bounds = IN_TIME if "_bucket" in text else ({},)
        each_s = float(step_s) if "_bucket" in text else 1
        number = round((float(last_s) - float(first_s)) / float(step_s)) + 1
        result = []
        for name in names.replace("[.]", ".").split("|"):
            rate = sum(
                rate
                for (where, pod), rate in self.completions_per_s.items()
                if where == namespace and pod.startswith(f"{name}-")
            )
            values = [
                [float(first_s) + at * float(step_s), str(rate * each_s)] for at in range(number)
            ]
            result += [{"metric": {LABEL: name, **bound}, "values": values} for bound in bounds]
        data = {"resultType": "matrix", "result": result}
        return Reply(body=compact({"status": "success", "data": data}).encode())

    def series(self, name, key, rate):
        """Yield labels and samples of the series of a pod that a query is about."""
        figures = {**STEADY, "completed": rate, **self.figures, **self.of_pod.get(key, {})}
        bounds = {
            (histogram, le): per_s
            for histogram in HISTOGRAMS
            for le, per_s in (figures.pop(histogram, None) or {}).items()
        }
        cache = figures.pop("cache", None)
        late_s = figures.pop("late_s", self.late_s)
        history = self.histories.setdefault(key, PageHistory(self.interval_s))
        history.advance(figures | bounds, self.now_s - late_s)
        engines = self.engines.get(key, ("0",))
        columns = {HISTORY: [column.name for column in LONG], SCRAPES: [*PLACES]}.get(name, [])
        for engine in engines:
            for column in [*columns, *(["running"] if name == LATENCIES else [])]:
                if values := self._values(history, column, name):
                    yield labels_of(column, key, engine), values
            if name == LATENCIES:
                for histogram, le in bounds:
                    labels = labels_of("running", key, engine, le=le)
                    values = self._values(history, (histogram, le), name)
                    yield labels | {"__name__": HISTOGRAMS[histogram]}, values
            if name == SCRAPES and cache:
                labels = labels_of("running", key, engine, **cache) | {"__name__": CACHE}
                yield labels, [[self.now_s - late_s, "1"]]

    def _values(self, history, column, query):
        since_s = self.now_s - self.windows_s[query]
        return [[at_s, str(value)] for at_s, value in history.samples(column, since_s)]
