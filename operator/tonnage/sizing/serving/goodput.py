"""Goodput: the highest arrival rate at which every SLO target is kept, by running the engine model.

Rates are searched with common random numbers: first with few requests, to find the neighbourhood,
then with as many as the strictest percentile needs. What was tried is remembered, so that a search
that was abandoned goes on where it stopped, and a change of demand alone searches nothing.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import lru_cache
from typing import Final

from tonnage.sizing.serving.load_line import tpot_ceiling
from tonnage.sizing.serving.replica import running_limit
from tonnage.sizing.serving.trial import Trial, TrialResult, TrialRun
from tonnage.sizing.workload import Slo
from tonnage.units import nearest


class Length(Enum):
    """How many requests a run has: enough for a neighbourhood, a comparison, or an answer."""

    COARSE = 0
    MEDIUM = 1
    FULL = 2
    LONG = 3
    """Where a full run leaves a large standard error."""


LATE_REQUESTS: Final = 900
"""That may be late in a run of full length."""
FEWEST: Final = dict(zip(Length, (2_000, 8_000, 8_000, 32_000), strict=True))
MOST: Final = dict(zip(Length, (4_000, 16_000, 50_000, 150_000), strict=True))
SHARES: Final = dict(zip(Length, (0.1, 0.4, 1.0, 4.0), strict=True))
CLOSE: Final = dict(zip(Length, (0.03, 0.01, 0.005, 0.005), strict=True))
"""Of a logarithm of the rate, at which a search ends: on a line from what it tried."""
LARGE_ERROR: Final = 0.025
"""Of a rate: above it more requests are tried."""
PER_SLOT: Final = 4
"""Requests beside those for each that a replica runs at once: the batch has to fill and drain."""
STEPS: Final = 60
LOWEST: Final = 1e-4
"""Of the first guess: no rate below it is worth a replica."""
STEEP: Final = 6.0
"""Growth of the logarithm of late requests with that of the rate, before any is known."""
GENTLE: Final = 0.5
"""The least growth that is believed: below it two runs tell noise."""
LEAST_STRIDE: Final = 0.002
MOST_STRIDE: Final = 0.25
"""Of a logarithm of the rate, in one step."""
CLEAR: Final = 3.0
"""A logarithm of late requests over those allowed beyond which its size says nothing more."""
GRID: Final = 1.01
"""Ratio of neighbouring lengths, cache sizes and efficiencies that are told apart: rounding moves
goodput by half a percent at most where it follows them in proportion."""
LEAST_FILLED: Final = 256
MOST_FILLED: Final = 2_000
REMEMBERED: Final = 4_096
"""Trials, of some 6 KiB each: 24 MiB at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """What one replica serves within every SLO target."""

    requests_per_s: float
    standard_error: float
    """Of the rate, as a share of it: what other draws of as many requests would change."""
    limited_by: str
    outcome: TrialResult | None
    """At that rate, nearly. None: nothing was run, as offline."""
    steepness: float = STEEP
    """Growth of the logarithm of late requests with that of the rate."""
    length: Length = Length.FULL
    """Of the runs that found it: what it serves is shown by runs of the same length."""


NOTHING: Final = Goodput(requests_per_s=0, standard_error=0, limited_by="", outcome=None)
"""Of what serves no rate, or was not tried."""


@dataclass(slots=True)
class Found:
    """What is known of one trial: outcomes by length of the run and rate."""

    outcomes: dict[tuple[Length, float], TrialResult] = field(default_factory=dict)
    above: dict[tuple[Length, float], float] = field(default_factory=dict)
    """Ratios that outcomes are above; these runs ended early."""
    late_slots: dict[tuple[Length, float], float] = field(default_factory=dict)
    """Up to how many slots first tokens are late at the rate, as far as runs within a ratio say."""
    goodput: dict[Length, Goodput] = field(default_factory=dict)


