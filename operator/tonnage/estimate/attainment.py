"""What late requests say about the goodput of an object's replicas: a factor, moved by trial.

The engine model says how many requests come too late at a load: as many as may at goodput, and
fewer below it by a power of the load. Only what waited, or was stepped too slowly, lowers capacity.
Where that is significantly more than expected, the factor falls to what the load and the late
requests say: a third more replicas at most. Nothing is lowered again before more replicas have
served: if the late requests have not become fewer then, the step is undone, and so many are
expected from then on at any load. The factor rises slowly, while fewer are late than expected at a
high load, for whatever cause.

Loads are of what the step time allows, without the factor.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tonnage.estimate.posterior import GOODPUT_FACTORS, ObjectPosterior, Trial, Unmended
from tonnage.units import DAY_S, HOUR_S, count_of

LOWEST, HIGHEST = GOODPUT_FACTORS
LARGEST_DOWN = 0.3
"""Of the logarithm of what runs, in one step: a third more replicas."""
LARGEST_UP = 0.03
"""Of the factor's logarithm, in one judgement."""
UP_GAIN = 0.5
STEEPNESS = (4.0, 25.0)
"""Bounds of the power with which late requests grow with load, where more are late than allowed.
The steeper it is, the less it proves that none are late."""
CLUMPS = 3.0
"""Late requests come together: so many count as one draw."""
DEVIATIONS = 2.0
"""Of what is expected by chance, that late requests must differ by."""
HIGH_LOAD = 0.85
"""Of the estimated goodput: below it, a met SLO does not show that more is served."""
OVERLOAD = 1.05
"""Above it, a missed SLO is expected, and more replicas are asked for anyway."""
SERVED_LESS, SERVED_DEVIATIONS = 0.1, 2.5
"""Share, and deviations by chance, by which less must be served than believed to count."""
LARGEST_HELD = 0.7
"""Of the factor's logarithm, towards what was served, in one judgement: half."""
MOST_ALLOWED = 40.0
"""Late requests that would be allowed, beyond which older evidence counts half."""
EVIDENCE_S = 1800.0
"""For which evidence counts in full, however many requests came: a queue of a minute makes hundreds
late, and misses no SLO. Four times as many late as allowed show within three windows."""
LASTING = 2
"""Windows in a row: a burst is over in one, and its load is more than that of the window."""
HALF_LIFE_S = 24 * HOUR_S
PATIENCE_S = 900.0
"""For which more replicas serve before the next step, if nothing tells whether the last helped."""
LONGEST_WAIT_S = HOUR_S
"""For more replicas, which a limit or less demand may keep away: then a trial is over."""
LIGHTER = 0.95
"""Share of the earlier load per replica, below which it can be seen whether a step has helped."""
SATURATED = 0.5
"""Share of late requests from which on their number does not say how much is missing."""
SEEN_S = HOUR_S
"""In which what more replicas did not mend follows what is seen, but for 1/e."""
STILL_SERVED = 0.5
"""Of the highest load at which the targets were met within a day: replicas serve as much now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetResult:
    """How one SLO target fared over a window."""

    target: str
    quantile: float
    num_requests: float
    late: float
    """But for prompts that certainly are late alone."""
    late_by_load: float
    """Of these, those that fewer requests for each replica would have in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SloWindow:
    """What happened while nothing else changed."""

    verdicts: tuple[TargetResult, ...]
    load: float
    """Demand over what the step time says that the replicas serve."""
    replicas: int
    """That served."""
    requests_per_s_each: float
    seconds: float
    steepness: float
    """Power of the load with which late requests grow, by the engine model."""
    may_raise: bool = True
    """Nothing at all has changed; otherwise only a missed SLO counts."""


