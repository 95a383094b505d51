"""Adjust an object's goodput by its SLO attainment: a bounded factor.

The engine model says how many requests come too late at a load: as many as may at goodput, and
fewer below it by a power of the load that the search for goodput has found. What is measured at the
load that runs is compared with that. A significant difference moves the factor: down at once, up
slowly. A factor below 1 comes back while far fewer are late than may be. What the learner takes in
as a change of the step time is not counted here as well: as its goodput moves, the factor moves
back by as much.
"""

import math
from dataclasses import dataclass, field, replace

from tonnage.estimate.posterior import GOODPUT_FACTORS, ObjectPosterior
from tonnage.units import HOUR_S, count_of

LOWEST, HIGHEST = GOODPUT_FACTORS
LARGEST_DOWN = 0.15
"""Of the factor's logarithm, in one judgement."""
LARGEST_UP = 0.03
UP_GAIN = 0.5
STEEPNESS = (4.0, 25.0)
"""Bounds of the power with which late requests grow with load, where more are late than allowed.
The steeper it is, the less it proves that none are late."""
CLUMPS = 3.0
"""Late requests come together: so many count as one draw."""
DEVIATIONS = 2.0
"""Of what is expected by chance, that late requests must differ by."""
NEARLY_BROKEN = 0.8
"""Of the late requests that are allowed: an excess within chance lowers nothing. Some requests are
late at any load, as short answers are when a long prompt is prefilled: more than the power of the
load says, and the SLO is met all the same."""
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
late, and is gone. A minute of an hour misses no SLO; four times as many late as allowed show within
two windows all the same."""
HALF_LIFE_S = 24 * HOUR_S
RECOVERY_S = HOUR_S / 2
"""Of kept promises, in which a low factor comes back by all but 1/e, whatever the load: what was
late may have had another cause, and lower load is no evidence that it comes again."""
RECOVERY_MARGIN = 0.5
"""Of the late requests that are allowed: with more, a factor that is right would come back to where
the promise is just broken."""
RECOVERED = 0.01
"""Of the factor's logarithm: what is left of it then is nothing."""
FUTILE_LOAD, FUTILE_RATIO, SATURATED = 0.75, 0.8, 8.0
"""At this share of the earlier load per replica this share of the lateness remains, and not nearly
all requests are late: then load is not the cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetResult:
    """How one SLO target fared over a window."""

    target: str
    quantile: float
    num_requests: float
    late: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SloWindow:
    """What happened while nothing else changed."""

    verdicts: tuple[TargetResult, ...]
    load: float
    """Demand over what the replicas are believed to serve, the factor included."""
    requests_per_s_each: float
    seconds: float
    steepness: float
    """Power of the load with which late requests grow, by the engine model."""
    is_queue_standing: bool
    """Requests have waited throughout, though there should be room."""
    may_raise: bool = True
    """Nothing at all has changed; otherwise only a missed SLO counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttainmentCounts:
    """Evidence since the factor was last moved by any: of each target, and what was expected."""

    late: dict[str, float] = field(default_factory=dict)
    allowed: dict[str, float] = field(default_factory=dict)
    expected: dict[str, float] = field(default_factory=dict)
    num_requests: float = 0.0
    seconds: float = 0.0
    began: tuple[float, float] | None = None
    """(late over allowed, requests/s of each replica) when the factor was first lowered of late."""
    is_load_independent: bool = False
    """Fewer requests for each replica made no difference."""

    @property
    def worst(self) -> str | None:
        """The target with the most late requests for those it allows."""
        known = [name for name in self.allowed if self.allowed[name] > 0]
        return max(known, key=lambda name: self.late[name] / self.allowed[name], default=None)


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


def judge_window(
    posterior: ObjectPosterior, tally: AttainmentCounts, window: SloWindow, *, now_s: float
) -> Judgement:
    """Take in one window in which nothing else changed."""
    if window.load > OVERLOAD:
        return Judgement(posterior=posterior, tally=tally)
    steepness = max(window.steepness, STEEPNESS[0])
    tally = _add_window(tally, window, window.load**steepness)
    worst = tally.worst
    step = 0.0 if worst is None else _step(tally, worst, window.load, steepness)
    if step > 0 and not window.may_raise:
        step = 0.0
    if window.is_queue_standing:
        step = min(step, -LARGEST_DOWN / 2)
    if step < 0 and worst is not None:
        tally = _futility(tally, worst, window.requests_per_s_each)
    if not step and window.may_raise and _is_well_kept(tally, window):
        return _recovery(posterior, tally, window.seconds, now_s=now_s)
    if not step or (step < 0 and tally.is_load_independent):
        return Judgement(posterior=posterior, tally=tally)
    reason = _words(tally, worst, step, window.load)
    factor = factor_now(posterior, now_s=now_s) * math.exp(step)
    moved = replace(
        posterior,
        goodput_factor=min(max(factor, LOWEST), HIGHEST),
        num_judged=posterior.num_judged + tally.num_requests,
        judged_at_s=now_s,
    )
    fresh = AttainmentCounts(began=tally.began if step < 0 else None)
    return Judgement(posterior=moved, tally=fresh, reason=reason)


