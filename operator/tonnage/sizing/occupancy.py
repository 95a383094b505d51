"""How many requests one engine has at an arrival rate, and how far that number strays.

A decoding sequence takes longer the more others decode and the more prompts come between, so the
number in the batch feeds on itself: it strays further than that of independent requests.
"""

import math
from dataclasses import dataclass
from functools import cached_property

from tonnage.sizing.crowd import Crowd, crowd, unbounded
from tonnage.sizing.pace import Pace
from tonnage.sizing.stream import WorkStream
from tonnage.sizing.tails import Moments

ROUNDS = 50
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
    def own_scv(self) -> float:
        """Return the burstiness that one engine of a pool sees: what a random split leaves."""
        return 1 + (self.scv - 1) / self.num_pooled


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

    @property
    def prefill_share(self) -> float:
        return self.work.share

    @property
    def time_per_token_s(self) -> float:
        return self.decode_s / (1 - self.prefill_share)

    @property
    def num_prefilling(self) -> float:
        room = self.pace.room_tokens(self.num_decoding)
        steps = max(1.0, self.pace.workload.new_prompt_tokens / room)
        return self.arrivals.requests_per_s * self.time_per_token_s * steps

    @property
    def dispersion(self) -> float:
        """Return the variance over the mean of the number decoding, on this engine."""
        return self.peakedness / (1 - self.feedback) / self.arrivals.num_pooled

    @cached_property
    def unbounded(self) -> Moments:
        """Return the moments of the number decoding where places are without end."""
        return unbounded(self.num_decoding, self.dispersion)


def later_tokens(pace: Pace) -> float:
    """Return the steps that a mean answer decodes for: its first token ends its prefill."""
    return pace.steps(max(HALF, pace.outputs.mean_tokens - 1))


