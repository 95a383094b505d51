"""How many requests one engine has at an arrival rate, and how far that number strays.

A decoding sequence takes longer the more others decode and the more prompts come between, so the
number in the batch feeds on itself: it strays further than that of independent requests.
"""

import math
from dataclasses import dataclass
from functools import cached_property

from tonnage.sizing.crowd import unbounded
from tonnage.sizing.pace import Pace
from tonnage.sizing.stream import WorkStream
from tonnage.sizing.tails import Moments

ROUNDS = 50
SETTLED = 8
"""Rounds after which half of a step is taken."""
PRECISION = 1e-5
HALF = 0.5
LEAST_PEAK = 0.2
"""Ratio of variance to mean of the number running, of arrivals as even as can be."""
MOST_FEEDBACK = 0.95
"""Share of a step that grows with the batch, up to which its fluctuation is followed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """What reaches one engine."""

    requests_per_s: float
    scv: float = 1.0
    """Squared coefficient of variation of the times between arrivals, of all engines together."""
    num_pooled: int = 1
    """Engines among which a router keeps the numbers equal."""

    @property
    def evened(self) -> float:
        """Return by how many fewer others a request meets, since a router sent it to the fewest."""
        return 1 - 1 / self.num_pooled

    @property
    def own_scv(self) -> float:
        """Return the burstiness that one engine of a pool sees: what a random split leaves."""
        return 1 + (self.scv - 1) / self.num_pooled


def seen_scv(scv: float, mean: float) -> float:
    """Return the squared variation that gamma gaps show over a stay in which so many come.

    By their variance and mean of an infinite number of servers with exponential service::

        z = 1 / (1 - (1 + scv / a) ** (-1 / scv)) - a

    which is ``(1 + scv) / 2`` for stays that are long against the gaps, and 1 for short ones.

    Sources:
        [wilkinson1956] the peakedness of traffic.
    """
    if scv == 1 or mean <= 0:
        return 1.0
    none = -math.expm1(-math.log1p(scv / mean) / scv)
    return 1 + 2 * (1 / none - mean - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """How many requests one engine can run at once."""

    slots: float = math.inf
    """``--max-num-seqs``."""
    held: float = math.inf
    """Requests of the lengths that occur that its cache holds."""


@dataclass(frozen=True)
class Occupancy:
    """One engine in the steady state of an arrival rate."""

    pace: Pace
    arrivals: Arrivals
    num_decoding: float
    decode_s: float
    """A step without prefill, as a decoding sequence sees it in the mean."""
    slope_s: float
    """What one more sequence adds to it."""
    feedback: float
    """Share of a step that grows with the batch: 0 where its length is always the same."""
    peakedness: float
    """Variance over mean of the number decoding, were there no feedback."""
    work: WorkStream
    """The prompts, as interruptions of decoding."""
    seen_scv: float = 1.0
    """Burstiness of arrivals over a stay."""

    @property
    def prefill_share(self) -> float:
        return self.work.share

    @property
    def mean_step_s(self) -> float:
        return self.decode_s / (1 - self.prefill_share)

    @property
    def num_prefilling(self) -> float:
        room = self.pace.room_tokens(self.num_decoding)
        steps = max(1.0, self.pace.workload.new_prompt_tokens / room)
        return self.arrivals.requests_per_s * self.mean_step_s * steps

    @property
    def more_in_prefill(self) -> float:
        """Return by how many more there are in prefill at any time than at the start of a step."""
        own_s = self.work.gate_s - self.prefill_share * self.mean_step_s
        return self.arrivals.requests_per_s * own_s

    @property
    def dispersion(self) -> float:
        """Return the variance over the mean of the number decoding, on this engine."""
        return self.peakedness / (1 - self.feedback) / self.arrivals.num_pooled

    @cached_property
    def unbounded(self) -> Moments:
        """Return the moments of the number decoding where places are without end."""
        return unbounded(self.num_decoding, self.dispersion)


def later_steps(pace: Pace) -> float:
    """Return the steps that a mean answer decodes for: its first token ends its prefill."""
    return pace.steps(max(HALF, pace.outputs.mean_tokens - 1))


def occupancy(pace: Pace, arrivals: Arrivals) -> Occupancy | None:
    """Return the steady state of an arrival rate; None where there is none.

    Solves ``n = rate * (out - 1) * t(n + z) / (1 - rho)``: a sequence sees the others and itself,
    and of bursty arrivals its burst too (``z``, the peakedness; the mean of ``n * t(n)`` over that
    of ``n``). ``rho`` is the share of the time that prompts take. Those that come during one's own
    prefill are added; where a router sends requests to the fewest, those it does not meet are not.
    """
    mean_s, second_s2, third_s3 = pace.work_moments
    work = WorkStream(
        jobs_per_s=arrivals.requests_per_s,
        mean_s=mean_s,
        second_s2=second_s2,
        third_s3=third_s3,
        arrival_scv=arrivals.own_scv,
    )
    if work.share >= 1:
        return None
    scv = _seen_scv(pace, arrivals, work)
    peakedness = _peakedness(pace, scv, work)
    held_up = arrivals.requests_per_s * _held_up_s(arrivals, work)
    steps_per_s = arrivals.requests_per_s * later_steps(pace) / (1 - work.share)
    seen = peakedness / arrivals.num_pooled
    least = arrivals.requests_per_s * later_steps(pace) * pace.decode_s(seen)
    num, feedback = max(least, steps_per_s * pace.decode_s(seen) + held_up), 0.0
    for done in range(ROUNDS):
        apart = math.sqrt(max(num, 0.1) * seen / (1 - feedback))
        low_s, high_s = pace.decode_s(num + seen - apart), pace.decode_s(num + seen + apart)
        mean_s, slope_s = (low_s + high_s) / 2, (high_s - low_s) / (2 * apart)
        growth = steps_per_s * slope_s
        before, feedback = num, min(MOST_FEEDBACK, growth)
        # Newton's step on the line through both; without a crossing, look further out.
        still = steps_per_s * (mean_s - slope_s * num) + held_up
        num = max(least, still / (1 - growth)) if growth < 1 else 2 * num + 1
        # At a kink of the step time the line turns to and fro.
        num = (num + before) / 2 if done > SETTLED and growth < 1 else num
        if num > 2 * pace.most_decoding:
            return None
        if abs(num - before) <= PRECISION * (1 + num):
            return Occupancy(pace, arrivals, num, mean_s, slope_s, feedback, peakedness, work, scv)
    return None


def _held_up_s(arrivals: Arrivals, work: WorkStream) -> float:
    """Return by how much longer a request decodes for what comes before its first step.

    Prompts that come during its own prefill are served next. A router sends fewer.
    """
    return (work.share * work.gate_s - arrivals.evened * work.mean_s) / (1 - work.share)


def _seen_scv(pace: Pace, arrivals: Arrivals, work: WorkStream) -> float:
    rate = arrivals.requests_per_s * arrivals.num_pooled
    stay_s = later_steps(pace) * pace.decode_s(1) / (1 - work.share)
    return seen_scv(arrivals.scv, rate * stay_s / (2 * pace.outputs.overlap))


def _peakedness(pace: Pace, scv: float, work: WorkStream) -> float:
    """Return variance over mean of the number decoding, its feedback through steps aside.

    An arrival does not only add itself: its prompt holds up all that decode, who leave later. By
    ``1 / (1 - rho)`` in all for a mean prompt, so that arrivals stray by ``A`` and, with the
    overlap ``k`` of residences, the number by::

        A = ca2 / (1 - rho)^2 + (rho / (1 - rho))^2 * cs2
        z = 1 + k * (A - 1)
    """
    rest = 1 - work.share
    prompt_scv = work.variance_s2 / work.mean_s**2 if work.mean_s else 0.0
    strays = scv / rest**2 + (work.share / rest) ** 2 * prompt_scv
    return max(LEAST_PEAK, 1 + pace.outputs.overlap * (strays - 1))