def goodput(
    trial: Trial,
    guess: float,
    *,
    length: Length = Length.LONG,
    near: Goodput | None = None,
    on_search: Callable[[], None] = lambda: None,
) -> Goodput:
    """Return the highest rate of each replica of a trial that keeps every target; 0 where none.

    ``guess``: where to begin, in requests per second of one replica. ``near``: what other runs
    found, so that no short ones are needed to come near. ``length``: long runs are made only after
    full ones that left a large error. ``on_search`` is called before each run; what it raises ends
    the search, which goes on from there when it is asked again.
    """
    if length is Length.LONG:
        near = goodput(trial, guess, length=Length.FULL, near=near, on_search=on_search)
        if near.standard_error <= LARGE_ERROR:
            return near
    best = Goodput(requests_per_s=guess, standard_error=0, limited_by="", outcome=None)
    if near is not None and near.requests_per_s:
        best = near
    is_near = best is near or runs_of(trial, length).known
    for level in (length,) if is_near else dict.fromkeys((Length.COARSE, length)):
        runs = runs_of(trial, level, on_search, steepness=best.steepness)
        best = runs.goodput(best.requests_per_s)
        if not best.requests_per_s:
            break
    return best


def runs_of(
    trial: Trial,
    length: Length,
    on_search: Callable[[], None] = lambda: None,
    *,
    steepness: float = STEEP,
) -> "RateSearch":
    """Return the runs of one length of a trial, with all that is known of them."""
    trial = with_rounded_inputs(trial)
    return RateSearch(trial, known_of(trial), on_search, length, steepness)


@lru_cache(maxsize=REMEMBERED)
def known_of(_trial: Trial) -> Found:
    """Return what is known of a trial so far."""
    return Found()


def requests_needed(slo: Slo, length: Length = Length.FULL) -> int:
    """Return how many requests tell whether the strictest percentile is kept."""
    strictest = max((target.quantile for target in (*slo.ttft, *slo.tpot)), default=0.0)
    wanted = round(SHARES[length] * LATE_REQUESTS / (1 - strictest))
    return min(MOST[length], max(FEWEST[length], wanted))


def requests_to_fill(trial: Trial) -> int:
    """Return how many requests it takes to fill the batches of a trial, and to drain them."""
    replica, workload = trial.replica, trial.workload
    running = running_limit(replica, workload)
    allowed = tpot_ceiling(replica, workload, trial.slo)
    wanted = PER_SLOT * trial.num_replicas * min(running, allowed or running, MOST_FILLED)
    filling = LEAST_FILLED
    while filling < wanted:
        filling *= 2  # few numbers, so that the same draws serve neighbouring flags
    return filling


