"""Time per output token: how often a request's mean over its answer exceeds a limit.

A request is slowed by how many decode beside it and by the prompts that come between its tokens.
Both fluctuate while it stays, so a long answer sees nearly the mean and a short one may not.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property

from tonnage.sizing.bounded import Bounded
from tonnage.sizing.crowd import unbounded
from tonnage.sizing.occupancy import Occupancy, later_steps
from tonnage.sizing.serving.search import excess_of
from tonnage.sizing.stream import WorkStream
from tonnage.sizing.tails import Moments, capped_gamma
from tonnage.sizing.workload import Promise

NOTHING = 1e-12
BRIEF = 1e-3
CERTAIN = 1e-3
"""Probability below which a case is left out."""


def tpot_exceedance(load: Occupancy, state: Bounded, limit_s: float) -> float:
    """Return P(TPOT > limit), over requests with two output tokens or more.

    For an answer of m later tokens in k steps, with the step t at the mean batch::

        m * TPOT = k * t + k * slope * (mean batch while it stays - mean batch) + interruptions

    With speculation k strays: tokens do not come evenly. The three moments of the sum give its
    tail.
    """
    answers = _Answers(load, state)
    late = answers.same_exceedance if load.pace.outputs.is_fixed else answers.exceedance
    return sum(
        share * late(load.pace.steps(tokens - 1), limit_s * (tokens - 1))
        for share, tokens in load.pace.outputs.strata
    )


def tpot_excess(load: Occupancy, state: Bounded, promise: Promise) -> float:
    """Return the logarithm of misses over those allowed: 0 where the promise is just kept."""
    return excess_of(tpot_exceedance(load, state, promise.limit_s), promise.quantile)


@dataclass(frozen=True)
class _Answers:
    """The answers of one engine."""

    load: Occupancy
    state: Bounded

    def exceedance(self, later: float, allowed_s: float) -> float:
        """Return P(time > allowed) over so many later steps."""
        spare_s = allowed_s - later * self._step_s
        batch, common = self._batch(later)
        stalls, none = self._stalls(later)
        if none < CERTAIN or none > 1 - CERTAIN or stalls.variance <= 0:
            return self._cut((batch + stalls).widened(common), later).exceedance(spare_s)
        some = (batch + stalls.given_positive(1 - none)).widened(common)
        quiet, busy = self._cut(batch, later), self._cut(some, later)
        return none * quiet.exceedance(spare_s) + (1 - none) * busy.exceedance(spare_s)

    def same_exceedance(self, later: float, allowed_s: float) -> float:
        """Return it for answers of one length.

        Never longer than where no place is free from first to last.
        """
        free = same_delay(self.load, later)
        left = free.widened(free.variance * (self._left.variance - 1))
        met = max(0.0, self.state.decoding.mean - self.load.arrivals.evened)
        own = self._own_variance(later)
        delay = Moments(
            mean=met * self.load.work.mean_s, variance=left.variance + own, third=left.third
        )
        late = delay.exceedance(allowed_s - later * self._step_s)
        if self.state.seen_full < CERTAIN:
            return late
        full_s = _step_s(self.load, self.state.most, 0.0) * later
        prompts = _replacement(self.load.work, 0.0).repeated(max(0.0, self.state.most - 1))
        most = replace(prompts, variance=prompts.variance + own)
        return min(late, most.exceedance(allowed_s - full_s))

    @cached_property
    def _step_s(self) -> float:
        narrowed = self.state.decoding.variance / max(self.load.unbounded.variance, NOTHING)
        return _step_s(self.load, self.state.decoding.mean, min(1.0, narrowed))

    @cached_property
    def _left(self) -> Moments:
        """What the places leave of the fluctuation of those who would be there, its variance 1."""
        if self.state.seen_full < CERTAIN:
            return Moments(variance=1.0, third=self.load.unbounded.skewness)
        return capped_gamma(self.load.unbounded.skewness, self.state.seen_full)

    @cached_property
    def _spread(self) -> float:
        """The variance of the number decoding, each counted by what it adds to a step."""
        return self.load.unbounded.variance + lengths_variance(self.load)

    @cached_property
    def _replaced(self) -> Moments:
        """The prompts that come as answers end, for each that is expected."""
        return _replacement(self.load.work, self.load.pace.outputs.scv)

    def _own_variance(self, later: float) -> float:
        """Return the variance of its own steps, were they all alike."""
        return self.load.pace.steps_scv * self._step_s**2 * later

    @cached_property
    def _mean_later(self) -> float:
        return later_steps(self.load.pace)

    @cached_property
    def _common(self) -> float:
        return shared(self.load)

    def _share(self, later: float) -> float:
        """Return so many steps as a share of those of a mean answer."""
        return later / self._mean_later

    def _batch(self, later: float) -> tuple[Moments, float]:
        """Return the delay by the others' number, and twice its covariance with their prompts."""
        load = self.load
        stay = (1 - load.feedback) * self._share(later)
        slowed_s = later * load.slope_s / (1 - load.prefill_share)
        kept = averaged(stay)
        batch = Moments(
            variance=slowed_s**2 * self._spread * kept,
            third=slowed_s**3 * load.unbounded.third * kept**1.5,
        )
        left = 1 - (-math.expm1(-stay) / stay if stay > BRIEF else 1.0)
        return batch, 2 * slowed_s * self._common * left

    def _stalls(self, later: float) -> tuple[Moments, float]:
        """Return the delay by others' prompts over an answer, and how likely there is none.

        Those who come during its own prefill and find a place are prefilled in its first steps.
        """
        load, work = self.load, self.load.work
        own_s = later * self._step_s
        exposed_s = own_s + (1 - self.state.seen_full) * work.gate_s
        near = work.near(own_s / (1 - work.share))
        followers = near.followers / load.arrivals.num_pooled * self._left.variance
        stalls = near.interruptions(exposed_s)
        none = near.uninterrupted(exposed_s)
        if followers:
            stalls += near.burst(followers).times(1 / (1 - work.share))
            none /= 1 + followers
        return (self._evened(stalls, later) if load.arrivals.evened else stalls), none

    def _evened(self, stalls: Moments, later: float) -> Moments:
        """Return the delay where a router sends a request to whom it has left the fewest.

        Only that engine's share of the whole pool's fluctuation is left; the other prompts come as
        answers end, and none more because a step is long.
        """
        evened, work = self.load.arrivals.evened, self.load.work
        ends = self._share(later) * max(0.0, self.load.num_decoding - evened)
        fewer_s = evened * work.mean_s / (1 - work.share)
        mixed = stalls.repeated(1 - evened) + self._replaced.repeated(evened * ends)
        return replace(mixed, mean=max(0.0, stalls.mean - fewer_s))

    def _cut(self, whole: Moments, later: float) -> Moments:
        """Return what is left of the fluctuation where those beyond the places must wait.

        Who waits for a place interrupts later. So the delay is cut off as the number of those who
        would be there is, at what ``seen_full`` find taken. If no place is free at either end of
        the answer, prompts come as answers end: for each step so many, however long it takes.
        """
        own, full = self._own_variance(later), self.state.seen_full
        if full < CERTAIN:
            return replace(whole, variance=whole.variance + own)
        left, usual = self._left.variance, self.load.unbounded.skewness
        bent = self._left.third - usual * left**1.5
        ends = self._replaced.repeated(full**2 * self._share(later) * self.state.decoding.mean)
        return Moments(
            mean=whole.mean,
            variance=whole.variance * left + ends.variance + own,
            third=whole.third * left**1.5 + bent * whole.variance**1.5 + ends.third,
        )


