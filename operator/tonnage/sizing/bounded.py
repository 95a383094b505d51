"""The number decoding on one engine with so many places, and the wait for one."""

import math
from dataclasses import dataclass, replace
from functools import cached_property

from tonnage.sizing.crowd import Crowd, crowd
from tonnage.sizing.occupancy import LEAST_PEAK, Occupancy, Places, later_steps
from tonnage.sizing.pace import Pace
from tonnage.sizing.stream import WorkStream
from tonnage.sizing.tails import Moments, gamma_share

HALF = 0.5
NOTHING = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounded:
    """The number decoding on one engine with so many places, and the wait for one."""

    decoding: Moments
    seen_full: float = 0.0
    """Share of the requests that find no place."""
    most: float = math.inf
    """That can decode at once."""
    wait: Moments | None = None
    """For a place, where one finds none."""


def bounded(load: Occupancy, places: Places) -> Bounded | None:
    """Return the number decoding and the wait for a place; None where the queue would grow."""
    slots = _Limit(
        places=places.slots - load.num_prefilling, load=load, pool=load.arrivals.num_pooled
    )
    cache = _Limit(
        places=places.held - load.num_prefilling - _unused(load.pace),
        load=load,
        length_scv=load.pace.held_scv,
        work_scv=load.pace.held_work_scv,
    )
    if min(slots.spare_per_s, cache.spare_per_s) <= 0:
        return None
    most = min(slots.places, cache.places)
    tightest = max(slots, cache, key=lambda limit: limit.crowd.full)
    if tightest.crowd.full == 0:
        return Bounded(decoding=load.unbounded, most=most)
    seen_full, wait = _either(slots, cache)
    return Bounded(decoding=tightest.decoding, most=most, seen_full=seen_full, wait=wait)


def _either(slots: "_Limit", cache: "_Limit") -> tuple[float, Moments]:
    """Return the share that finds no place for want of a slot or of cache, and how long it waits.

    The number that decodes strays for both, so that both run out at once as a rule; the cache is
    what is waited for then, since those who stay grow meanwhile.
    """
    common = slots.load.dispersion / (slots.load.dispersion + cache.length_scv)
    only_slots = slots.seen_full - common * min(slots.seen_full, cache.seen_full)
    either = cache.seen_full + only_slots
    if not cache.seen_full:
        return min(1.0, either), slots.wait
    return min(1.0, either), cache.wait.mixed(slots.wait, only_slots / either)