class TargetCounts(NamedTuple):
    """Requests judged by one target: those late, those that may be, those expected to be."""

    num_requests: float = 0.0
    late: float = 0.0
    """By load."""
    late_at_all: float = 0.0
    allowed: float = 0.0
    expected: float = 0.0

    @property
    def late_share(self) -> float:
        return min(1.0, self.late / self.num_requests) if self.num_requests else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttainmentCounts:
    """Evidence since the factor was last moved by any."""

    targets: Mapping[str, TargetCounts] = field(default_factory=dict)
    load_s: float = 0.0
    """Loads of the windows, each times its seconds."""
    seconds: float = 0.0
    missed_in_a_row: int = 0
    """The newest windows in which load made more late than may be."""

    @property
    def worst(self) -> str | None:
        """The target with the most late requests for those it allows."""
        known = {name: each for name, each in self.targets.items() if each.allowed > 0}
        return max(known, key=lambda name: known[name].late / known[name].allowed, default=None)

    @property
    def load(self) -> float:
        """The mean of the windows."""
        return self.load_s / self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The factor and the evidence after one window, and why it moved."""

    posterior: ObjectPosterior
    tally: AttainmentCounts
    reason: str | None = None


def factor_now(posterior: ObjectPosterior, *, now_s: float) -> float:
    """Return the factor on goodput: old evidence fades, half of its logarithm in a day."""
    age_s = max(0.0, now_s - posterior.judged_at_s) if posterior.judged_at_s else 0.0
    return math.exp(math.log(posterior.goodput_factor) * 0.5 ** (age_s / HALF_LIFE_S))


class _Moment(NamedTuple):
    """What a window is judged with."""

    window: SloWindow
    power: float
    """Of the load, with which late requests grow."""
    factor: float
    now_s: float


def judge_window(
    posterior: ObjectPosterior, tally: AttainmentCounts, window: SloWindow, *, now_s: float
) -> Judgement:
    """Take in one window in which nothing else changed."""
    factor, trial = factor_now(posterior, now_s=now_s), posterior.trial
    is_awaited = trial is not None and window.replicas <= trial.replicas
    if is_awaited and now_s - posterior.judged_at_s >= LONGEST_WAIT_S:
        posterior, trial, is_awaited = replace(posterior, trial=None), None, False
    known = Judgement(posterior=posterior, tally=tally)
    if is_awaited or not 0 < window.load <= OVERLOAD * factor:
        return known
    steepness = max(window.steepness, STEEPNESS[0])
    known = _add_window(known, window, min(1.0, window.load / factor) ** steepness)
    power = min(steepness, STEEPNESS[1])
    at = _Moment(window, power, factor, now_s)
    if trial:
        known = _end_trial(known, trial, at)
        is_open = known.posterior.trial is not None and known.tally.seconds < PATIENCE_S
        if is_open or known.reason:
            return known
    name = known.tally.worst
    if name is None:
        return known
    counts = known.tally.targets[name]
    lowered = _lowered(known, counts, power, steepness)
    if known.tally.missed_in_a_row >= LASTING and lowered is not None and lowered < factor:
        return _lower(known, name, lowered, at)
    is_high = window.may_raise and window.load > HIGH_LOAD * factor
    late = counts.late_at_all
    if is_high and _score(late, counts.expected) < -DEVIATIONS:
        step = min(LARGEST_UP, UP_GAIN * math.log(counts.expected / (late + 1.0)) / power)
        reason = f"{math.expm1(step):+.0%} capacity: {_counted(known.tally, name, factor)}"
        return _move(known, factor * math.exp(step), counts, reason, now_s=now_s)
    return known


def _move(
    known: Judgement, factor: float, counts: TargetCounts, reason: str, *, now_s: float
) -> Judgement:
    return Judgement(
        posterior=replace(
            known.posterior,
            goodput_factor=min(max(factor, LOWEST), HIGHEST),
            num_judged=known.posterior.num_judged + counts.num_requests,
            judged_at_s=now_s,
        ),
        tally=AttainmentCounts(),
        reason=reason,
    )


def _lowered(
    known: Judgement, counts: TargetCounts, power: float, steepness: float
) -> float | None:
    """Return the factor at which as many would be late as are; None: it may be chance."""
    late, allowed = counts.late, counts.allowed
    expected = allowed * (counts.expected / allowed) ** (power / steepness)
    is_broken = late > allowed + math.sqrt(CLUMPS * allowed)
    if not is_broken or _score(late, expected) <= DEVIATIONS:
        return None
    lowered = known.tally.load * math.exp(-min(LARGEST_DOWN, math.log(late / allowed) / power))
    return max(lowered, STILL_SERVED * known.posterior.kept_load)


def _lower(known: Judgement, name: str, lowered: float, at: _Moment) -> Judgement:
    counts, number = known.tally.targets[name], at.window.replicas
    lighter = number / (number + 1)
    fewest, most = (counts.late_share * lighter**each for each in (at.power, 1.0))
    reason = (
        f"{lowered / at.factor - 1:+.0%} capacity: {_counted(known.tally, name, at.factor)}; with "
        f"{count_of(number + 1, 'replica')} {fewest:.2%} to {most:.2%} should be late"
    )
    trial = known.posterior.trial
    if trial is None or trial.target != name:
        trial = Trial(
            target=name,
            late_share=counts.late_share,
            replicas=number,
            requests_per_s_each=at.window.requests_per_s_each,
            factor=at.factor,
        )
    trial = replace(trial, replicas=number)
    known = replace(known, posterior=replace(known.posterior, trial=trial))
    return _move(known, lowered, counts, reason, now_s=at.now_s)


def _end_trial(known: Judgement, trial: Trial, at: _Moment) -> Judgement:
    """Compare what is late now with what was before the steps, once the two can be told apart.

    Late requests are a share that no load moves and one that falls as the load does, at least. The
    two fleets tell both. Where the second was within what is allowed before the step, it is undone.
    """
    counts = known.tally.targets.get(trial.target)
    if counts is None or not counts.num_requests:
        return known
    over = replace(known, posterior=replace(known.posterior, trial=None))
    lighter = at.window.requests_per_s_each / trial.requests_per_s_each
    before, now = trial.late_share, counts.late_share
    if lighter >= 1 or now > SATURATED:
        return over
    if lighter > LIGHTER:
        return known
    same = before * counts.num_requests
    if _score(lighter * same, same) > -DEVIATIONS:
        return known  # too few requests to tell the two from each other
    unmended = max(0.0, now - max(0.0, before - now) * lighter / (1 - lighter))
    if _score(counts.late, lighter * same) <= DEVIATIONS:
        unmended = 0.0
    shares = {each.target: each for each in over.posterior.unmended}
    if unmended:
        share = unmended + (shares[trial.target].share if trial.target in shares else 0.0)
        shares[trial.target] = Unmended(trial.target, most=min(1.0, share), share=min(1.0, share))
    over = Judgement(
        posterior=replace(over.posterior, unmended=tuple(shares.values())), tally=AttainmentCounts()
    )
    allowed_share = counts.allowed / counts.num_requests
    if not unmended or before - unmended > allowed_share:
        return over
    reason = (
        f"more replicas do not help: {now:.2%} missed {trial.target} with "
        f"{count_of(at.window.replicas, 'replica')}, {before:.2%} before, so capacity is as it was"
    )
    return _move(over, max(at.factor, trial.factor), counts, reason, now_s=at.now_s)


def cap_to_throughput(
    posterior: ObjectPosterior, *, ratio: float, num_requests: float, now_s: float
) -> ObjectPosterior:
    """Return the factor where no more than ``ratio`` of what the arithmetic says was served.

    By replicas at which requests waited all along, ``num_requests`` of each. It only lowers: that
    more is served under overload than is believed says nothing of promises.
    """
    factor = factor_now(posterior, now_s=now_s)
    doubt = max(SERVED_LESS, SERVED_DEVIATIONS / math.sqrt(max(1.0, num_requests)))
    if ratio <= 0 or ratio > (1 - doubt) * factor:
        return posterior
    return replace(
        posterior,
        goodput_factor=max(LOWEST, ratio, factor * math.exp(-LARGEST_HELD)),
        num_judged=posterior.num_judged + num_requests,
        judged_at_s=now_s,
    )


def _add_window(known: Judgement, window: SloWindow, expected_ratio: float) -> Judgement:
    """Return the evidence with a window more, less what more replicas have not mended."""
    tally, posterior = known.tally, known.posterior
    most = max((each.allowed for each in tally.targets.values()), default=0.0)
    kept = 0.5 if most > MOST_ALLOWED and tally.seconds >= EVIDENCE_S else 1.0
    targets = {
        name: TargetCounts(*(kept * n for n in each)) for name, each in tally.targets.items()
    }
    unmended = {each.target: each for each in posterior.unmended}
    is_kept, is_missed = bool(window.verdicts), False
    for each in window.verdicts:
        always = 0.0
        if each.num_requests and each.target in unmended:
            was = unmended[each.target]
            weight = -math.expm1(-window.seconds / SEEN_S)
            share = was.share + weight * (each.late / each.num_requests - was.share)
            unmended[each.target] = was._replace(share=min(was.most, share))
            always = min(was.most, share) * each.num_requests
        before = targets.get(each.target, TargetCounts())
        late = max(0.0, each.late_by_load - always)
        may_be = each.num_requests * (1 - each.quantile)
        is_missed = is_missed or late > may_be
        is_kept = is_kept and each.num_requests > 0 and each.late <= may_be
        targets[each.target] = TargetCounts(
            num_requests=before.num_requests + each.num_requests,
            late=before.late + late,
            late_at_all=before.late_at_all + max(0.0, each.late - always),
            allowed=before.allowed + may_be,
            expected=before.expected + may_be * expected_ratio,
        )
    faded = math.exp(-window.seconds / DAY_S) * posterior.kept_load
    return Judgement(
        posterior=replace(
            posterior,
            unmended=tuple(unmended.values()),
            kept_load=max(faded, window.load if is_kept else 0.0),
        ),
        tally=AttainmentCounts(
            targets=targets,
            load_s=kept * tally.load_s + window.load * window.seconds,
            seconds=kept * tally.seconds + window.seconds,
            missed_in_a_row=tally.missed_in_a_row + 1 if is_missed else 0,
        ),
    )


def _score(late: float, expected: float) -> float:
    return (late - expected) / math.sqrt(CLUMPS * max(1.0, expected))


def _counted(tally: AttainmentCounts, name: str, factor: float) -> str:
    counts = tally.targets[name]
    return (
        f"{counts.late:.0f} of {count_of(f'{counts.num_requests:.0f}', 'request')} queued or were "
        f"stepped too long for {name} at {tally.load / factor:.0%} of the expected capacity, "
        f"{counts.expected:.0f} were expected and {counts.allowed:.0f} allowed"
    )


def given_back(posterior: ObjectPosterior, ratio: float) -> ObjectPosterior:
    """Return the factor after the learner moved goodput by a ratio, for the same evidence maybe.

    What broken promises have shown stays as a rate: it is not more because single steps are faster
    at lighter load. What kept ones have shown is not counted twice.
    """
    factor, trial = posterior.goodput_factor, posterior.trial
    if factor < 1:
        factor = min(1.0, max(LOWEST, factor / ratio))
    elif ratio > 1:
        factor = max(1.0, factor / ratio)
    if trial:
        trial = replace(trial, factor=min(HIGHEST, max(LOWEST, trial.factor / ratio)))
    kept_load = posterior.kept_load / ratio
    return replace(posterior, goodput_factor=factor, trial=trial, kept_load=kept_load)
