"""How long requests are: a steady mean, until the last minutes say that it is past."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tonnage.estimate.metrics import FAST_SCRAPES, SLOW_SCRAPES
from tonnage.estimate.samples import EngineSamples, LengthWindow

MIN_REQUESTS = 20
"""In a window before its lengths are believed."""
LENGTH_CV = 1.5
"""Coefficient of variation that lengths are taken to have; those of chat and code have 0.7 to 2."""
SIGNIFICANT = 3.0
"""Standard errors by which the fast mean must differ from the slow one to be believed."""
RAMP_SHARE = 0.75
"""Of the requests that started: when fewer finished, these are the short ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLengths:
    """Mean lengths of requests, and the share of prompt tokens that a cache held."""

    prompt_tokens: float
    output_tokens: float
    cached_fraction: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mean:
    """Tokens in the mean over so many requests."""

    tokens: float
    requests: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Means:
    """What one window says; None: too few requests."""

    prompt: _Mean | None
    computed: _Mean | None
    output: _Mean | None
    is_ramp: bool
    """Many more requests started than finished."""

    @property
    def cached_fraction(self) -> float:
        if not self.prompt or not self.computed or self.prompt.tokens <= 0:
            return 0.0
        return min(0.99, max(0.0, 1 - self.computed.tokens / self.prompt.tokens))


def measure_lengths(
    samples: Iterable[EngineSamples], *, scrape_interval_s: float
) -> MeasuredLengths | None:
    """Return mean lengths; None when too few requests came over the slow window.

    Each is the mean over the slow window, unless the fast one has enough requests and differs by
    more than they do among each other: a shape that quadruples is believed within its two minutes,
    while a few odd requests move nothing. Prompts count when their first token comes. Outputs
    count when they end, the short ones first: while requests pile up, a fast mean that is lower is
    not believed.
    """
    known = list(samples)
    slow = _means(known, SLOW_SCRAPES, scrape_interval_s)
    fast = _means(known, FAST_SCRAPES, scrape_interval_s)
    prompt = fast.prompt if _differ(slow.prompt, fast.prompt) else slow.prompt
    output = fast.output if _differ(slow.output, fast.output, or_survivors=fast) else slow.output
    if not prompt or not output or prompt.tokens <= 0 or output.tokens <= 0:
        return None
    shares = fast if _differ(slow.computed, fast.computed) else slow
    return MeasuredLengths(
        prompt_tokens=prompt.tokens,
        output_tokens=output.tokens,
        cached_fraction=shares.cached_fraction,
    )


def _differ(slow: _Mean | None, fast: _Mean | None, *, or_survivors: _Means | None = None) -> bool:
    """Tell whether the fast mean differs from the slow one by more than chance."""
    if slow is None or fast is None or slow.tokens <= 0 or fast.tokens <= 0:
        return False
    if or_survivors and or_survivors.is_ramp and fast.tokens < slow.tokens:
        return False
    error = LENGTH_CV / math.sqrt(fast.requests)
    return abs(math.log(fast.tokens / slow.tokens)) > SIGNIFICANT * error


Rates = tuple[float | None, float | None]
"""Of tokens, and of the requests that they belong to."""


def _means(samples: Sequence[EngineSamples], scrapes: int, interval_s: float) -> _Means:
    windows = [each.lengths[scrapes] for each in samples if scrapes in each.lengths]
    window_s = scrapes * interval_s
    started = sum(each.started_per_s or 0.0 for each in windows)
    finished = sum(each.finished_per_s or 0.0 for each in windows)
    return _Means(
        prompt=_mean([_prompt(each) for each in windows], window_s),
        computed=_mean([_computed(each) for each in windows], window_s),
        output=_mean([_output(each) for each in windows], window_s),
        is_ramp=finished < RAMP_SHARE * started,
    )


def _prompt(window: LengthWindow) -> Rates:
    started = window.started_prompt_tokens_per_s, window.started_per_s
    finished = window.finished_prompt_tokens_per_s, window.finished_per_s
    return finished if None in started else started


def _computed(window: LengthWindow) -> Rates:
    return window.computed_prompt_tokens_per_s, window.started_per_s


def _output(window: LengthWindow) -> Rates:
    return window.finished_output_tokens_per_s, window.finished_per_s


def _mean(rates: Iterable[Rates], window_s: float) -> _Mean | None:
    told = [(tokens, number) for tokens, number in rates if tokens is not None and number]
    requests_per_s = sum(number for _, number in told)
    if requests_per_s * window_s < MIN_REQUESTS:
        return None
    tokens_per_s = sum(tokens for tokens, _ in told)
    return _Mean(tokens=tokens_per_s / requests_per_s, requests=requests_per_s * window_s)
