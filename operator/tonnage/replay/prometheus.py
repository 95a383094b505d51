"""A Prometheus of the simulation and the pages that it scrapes.

To the operator raw, to rivals by the few functions over a window that they ask for. Windows are
open at their start, as since Prometheus 3. After a scrape that failed there is nothing newest.
"""

import math
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise, takewhile
from operator import sub, truediv
from typing import Any, Final, NamedTuple

from tonnage.engine.chance import Chance
from tonnage.engine.core import Engine
from tonnage.engine.limits import EngineLimits
from tonnage.estimate.metrics import PROMPT_BOUNDS, QUEUE_BOUNDS_S
from tonnage.settings import Settings
from tonnage.units import count_of

Labels = tuple[tuple[str, str], ...]
SeriesKey = tuple[str, Labels]
"""A metric's name and its labels, those of the target left out."""
Page = Mapping[SeriesKey, float]
"""What one scrape of one target returned."""
LOOKBACK_S: Final = 300.0
"""Of the newest sample."""
NEAR: Final = 1.1
"""Mean intervals between samples within which a window's edge is extrapolated to."""
LEAST: Final = 2
"""Samples of a slope."""
Points = Sequence[tuple[float, float]]
"""(time, value) in order of time."""


class Series(NamedTuple):
    """One series of an answer."""

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One metric, how it is reduced over a window, and its own labels that are kept."""

    metric: str
    over: Callable[[Points, float, float], float | None] | None = None
    """What becomes of the samples of a window, its length and its end; None: the newest alone."""
    scrapes: int = 1
    """Of the window."""
    own_labels: tuple[str, ...] = ()


def rate(points: Points, window_s: float, at_s: float) -> float | None:
    """Return the growth of a counter per second, extrapolated to the edges as Prometheus does.

    Sources:
        [prometheus-source] promql/functions.go, extrapolatedRate.
    """
    if len(points) < LEAST:
        return None
    (first_s, first), (last_s, last) = points[0], points[-1]
    falls = sum(before for (_, before), (_, value) in pairwise(points) if value < before)
    grown = last - first + falls
    if grown <= 0:
        return 0.0
    sampled_s = last_s - first_s
    mean_s = sampled_s / (len(points) - 1)
    before_s, after_s = (
        gap_s if gap_s < NEAR * mean_s else mean_s / 2
        for gap_s in (first_s - (at_s - window_s), at_s - last_s)
    )
    before_s = min(before_s, sampled_s * first / grown)  # no counter was below zero
    return grown * (sampled_s + before_s + after_s) / sampled_s / window_s


@dataclass(slots=True)
class Target:
    """What one pod was scraped for."""

    labels: Mapping[str, str]
    pages: deque[tuple[float, Page | None]] = field(default_factory=deque)
    """With the times of the scrapes; None: it failed."""
    keys: dict[str, list[SeriesKey]] = field(default_factory=lambda: defaultdict(list))
    """All series ever seen, by metric."""
    _seen: set[SeriesKey] = field(default_factory=set)

    def take(self, at_s: float, page: Page | None, kept_s: float) -> None:
        self.pages.append((at_s, page))
        while self.pages[0][0] <= at_s - kept_s:
            self.pages.popleft()
        for key in (page or {}).keys() - self._seen:
            self._seen.add(key)
            self.keys[key[0]].append(key)

    def points(self, key: SeriesKey, after_s: float) -> list[tuple[float, float]]:
        return [
            (at_s, page[key])
            for at_s, page in self.pages
            if at_s > after_s and page is not None and key in page
        ]

    def newest(self, key: SeriesKey, after_s: float) -> float | None:
        at_s, page = self.pages[-1]
        return page.get(key) if page and at_s > after_s else None


class SimulatedPrometheus:
    """Takes scrapes and gives them out; times are unix seconds."""

    def __init__(self, settings: Settings, table: Mapping[str, Query]) -> None:
        """``table``: what a rival asks."""
        self._settings, self._table = settings, table
        self.targets: dict[tuple[str, str], Target] = {}
        """By namespace and pod."""
        longest = max((query.scrapes for query in table.values()), default=1)
        self._kept_s = max(LOOKBACK_S, longest * settings.scrape_interval_s)

    def take(self, namespace: str, pod: str, at_s: float, page: Page | None) -> None:
        """Keep what a scrape of a pod returned; None: it failed."""
        settings = self._settings
        target = self.targets.get((namespace, pod))
        if target is None:
            labels = {settings.namespace_label: namespace, settings.pod_label: pod}
            target = self.targets[namespace, pod] = Target(labels)
        target.take(at_s, page, self._kept_s)

    def drop(self, namespace: str, pod: str) -> None:
        self.targets.pop((namespace, pod), None)

    def ask(self, at_s: float) -> dict[str, list[Series]]:
        """Answer all queries of the table: of series that differ in other labels the largest."""
        return {
            name: [
                each for target in self.targets.values() for each in self._of(target, query, at_s)
            ]
            for name, query in self._table.items()
        }

    def _of(self, target: Target, query: Query, at_s: float) -> Iterator[Series]:
        window_s = query.scrapes * self._settings.scrape_interval_s
        found: dict[Labels, float] = {}
        for key in target.keys.get(query.metric, ()):
            if query.over is None:
                value = target.newest(key, at_s - LOOKBACK_S)
            else:
                value = query.over(target.points(key, at_s - window_s), window_s, at_s)
            if value is not None and math.isfinite(value):
                kept = tuple(each for each in key[1] if each[0] in ("engine", *query.own_labels))
                found[kept] = max(value, found.get(kept, value))
        for labels, value in found.items():
            yield Series({**target.labels, **dict(labels)}, value)


Fault = Callable[[Page | None, int, float], Page | None]
"""Takes the page, the number of its pod in order of creation and the time; None: no page."""


def drop_scrapes(share: float, *, seed: int = 0) -> Fault:
    """Return a fault that loses a share of all scrapes."""
    chance = Chance(seed)
    return lambda page, *_: None if page is not None and chance.share() < share else page


WAITING, PREFILLING, DECODING, DONE = range(4)
"""States of a request in the table."""
FINISHED_REASONS: Final = ("stop", "length", "abort", "error", "repetition")
REJECTION_REASONS: Final = ("max_num_queued_reqs", "max_num_queued_tokens")
"""Of ``admission_rejections``, which has no ``engine`` label."""
PROMPT_SOURCES: Final = ("local_compute", "local_cache_hit", "external_kv_transfer")
COLUMNS: Final = (
    "state", "emitted", "start_step", "preemptions", "arrival_s", "started_s", "first_token_s",
    "ended_s", "prompt_tokens", "output_tokens", "cached_tokens",
)  # fmt: skip
"""Of the table of requests, read here."""
PHASES: Final = ("e2e_request_latency", "request_prefill_time", "request_decode_time")
TOKEN_BOUNDS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, *PROMPT_BOUNDS)
"""Of prompts, up to the longest that the engine takes."""


class Histogram:
    """Counts by upper bound, and their sum; many values are counted at once."""

    def __init__(self, name: str, labels: Labels, bounds: Sequence[float] = ()) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0
        self._sum_key, self._count_key = (f"{name}_sum", labels), (f"{name}_count", labels)
        names = [*map(str, map(float, bounds)), "+Inf"] if bounds else []
        self._keys = [(f"{name}_bucket", (*labels, ("le", le))) for le in names]

    def observe(self, values: Collection[float]) -> None:
        """Count some more values; the sum is that of adding one by one."""
        if self._keys:
            for value in values:
                self._counts[bisect_left(self._bounds, value)] += 1
        else:
            self._counts[0] += len(values)
        for value in values:
            self.sum += value

    def show(self, page: dict[SeriesKey, float]) -> None:
        below = list(accumulate(self._counts))
        page[self._sum_key], page[self._count_key] = self.sum, below[-1]
        if self._keys:
            page.update(zip(self._keys, below, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladders:
    """Upper bounds of the two histograms that promises are measured by, in seconds."""

    ttft_s: Sequence[float]
    tpot_s: Sequence[float]
    server_s: float = 0.0
    """That pass before a request comes to the engine: each TTFT is longer by it."""


class EngineCounters:
    """The page of one engine with one rank that drafts nothing, at the time of a scrape.

    The engine model takes many steps at once where they do the same, and is not stopped for a
    scrape: as many of those steps have ended as their times add up to. Then tokens, gaps, steps and
    the histograms of requests are those of an engine that is stepped. Three figures are near only:

    - a step's prompt tokens hold KV blocks from its start;
    - the gaps of a sequence that is preempted at the time of a scrape count with the mean gap until
      it decodes again, from then on exactly;
    - gauges are those at the end of the last step: what the step under way has admitted is waiting,
      if it came before that last step began, which is taken to have lasted as long as the one under
      way where that is the first of its kind; what is recomputed after a preemption runs.

    Of single gaps between tokens only sum and count are kept.
    """

    def __init__(
        self,
        engine: Engine,
        limits: EngineLimits,
        *,
        model_name: str,
        kv_tokens: int,
        ladders: Ladders,
    ) -> None:
        """``kv_tokens``: that the engine reports, in requests of the longest length."""
        if limits.num_draft_tokens:
            raise ValueError("spec.engine.speculative: an engine that drafts cannot be scraped")
        if limits.num_ranks > 1:
            raise ValueError(
                f"spec.hardware.gpusPerReplica: {count_of(limits.num_ranks, 'data-parallel rank')} "
                "in a replica; only one can be scraped"
            )
        self._engine, self._server_s = engine, ladders.server_s
        self._columns = {name: memoryview(getattr(engine.table, name)) for name in COLUMNS}
        self._starting = deque[int]()
        """Without a token yet, as they came."""
        self._decoding: list[int] = []
        self._labels = labels = (("engine", "0"), ("model_name", model_name))
        self._model = (("model_name", model_name),)
        self._info = (
            "vllm:cache_config_info",
            (
                ("block_size", str(limits.block_size)),
                ("engine", "0"),
                ("kv_cache_size_tokens", str(kv_tokens)),
                ("num_gpu_blocks", str(limits.num_blocks + 1)),
            ),
        )
        bounds = {"time_to_first_token_seconds": ladders.ttft_s,
                  "request_time_per_output_token_seconds": ladders.tpot_s}  # fmt: skip
        if ladders.ttft_s:
            bounds |= {"request_queue_time_seconds": QUEUE_BOUNDS_S,
                       "request_prompt_tokens": TOKEN_BOUNDS}  # fmt: skip
        names = (*bounds, *(f"{phase}_seconds" for phase in PHASES), "request_queue_time_seconds",
                 "request_prompt_tokens", "request_generation_tokens")  # fmt: skip
        self._histograms = {
            name: Histogram(f"vllm:{name}", labels, bounds.get(name, ())) for name in names
        }
        self._prompt_tokens = self._cached_tokens = self._first_tokens = 0
        self._finished = self._finished_tokens = self._finished_preemptions = 0
        self._most_gap_s = 0.0
        self.num_refused = 0
        """Requests that came while too many tokens waited."""

    def note_request(self, number: int) -> None:
        self._starting.append(number)

    def _of(self, name: str, numbers: Iterable[int]) -> list[Any]:
        """Return what a column says of some requests."""
        column = self._columns[name]
        return [column[number] for number in numbers]

    def page(self, at_s: float) -> dict[SeriesKey, float]:
        """Return what a scrape at this time shows; the engine has been advanced to it."""
        self._settle()
        steps, last_end_s = self._ended(at_s)
        tokens, gap_s, preemptions = self._live(steps, last_end_s)
        tokens += self._finished_tokens
        self._most_gap_s = max(self._most_gap_s, gap_s + self._finished_gap_s)
        found: dict[SeriesKey, float] = {}
        num_steps = self._engine.num_steps + steps
        self._show_gauges(found, steps)
        for name, value in {
            "num_preemptions_total": preemptions + self._finished_preemptions,
            "prompt_tokens_total": self._prompt_tokens,
            "prompt_tokens_cached_total": self._cached_tokens,
            "generation_tokens_total": tokens,
            "iteration_tokens_total_count": num_steps,
            "iteration_tokens_total_sum": tokens + self._prompt_tokens,
            "inter_token_latency_seconds_sum": self._most_gap_s,
            "inter_token_latency_seconds_count": tokens - self._first_tokens,
        }.items():
            found[f"vllm:{name}", self._labels] = value
        self._show_labelled(found)
        for histogram in self._histograms.values():
            histogram.show(found)
        return found

    def _settle(self) -> None:
        """Count what has happened to requests since the last scrape."""
        emitted, state = self._columns["emitted"], self._columns["state"]
        started = list(takewhile(emitted.__getitem__, self._starting))
        if started:
            for _ in started:
                self._starting.popleft()
            self._count_first_tokens(started)
            self._decoding += started
        ended = [number for number in self._decoding if state[number] == DONE]
        if ended:
            self._decoding = [number for number in self._decoding if state[number] != DONE]
            self._count_ends(ended)

    def _count_first_tokens(self, numbers: Sequence[int]) -> None:
        columns = zip(
            self._of("first_token_s", numbers), self._of("arrival_s", numbers), strict=True
        )
        waited_s = [first_s - at_s + self._server_s for first_s, at_s in columns]
        self._histograms["time_to_first_token_seconds"].observe(waited_s)
        self._prompt_tokens += sum(self._of("prompt_tokens", numbers))
        self._cached_tokens += sum(self._of("cached_tokens", numbers))
        self._first_tokens += len(numbers)

    def _count_ends(self, numbers: Sequence[int]) -> None:
        """Count requests that have ended, in their order."""
        arrived_s, started_s, first_s, ended_s, prompts, outputs, preemptions = (
            self._of(name, numbers)
            for name in ("arrival_s", "started_s", "first_token_s", "ended_s", "prompt_tokens",
                         "output_tokens", "preemptions")
        )  # fmt: skip
        decoding_s = list(map(sub, ended_s, first_s))
        gaps = [max(1, output - 1) for output in outputs]
        for name, values in {
            "e2e_request_latency_seconds": map(sub, ended_s, arrived_s),
            "request_queue_time_seconds": map(sub, started_s, arrived_s),
            "request_prefill_time_seconds": map(sub, first_s, started_s),
            "request_decode_time_seconds": decoding_s,
            "request_time_per_output_token_seconds": map(truediv, decoding_s, gaps),
            "request_prompt_tokens": prompts,
            "request_generation_tokens": outputs,
        }.items():
            self._histograms[name].observe(list(values))
        self._finished += len(numbers)
        self._finished_tokens += sum(outputs)
        self._finished_preemptions += sum(preemptions)

    @property
    def _finished_gap_s(self) -> float:
        return self._histograms["request_decode_time_seconds"].sum

    def _ended(self, at_s: float) -> tuple[int, float]:
        """Return how many of the steps under way have ended, and when the last one did."""
        engine = self._engine
        steps = engine.ended(at_s)
        return steps, engine.now_s + engine.lasts_s(steps)

    def _live(self, steps: int, last_end_s: float) -> tuple[int, float, int]:
        """Return tokens, gaps in seconds and preemptions of requests that have not ended."""
        columns, now_step = self._columns, self._engine.step_number + steps
        state, emitted = columns["state"], columns["emitted"]
        start, first_s = columns["start_step"], columns["first_token_s"]
        tokens, preempted_gaps, gap_s = 0, 0, 0.0
        for number in self._decoding:
            tokens += emitted[number]
            if state[number] == DECODING:
                tokens += now_step - start[number]
                gap_s += max(0.0, last_end_s - first_s[number])
            else:
                preempted_gaps += emitted[number] - 1
        gaps = self._finished_tokens - self._finished
        gap_s += preempted_gaps * (self._finished_gap_s / gaps if gaps else 0.0)
        begun = (*self._admitted_requests(), *self._decoding)
        return tokens, gap_s, sum(self._of("preemptions", begun))

    def _admitted_requests(self) -> Iterable[int]:
        """Return the requests without a token that were admitted, those preempted since too."""
        state, preemptions = self._columns["state"], self._columns["preemptions"]
        # What has begun came before all that waits: a long queue is not read.
        return takewhile(lambda n: state[n] != WAITING or preemptions[n], self._starting)

    def _show_gauges(self, page: dict[SeriesKey, float], steps: int) -> None:
        engine, (rank,) = self._engine, self._engine.ranks
        waiting, admitted = len(rank.waiting), list[int]()
        if engine.ends_s != math.inf:
            begun_s = engine.now_s
            if steps:
                begun_s += engine.lasts_s(steps - 1)
            else:
                admitted = self._admitted_at(begun_s)
                begun_s -= engine.first_s
            late = self._later_than(begun_s, reversed(rank.waiting))
            waiting += len(admitted) - late - self._later_than(begun_s, reversed(admitted))
        blocks = rank.num_blocks - rank.free_blocks + rank.chunk_blocks(steps)
        blocks += rank.decode_blocks(engine.step_number, steps)
        labels = self._labels
        page["vllm:num_requests_running", labels] = rank.num_running - len(admitted)
        page["vllm:num_requests_waiting", labels] = waiting
        by_reason = "vllm:num_requests_waiting_by_reason"
        page[by_reason, (*labels, ("reason", "capacity"))] = waiting
        page[by_reason, (*labels, ("reason", "deferred"))] = 0
        page["vllm:kv_cache_usage_perc", labels] = min(1.0, max(0.0, blocks / rank.num_blocks))
        page[self._info] = 1

    def _admitted_at(self, begun_s: float) -> list[int]:
        """Return the requests that the step which began then has admitted for the first time."""
        started_s, state = self._columns["started_s"], self._columns["state"]
        return [
            number
            for number in self._admitted_requests()
            if started_s[number] == begun_s and state[number] == PREFILLING
        ]

    def _later_than(self, at_s: float, newest_first: Iterable[int]) -> int:
        """Return how many of these requests, in order the newest first, came after a time."""
        arrival_s = self._columns["arrival_s"]
        return sum(1 for _ in takewhile(lambda n: arrival_s[n] > at_s, newest_first))

    def _show_labelled(self, page: dict[SeriesKey, float]) -> None:
        by_source = (self._prompt_tokens - self._cached_tokens, self._cached_tokens, 0)
        for source, value in zip(PROMPT_SOURCES, by_source, strict=True):
            page["vllm:prompt_tokens_by_source_total", (*self._labels, ("source", source))] = value
        for reason in FINISHED_REASONS:
            ended = (*self._labels, ("finished_reason", reason))
            page["vllm:request_success_total", ended] = self._finished if reason == "length" else 0
        for reason in REJECTION_REASONS:
            refused = self.num_refused if reason == "max_num_queued_tokens" else 0
            page["vllm:admission_rejections_total", (*self._model, ("reason", reason))] = refused