def occupancy(pace: Pace, arrivals: Arrivals) -> Occupancy | None:
    """Return the steady state of an arrival rate; None where there is none.

    Solves ``n = rate * (out - 1) * t(n + z) / (1 - rho)``: a sequence sees the others and itself,
    and of bursty arrivals its burst too (``z``, the peakedness; the mean of ``n * t(n)`` over that
    of ``n``). ``rho`` is the share of the time that prompts take.
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
    peakedness = _peakedness(pace, arrivals, work)
    tokens_per_s = arrivals.requests_per_s * later_tokens(pace) / (1 - work.share)
    seen = peakedness / arrivals.num_pooled
    num, feedback = tokens_per_s * pace.decode_s(seen), 0.0
    for _ in range(ROUNDS):
        apart = math.sqrt(max(num, 0.1) * seen / (1 - feedback))
        low_s, high_s = pace.decode_s(num + seen - apart), pace.decode_s(num + seen + apart)
        mean_s, slope_s = (low_s + high_s) / 2, (high_s - low_s) / (2 * apart)
        growth = tokens_per_s * slope_s
        before, feedback = num, min(MOST_FEEDBACK, growth)
        # Newton's step on the line through both; without a crossing, look further out.
        num = tokens_per_s * (mean_s - slope_s * num) / (1 - growth) if growth < 1 else 2 * num + 1
        if num < 0 or num > 2 * pace.room_tokens(0):
            return None
        if abs(num - before) <= PRECISION * (1 + num):
            return Occupancy(pace, arrivals, num, mean_s, slope_s, feedback, peakedness, work)
    return None


def _peakedness(pace: Pace, arrivals: Arrivals, work: WorkStream) -> float:
    """Return variance over mean of the number decoding, its feedback through steps aside.

    An arrival does not only add itself: its prompt holds up all that decode, who leave later. By
    ``1 / (1 - rho)`` in all for a mean prompt, so that arrivals stray by ``A`` and, with the
    overlap ``k`` of residences, the number by::

        A = ca2 / (1 - rho)^2 + (rho / (1 - rho))^2 * cs2
        z = 1 + k * (A - 1)
    """
    rest = 1 - work.share
    prompt_scv = work.variance_s2 / work.mean_s**2 if work.mean_s else 0.0
    strays = arrivals.scv / rest**2 + (work.share / rest) ** 2 * prompt_scv
    return max(LEAST_PEAK, 1 + pace.outputs.overlap * (strays - 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounded:
    """The number decoding on one engine with so many places, and the wait for one."""

    decoding: Moments
    seen_full: float = 0.0
    """Share of the requests that find no place."""
    most: float = math.inf
    """That can decode at once."""
    queue: WorkStream | None = None
    """Those who wait, as the work of one server that is as fast as all places together."""


def bounded(load: Occupancy, places: Places) -> Bounded | None:
    """Return the number decoding and the wait for a place; None where the queue would grow.

    Of slots and cache the one that is full more often counts.
    """
    limits = [
        _Limit(places=places.slots - load.num_prefilling, load=load),
        _Limit(
            places=places.held - load.num_prefilling - _unused(load.pace),
            load=load,
            length_scv=_held_scv(load.pace),
            work_scv=_held_work_scv(load.pace),
        ),
    ]
    if any(limit.spare_per_s <= 0 for limit in limits):
        return None
    tightest = max(limits, key=lambda limit: limit.crowd.full)
    most = min(limit.places for limit in limits)
    if tightest.crowd.full == 0:
        return Bounded(decoding=load.unbounded, most=most)
    return Bounded(
        decoding=tightest.crowd.overall.times(1 / load.arrivals.num_pooled),
        most=most,
        seen_full=tightest.seen_full,
        queue=tightest.queue,
    )


@dataclass(frozen=True)
class _Limit:
    """So many places for decoding sequences."""

    places: float
    load: Occupancy
    length_scv: float = 0.0
    """Of what one sequence takes up."""
    work_scv: float | None = None
    """Of what one request takes up times how long. None: each takes one place."""

    @cached_property
    def served_per_s(self) -> float:
        """Return the rate at which requests leave while no place is free."""
        load = self.load
        if math.isinf(self.places):
            return math.inf
        beyond = self.places - load.num_decoding - load.peakedness / load.arrivals.num_pooled
        step_s = max(load.pace.decode_s(1), load.decode_s + load.slope_s * beyond)
        return self.places / (later_tokens(load.pace) * step_s + self.places * load.work.mean_s)

    @property
    def spare_per_s(self) -> float:
        return self.served_per_s - self.load.arrivals.requests_per_s if self.places > 0 else 0.0

    @cached_property
    def crowd(self) -> Crowd:
        """Return the crowd of the whole pool."""
        load, pool = self.load, self.load.arrivals.num_pooled
        if math.isinf(self.places):
            return Crowd(below=load.unbounded)
        # Its own fluctuation, and that of how many sequences the cache holds.
        dispersion = load.dispersion * pool + self.length_scv
        return crowd(
            mean=load.num_decoding * pool,
            dispersion=dispersion,
            places=self.places * pool,
            stay=self._stay,
        )

    @property
    def _stay(self) -> float:
        rate, served = self.load.arrivals.requests_per_s, self.served_per_s
        ratio: float = (rate / served) ** (
            (rate + served) / (rate * self.load.arrivals.scv + served)
        )
        return ratio

    @property
    def seen_full(self) -> float:
        """Return the share of the requests that find no place; bursts come when many are there."""
        load = self.load
        z = max(LEAST_PEAK, 1 + (load.arrivals.scv - 1) * load.pace.outputs.overlap)
        crowded = max(1.0, self.places / load.num_decoding)
        share = self.crowd.full * (1 / z + (1 - 1 / z) * crowded)
        return min(1.0, max(0.0, share))

    @property
    def queue(self) -> WorkStream:
        """Return those who wait, as jobs of one server.

        A job there takes its share of the places for its later tokens, and its prompt, which holds
        up all places.
        """
        load, outputs = self.load, self.load.pace.outputs
        pool, work = load.arrivals.num_pooled, load.work
        scv = outputs.scv if self.work_scv is None else max(outputs.scv, self.work_scv)
        decode_s = max(0.0, 1 / self.served_per_s - work.mean_s)
        mean_s = (decode_s + work.mean_s) / pool
        variance = (scv * decode_s**2 + work.variance_s2) / pool**2
        prompt_third = work.third_s3 - 3 * work.mean_s * work.second_s2 + 2 * work.mean_s**3
        third = (2 * scv**2 * decode_s**3 + prompt_third) / pool**3
        return WorkStream(
            jobs_per_s=load.arrivals.requests_per_s * pool,
            mean_s=mean_s,
            second_s2=variance + mean_s**2,
            third_s3=third + 3 * mean_s * variance + mean_s**3,
            arrival_scv=load.arrivals.scv,
        )


def _unused(pace: Pace) -> float:
    """Return the sequences' worth of cache that a waiting prompt leaves unused: half a prompt."""
    workload = pace.workload
    return HALF * workload.prompt.mean_tokens / workload.mean_context_tokens


def _held_scv(pace: Pace) -> float:
    """Return the squared coefficient of variation of the tokens that a decoding sequence holds."""
    prompt, outputs = pace.workload.prompt, pace.outputs
    age = outputs.moment(2) / (2 * outputs.mean_tokens)
    age_second = outputs.moment(3) / (3 * outputs.mean_tokens)
    variance = prompt.scv * prompt.mean_tokens**2 + age_second - age**2
    return variance / (prompt.mean_tokens + age) ** 2


def _held_work_scv(pace: Pace) -> float:
    """Return that of the tokens that a request holds, summed up over its steps."""
    prompt, moment = pace.workload.prompt, pace.outputs.moment
    mean = prompt.mean_tokens * moment(1) + moment(2) / 2
    second = prompt.second_moment * moment(2) + prompt.mean_tokens * moment(3) + moment(4) / 4
    return second / mean**2 - 1
