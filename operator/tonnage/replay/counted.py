"""The traffic of a fleet that runs, as Prometheus counted it: what to ask, and a trace drawn of it.

Prometheus does not know single requests. It knows how many came in each minute, and how long those
were that ended in ten. A trace drawn of that has these counts and lengths; within a minute requests
come by chance, and long prompts have answers no longer than short ones do.

Arrivals are what the operator takes for them: completions, the growth of what runs and waits, and
rejections. A minute that nobody tells of is missing, not empty.
"""

import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Final

from tonnage.engine.chance import Chance
from tonnage.estimate.metrics import COMPLETED, REJECTED, RUNNING, WAITING, prometheus_duration
from tonnage.replay.traces import Trace
from tonnage.units import MILLION, format_s

WINDOW_STEPS: Final = 10
"""In which lengths are told: those of a minute are few."""
MOST_MISSING: Final = 0.1
"""Of the steps: what is missing counts like its neighbours, and more of that would be made up."""
MOST_REQUESTS: Final = 20 * MILLION
FIRST_SEED: Final = 15_000
ENGINE: Final = "namespace, pod, instance, engine"
"""By which series are told apart. Two Prometheus replicas deliver each twice: the highest counts."""
PROMPT_TOKENS, OUTPUT_TOKENS = "vllm:request_prompt_tokens", "vllm:request_generation_tokens"
COMPLETIONS, PODS, REJECTIONS = "completions", "pods", "rejections"
GROWTHS: Final = ("running growth", "waiting growth")
PROMPTS, OUTPUTS = "prompts", "outputs"
TOKENS: Final = " tokens"
EVENNESS: Final = (0.02, 0.98)
"""Between which the place of the mean in its histogram bins is believed."""

Labels = Mapping[str, str]
Points = Mapping[int, float]
"""By the number of the step or window that ends there, from 0 on."""
Told = Mapping[str, Sequence[tuple[Labels, Points]]]
"""The series of each question."""


