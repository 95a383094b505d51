"""Time per output token: how often a request's mean over its answer exceeds a limit.

A request is slowed by how many decode beside it and by the prompts that come between its tokens.
Both fluctuate while it stays, so a long answer sees nearly the mean and a short one may not.
"""

import math
from dataclasses import replace

from tonnage.sizing.occupancy import Bounded, Occupancy, later_tokens
from tonnage.sizing.search import excess_of
from tonnage.sizing.stream import WorkStream
from tonnage.sizing.tails import Moments
from tonnage.sizing.workload import Promise

NOTHING = 1e-12
BRIEF = 1e-3
CERTAIN = 1e-3
"""Probability below which a case is left out."""


def tpot_exceedance(load: Occupancy, state: Bounded, limit_s: float) -> float:
    """Return P(TPOT > limit), over requests with two output tokens or more.

    For an answer of m later tokens in k steps, with the step t at the mean batch::

        m * TPOT = k * t + k * slope * (mean batch while it stays - mean batch) + interruptions

    With speculation k strays: tokens do not come evenly.
    The batch forgets itself at the rate at which requests leave (``_averaged``); interruptions are
    a busy period's (``stream``). A burst's followers interrupt too. The three moments of the sum
    give its tail.
    """
    # Fewer places make the batch, and with it the admissions, more regular.
    narrowed = min(1.0, state.decoding.variance / max(load.unbounded.variance, NOTHING))
    shifted_s = load.decode_s + load.slope_s * _shift(load, state, narrowed)
    step_s = max(load.pace.decode_s(1), shifted_s)
    stalls = _Stalls(load, state.decoding, step_s, narrowed)
    mean_later = later_tokens(load.pace)
    slowed_s = load.slope_s / (1 - load.prefill_share)
    missed = 0.0
    for share, tokens in load.pace.outputs.strata:
        later = load.pace.steps(tokens - 1)
        allowed_s = limit_s * (tokens - 1)
        kept = _averaged((1 - load.feedback) * later / mean_later)
        factor = later * slowed_s
        batch = Moments(
            variance=factor**2 * state.decoding.variance * kept
            + load.pace.steps_scv * step_s**2 * later,
            third=factor**3 * state.decoding.third * kept**1.5,
        )
        late = _either(batch, *stalls.over(later, later / mean_later), allowed_s - step_s * later)
        missed += share * late
    if load.pace.outputs.is_fixed and state.most < math.inf:
        return min(missed, _at_most(load, state.most, allowed_s, later))
    return missed


def _at_most(load: Occupancy, most: float, allowed_s: float, later: float) -> float:
    """Return P(TPOT > limit) of answers of one length in a batch that is always full.

    While one of them decodes, as many others begin as there are places, and no more.
    """
    beyond = most - load.num_decoding - load.peakedness / load.arrivals.num_pooled
    step_s = max(load.pace.decode_s(1), load.decode_s + load.slope_s * beyond)
    each, others = _replacement(load.work, 0.0), max(0.0, most - 1)
    sums = Moments(
        mean=others * each.mean, variance=others * each.variance, third=others * each.third
    )
    return sums.exceedance(allowed_s - later * step_s)


def tpot_excess(load: Occupancy, state: Bounded, promise: Promise) -> float:
    """Return the logarithm of misses over those allowed: 0 where the promise is just kept."""
    return excess_of(tpot_exceedance(load, state, promise.limit_s), promise.quantile)


def _shift(load: Occupancy, state: Bounded, narrowed: float) -> float:
    """Return by how much smaller the batch is, as one of it sees it, for want of places."""
    seen = load.peakedness / load.arrivals.num_pooled
    return state.decoding.mean - load.num_decoding - seen * (1 - narrowed)


def _either(batch: Moments, stalls: Moments, none: float, spare_s: float) -> float:
    """Return P(batch + stalls > spare), the stalls none at all with this probability."""
    if stalls.mean <= 0 or stalls.variance <= 0:
        return (batch + stalls).exceedance(spare_s)
    if none < CERTAIN:
        return (batch + stalls).exceedance(spare_s)
    some = stalls.given_positive(1 - none) if none < 1 - CERTAIN else stalls
    quiet = batch.exceedance(spare_s)
    return none * quiet + (1 - none) * (batch + some).exceedance(spare_s)