@dataclass(slots=True)
class RateSearch:
    """Rates tried for one trial with runs of one length.

    It looks at what it tried itself only, so that a search that is resumed takes the same steps, at
    no cost up to where it stopped.
    """

    trial: Trial
    found: Found
    between: Callable[[], None]
    length: Length
    prior: float = STEEP
    """Of the steepness."""
    points: dict[float, float] = field(default_factory=dict)

    def outcome(self, rate: float) -> TrialResult:
        """Return what becomes of a rate of each replica."""
        known = self.found.outcomes.get((self.length, rate))
        if known is None:
            known = self.found.outcomes[self.length, rate] = self._run(rate).outcome()
        return known

    def late_slots(self, rate: float) -> float:
        """Return up to how many slots first tokens are late; 0: not so by what ratios took."""
        return self.found.late_slots.get((self.length, rate), 0.0)

    def ratio_within(self, rate: float, most: float = 1.0) -> float:
        """Return the ratio of an outcome, infinity above this one: then the run ends early."""
        found, tried = self.found, (self.length, rate)
        known = found.outcomes.get(tried)
        if known is None:
            run = None if most <= found.above.get(tried, 0.0) else self._run(rate, most)
            if run is not None:
                found.late_slots[tried] = run.late_slots()
            if run is None or run.is_cut:
                found.above[tried] = max(most, found.above.get(tried, 0.0))
                return math.inf
            known = found.outcomes[tried] = run.outcome()
        return known.ratio if known.ratio <= most else math.inf

    def _run(self, rate: float, most_ratio: float = math.inf) -> TrialRun:
        self.between()
        trial = self.trial
        count = requests_needed(trial.slo, self.length) + requests_to_fill(trial)
        return TrialRun(trial, rate * trial.num_replicas, count, most_ratio=most_ratio)

    @property
    def known(self) -> Goodput | None:
        return self.found.goodput.get(self.length)

    def goodput(self, guess: float) -> Goodput:
        """Return the goodput by runs of this length; it is searched for once."""
        found = self.found.goodput
        if self.length not in found:
            found[self.length] = self._searched(guess)
        return found[self.length]

    def _searched(self, guess: float) -> Goodput:
        """Return the rate at which the excess crosses zero; nothing where it is never below.

        Short runs rank flags and splits. A rate that is told has a run of its own that keeps every
        target: close to saturation half a percent of it is a quarter of a TTFT.
        """
        rate = self._highest(guess)
        if rate and self.length in {Length.FULL, Length.LONG}:
            rate = self._rate_within_targets(rate)
        if not rate:
            return NOTHING
        near = min(self.points, key=lambda tried: abs(math.log(tried / rate)))
        outcome = self.outcome(near)
        worst = outcome.worst
        is_by_target = worst is not None and worst.ratio >= outcome.backlog
        error = worst.standard_error / self._mean_steepness if worst and is_by_target else 0.0
        return Goodput(
            requests_per_s=rate,
            standard_error=min(1.0, error),
            limited_by=limited_by(self.trial, outcome),
            steepness=self._mean_steepness,
            outcome=outcome,
            length=self.length,
        )

    def _excess(self, rate: float) -> float:
        ratio = self.outcome(rate).ratio
        excess = max(-CLEAR, min(CLEAR, math.log(ratio))) if ratio > 0 else -CLEAR
        self.points[rate] = excess
        return excess

    def _highest(self, guess: float) -> float:
        """Return the rate: by a bracket and false position, or where a try came close.

        An end that stays twice counts half (the Illinois rule): where another target takes over,
        the excess has a kink, and one end would stay for ever.
        """
        low = high = at_low = at_high = 0.0
        rate, side = guess, 0
        for step in range(STEPS):
            excess = self._excess(rate)
            if step and abs(excess) < CLOSE[self.length] * self._steepness:
                return rate * math.exp(-excess / self._steepness)
            if excess <= 0:
                low, at_low = rate, excess
                at_high, side = at_high / 2 if side < 0 else at_high, -1
            else:
                high, at_high = rate, excess
                at_low, side = at_low / 2 if side > 0 else at_low, 1
            if low and high and high / low <= 1 + CLOSE[self.length]:
                break
            if low and high:
                share = at_low / (at_low - at_high)
                rate = low * (high / low) ** min(0.9, max(0.1, share))
            else:
                # In a logarithm of the rate, the further the longer it takes.
                stride = min(MOST_STRIDE, abs(excess) / self._steepness + LEAST_STRIDE)
                rate *= math.exp(-math.copysign(stride * (1 + step / 2), excess or -1))
            if rate < LOWEST * guess:
                return 0.0
        share = at_low / (at_low - at_high) if at_low < 0 < at_high else 0.0
        return low * (high / low) ** share if high else low

    def _rate_within_targets(self, rate: float) -> float:
        """Return the rate, or the next below it, whose own run keeps every target; 0: none does.

        Where lateness hardly hangs on the rate, as beside few long prompts, it is a way down.
        """
        stride = CLOSE[self.length] / 4
        lowest, step = LOWEST * rate, 1
        while rate > lowest:
            lower = rate * math.exp(-stride * step)
            near = (tried for tried, excess in self.points.items() if excess <= 0)
            best = max((tried for tried in near if tried <= rate), default=0.0)
            if best >= lower:
                return best
            if self._excess(rate) <= 0:
                return rate
            rate, step = lower, step + 1
        return 0.0

    @property
    def _steepness(self) -> float:
        """Growth of the excess with the logarithm of the rate, between the nearest two."""
        points = self._informative_points
        low = max((point for point in points if point[1] <= 0), default=None)
        high = min((point for point in points if point[1] > 0), default=None)
        slope = _slope([low, high] if low and high and low[0] < high[0] else points)
        return slope if slope > GENTLE else self.prior

    @property
    def _mean_steepness(self) -> float:
        """The same over all that was tried: two runs that are close tell noise."""
        slope = _slope(self._informative_points)
        return slope if slope > GENTLE else self.prior

    @property
    def _informative_points(self) -> list[tuple[float, float]]:
        tried = self.points.items()
        return [(math.log(rate), excess) for rate, excess in tried if abs(excess) < CLEAR]


