"""The traffic of a fleet that runs, as Prometheus counted it: what to ask, and what that says.

Prometheus knows how many requests came in each minute, and how long those were that ended in ten.
Arrivals are what the operator takes for them: completions, the growth of what runs and waits, and
rejections. A minute that nobody tells of is missing, not empty.

Of these a trace is drawn. Within a step requests come by chance. Prompts and answers are drawn by
themselves: whether long prompts had long answers was not counted.
"""

import math
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import accumulate, pairwise
from typing import Final

from tonnage.engine.chance import Chance
from tonnage.estimate.metrics import COMPLETED, REJECTED, RUNNING, WAITING, prometheus_duration
from tonnage.replay.trace_rows import MOST_REQUESTS
from tonnage.replay.traces import Trace
from tonnage.units import MILLION, count_of, format_s

WINDOW_STEPS: Final = 10
"""In which lengths are told: those of a minute are few."""
MOST_MISSING: Final = 0.1
"""Of the steps: what is missing counts like its neighbours, and more of that would be made up."""
ENGINE: Final = "namespace, pod, instance, engine"
"""By which series are told apart. Two Prometheus replicas tell each twice: the highest counts."""
PROMPT_TOKENS, OUTPUT_TOKENS = "vllm:request_prompt_tokens", "vllm:request_generation_tokens"
COMPLETIONS, PODS, REJECTIONS = "completions", "pods", "rejections"
GROWTHS: Final = ("running growth", "waiting growth")
PROMPTS, OUTPUTS = "prompts", "outputs"
TOKENS: Final = " tokens"

Labels = Mapping[str, str]
Points = Mapping[int, float]
"""By the number of the step or window that ends there, from 0 on."""
RangeAnswers = Mapping[str, Sequence[tuple[Labels, Points]]]
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

    def draw(self, longest_tokens: int) -> Callable[[Chance], int]:
        """Return what draws lengths: a bin by its count, and a place within it.

        Places are shares to a power, with which the mean length is right.
        """
        lows, highs = self.bounds[:-1], list(self.bounds[1:])
        if math.isinf(highs[-1]):  # the open one ends with the longest that there may be
            highs[-1] = max([longest_tokens, *highs[-2:-1]])
        below = list(accumulate(self.counts))
        least, most = (
            sum(count * bound for count, bound in zip(self.counts, bounds, strict=True))
            for bounds in (lows, highs)
        )
        place = (self.mean_tokens * below[-1] - least) / (most - least)
        lowest, highest = PLACES
        power = 1 / min(highest, max(lowest, place)) - 1

        def draw_one(chance: Chance) -> int:
            number = bisect_right(below, chance.share() * below[-1])
            low, high = (bounds[min(number, len(bounds) - 1)] for bounds in (lows, highs))
            within: float = chance.share() ** power
            return max(1, round(low + (high - low) * within))

        return draw_one


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredTraffic:
    """What came to a fleet, from its first window that is known to its last step."""

    span: Span
    requests: tuple[float, ...]
    """Of each step. What is missing lies on the line between its neighbours."""
    missing: tuple[int, ...]
    """Steps of which nothing is known."""
    prompts: tuple[Spread, ...]
    """Of each window."""
    outputs: tuple[Spread, ...]
    mean_pods: float | None
    """That reported; None: nobody says."""
    model_name: str | None

    @property
    def gaps(self) -> str:
        """Say what is missing; empty: nothing is."""
        if not self.missing:
            return ""
        longest = max(_rows(self.missing), key=len)
        begins = datetime.fromtimestamp(self.span.from_s + longest[0] * self.span.step_s, UTC)
        missing, whole, gap = (
            format_s(number * self.span.step_s)
            for number in (len(self.missing), len(self.requests), len(longest))
        )
        return (
            f"{missing} of {whole} have no figures, the longest gap {gap} from "
            f"{begins:%Y-%m-%d %H:%M} UTC: assumed like the minutes around"
        )


def count_traffic(span: Span, answers: RangeAnswers) -> MeasuredTraffic:
    """Return what came, from the answers to all questions.

    Raises:
        CountedError: nothing came, two models did, or too much is missing.
    """
    model_name = _one_model(answers)
    known = _arrivals(answers)
    if not known:
        raise CountedError(
            f"no {COMPLETED}{{{span.selector}}} with {RUNNING} and {WAITING} in steps of "
            f"{format_s(span.step_s)}: do the label matchers name the engines' series, and are two "
            "scrapes in a step?"
        )
    span, known, answers = _cut(span, known, answers)
    missing = tuple(step for step in range(span.num_steps) if step not in known)
    if len(missing) > MOST_MISSING * span.num_steps:
        raise CountedError(
            f"{len(missing) / span.num_steps:.0%} of the time has no figures, more than "
            f"{MOST_MISSING:.0%}: ask for a shorter time, or for longer steps where scrapes are "
            f"more than {format_s(span.step_s / 2)} apart"
        )
    if not any(known.values()):
        raise CountedError("no request came in this time")
    pods = [value for _, points in answers[PODS] for value in points.values()]
    return MeasuredTraffic(
        span=span,
        requests=tuple(_interpolate(known, span.num_steps)),
        missing=missing,
        prompts=_spreads(span, answers, PROMPTS),
        outputs=_spreads(span, answers, OUTPUTS),
        mean_pods=sum(pods) / len(pods) if pods else None,
        model_name=model_name,
    )


