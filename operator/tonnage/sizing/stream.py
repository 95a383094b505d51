"""A stream of work for one server: what it adds to a stretch of time, and how much of it waits."""

import math
from dataclasses import dataclass, replace

from tonnage.sizing.tails import Moments, gamma_share

NEGLIGIBLE = 1e-5
MOST_FOLLOWERS = 200
MOST_BEFORE = 0.8
"""Share of a burst's jobs that follow close, up to which their number is geometric."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkStream:
    """Jobs that come one by one or in bursts.

    Where many arrivals count, a burst is a batch of geometric size with mean ``(1 + ca2) / 2``: the
    number of jobs in a long time then has ``ca2`` times the variance of a Poisson stream. Where one
    gap counts, gaps are gamma distributed. A stream more regular than Poisson counts as Poisson.
    """

    jobs_per_s: float
    mean_s: float
    """Of one job's work."""
    second_s2: float
    third_s3: float
    """Raw moments of one job's work."""
    arrival_scv: float = 1.0

    @property
    def share(self) -> float:
        """Of the time that the work takes up; below 1, or it piles up."""
        return self.jobs_per_s * self.mean_s

    @property
    def variance_s2(self) -> float:
        """Of one job's work."""
        return max(0.0, self.second_s2 - self.mean_s**2)

    @property
    def followers(self) -> float:
        """Return the jobs that a job's burst adds on either side of it, in the mean."""
        return max(0.0, self.arrival_scv - 1) / 2

    @property
    def second_per_s(self) -> float:
        """Second moment of the work of a burst, times bursts per second."""
        return self.jobs_per_s * (self.second_s2 + 2 * self.followers * self.mean_s**2)

    @property
    def third_per_s(self) -> float:
        """Third moment of the work of a burst, times bursts per second."""
        more = self.followers
        several = 6 * more * self.second_s2 * self.mean_s + 6 * more**2 * self.mean_s**3
        return self.jobs_per_s * (self.third_s3 + several)

    @property
    def gate_s(self) -> float:
        """Return the work that is done together with a job: its own, and that of its companions.

        Sources:
            [takagi1986] the cycles of a gated queue with one station.
        """
        return self.mean_s + self.share * self.second_per_s / (1 - self.share**2)

    def near(self, time_s: float) -> "WorkStream":
        """Return the stream as bursty as it looks within so much time."""
        if not self.followers:
            return self
        return replace(self, arrival_scv=1 + 2 * self.followers_within(time_s))

    def burst(self, followers: float) -> Moments:
        """Return the moments of the work of a geometric number of followers."""
        mean = followers * self.mean_s
        variance = followers * self.variance_s2 + followers * (1 + followers) * self.mean_s**2
        return Moments(mean=mean, variance=variance, third=2 * mean * variance)

    def interruptions(self, own_s: float) -> Moments:
        """Return by how much jobs delay other work of this length, each served as it comes.

        A job that comes during an interruption lengthens it: these are the moments of a busy
        period that starts with this work, less the work.

        Sources:
            [takacs1962] the moments of a busy period.
        """
        rest = 1 - self.share
        second, third = self.second_per_s, self.third_per_s
        return Moments(
            mean=own_s * self.share / rest,
            variance=own_s * second / rest**3,
            third=own_s * (third / rest**4 + 3 * second**2 / rest**5),
        )

    def uninterrupted(self, own_s: float) -> float:
        """Return the probability that nothing comes during other work of this length."""
        return math.exp(-self.jobs_per_s * max(0.0, own_s) / (1 + self.followers))

    def gap_within(self, time_s: float) -> float:
        """Return the probability that the next job comes within this time of one: gamma gaps."""
        if self.followers == 0:
            return -math.expm1(-self.jobs_per_s * max(0.0, time_s))
        shape = 1 / self.arrival_scv
        return gamma_share(shape, shape * self.jobs_per_s * max(0.0, time_s))

    def followers_within(self, time_s: float) -> float:
        """Return how many more jobs come within this time of one than of any moment.

        The renewal function of gamma gaps, less its asymptote: it grows to ``followers``.
        """
        if self.followers == 0:
            return 0.0
        shape, expected = 1 / self.arrival_scv, self.jobs_per_s * max(0.0, time_s)
        more = -expected
        for number in range(1, MOST_FOLLOWERS):
            share = gamma_share(number * shape, shape * expected)
            more += share
            if share < NEGLIGIBLE:
                break
        return min(self.followers, max(0.0, more))

    def wait_share(self) -> float:
        """Return the share of the jobs that find the server at work.

        Of a bursty stream at least those that come while the job before them is served.
        """
        if self.followers == 0:
            return self.share
        return max(self.share, self.gap_within(self.mean_s))

    def wait(self) -> Moments:
        """Return how long a job waits that finds the server at work.

        A geometric sum of leftovers, so its skewness is taken as that of a gamma variable. At
        light load a bursty stream leaves half a job, and the jobs that came in one go before it.

        Sources:
            [takacs1962] the moments of the waiting time behind a single server; [kingman1961]
            bursts, in heavy traffic.
        """
        rest = 1 - self.share
        mean = self.second_per_s / (2 * rest)
        second = 2 * mean**2 + self.third_per_s / (3 * rest)
        given = Moments(mean=mean, variance=second - mean**2).given_positive(self.share)
        factor = max(self.share / self.wait_share(), self._least_wait() / given.mean)
        wait = Moments(
            mean=given.mean, variance=given.variance, third=2 * given.variance**2 / given.mean
        )
        return wait.times(factor) if self.followers else wait

    def _least_wait(self) -> float:
        """Half the job that a burst's next one meets, and those before it one by one."""
        before = min(MOST_BEFORE, self.gap_within(self.mean_s))
        return self.second_s2 / (2 * self.mean_s) + self.mean_s * before / (1 - before)
