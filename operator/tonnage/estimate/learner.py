"""Learning the constants of a step: overhead, bandwidth and prefill, recursively and in doubt.

An extended Kalman filter on the logarithms of three constants: a factor on the overheads, the
bandwidth efficiency and the prefill efficiency. What a window shows (``estimate.speed``) is
compared with what the constants say of the same state, and the difference is given to each constant
as far as the step depends on it and it is in doubt. Overhead and slope so come apart as states
differ, and stay tied where they do not: the covariance knows which. All of it is bounded: by a band
around the prior, by a gate on what can be believed, by a limit on each step, and by doubt that
grows with age.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from statistics import NormalDist
from typing import NamedTuple

from tonnage.catalog.engine_speed import SpeedConstants
from tonnage.estimate.posterior import SpeedPosterior, Three
from tonnage.estimate.speed import (
    REMEMBERED,
    BusyWindow,
    predicted_gap_s,
    predicted_prefill_s,
    prefill_share,
    with_speed,
)
from tonnage.sizing.step_time.model import StepTimeModel
from tonnage.units import HOUR_S

SHARES: Three = (0.2, -0.5, -0.3)
"""How the logarithm of a step at the load line follows those of the constants, typically."""
DEVIATIONS: Three = (2.0, 1.0, 2.0)
"""Of the prior's constants, in proportion: overheads and prefill are known less than bandwidth."""
BAND: Three = (5.0, 2.5, 2.5)
"""A constant stays within its prior divided and multiplied by so much."""
DRIFT_PER_HOUR: Three = (0.04, 0.03, 0.04)
"""Deviation that an hour adds to what was known: 4 % after one hour, 20 % after a day."""
NOISE = 0.02
"""Of a mean gap that the formula predicts from a window, as a share of it."""
WINDOW_ERROR = 0.01
"""Least doubt of a step, however many windows told it: by so much what the formula says of an hour
of windows with the engine's very constants differs from what they show."""
PREFILL_NOISE = 0.04
COMPANY_NOISE = 0.25
"""Of a prefill, times the share of prompts in a step: who else is in it is not known."""
MOST_POOLED = 4
"""Pods beyond these make the median no surer: what they have in common stays."""
GATE = 3.0
"""Standard deviations beyond which a window teaches nothing by itself."""
FORGETTING = 0.6
SLOWER_REGIME, FASTER_REGIME = 2.0, 2.5
"""Mean recent surprise at which the engine counts as changed: two windows in a row that are beyond
the gate towards slower, three towards faster."""
FORGOTTEN = 0.5
"""Of the prior's variance, added when the regime has changed."""
SAME_S, SOON_S = 600.0, 2400.0
"""Steps towards a large change follow one another. An engine that changes again later, but before
long, has not changed: the formula does not fit it."""
MISFIT_GAIN, MOST_MISFIT = 0.3, 1.0
MISFIT_KEPT = 0.98
"""Of the square of what no constants explained, from window to window: half of it in 35 minutes."""
LARGEST_STEP = 0.2
"""Of a logarithm, in one window."""
NUDGE = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class PodWindow:
    """The engines of one pod over one window, and the model of what runs in it."""

    pod: str
    model: StepTimeModel
    """With the prior's constants."""
    engines: tuple[BusyWindow, ...]


@lru_cache(maxsize=REMEMBERED)
def prior_posterior(constants: SpeedConstants, *, spread_fraction: float) -> SpeedPosterior:
    """Return what is known before anything is measured.

    ``spread_fraction``: eight of ten measured steps lie within so much of the predicted one.
    """
    deviation = math.log1p(spread_fraction) / quantile_z(0.8)
    weighted = [share * each for share, each in zip(SHARES, DEVIATIONS, strict=True)]
    scale = (deviation / math.hypot(*weighted)) ** 2
    o, b, f = (scale * each**2 for each in DEVIATIONS)
    return SpeedPosterior(
        overhead_factor=1.0,
        bandwidth_efficiency=constants.bandwidth_efficiency,
        prefill_efficiency=constants.prefill_efficiency,
        covariance=(o, 0.0, 0.0, b, 0.0, f),
    )


@cache
def quantile_z(share: float) -> float:
    """Return the standard deviations on either side that hold such a share of a normal."""
    return NormalDist().inv_cdf((1 + share) / 2)


def constants_of(posterior: SpeedPosterior, prior: SpeedConstants) -> SpeedConstants:
    return with_speed(prior, posterior.constants)


def with_constants(posterior: SpeedPosterior, constants: Three) -> SpeedPosterior:
    overhead, bandwidth, prefill = constants
    return replace(
        posterior,
        overhead_factor=overhead,
        bandwidth_efficiency=bandwidth,
        prefill_efficiency=prefill,
    )


