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
CHANCE, SIGNIFICANT = 1.0, 3.0
"""Standard errors up to which a fast mean that differs from the slow one moves nothing, and from
which it is believed. With nothing between, lengths that grew fourfold within an hour were told 22 %
too short."""
RAMP = 2.0
"""Standard errors of a count by which more requests started than finished: those that did are the
short ones. Where answers have become shorter, more finish than start."""


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

    Each is the mean over the slow window, or lies between that and the fast one, the nearer to the
    fast one the less chance explains that they differ: a shape that quadruples is believed within
    its two minutes, one that grows is followed, and a few odd requests move nothing. Prompts count
    when their first token comes. Outputs count when they end, the short ones first: while requests
    pile up, a fast mean that is lower is not believed.
    """
    known = list(samples)
    slow = _means(known, SLOW_SCRAPES, scrape_interval_s)
    fast = _means(known, FAST_SCRAPES, scrape_interval_s)
    if not slow.prompt or not slow.output or not slow.prompt.tokens or not slow.output.tokens:
        return None
    is_survivors = fast.is_ramp and _log_ratio(fast.output, slow.output) < 0
    output = 0.0 if is_survivors else _trust(fast.output, slow.output)
    computed = _trust(fast.computed, slow.computed)
    return MeasuredLengths(
        prompt_tokens=_blend(slow.prompt, fast.prompt, _trust(fast.prompt, slow.prompt)),
        output_tokens=_blend(slow.output, fast.output, output),
        cached_fraction=slow.cached_fraction
        + computed * (fast.cached_fraction - slow.cached_fraction),
    )


def _trust(fast: _Mean | None, slow: _Mean | None) -> float:
    """Return the share of the way from the slow mean to the fast one that is no chance."""
    apart = abs(_log_ratio(fast, slow))
    if fast is None or not apart:
        return 0.0
    error = LENGTH_CV / math.sqrt(fast.requests)
    return min(1.0, max(0.0, (apart / error - CHANCE) / (SIGNIFICANT - CHANCE)))


def _log_ratio(fast: _Mean | None, slow: _Mean | None) -> float:
    """Return by how much they differ; 0 where one is not known."""
    if slow is None or fast is None or slow.tokens <= 0 or fast.tokens <= 0:
        return 0.0
    return math.log(fast.tokens / slow.tokens)


def _blend(slow: _Mean, fast: _Mean | None, share: float) -> float:
    return slow.tokens * math.exp(share * _log_ratio(fast, slow))


Rates = tuple[float | None, float | None]
"""Of tokens, and of the requests that they belong to."""


def _means(samples: Sequence[EngineSamples], scrapes: int, interval_s: float) -> _Means:
    windows = [each.lengths[scrapes] for each in samples if scrapes in each.lengths]
    window_s = scrapes * interval_s
    started = sum(each.started_per_s or 0.0 for each in windows)
    finished = sum(each.finished_per_s or 0.0 for each in windows)
    return _Means(
        prompt=_mean([_prompt(each) for each in windows], window_s),
        computed=_mean([_computed_rates(each) for each in windows], window_s),
        output=_mean([_output(each) for each in windows], window_s),
        is_ramp=(started - finished) * window_s > RAMP * math.sqrt(finished * window_s),
    )


def _prompt(window: LengthWindow) -> Rates:
    started = window.started_prompt_tokens_per_s, window.started_per_s
    finished = window.finished_prompt_tokens_per_s, window.finished_per_s
    return finished if None in started else started


def _computed_rates(window: LengthWindow) -> Rates:
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