def _one_model(answers: RangeAnswers) -> str | None:
    models = [labels.get("model_name") for labels, points in answers[COMPLETIONS] if points]
    if len(models) > 1:
        names = ", ".join(sorted(str(each) for each in models))
        several = count_of(len(models), "model")
        raise CountedError(f"the series are of {several}, {names}: choose one by its model_name")
    return models[0] if models else None


def _arrivals(answers: RangeAnswers) -> dict[int, float]:
    """Return the requests that came in each step of which completions and growth are known."""
    completed = _only(answers[COMPLETIONS])
    growths = [_only(answers[name]) for name in GROWTHS]
    rejected = _only(answers[REJECTIONS])  # vLLM before 0.32 has no such counter
    return {
        step: max(0.0, done + sum(each[step] for each in growths) + rejected.get(step, 0.0))
        for step, done in completed.items()
        if all(step in each for each in growths)
    }


def _only(series: Sequence[tuple[Labels, Points]]) -> Points:
    return next((points for _, points in series if points), {})


def _cut(
    span: Span, known: Points, answers: RangeAnswers
) -> tuple[Span, dict[int, float], RangeAnswers]:
    """Return all from the first window with a known step to the last known step."""
    window = min(known) // WINDOW_STEPS
    first = window * WINDOW_STEPS
    from_s, num_steps = span.from_s + first * span.step_s, max(known) + 1 - first
    cut = replace(span, from_s=from_s, num_steps=num_steps)
    by_window = span.by_window()
    moved = {
        name: [
            (labels, _shift(points, window if name in by_window else first))
            for labels, points in series
        ]
        for name, series in answers.items()
    }
    return cut, _shift(known, first), moved


def _shift(points: Points, by: int) -> dict[int, float]:
    return {place - by: value for place, value in points.items() if place >= by}


def _interpolate(known: Points, number: int) -> Iterator[float]:
    """Yield a value for each step, on a line between the known ones around it."""
    steps = sorted(known)
    yield from (known[steps[0]] for _ in range(steps[0]))
    for one, other in pairwise(steps):
        rise = (known[other] - known[one]) / (other - one)
        yield from (known[one] + rise * k for k in range(other - one))
    yield from (known[steps[-1]] for _ in range(number - steps[-1]))


def _rows(steps: Sequence[int]) -> list[list[int]]:
    """Return steps in rows without a hole."""
    rows: list[list[int]] = []
    for step in steps:
        if rows and step == rows[-1][-1] + 1:
            rows[-1].append(step)
        else:
            rows.append([step])
    return rows


def _spreads(span: Span, answers: RangeAnswers, name: str) -> tuple[Spread, ...]:
    """Return the spread of each window; one in which none ended is like the one before."""
    tokens = _only(answers[name + TOKENS])
    found = [_spread(answers[name], tokens, window) for window in range(span.num_windows)]
    last = next((each for each in found if each), None)
    if last is None:
        metric = PROMPT_TOKENS if name == PROMPTS else OUTPUT_TOKENS
        raise CountedError(f"no {metric}_bucket and {metric}_sum{{{span.selector}}}")
    spreads = []
    for each in found:
        last = each or last
        spreads.append(last)
    return tuple(spreads)


def _spread(buckets: Sequence[tuple[Labels, Points]], tokens: Points, window: int) -> Spread | None:
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
    counts = (below[bounds[0]], *(below[high] - below[low] for low, high in pairwise(bounds)))
    return Spread(
        bounds=(0.0, *bounds),
        counts=tuple(max(0.0, each) for each in counts),
        mean_tokens=tokens[window] / total,
    )


FIRST_SEED: Final = 15_000
"""Beyond those that synthetic traffic is drawn with."""
PLACES: Final = (0.02, 0.98)
"""Between which the place of the mean in its bins is believed."""


def trace_of(found: MeasuredTraffic, *, longest_tokens: int, seed: int = 0) -> Trace:
    """Draw requests as many and as long as those counted. ``longest_tokens``: of any of them.

    Raises:
        CountedError: they are more than a trace may have, or less than one.
    """
    expected = sum(found.requests)
    if expected > MOST_REQUESTS:
        message = f"{expected / MILLION:.0f} million requests came, {MOST_REQUESTS / MILLION:g}"
        raise CountedError(f"{message} million are replayed at most: ask for a shorter time")
    chance = Chance(FIRST_SEED + seed)
    prompts = [each.draw(longest_tokens) for each in found.prompts]
    outputs = [each.draw(longest_tokens) for each in found.outputs]
    arrival_s, prompt_tokens, output_tokens = array("d"), array("q"), array("q")
    for step, requests in enumerate(found.requests):
        number, window = int(requests + chance.share()), step // WINDOW_STEPS
        places = sorted(chance.shares(number))
        arrival_s.extend((step + place) * found.span.step_s for place in places)
        prompt_tokens.extend(prompts[window](chance) for _ in range(number))
        output_tokens.extend(outputs[window](chance) for _ in range(number))
    if not arrival_s:
        raise CountedError("less than one request came in this time")
    return Trace(arrival_s=arrival_s, prompt_tokens=prompt_tokens, output_tokens=output_tokens)