def deviation_of_step(posterior: SpeedPosterior) -> float:
    """Return the doubt of a step's time at the load line, as a share of it.

    With what no constants explain: that is known to be there, but not at which load.
    """
    by_constants = max(WINDOW_ERROR, _deviation_by_constants(posterior))
    return math.hypot(by_constants, posterior.misfit)


def _deviation_by_constants(posterior: SpeedPosterior) -> float:
    return math.sqrt(max(0.0, _dot(SHARES, _times(posterior, SHARES))))


@lru_cache(maxsize=REMEMBERED)
def slow_end(posterior: SpeedPosterior, *, share: float) -> SpeedPosterior:
    """Return the constants at the slow end of the range that holds such a share of the truth.

    All parts of a step take longer by the same factor. What no constants explain has no part in
    it: broken promises say at which load it counts.
    """
    deviation = _deviation_by_constants(posterior)
    factor = math.exp(quantile_z(share) * deviation) if share else 1.0
    overhead, bandwidth, prefill = posterior.constants
    return with_constants(posterior, (overhead * factor, bandwidth / factor, prefill / factor))


def age(known: SpeedPosterior, prior: SpeedPosterior, *, now_s: float) -> SpeedPosterior:
    """Return what is known now of what was known then: doubt grows, up to the prior's."""
    hours = max(0.0, now_s - known.learned_at_s) / HOUR_S if known.learned_at_s else 0.0
    return _with_more(known, [hours * each**2 for each in DRIFT_PER_HOUR], prior.variances)