def _slope(points: list[tuple[float, float]]) -> float:
    """Return the slope of the line of least squares; 0 where there is none."""
    if len(points) < 2:  # noqa: PLR2004
        return 0.0
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0


FULL: Final = 0.85
"""Share of the KV blocks held in the mean at which requests wait for them."""
OFTEN: Final = 0.25
"""Share of the time with all slots in use at which requests wait for them."""
SOME: Final = 0.1
"""The same, of the requests that may be late: with half as much cache again goodput rises by 2 to
36 % where it was 0.38 of these or more, and not at all where it was 0.04 or less."""

CAPPED: Final = 0.95
"""Of the sequences that the cache holds: so many slots are as many as it has room for."""


def limited_by(trial: Trial, outcome: TrialResult) -> str:
    """Name what stops a replica at a load: TPOT, or what requests wait for."""
    worst = outcome.worst
    is_by_target = worst is not None and worst.ratio >= outcome.backlog
    if worst and is_by_target and not worst.is_ttft:
        return "TimePerOutputToken"
    late = 1 - worst.target.quantile if worst and is_by_target else math.inf
    slots = trial.replica.max_num_seqs
    if outcome.kv_usage > FULL:
        return "KVCache"
    if slots and outcome.full > min(OFTEN, SOME * late):
        held = trial.replica.sequences_held(trial.workload.mean_context_tokens)
        return "KVCache" if slots * trial.replica.model.dp_size >= CAPPED * held else "MaxNumSeqs"
    return "TimeToFirstToken" if is_by_target else "BatchedTokens"


def with_rounded_inputs(trial: Trial) -> Trial:
    """Return the trial with figures rounded to what cannot matter."""
    replica, workload = trial.replica, trial.workload
    constants, prompt = replica.model.constants, workload.prompt
    second = workload.output_second_moment
    rounded = replace(
        constants,
        bandwidth_efficiency=_round(constants.bandwidth_efficiency),
        prefill_efficiency=_round(constants.prefill_efficiency),
    )
    return replace(
        trial,
        workload=replace(
            workload,
            prompt=replace(
                prompt,
                mean_tokens=_round(prompt.mean_tokens),
                p99_tokens=None if prompt.p99_tokens is None else _round(prompt.p99_tokens),
            ),
            output_tokens=_round(workload.output_tokens),
            output_second_moment=None if second is None else _round(second),
            cached_fraction=1 - min(1.0, _round(1 - workload.cached_fraction)),
        ),
        replica=replace(
            replica,
            kv_pool_bytes=_round(replica.kv_pool_bytes),
            model=replace(replica.model, constants=rounded),
        ),
    )


def _round(value: float) -> float:
    if value <= 0 or math.isinf(value):
        return value
    return nearest(value, ratio=GRID)
