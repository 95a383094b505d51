"""Asks Prometheus once, beside the loop, what it knows of objects from before this process.

A few objects of one namespace at a time: what fails costs those alone, for ten minutes.
"""

import logging
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Final

from tonnage.api.objects import ModelDeployment
from tonnage.cluster.calls import PrometheusError
from tonnage.cluster.ranges import Series, Steps
from tonnage.control.input.state import ModelState, ModelView
from tonnage.control.measure.attained import window_s_of
from tonnage.estimate.budget import Ledger
from tonnage.estimate.forecast import PATTERN_S
from tonnage.estimate.forecasters import BIN_S, DAY_S
from tonnage.estimate.metrics import LARGEST
from tonnage.estimate.past import (
    LABEL,
    LATENCIES,
    LEAST_STEP_S,
    ByBin,
    Engines,
    Past,
    demand_queries,
    latency_query,
    longest_gap_s,
    past_ledger,
    step_s_of,
)
from tonnage.fleet.background import BackgroundTask, Start, run_inline
from tonnage.fleet.logs import Line
from tonnage.fleet.pods import unix_s
from tonnage.settings import Settings
from tonnage.sizing.expected import slo_of
from tonnage.units import MINUTE_S

LOG = logging.getLogger("tonnage.past")
PART_OBJECTS: Final = 50
AGAIN_S: Final = 10 * MINUTE_S
"""After which a part that failed is asked again."""
NEVER: Final = math.inf