def learn(
    known: SpeedPosterior, prior: SpeedPosterior, pods: Sequence[PodWindow], *, now_s: float
) -> SpeedPosterior:
    """Take in what the pods of a key did over one window; each pod has one vote.

    Not more often than once a window: windows that overlap would count the same steps twice.
    """
    before = age(known, prior, now_s=now_s)
    after = _update(before, prior, pods, _GAP, now_s)
    if after is before:
        return known
    after = _update(after, prior, pods, _PREFILL, now_s)
    windows = (window for pod in pods for window in pod.engines)
    steps = sum(each.num_gaps / max(1.0, each.step.num_sequences) for each in windows)
    return replace(
        after,
        num_windows=known.num_windows + 1,
        num_steps=known.num_steps + steps,
        learned_at_s=now_s,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Quantity:
    """A figure that a window shows: as measured, as predicted, and how well both may agree."""

    measured: Callable[[BusyWindow], float | None]
    predicted: Callable[[StepTimeModel, BusyWindow], float]
    variance: Callable[[StepTimeModel, BusyWindow], float]


def _chance_of_prompts(window: BusyWindow) -> float:
    """Return the variance of the mean length of the prompts in a window, as a share of it."""
    return (1 + window.prompts.scv) / max(1.0, window.num_prefills)


def _prefill_variance(model: StepTimeModel, window: BusyWindow) -> float:
    company = COMPANY_NOISE * prefill_share(model, window)
    return PREFILL_NOISE**2 + company**2 + _chance_of_prompts(window)


_GAP = _Quantity(
    measured=lambda window: window.gap_s,
    predicted=predicted_gap_s,
    variance=lambda model, window: (
        NOISE**2 + prefill_share(model, window) ** 2 * _chance_of_prompts(window)
    ),
)
_PREFILL = _Quantity(
    measured=lambda window: window.prefill_s,
    predicted=predicted_prefill_s,
    variance=_prefill_variance,
)


class _Vote(NamedTuple):
    """What one engine, pod or fleet says: the residual of a logarithm, and in which window."""

    residual: float
    predicted: float
    """A logarithm, too."""
    model: StepTimeModel
    """With the prior's constants."""
    window: BusyWindow


def _update(
    known: SpeedPosterior,
    prior: SpeedPosterior,
    pods: Sequence[PodWindow],
    of: _Quantity,
    now_s: float,
) -> SpeedPosterior:
    """Return the posterior after one scalar update; the same one where nobody votes."""
    votes = [vote for vote in (_pod_vote(known, pod, of) for pod in pods) if vote]
    if not votes:
        return known
    vote = _median(votes)
    slopes = _slopes(known, vote, of)
    variance = of.variance(_believed(known, vote.model), vote.window)
    variance = variance / min(len(votes), MOST_POOLED) + known.misfit**2
    spread = _times(known, slopes)
    total = _dot(slopes, spread) + variance
    score = vote.residual / math.sqrt(total)
    if of is _GAP:
        bounded = max(-GATE - 0.5, min(GATE + 0.5, score))  # however far it is beyond the gate
        known = replace(
            known,
            surprise=FORGETTING * known.surprise + (1 - FORGETTING) * bounded,
            misfit=math.sqrt(MISFIT_KEPT) * known.misfit,
        )
        if abs(score) > GATE:
            if -FASTER_REGIME <= known.surprise <= SLOWER_REGIME:  # no windows in a row say it
                return known
            known = _in_new_regime(known, prior, vote.residual, now_s)
            spread = _times(known, slopes)
            total = _dot(slopes, spread) + variance
    elif abs(score) > GATE:  # prompts vary more than is known of them: a bounded step, no surer
        bounded = vote.residual * GATE / abs(score)
        return _move(known, prior, [each / total * bounded for each in spread])
    gains = spread[0] / total, spread[1] / total, spread[2] / total
    moved = _move(known, prior, [gain * vote.residual for gain in gains])
    return _reduced(moved, gains, spread)


def _in_new_regime(
    known: SpeedPosterior, prior: SpeedPosterior, residual: float, now_s: float
) -> SpeedPosterior:
    """Return the posterior when the engine has changed; soon again, no constants explain it."""
    first = prior.variances
    known = _with_more(known, [FORGOTTEN * each for each in first], first)
    is_again = known.regime_at_s and SAME_S < now_s - known.regime_at_s < SOON_S
    bounded = min(residual**2, MOST_MISFIT**2) if is_again else 0.0
    misfit = math.sqrt(known.misfit**2 + MISFIT_GAIN * bounded)
    return replace(known, surprise=0.0, misfit=misfit, regime_at_s=now_s)


def _pod_vote(known: SpeedPosterior, pod: PodWindow, of: _Quantity) -> _Vote | None:
    votes = []
    for each in pod.engines:
        if measured := of.measured(each):
            predicted = _logarithm(known, pod.model, each, of)
            votes.append(_Vote(math.log(measured) - predicted, predicted, pod.model, each))
    return _median(votes) if votes else None


def _believed(known: SpeedPosterior, model: StepTimeModel) -> StepTimeModel:
    return replace(model, constants=constants_of(known, model.constants))


def _logarithm(
    known: SpeedPosterior, model: StepTimeModel, window: BusyWindow, of: _Quantity
) -> float:
    return math.log(of.predicted(_believed(known, model), window))


def _slopes(known: SpeedPosterior, vote: _Vote, of: _Quantity) -> Three:
    """Return how the logarithm of what is predicted follows those of the constants."""
    (o, b, f), more = known.constants, math.exp(NUDGE)
    o, b, f = (
        _logarithm(with_constants(known, each), vote.model, vote.window, of) - vote.predicted
        for each in ((o * more, b, f), (o, b * more, f), (o, b, f * more))
    )
    return o / NUDGE, b / NUDGE, f / NUDGE


def _median(votes: Sequence[_Vote]) -> _Vote:
    """Return the vote in the middle; of an even number, of the two that which is believed more.

    Of two that disagree one is wrong, and their mean would follow it half of the way: what both
    say is learned, not what one says.
    """
    ordered = sorted(votes, key=lambda vote: vote.residual)
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return min(low, high, key=lambda vote: abs(vote.residual))


def _move(known: SpeedPosterior, prior: SpeedPosterior, by: Sequence[float]) -> SpeedPosterior:
    largest = max(abs(each) for each in by)
    scale = min(1.0, LARGEST_STEP / largest) if largest else 1.0
    o, b, f = (
        min(max(value * math.exp(scale * step), around / band), around * band)
        for value, step, around, band in zip(
            known.constants, by, prior.constants, BAND, strict=True
        )
    )
    return with_constants(known, (o, b, f))


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))


def _times(posterior: SpeedPosterior, vector: Three) -> Three:
    oo, ob, of, bb, bf, ff = posterior.covariance
    one, two, three = (_dot(row, vector) for row in ((oo, ob, of), (ob, bb, bf), (of, bf, ff)))
    return one, two, three


def _with_more(known: SpeedPosterior, variances: Sequence[float], most: Three) -> SpeedPosterior:
    """Return the posterior with more doubt; where a variance exceeds the most, with less of all."""
    oo, ob, of, bb, bf, ff = known.covariance
    grown = [has + more for has, more in zip((oo, bb, ff), variances, strict=True)]
    o, b, f = (math.sqrt(m / h) if h > m else 1.0 for h, m in zip(grown, most, strict=True))
    return replace(
        known,
        covariance=(
            o * grown[0] * o, o * ob * b, o * of * f,
            b * grown[1] * b, b * bf * f,
            f * grown[2] * f,
        ),
    )  # fmt: skip


def _reduced(known: SpeedPosterior, gains: Three, spread: Three) -> SpeedPosterior:
    oo, ob, of, bb, bf, ff = known.covariance
    (go, gb, gf), (so, sb, sf) = gains, spread
    left = (oo - go * so, ob - go * sb, of - go * sf, bb - gb * sb, bf - gb * sf, ff - gf * sf)
    return replace(known, covariance=left)