def _averaged(stay: float) -> float:
    """Return the variance of a mean over time, as a share of that at one moment.

    ``stay``: the time over the one in which the fluctuation falls to 1/e::

        2 * (x - 1 + exp(-x)) / x^2

    >>> round(_averaged(1.0), 3)
    0.736
    """
    if stay < BRIEF:
        return 1.0
    return 2 * (stay - 1 + math.exp(-stay)) / stay**2


class _Stalls:
    """The delay by others' prompts over an answer.

    With places for all, prompts come as requests arrive, and the more come the longer it takes.
    With none free they come as answers end: for each step so many, however long it takes. What the
    places leave of the batch's variance says how much of each there is.
    """

    def __init__(self, load: Occupancy, decoding: Moments, step_s: float, narrowed: float) -> None:
        self._decoding, self._work, self._step_s = decoding, load.work, step_s
        self._is_fixed = load.pace.outputs.is_fixed
        self._free = narrowed
        self._num_pooled = load.arrivals.num_pooled
        # Those who come during its own prefill and find a place are prefilled in its first steps.
        share = load.work.share
        self._before_s = load.work.mean_s + share * load.work.second_per_s / (1 - share**2)
        self._each = load.work.interruptions(1.0)
        self._replaced = _replacement(load.work, load.pace.outputs.scv)

    def over(self, later: float, share: float) -> tuple[Moments, float]:
        """Return the moments of the delay, and the probability that there is none.

        ``share``: of the steps of a mean answer. Answers of one length are interrupted exactly by
        those who are there when they end.
        """
        own_s = later * self._step_s
        replaced = share * self._decoding.mean
        if self._is_fixed:
            mean = replaced * self._work.mean_s
            stalls = self._bounded(self._each, own_s, replaced, mean)
            return stalls, self._work.uninterrupted(own_s)
        exposed_s = own_s + self._free * self._before_s
        if self._work.followers:
            return self._bursty(own_s, exposed_s, replaced)
        stalls = self._bounded(self._each, exposed_s, replaced, self._each.mean * exposed_s)
        return stalls, math.exp(-self._work.jobs_per_s * exposed_s)

    def _bounded(self, each: Moments, exposed_s: float, replaced: float, mean: float) -> Moments:
        free = self._free
        return Moments(
            mean=mean,
            variance=free * each.variance * exposed_s
            + (1 - free) * self._replaced.variance * replaced,
            third=free**1.5 * each.third * exposed_s
            + (1 - free**1.5) * self._replaced.third * replaced,
        )

    def _bursty(self, own_s: float, exposed_s: float, replaced: float) -> tuple[Moments, float]:
        near = _seen_bursts(self._work, own_s / (1 - self._work.share))
        each = near.interruptions(1.0)
        stalls = self._bounded(each, exposed_s, replaced, each.mean * exposed_s)
        # A burst that finds no place waits for it instead of interrupting.
        followers = near.followers / self._num_pooled * self._free
        none = near.uninterrupted(exposed_s) / (1 + followers)
        return stalls + _burst(near, followers), none


def _replacement(work: WorkStream, output_scv: float) -> Moments:
    """Return the moments of the prompts that come as answers end, for each that is expected."""
    mean_s, variance_s2 = work.mean_s, work.variance_s2
    third_s3 = work.third_s3 - 3 * mean_s * work.second_s2 + 2 * mean_s**3
    return Moments(
        mean=mean_s,
        variance=variance_s2 + output_scv * mean_s**2,
        third=third_s3 + 3 * output_scv * variance_s2 * mean_s + output_scv**2 * mean_s**3,
    )


def _seen_bursts(work: WorkStream, stay_s: float) -> WorkStream:
    """Return the stream as bursty as it looks within so much time."""
    return replace(work, arrival_scv=1 + (work.arrival_scv - 1) * work.gap_within(stay_s))


def _burst(work: WorkStream, followers: float) -> Moments:
    """Return the moments of the work of a geometric number of followers and of what it delays."""
    rest = 1 - work.share
    mean = followers * work.mean_s
    variance = followers * work.variance_s2 + followers * (1 + followers) * work.mean_s**2
    return Moments(
        mean=mean / rest, variance=variance / rest**2, third=2 * mean * variance / rest**3
    )