def _is_well_kept(tally: AttainmentCounts, window: SloWindow) -> bool:
    """Tell whether far fewer were late than may be, in the window and in all the evidence."""
    in_window = all(
        each.late <= RECOVERY_MARGIN * each.num_requests * (1 - each.quantile)
        for each in window.verdicts
    )
    in_tally = all(
        tally.late[name] <= RECOVERY_MARGIN * may_be for name, may_be in tally.allowed.items()
    )
    return bool(window.verdicts) and in_window and in_tally


def _recovery(
    posterior: ObjectPosterior, tally: AttainmentCounts, seconds: float, *, now_s: float
) -> Judgement:
    """Bring a factor below 1 back; the evidence stays until it is there."""
    missing = -math.log(factor_now(posterior, now_s=now_s))
    if missing <= 0:
        return Judgement(posterior=posterior, tally=tally)
    left = max(missing * math.exp(-seconds / RECOVERY_S), missing - LARGEST_UP)
    is_over = left <= RECOVERED
    return Judgement(
        posterior=replace(
            posterior, goodput_factor=1.0 if is_over else math.exp(-left), judged_at_s=now_s
        ),
        tally=AttainmentCounts() if is_over else tally,
        reason="the targets are met, so the factor rises",
    )


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


def _add_window(
    tally: AttainmentCounts, window: SloWindow, expected_ratio: float
) -> AttainmentCounts:
    most = max(tally.allowed.values(), default=0.0)
    kept = 0.5 if most > MOST_ALLOWED and tally.seconds >= EVIDENCE_S else 1.0
    late, allowed, expected = (
        {name: kept * value for name, value in each.items()}
        for each in (tally.late, tally.allowed, tally.expected)
    )
    for each in window.verdicts:
        may_be = each.num_requests * (1 - each.quantile)
        late[each.target] = late.get(each.target, 0.0) + each.late
        allowed[each.target] = allowed.get(each.target, 0.0) + may_be
        expected[each.target] = expected.get(each.target, 0.0) + may_be * min(1.0, expected_ratio)
    counted = max((each.num_requests for each in window.verdicts), default=0.0)
    return replace(
        tally,
        late=late,
        allowed=allowed,
        expected=expected,
        num_requests=kept * tally.num_requests + counted,
        seconds=kept * tally.seconds + window.seconds,
    )


def _step(tally: AttainmentCounts, name: str, load: float, steepness: float) -> float:
    """Return the step of the factor's logarithm that the evidence asks for; 0: it may be chance."""
    late, allowed, expected = tally.late[name], tally.allowed[name], tally.expected[name]
    power = min(steepness, STEEPNESS[1])
    most = allowed * (expected / allowed) ** (power / steepness) if allowed else 0.0
    broken = NEARLY_BROKEN * allowed
    if _score(late, most) > DEVIATIONS and late > broken + math.sqrt(CLUMPS * broken):
        return -min(LARGEST_DOWN, math.log(late / max(most, 0.5)) / power)
    if _score(late, expected) < -DEVIATIONS and load > HIGH_LOAD:
        return min(LARGEST_UP, UP_GAIN * math.log(expected / (late + 1.0)) / power)
    return 0.0


def _score(late: float, expected: float) -> float:
    return (late - expected) / math.sqrt(CLUMPS * max(1.0, expected))


def _futility(tally: AttainmentCounts, name: str, requests_per_s_each: float) -> AttainmentCounts:
    """Note when the factor is first lowered, and whether that has helped."""
    ratio = tally.late[name] / tally.allowed[name]
    if tally.began is None:
        return replace(tally, began=(ratio, requests_per_s_each))
    first_ratio, first_rate = tally.began
    has_fallen = requests_per_s_each < FUTILE_LOAD * first_rate
    stays = FUTILE_RATIO * first_ratio < ratio < SATURATED
    return replace(tally, is_load_independent=tally.is_load_independent or (has_fallen and stays))


def _words(tally: AttainmentCounts, name: str | None, step: float, load: float) -> str:
    change = f"{math.expm1(step):+.0%} capacity"
    if name is None or not tally.allowed:
        return f"{change}: requests wait at {load:.0%} of the expected capacity"
    late, allowed, expected = tally.late[name], tally.allowed[name], tally.expected[name]
    return (
        f"{change}: {late:.0f} of {count_of(f'{tally.num_requests:.0f}', 'request')} missed {name} "
        f"at {load:.0%} of the expected capacity, {expected:.0f} were expected and "
        f"{allowed:.0f} allowed"
    )


def given_back(posterior: ObjectPosterior, ratio: float) -> ObjectPosterior:
    """Return the factor after the learner moved goodput by a ratio, for the same evidence maybe.

    What broken promises have shown stays as a rate: it is not more because single steps are faster
    at lighter load. What kept ones have shown is not counted twice.
    """
    factor = posterior.goodput_factor
    if factor < 1:
        factor = min(1.0, max(LOWEST, factor / ratio))
    elif ratio > 1:
        factor = max(1.0, factor / ratio)
    return replace(posterior, goodput_factor=factor)