@dataclass(frozen=True)
class _Limit:
    """So many places for decoding sequences."""

    places: float
    load: Occupancy
    pool: int = 1
    """Engines whose places a router fills as one. It counts requests, not tokens."""
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
        return self.places / (later_steps(load.pace) * step_s + self.places * load.work.mean_s)

    @property
    def spare_per_s(self) -> float:
        return self.served_per_s - self.load.arrivals.requests_per_s if self.places > 0 else 0.0

    @cached_property
    def crowd(self) -> Crowd:
        """Return the crowd of the whole pool."""
        load, pool = self.load, self.pool
        if math.isinf(self.places):
            return Crowd(below=load.unbounded)
        # Its own fluctuation, and that of how many sequences the cache holds.
        dispersion = load.dispersion * pool + self.length_scv
        return crowd(
            mean=max(NOTHING, load.num_decoding + load.more_in_prefill) * pool,
            dispersion=dispersion,
            places=self.places * pool,
            stay=self._stay,
        )

    @property
    def decoding(self) -> Moments:
        pool, crowd = self.pool, self.crowd.overall
        prefilling = self.load.more_in_prefill * pool
        return replace(crowd, mean=max(0.0, crowd.mean - prefilling)).times(1 / pool)

    @property
    def _stay(self) -> float:
        """Return the share of those who wait that one more is behind.

        A place is full as long as a busy period lasts, where every answer that ends brings the
        prompt of the next with it; until it is full, prompts take up the time of all.
        """
        load = self.load
        rate, served = load.arrivals.requests_per_s, self.served_per_s
        power = (rate + served) / (rate * self._arrival_scv + served)
        busier = (1 - load.prefill_share) / (1 - served * load.work.mean_s)
        spare: float = 1 - (rate / served) ** power
        return 1 - spare / busier

    @cached_property
    def seen_full(self) -> float:
        """Return the share of the requests that find no place.

        The more are there, waiting or not, the more likely it is that a burst is under way.
        """
        load = self.load
        if self.crowd.full == 0:
            return 0.0
        z = max(LEAST_PEAK, 1 + (load.seen_scv - 1) * load.pace.outputs.overlap)
        waiting = self._stay / (1 - self._stay) / self.pool
        crowded = max(1.0, (self.places + waiting) / load.num_decoding)
        share = self.crowd.full * (1 / z + (1 - 1 / z) * crowded)
        return min(1.0, max(0.0, share))

    @property
    def _arrival_scv(self) -> float:
        """Return the burstiness of what reaches these places. A router evens out that of each."""
        arrivals = self.load.arrivals
        return arrivals.scv * self.pool / arrivals.num_pooled

    @property
    def _scv(self) -> float:
        scv = self.load.pace.outputs.scv
        return scv if self.work_scv is None else max(scv, self.work_scv)

    @property
    def queue(self) -> WorkStream:
        """Return those who wait, as jobs of one server.

        A job there takes its share of the places for its later tokens, and its prompt, which holds
        up all places.
        """
        load, pool, work = self.load, self.pool, self.load.work
        decode_s = max(0.0, 1 / self.served_per_s - work.mean_s)
        mean_s, scv = (decode_s + work.mean_s) / pool, self._scv
        variance = (scv * decode_s**2 + work.variance_s2) / pool**2
        prompt_third = work.third_s3 - 3 * work.mean_s * work.second_s2 + 2 * work.mean_s**3
        third = (2 * scv**2 * decode_s**3 + prompt_third) / pool**3
        return WorkStream(
            jobs_per_s=load.arrivals.requests_per_s * pool,
            mean_s=mean_s,
            second_s2=variance + mean_s**2,
            third_s3=third + 3 * mean_s * variance + mean_s**3,
            arrival_scv=max(1.0, self._arrival_scv),
        )

    @cached_property
    def wait(self) -> Moments:
        """Return the wait for a place of those who find none.

        Answers of one length end in the order in which they began: the next place is free when
        the request ends that came so many places before. So the wait is that by which a whole
        round of answers exceeds the time in which the next round of requests comes. Where lengths
        stray as much as exponential ones, whose ends come by chance, it is that of one server.
        """
        queue, scv = self.queue, self._scv
        free = queue.wait()
        if scv >= 1:
            return free
        places = self.places * self.pool
        gap_s = 1 / queue.jobs_per_s
        strays = queue.arrival_scv * gap_s**2 + queue.variance_s2
        rounds = _round_wait(places * queue.mean_s, places * gap_s, places * strays)
        return free.mixed(rounds, 1 - scv)


def _round_wait(round_s: float, between_s: float, variance_s2: float) -> Moments:
    """Return by how much a round of answers exceeds the gamma time between rounds, where it does.

    At least by as much as where such rounds follow one another without end.
    """
    shape = between_s**2 / variance_s2
    mean, variance = _excess_over_gamma(round_s, between_s, shape)
    longer = max(1.0, variance_s2 / (2 * (between_s - round_s)) / mean)
    return Moments(mean=mean, variance=variance, third=2 * variance**2 / mean).times(longer)


def _excess_over_gamma(value: float, mean: float, shape: float) -> tuple[float, float]:
    """Return mean and variance of ``value - X`` of a gamma variable X that is less."""
    scaled = shape * value / mean
    below, first, second = (gamma_share(shape + more, scaled) for more in range(3))
    if below < NOTHING:
        least = value / (shape + 1)
        return least, least**2 * shape / (shape + 2)
    first *= mean / below
    second *= mean**2 * (1 + 1 / shape) / below
    return value - first, max(0.0, second - first**2)


def _unused(pace: Pace) -> float:
    """Return the sequences' worth of cache that a waiting prompt leaves unused: half a prompt."""
    workload = pace.workload
    return HALF * workload.prompt.mean_tokens / workload.mean_context_tokens