AskRange = Callable[[Settings, str, Steps], Sequence[Series]]
ByName = Mapping[str, dict[str, dict[float, float]]]
"""Figures by the end of a step, by the bound of a histogram, by name of the object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sought:
    """An object whose past is asked for."""

    uid: str
    namespace: str
    name: str
    created_s: float
    window_s: float
    limits_s: Mapping[str, tuple[float, ...]]
    """By latency."""


Answer = tuple[Sequence[Sought], Mapping[str, Past] | None]
"""Of a part; None: it failed."""


@dataclass(slots=True, kw_only=True)
class PastReader:
    """Knows who was asked about, and hands over what came."""

    ask: AskRange
    settings: Settings
    start: Start = run_inline
    found: dict[str, Past] = field(default_factory=dict)
    """By UID, until a tick has taken it over."""
    _until_s: float = 0.0
    """When this process began to watch: what came later is counted by itself."""
    _looked_at_s: float = 0.0
    _due_s: dict[str, float] = field(default_factory=dict)
    """By UID, when it is asked about again: of whom an answer came never."""
    _answers: SimpleQueue[Answer] = field(default_factory=SimpleQueue)
    _work: BackgroundTask[None] = field(default_factory=BackgroundTask)

    def begin(self, now_s: float) -> None:
        """Ask about everybody anew; what comes of an earlier question is not taken over."""
        self._looked_at_s, self._until_s = now_s, math.floor(now_s / LEAST_STEP_S) * LEAST_STEP_S
        self.found, self._due_s = {}, {}
        self._answers, self._work = SimpleQueue(), BackgroundTask(self.start)

    def look(self, models: Collection[ModelState], now_s: float) -> frozenset[str]:
        """Take over what came, and ask what is due; return the UIDs that have no answer yet.

        Where the clock was set back, objects are watched anew, and asked about anew.
        """
        if now_s < self._looked_at_s:
            self.begin(now_s)
        self._looked_at_s = now_s
        present = {each.view.uid for each in models}
        self._due_s = {uid: due_s for uid, due_s in self._due_s.items() if uid in present}
        sought = [
            _sought(each.view, each.model)
            for each in models
            if isinstance(each.model, ModelDeployment) and self._due_s.get(each.view.uid) != NEVER
        ]
        self._take(now_s)
        for each in sought:
            if each.created_s >= self._until_s and each.uid not in self._due_s:
                self._due_s[each.uid] = NEVER
                self.found[each.uid] = Past(ledger=Ledger(window_s=each.window_s))
        due = [each for each in sought if self._due_s.get(each.uid, now_s) <= now_s]
        if due and self._work.is_free:
            answers = self._answers
            self._work.begin(lambda: self._ask_all(parts_of(due), answers))
            self._take(now_s)
        return frozenset(each.uid for each in sought if each.uid not in self._due_s)

    def _take(self, now_s: float) -> None:
        self._work.take()
        while not self._answers.empty():
            part, found = self._answers.get()
            again_s = now_s + AGAIN_S if found is None else NEVER
            for each in part:
                self._due_s[each.uid] = again_s
                nothing = Past(ledger=Ledger(since_s=self._until_s, window_s=each.window_s))
                self.found[each.uid] = found[each.uid] if found else nothing

    def _ask_all(self, parts: Iterable[Sequence[Sought]], answers: SimpleQueue[Answer]) -> None:
        for part in parts:
            found = None
            try:
                found = self._ask(part)
            except (PrometheusError, OSError) as error:
                line = Line("history not read", namespace=part[0].namespace, message=str(error))
                LOG.warning(line)
            except Exception:
                LOG.exception(Line("history not read", namespace=part[0].namespace))
            answers.put((part, found))

    def _ask(self, part: Sequence[Sought]) -> Mapping[str, Past]:
        of_means, of_peaks = demand_queries(self._engines(part))
        until_s = math.floor(self._until_s / BIN_S) * BIN_S
        means = self._by_name(of_means, PATTERN_S, BIN_S, until_s)
        peaks = self._by_name(of_peaks, DAY_S, BIN_S, until_s)
        latencies = {latency: self._histograms(part, latency) for latency in LATENCIES}
        return {
            each.uid: Past(
                ledger=past_ledger(
                    {latency: of[each.name] for latency, of in latencies.items()},
                    each.limits_s,
                    window_s=each.window_s,
                    created_s=each.created_s,
                    until_s=self._until_s,
                ),
                means=_bins(each.created_s, means[each.name][""]),
                peaks=_bins(each.created_s, peaks[each.name][""]),
            )
            for each in part
        }

    def _histograms(self, part: Sequence[Sought], latency: str) -> ByName:
        limits_s = {limit_s for each in part for limit_s in each.limits_s[latency]}
        if not limits_s:
            return defaultdict(lambda: defaultdict(dict))
        step_s = step_s_of(part[0].window_s)
        for_s = part[0].window_s + longest_gap_s(part[0].window_s) + step_s
        text = latency_query(self._engines(part), latency, limits_s, step_s)
        return self._by_name(text, for_s, step_s, self._until_s)

    def _engines(self, part: Sequence[Sought]) -> Engines:
        return Engines(self.settings, part[0].namespace, [each.name for each in part])

    def _by_name(self, text: str, for_s: float, step_s: float, until_s: float) -> ByName:
        """Return what an expression came to, by object, bound of a histogram, and end of a step."""
        number = math.ceil(for_s / step_s)
        steps = Steps(from_s=until_s - number * step_s, step_s=step_s, number=number)
        found: ByName = defaultdict(lambda: defaultdict(dict))
        for labels, values in self.ask(self.settings, text, steps):
            found[labels.get(LABEL, "")][labels.get("le", "")] = {
                steps.from_s + (at + 1) * step_s: value
                for at, value in values.items()
                if 0 <= value <= LARGEST
            }
        return found


def parts_of(sought: Iterable[Sought]) -> Iterator[Sequence[Sought]]:
    """Yield a few objects at a time, of one namespace and window each."""
    by_place = defaultdict[tuple[str, float], list[Sought]](list)
    for each in sought:
        by_place[each.namespace, each.window_s].append(each)
    for _, together in sorted(by_place.items()):
        for first in range(0, len(together), PART_OBJECTS):
            yield together[first : first + PART_OBJECTS]


def _bins(from_s: float, steps: Mapping[float, float]) -> ByBin:
    """Return figures by bin, of those that began after an object was made."""
    bins = {round(end_s / BIN_S) - 1: value for end_s, value in steps.items()}
    return {at: value for at, value in bins.items() if at * BIN_S >= from_s}


def _sought(view: ModelView, model: ModelDeployment) -> Sought:
    slo = slo_of(model.spec)
    return Sought(
        uid=view.uid,
        namespace=view.namespace,
        name=view.name,
        created_s=unix_s(view.created) or 0.0,
        window_s=window_s_of(model),
        limits_s={
            "TTFT": tuple(each.limit_s for each in slo.ttft),
            "TPOT": tuple(each.limit_s for each in slo.tpot),
        },
    )