def _step_s(load: Occupancy, num_decoding: float, free: float) -> float:
    """Return the step of a batch with this mean, as one of it sees it."""
    seen = load.peakedness / load.arrivals.num_pooled
    apart = num_decoding - load.num_decoding - seen * (1 - free)
    return max(load.pace.decode_s(1), load.decode_s + load.slope_s * apart)


def lengths_variance(load: Occupancy) -> float:
    """Return what the lengths of the sequences add to the variance of their number.

    Of a step that reads the cache most of the time, their tokens count and not their number.
    """
    share = load.pace.context_s(load.num_decoding) / max(NOTHING, load.num_decoding * load.slope_s)
    return min(1.0, share) ** 2 * load.pace.held_scv * load.num_decoding


def shared(load: Occupancy) -> float:
    """Return the covariance of the number decoding and the prompts that came in a long stay.

    Who comes both interrupts and decodes from then on, for the rest of the stay as a rule. In a
    time without prefill arrivals and their prompts' work have this covariance per arrival::

        work * (ca2 + rho * cs2) / (1 - rho)^2
    """
    work, rest = load.work, 1 - load.prefill_share
    prompt_scv = work.variance_s2 / work.mean_s**2 if work.mean_s else 0.0
    strays = (work.arrival_scv + work.share * prompt_scv) / rest**2
    common = load.num_decoding * work.mean_s * strays / (1 - load.feedback)
    return common / load.arrivals.num_pooled