class CountedError(ValueError):
    """No trace can be drawn of what Prometheus says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A time in steps, and whose series are asked for."""

    selector: str
    """Label matchers of PromQL."""
    from_s: float
    """Unix time."""
    num_steps: int
    step_s: float

    @property
    def window_s(self) -> float:
        return WINDOW_STEPS * self.step_s

    @property
    def num_windows(self) -> int:
        return math.ceil(self.num_steps / WINDOW_STEPS)

    def by_step(self) -> dict[str, str]:
        """Return the PromQL of what is asked for each step."""
        engines = f"max by ({ENGINE}, model_name, finished_reason)"
        completed = self._over("increase", COMPLETED, self.step_s)
        asked = {COMPLETIONS: f"sum by (model_name) ({engines} ({completed}))"}
        for name, metric in zip(GROWTHS, (RUNNING, WAITING), strict=True):
            grown = self._over("delta", metric, self.step_s)
            asked[name] = f"sum (max by ({ENGINE}) ({grown}))"
        rejected = self._over("increase", REJECTED, self.step_s)
        asked[REJECTIONS] = f"sum (max by ({ENGINE}, reason) ({rejected}))"
        asked[PODS] = f"count (group by (namespace, pod, instance) ({RUNNING}{{{self.selector}}}))"
        return asked

    def by_window(self) -> dict[str, str]:
        """Return the PromQL of what is asked for each window."""
        asked = {}
        for name, metric in ((PROMPTS, PROMPT_TOKENS), (OUTPUTS, OUTPUT_TOKENS)):
            below = self._over("increase", f"{metric}_bucket", self.window_s)
            tokens = self._over("increase", f"{metric}_sum", self.window_s)
            asked[name] = f"sum by (le) (max by ({ENGINE}, le) ({below}))"
            asked[name + TOKENS] = f"sum (max by ({ENGINE}) ({tokens}))"
        return asked

    def _over(self, function: str, metric: str, time_s: float) -> str:
        return f"{function}({metric}{{{self.selector}}}[{prometheus_duration(time_s)}])"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How long the requests of a window were: how many lie between bounds, and their mean."""

    bounds: tuple[float, ...]
    """Ascending, one more than there are counts: the first is 0, the last may be infinite."""
    counts: tuple[float, ...]
    mean_tokens: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """What came to a fleet, from its first step that is known to its last."""

    span: Span
    requests: tuple[float, ...]
    """Of each step. What is missing lies on the line between its neighbours."""
    missing: tuple[int, ...]
    """Steps of which nothing is known."""
    prompts: tuple[Spread, ...]
    outputs: tuple[Spread, ...]
    mean_pods: float | None
    """That reported; None: nobody says."""
    model_name: str | None

    @property
    def gaps(self) -> str:
        """Say what is missing; empty: nothing is."""
        if not self.missing:
            return ""
        longest = max(_runs(self.missing), key=len)
        begins = datetime.fromtimestamp(self.span.from_s + longest[0] * self.span.step_s, UTC)
        return (
            f"{format_s(len(self.missing) * self.span.step_s)} of "
            f"{format_s(len(self.requests) * self.span.step_s)} have no figures, the longest gap "
            f"{format_s(len(longest) * self.span.step_s)} from {begins:%Y-%m-%d %H:%M} UTC: taken "
            "to be like the minutes around"
        )


def counted(span: Span, told: Told) -> Counted:
    """Return what came, from the answers to all questions.

    Raises:
        CountedError: nothing came, two models did, or too much is missing.
    """
    models = [labels.get("model_name") for labels, points in told[COMPLETIONS] if points]
    if len(models) > 1:
        names = ", ".join(sorted(str(each) for each in models))
        message = f"the series are of {len(models)} models, {names}: choose one by its model_name"
        raise CountedError(message)
    known = _arrivals(told)
    if not known:
        raise CountedError(_nothing(span))
    span, known, told = _cut(span, known, told)
    missing = tuple(n for n in range(span.num_steps) if n not in known)
    if len(missing) > MOST_MISSING * span.num_steps:
        share = len(missing) / span.num_steps
        raise CountedError(
            f"{share:.0%} of the time has no figures, more than {MOST_MISSING:.0%}: ask for a "
            f"shorter time, or for longer steps where scrapes are more than "
            f"{format_s(span.step_s / 2)} apart"
        )
    if not any(known.values()):
        raise CountedError("no request came in this time")
    pods = [value for _, points in told[PODS] for value in points.values()]
    return Counted(
        span=span,
        requests=tuple(_filled(known, span.num_steps)),
        missing=missing,
        prompts=_spreads(span, told, PROMPTS),
        outputs=_spreads(span, told, OUTPUTS),
        mean_pods=sum(pods) / len(pods) if pods else None,
        model_name=models[0],
    )


def _nothing(span: Span) -> str:
    return (
        f"no {COMPLETED}{{{span.selector}}} with {RUNNING} and {WAITING} in steps of "
        f"{format_s(span.step_s)}: do the label matchers name the engines' series, and are two "
        "scrapes in a step?"
    )


def _arrivals(told: Told) -> dict[int, float]:
    """Return the requests that came in each step of which completions and growth are known."""
    completed = _one(told[COMPLETIONS])
    growths = [_one(told[name]) for name in GROWTHS]
    rejected = _one(told[REJECTIONS])  # vLLM before 0.32 has no such counter
    return {
        step: max(0.0, done + sum(each[step] for each in growths) + rejected.get(step, 0.0))
        for step, done in completed.items()
        if all(step in each for each in growths)
    }


def _one(series: Sequence[tuple[Labels, Points]]) -> Points:
    return next((points for _, points in series if points), {})


def _cut(span: Span, known: Points, told: Told) -> tuple[Span, dict[int, float], Told]:
    """Return all from the first window with a known step to the last known step."""
    first_window = min(known) // WINDOW_STEPS
    first = first_window * WINDOW_STEPS
    cut = Span(
        selector=span.selector,
        from_s=span.from_s + first * span.step_s,
        num_steps=max(known) + 1 - first,
        step_s=span.step_s,
    )
    windows = {PROMPTS, OUTPUTS, PROMPTS + TOKENS, OUTPUTS + TOKENS}
    moved: Told = {
        name: [
            (labels, _moved(points, first_window if name in windows else first))
            for labels, points in series
        ]
        for name, series in told.items()
    }
    return cut, _moved(known, first), moved


def _moved(points: Points, by: int) -> dict[int, float]:
    return {place - by: value for place, value in points.items() if place >= by}


def _filled(known: Points, number: int) -> Iterator[float]:
    """Yield a value for each step, on a line between the known ones around it."""
    steps = sorted(known)
    yield from (known[steps[0]] for _ in range(steps[0]))
    for one, other in pairwise(steps):
        rise = (known[other] - known[one]) / (other - one)
        yield from (known[one] + rise * k for k in range(other - one))
    yield from (known[steps[-1]] for _ in range(number - steps[-1]))


def _runs(steps: Sequence[int]) -> list[list[int]]:
    """Return steps in rows without a hole."""
    rows: list[list[int]] = []
    for step in steps:
        if rows and step == rows[-1][-1] + 1:
            rows[-1].append(step)
        else:
            rows.append([step])
    return rows


def _spreads(span: Span, told: Told, name: str) -> tuple[Spread, ...]:
    """Return the spread of each window; one in which none ended is like the one before.

    Raises:
        CountedError: no window tells of any.
    """
    found = [
        _spread(told[name], _one(told[name + TOKENS]), window) for window in range(span.num_windows)
    ]
    first = next((each for each in found if each), None)
    if first is None:
        metric = PROMPT_TOKENS if name == PROMPTS else OUTPUT_TOKENS
        raise CountedError(f"no {metric}_bucket and {metric}_sum{{{span.selector}}}")
    spreads, last = [], first
    for each in found:
        last = each or last
        spreads.append(last)
    return tuple(spreads)


def _spread(
    buckets: Sequence[tuple[Labels, Points]], tokens: Points, window: int
) -> Spread | None:
    """Return the spread of a window; None: no request ended in it, or nobody says how long."""
    below = {
        float(labels["le"]): points[window]
        for labels, points in buckets
        if "le" in labels and window in points
    }
    total = below.get(math.inf, 0.0)
    if total < 1 or not tokens.get(window):
        return None
    bounds = sorted(below)
    counts = (below[bounds[0]], *(below[b] - below[a] for a, b in pairwise(bounds)))
    return Spread(
        bounds=(0.0, *bounds),
        counts=tuple(max(0.0, each) for each in counts),
        mean_tokens=tokens[window] / total,
    )


def trace_of(found: Counted, *, longest_tokens: int, seed: int = 0) -> Trace:
    """Draw requests as many and as long as those counted. ``longest_tokens``: of any of them.

    Raises:
        CountedError: they are more than a trace may have.
    """
    expected = sum(found.requests)
    if expected > MOST_REQUESTS:
        raise CountedError(
            f"{expected / MILLION:.0f} million requests came, a trace has {MOST_REQUESTS / MILLION:g} "
            "million at most: ask for a shorter time"
        )
    chance = Chance(FIRST_SEED + seed)
    arrival_s, prompts, outputs = array("d"), array("q"), array("q")
    for step, requests in enumerate(found.requests):
        number = int(requests + chance.share())
        places = sorted(chance.shares(number))
        arrival_s.extend((step + place) * found.span.step_s for place in places)
        window = step // WINDOW_STEPS
        prompts.extend(_lengths(found.prompts[window], number, longest_tokens, chance))
        outputs.extend(_lengths(found.outputs[window], number, longest_tokens, chance))
    if not arrival_s:
        raise CountedError("less than one request came in this time")
    return Trace(arrival_s=arrival_s, prompt_tokens=prompts, output_tokens=outputs)


def _lengths(spread: Spread, number: int, longest_tokens: int, chance: Chance) -> list[int]:
    """Draw lengths: a bin by its count, and within it so that the mean is the one measured."""
    lows, highs = spread.bounds[:-1], _closed(spread.bounds[1:], longest_tokens)
    at = _place_of_mean(spread, lows, highs)
    bins, total = list(zip(lows, highs, spread.counts, strict=True)), sum(spread.counts)
    return [_length(bins, chance.share() * total, chance.share() ** (1 / at - 1)) for _ in range(number)]


def _length(bins: Sequence[tuple[float, float, float]], place: float, within: float) -> int:
    low, high = bins[-1][:2]
    for low, high, count in bins:
        place -= count
        if place < 0:
            break
    return max(1, round(low + (high - low) * within))


def _closed(bounds: Sequence[float], longest_tokens: int) -> list[float]:
    """Return the upper bounds of bins; of the open one what the engine takes at most."""
    last = max((each for each in bounds if each < math.inf), default=0.0)
    return [each if each < math.inf else max(last, longest_tokens) for each in bounds]


def _place_of_mean(spread: Spread, lows: Sequence[float], highs: Sequence[float]) -> float:
    """Return where the mean lies in its bins, from 0, their lower bounds, to 1, the upper ones."""
    total = sum(spread.counts)
    least = sum(c * low for c, low in zip(spread.counts, lows, strict=True)) / total
    most = sum(c * high for c, high in zip(spread.counts, highs, strict=True)) / total
    low, high = EVENNESS
    return min(high, max(low, (spread.mean_tokens - least) / (most - least)))
