"""How long requests are: a steady mean, until the last minutes say that it is past."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tonnage.estimate.demand import count_arrivals, interpolate
from tonnage.estimate.metrics import LENGTH_WINDOWS, WINDOWS
from tonnage.estimate.samples import EngineSamples, Rates, sums_of

MIN_REQUESTS = 20
"""In a window before its lengths are believed."""
LENGTH_CV = 1.5
"""Coefficient of variation that lengths are taken to have; those of chat and code have 0.7 to 2."""
Errors = tuple[float, float]
"""Standard errors up to which a mean that differs moves nothing, and from which it is believed."""
OF_CHANGE: Errors = (1.0, 3.0)
"""With nothing between, lengths that grew fourfold within an hour were told 22 % too short."""
OF_SHAPE: Errors = (2.0, 4.0)
"""For requests of another shape alone: with the errors of a change the shortest window moves
lengths in most minutes of a trace, and each move is a search."""


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
    grows: float
    """Requests that started for each that finished."""

    @property
    def cached_fraction(self) -> float:
        if not self.prompt or not self.computed or self.prompt.tokens <= 0:
            return 0.0
        return min(0.99, max(0.0, 1 - self.computed.tokens / self.prompt.tokens))


def measure_lengths(samples: Iterable[EngineSamples]) -> MeasuredLengths | None:
    """Return mean lengths; None when too few requests came over the slow window.

    Each is the mean over the slow window, or lies between that and those over shorter ones, the
    nearer to these the less chance explains that they differ: a shape that quadruples is believed
    within a minute or two, one that grows is followed, and a few odd requests move nothing. Prompts
    count when their first token comes, outputs when they end or, where they become longer, by how
    long they run already. Prompts that become longer are told by the fast window at the soonest:
    sooner than their answers end they would be planned with those of before.
    """
    known = list(samples)
    slow, fast, newest = (_means(known, each) for each in LENGTH_WINDOWS)
    if not slow.prompt or not slow.output or not slow.prompt.tokens or not slow.output.tokens:
        return None
    prompt_tokens, output_tokens = slow.prompt.tokens, slow.output.tokens
    cached = slow.cached_fraction
    for means, errors in ((fast, OF_CHANGE), (newest, OF_SHAPE)):
        if means is fast or _log_ratio(means.prompt, prompt_tokens) < 0:
            computed = _trust(means.computed, (1 - cached) * prompt_tokens, errors)
            cached += computed * (means.cached_fraction - cached)
            prompt_tokens = _toward(means.prompt, prompt_tokens, errors)
        ended = means.output
        if ended and ended.tokens < output_tokens:
            # Short answers end first. Where lengths are exponential, a surge alone then makes
            # answers no shorter, from its first moment on.
            longer = ended.tokens * max(1.0, means.grows) ** 2
            ended = replace(ended, tokens=min(output_tokens, longer))
        output_tokens = _toward(ended, output_tokens, errors)
    running = _of_running(known) if newest.grows > 1 else None
    if running and running.tokens > output_tokens:
        output_tokens = _toward(running, output_tokens, OF_SHAPE)
    return MeasuredLengths(
        prompt_tokens=prompt_tokens, output_tokens=output_tokens, cached_fraction=cached
    )


def _toward(mean: _Mean | None, known_tokens: float, errors: Errors) -> float:
    """Return the tokens between what is known and a mean, by how far that is no chance."""
    share = _trust(mean, known_tokens, errors)
    return known_tokens * math.exp(share * _log_ratio(mean, known_tokens))


def _trust(mean: _Mean | None, known_tokens: float, errors: Errors) -> float:
    """Return the share of the way from what is known to a mean that is no chance."""
    apart = abs(_log_ratio(mean, known_tokens))
    if mean is None or not apart:
        return 0.0
    chance, significant = errors
    error = LENGTH_CV / math.sqrt(mean.requests)
    return min(1.0, max(0.0, (apart / error - chance) / (significant - chance)))


def _log_ratio(mean: _Mean | None, known_tokens: float) -> float:
    """Return by how much they differ; 0 where one is not known."""
    if mean is None or mean.tokens <= 0 or known_tokens <= 0:
        return 0.0
    return math.log(mean.tokens / known_tokens)


def _of_running(samples: Iterable[EngineSamples]) -> _Mean | None:
    """Return about how long answers are, by how long requests have run; None: that says nothing.

    By Little's law: if as many run as came in the last T seconds, a request runs for T in the mean,
    and for longer where answers have just become longer. A few that wait came last. A T within
    the shortest window is not used, since its requests may have come at once. Prefill and gaps are
    those of the last minute; where an engine drafts, a gap yields several tokens, and the estimate
    is too low.
    """
    telling = [
        each
        for each in samples
        if each.busy.token_gap_s_per_s
        and each.busy.token_gaps_per_s
        and all(map(each.says_all_arrivals, WINDOWS))
    ]
    running = sum(each.running or 0.0 for each in telling)
    if running < MIN_REQUESTS:
        return None
    came = [count_arrivals(telling, each) for each in WINDOWS]
    waiting = sum(each.waiting or 0.0 for each in telling)
    if running + waiting <= came[0].requests or waiting > running:
        return None  # of many that wait it matters who came last: newest first, those that run
    within_s = {each.requests: each.seconds for each in reversed(came)}
    oldest_s, newest_s = (interpolate(within_s, many) for many in (running + waiting, waiting))
    busy = [each.busy for each in telling]
    gap_s, gaps = sums_of((w.seconds, w.token_gap_s_per_s, w.token_gaps_per_s) for w in busy)
    prefill_s, prefills = sums_of((w.seconds, w.prefill_s_per_s, w.prefills_per_s) for w in busy)
    decoding_s = oldest_s - newest_s - (prefill_s / prefills if prefills else 0.0)
    return _Mean(tokens=decoding_s * gaps / gap_s, requests=running)


def _means(samples: Sequence[EngineSamples], scrapes: int) -> _Means:
    windows = [each.over(scrapes) for each in samples]
    finished, started = sums_of((w.seconds, w.finished_per_s, w.started_per_s) for w in windows)
    outputs = ((w.seconds, w.finished_output_tokens_per_s, w.finished_per_s) for w in windows)
    computed = ((w.seconds, w.computed_prompt_tokens_per_s, w.started_per_s) for w in windows)
    prompts = (  # of those that started, else of those that finished
        (w.seconds, w.finished_prompt_tokens_per_s, w.finished_per_s)
        if None in {w.started_prompt_tokens_per_s, w.started_per_s}
        else (w.seconds, w.started_prompt_tokens_per_s, w.started_per_s)
        for w in windows
    )
    return _Means(
        prompt=_mean(prompts),
        computed=_mean(computed),
        output=_mean(outputs),
        grows=started / finished if finished else math.inf if started else 1.0,
    )


def _mean(rates: Iterable[Rates]) -> _Mean | None:
    tokens, requests = sums_of(rates)
    return _Mean(tokens=tokens / requests, requests=requests) if requests >= MIN_REQUESTS else None