def averaged(stay: float) -> float:
    """Return the variance of a mean over time, as a share of that at one moment.

    ``stay``: the time over the one in which the fluctuation falls to 1/e::

        2 * (x - 1 + exp(-x)) / x^2

    >>> round(averaged(1.0), 3)
    0.736
    """
    if stay < BRIEF:
        return 1.0
    return 2 * (stay - 1 + math.exp(-stay)) / stay**2


def same_delay(load: Occupancy, later: float) -> Moments:
    """Return the moments of the delay of answers of one length, with places for all.

    Those who decode when an answer ends are those who came while it did, each with a prompt. So
    the number decoding says all: its mean over the stay slows the steps, and its value at the end
    counts the prompts. Its autocovariance falls to 0 along a line, so that the mean over the stay
    has 2/3 of its variance, and 1/2 of it in common with the value at the end.
    """
    number, work = load.unbounded, load.work
    slowed_s, rho = load.slope_s * later, load.prefill_share
    prompts = number.mean * work.variance_s2
    # Longer prompts make more come meanwhile.
    longer = prompts * rho / (1 - rho) * (2 + slowed_s / max(NOTHING, work.mean_s))
    each = work.mean_s**2 + work.mean_s * slowed_s + 2 / 3 * slowed_s**2
    lengths = 2 / 3 * slowed_s**2 * lengths_variance(load)
    variance = number.variance * each + prompts + longer + lengths
    skewness = _same_skewness(load, slowed_s) if work.mean_s else number.skewness
    return Moments(
        mean=number.mean * work.mean_s, variance=variance, third=skewness * variance**1.5
    )


def _same_skewness(load: Occupancy, slowed_s: float) -> float:
    """Return the skewness of a sum over those who are there at some time in a stay.

    Half of them came before it. All slow it by ``slowed_s`` for the part that they share, evenly
    spread from none to all; those who come bring a prompt, which brings more.
    """
    work, evenly = load.work, unbounded(load.num_decoding, load.peakedness)
    stalls = work.interruptions(load.num_decoding * (1 - work.share) / work.jobs_per_s)
    clustered = stalls.skewness * work.second_s2**1.5 / work.third_s3
    second = work.second_s2 + work.mean_s * slowed_s + 2 / 3 * slowed_s**2
    third = work.third_s3 + 1.5 * work.second_s2 * slowed_s + work.mean_s * slowed_s**2
    each: float = (third + slowed_s**3 / 2) / second**1.5
    skewness: float = each * clustered * load.unbounded.skewness / max(NOTHING, evenly.skewness)
    return skewness


def _replacement(work: WorkStream, output_scv: float) -> Moments:
    """Return the moments of the prompts that come as answers end, for each that is expected."""
    mean_s, variance_s2 = work.mean_s, work.variance_s2
    third_s3 = work.third_s3 - 3 * mean_s * work.second_s2 + 2 * mean_s**3
    return Moments(
        mean=mean_s,
        variance=variance_s2 + output_scv * mean_s**2,
        third=third_s3 + 3 * output_scv * variance_s2 * mean_s + output_scv**2 * mean_s**3,
    )
