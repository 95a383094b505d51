"""Demand from what the engines report, on the arrival side, and how long requests are.

A length is a steady mean, until the last minutes say that it is past.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tonnage.estimate.metrics import LENGTH_WINDOWS, WINDOWS
from tonnage.estimate.samples import EngineSamples, Rates, sums_of

MAX_RELATIVE_ERROR = 0.01
"""Standard error of a rate that is good enough: of 10,000 requests, where they come by chance. The
highest of an hour's counts is two or three errors too high: at 3 % that was a replica in ten."""
SIGNIFICANT = 3.0
"""Standard deviations by which a shorter window must differ to be believed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalCount:
    """The requests that came to all replicas of an object in a time."""

    requests: float
    seconds: float
    """Between the first scrape of the window and the last: what came outside was not counted."""

    @property
    def per_s(self) -> float:
        return self.requests / self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredDemand:
    """What arrives at the replicas of one object, now."""

    requests_per_s: float
    standard_error_per_s: float
    window_s: float
    """In which it was counted."""
    waiting: float
    longest_queue: float
    """Of what waits, the most at one pod: behind a plain Service nobody else serves it."""
    running: float
    reporting: frozenset[str]
    """Pods of which every engine gave every figure that demand needs."""
    is_complete: bool
    """Every replica that is Ready reported, freshly."""
    newest: ArrivalCount | None = None
    """Over the shortest window; None: nobody tells it."""
    preemptions_per_request: float | None = None


def measure_demand(
    samples: Sequence[EngineSamples],
    *,
    ready_pods: frozenset[str],
    longest_s: float = math.inf,
    in_flight_of_lost_pods: float = 0.0,
    dispersion: float = 1.0,
) -> MeasuredDemand | None:
    """Return arrivals per second and the queue; None when no fresh engine says either.

    A replica that does not report, or of which an engine has gone silent, makes the figure
    incomplete: it may raise the fleet, never lower it.

    ``longest_s``: how far back a window may reach: what pods served that are gone is in none.
    ``in_flight_of_lost_pods``: requests that pods had in flight when they were lost of late.
    ``dispersion``: variance of the number of requests in a time over its mean; by chance 1.
    """
    fresh = [each for each in samples if each.is_fresh]
    windows = _complete_windows(fresh, longest_s)
    if not windows:
        return None
    counts = {
        each: count_arrivals(fresh, each, in_flight_of_lost_pods=in_flight_of_lost_pods)
        for each in windows
    }
    chosen = _choose_window(counts, dispersion)
    count = counts[chosen]
    reporting = windows[chosen].difference(each.pod for each in samples if not each.is_fresh)
    queues = defaultdict[str, float](float)
    for each in fresh:
        queues[each.pod] += each.waiting or 0.0
    return MeasuredDemand(
        requests_per_s=count.per_s,
        standard_error_per_s=math.sqrt(dispersion * max(1.0, count.requests)) / count.seconds,
        window_s=count.seconds,
        waiting=sum(queues.values()),
        longest_queue=max(queues.values()),
        running=sum(each.running or 0.0 for each in fresh),
        reporting=reporting,
        is_complete=ready_pods <= reporting,
        newest=counts.get(WINDOWS[0]),
        preemptions_per_request=_preemptions_per_request(fresh),
    )


def count_arrivals(
    samples: Iterable[EngineSamples], scrapes: int, *, in_flight_of_lost_pods: float = 0.0
) -> ArrivalCount:
    """Return how many requests came within a window that some engine tells of.

    ``arrivals = completions + growth of (running + waiting) + rejections``: completions alone
    cannot see saturation. No engine's arrivals are negative, whatever it reports. What lost
    replicas had in flight came once. Sent again, it makes the backlog of the others grow: no more
    than that is taken off, so that the rate is never below what they complete.
    """
    growth = came = longest_s = 0.0
    for window in (each.over(scrapes) for each in samples):
        if window.completed_per_s is None:
            continue
        grown = (window.in_flight_per_s or 0.0) * window.seconds
        ended_per_s = window.completed_per_s + (window.rejected_per_s or 0.0)
        growth += grown
        came += max(0.0, ended_per_s * window.seconds + grown)
        longest_s = max(longest_s, window.seconds)
    again = min(in_flight_of_lost_pods, max(0.0, growth), came)
    return ArrivalCount(requests=came - again, seconds=longest_s)


def _complete_windows(
    samples: Sequence[EngineSamples], longest_s: float
) -> Mapping[int, frozenset[str]]:
    """Return the pods whose windows lack no figure, by window: those with most pods, ascending.

    A window that lacks a figure goes, not the demand. The shortest may always be used.
    """
    reporting = {
        scrapes: frozenset(each.pod for each in samples).difference(
            each.pod for each in samples if not each.says_all_arrivals(scrapes)
        )
        for scrapes in WINDOWS
        if any(
            each.over(scrapes).completed_per_s is not None
            and (scrapes == WINDOWS[0] or scrapes * each.scrape_interval_s <= longest_s)
            for each in samples
        )
    }
    most = max(map(len, reporting.values()), default=0)
    return {scrapes: pods for scrapes, pods in reporting.items() if len(pods) == most}


def _choose_window(counts: Mapping[int, ArrivalCount], dispersion: float) -> int:
    """Return the longest window that no shorter one denies.

    With few requests short windows say little: at 0.7 requests per second, 8 s read anything from
    0.4 to 1.3. But where a part of a window differs by more than chance, the rest is past.
    """
    enough = dispersion / MAX_RELATIVE_ERROR**2
    chosen = next((each for each in sorted(counts) if counts[each].requests >= enough), max(counts))
    for shorter in sorted(counts, reverse=True):
        if shorter < chosen and _differs(counts[shorter], counts[chosen], dispersion):
            chosen = shorter
    return chosen


def _differs(part: ArrivalCount, whole: ArrivalCount, dispersion: float) -> bool:
    """Tell whether a part of a time saw another rate than the rest of it, by more than chance.

    Given all requests, as many fall into the part as a binomial draw says; the signed root of the
    deviance is near normal down to a few requests, where the difference over its deviation is not.
    """
    if part.seconds >= whole.seconds:
        return False
    rest, share = max(0.0, whole.requests - part.requests), part.seconds / whole.seconds
    total = part.requests + rest
    deviance = 2 * sum(
        seen * math.log(seen / (total * expected))
        for seen, expected in ((part.requests, share), (rest, 1 - share))
        if seen > 0
    )
    return deviance > dispersion * SIGNIFICANT**2


def _preemptions_per_request(samples: Iterable[EngineSamples]) -> float | None:
    """Return how often a request was preempted, of those that completed on any engine."""
    preemptions = completed = 0.0
    for each in (engine.busy for engine in samples):
        if each.preemptions_per_s is not None and each.completed_per_s is not None:
            preemptions += each.preemptions_per_s * each.seconds
            completed += each.completed_per_s * each.seconds
    return preemptions / completed if completed else None


def attainment(within: Sequence[Mapping[float, float]], *, limit_s: float) -> float | None:
    """Return the share of requests within a limit, from cumulative histogram rates.

    Interpolates linearly inside the bucket of each engine's own ladder: a bound that one lacks is
    not zero requests there. No bound holds more than all. None without requests.
    """
    told = with_bounds(within)
    total = sum(each[math.inf] for each in told)
    if total <= 0:
        return None
    return sum(min(each[math.inf], interpolate(each, limit_s)) for each in told) / total


def with_bounds(known: Iterable[Mapping[float, float]]) -> Sequence[Mapping[float, float]]:
    """Return the histograms that tell all requests and some bound."""
    return [each for each in known if math.inf in each and len(each) > 1]


def interpolate(known: Mapping[float, float], at: float) -> float:
    """Return what is known at a point: linear from (0, 0) on, the last that is finite beyond.

    >>> interpolate({10: 60, 30: 120}, 20), interpolate({0: 45, 10: 60}, 0)
    (90.0, 0.0)
    """
    low, found = 0.0, 0.0
    for point, value in sorted(known.items()):
        if at <= point:
            if point in {low, math.inf}:
                return found
            return found + (at - low) / (point - low) * (value - found)
        low, found = point, value
    return found


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
    nearer to these the less chance explains that they differ. Prompts count when their first token
    comes, outputs when they end or, where they become longer, by how long they run already. Prompts
    that become longer are told by the fast window at the soonest: before their answers end they
    would be planned with those of before.
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
    the shortest window is not used, since its requests may have come at once. Where an engine
    drafts, a gap yields several tokens, and the estimate is too low.
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
        return None  # with priorities who runs may have come after who waits: of many it matters
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
