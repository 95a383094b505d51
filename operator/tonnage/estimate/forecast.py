"""Demand when a replica that is asked for now is Ready: forecasts, and their own record.

Five ways to forecast run side by side (``forecasters``). Each forecast is kept until its time has
come and then scored. A rise that goes on is believed until its record is worse than that of the
last value: where starts take ten minutes there is no time to wait for one. Another way has to do
clearly better. A forecast that is too low breaks promises and one that is too high costs a replica
or two for minutes, so the loss is that of a quantile.

Bursts that are over before a new replica could be Ready are no matter of forecasts. By how much
they exceeded what was planned for is kept for a day; the reserve is the least that leaves no more
requests in higher bursts than the promise allows to be late. A rise that stays is no burst, and
what chance adds to a count is taken off before. Bursts are expected to grow and shrink with what
usually comes, but to be no higher than they were unless that was never as much.

Demand is told in replicas: requests per second over what a replica serves at most at their lengths,
which change with the hour.

Sources:
    [koenker-bassett] Regression Quantiles, Econometrica 46, 1978: the loss.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Final

from tonnage.estimate.forecasters import (
    BIN_S,
    DAY_S,
    LAST,
    RISE,
    SAMPLE_INTERVAL_S,
    TREND_S,
    WEEK_S,
    ForecastInput,
    forecasts,
    noted_since,
)
from tonnage.estimate.headroom import (
    FORGET_S,
    ForecastErrors,
    KeptRecord,
    Score,
    add_forecast_error,
    highest,
    with_held,
)
from tonnage.units import HOUR_S

LATEST_S: Final = 2 * SAMPLE_INTERVAL_S
"""After its time, at which a forecast can still be scored: after a gap it is about another hour."""
SEEN_S: Final = 2 * SAMPLE_INTERVAL_S
"""In which a jump is counted in full: until then a part of it is taken for the demand. What rises
more slowly is no jump, however far it gets within a start."""
RECENT_S: Final = HOUR_S
"""That single notes are kept."""
PATTERN_S: Final = WEEK_S + DAY_S
"""For which means are kept."""
UNDER: Final = 0.8
"""The quantile that forecasts are scored as: too low by one counts four times too high by one."""
MIN_SCORED: Final = 30.0
BETTER: Final = 0.9
"""Of the loss of the last value: what another way has to stay below."""
CHANCE_Z: Final = 2.0
"""Standard deviations of a count that are taken off it before it is called a burst, or a rise above
the plan. A plan takes no more off: what chance alone shows asks for no headroom."""
MIN_USUAL: Final = 6
"""Notes, before it is known what usually comes."""
LEAST_PEAK: Final = 1.1
"""Below, a peak is what chance makes of a rate that wavers."""
BURST: Final = 1.5
"""Times what usually comes."""
RECURS: Final = 2
"""Bins that show a burst that high, before it is expected again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingForecast:
    """What was forecast for a time that is yet to come, and the highest demand since."""

    noted_s: float
    due_s: float
    forecasts: Mapping[str, float]
    base: float
    """That the fleet was planned for."""
    peak: float = 0.0
    peak_s: float = 0.0
    """When that was seen."""
    highest: tuple[float, ...] = ()
    """Demand that replicas would have been held for, by how long they are held."""


UNSCORED: Final = Score(0.0, 0.0)
NOTHING_KEPT: Final = KeptRecord(record={})


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandPeak:
    """How far demand rose in one bin above what was planned for a lead before, and fell again."""

    bin: int
    ratio: float
    demand: float
    """Planned for, the most of the bin."""
    height: float
    """Of what came, the most of the bin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The demand of one object as far as it is remembered. Times are unix seconds."""

    recent: tuple[tuple[float, float], ...] = ()
    """(time, demand), a minute apart."""
    pattern: Mapping[int, tuple[float, int]] = field(default_factory=dict)
    """(mean demand, notes) by ten minutes since 1970, for eight days."""
    due: tuple[PendingForecast, ...] = ()
    peaks: tuple[DemandPeak, ...] = ()
    """By the ten minutes in which they were seen, of a day."""
    kept: KeptRecord = NOTHING_KEPT


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Demand when a replica that is asked for now is Ready, and how that was come by."""

    demand: float
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandSample:
    """What is measured and planned at a time."""

    at_s: float
    demand: float
    sure: float
    """The same less what chance may have added since a plan was made for another such count."""
    peak: float
    """Over the shortest window, chance taken off."""
    planned: float
    """Read where the note is due."""
    lead_s: float
    """Until a replica that is asked for now is Ready."""


def observe_demand(history: History, note: DemandSample) -> History:
    """Return the history with a note: one a minute is kept, and the peaks between.

    A clock that was set back begins anew.
    """
    if history.recent and note.at_s < history.recent[-1][0]:
        history = History(pattern=history.pattern, kept=history.kept)
    due = tuple(
        replace(each, peak=note.peak, peak_s=note.at_s) if note.peak > each.peak else each
        for each in history.due
    )
    history = replace(history, due=due)
    if not is_note_due(history, note.at_s):
        return history
    return _with_note(_score_due(history, note), note)


def is_note_due(history: History, at_s: float) -> bool:
    """Tell whether the newest note is a minute old, or of a clock that was set back."""
    return not history.recent or not 0 <= at_s - history.recent[-1][0] < SAMPLE_INTERVAL_S


def _with_note(history: History, note: DemandSample) -> History:
    at_s, rate = note.at_s, note.demand
    recent = (*(each for each in history.recent if each[0] > at_s - RECENT_S), (at_s, rate))
    history = replace(history, recent=recent, pattern=_in_pattern(history, at_s, rate))
    new = PendingForecast(
        noted_s=at_s,
        due_s=at_s + note.lead_s,
        forecasts=_forecasts(history, at_s, rate, note.lead_s),
        base=note.planned,
        peak_s=at_s,
        highest=highest(history.recent, history.pattern, at_s=at_s, lead_s=note.lead_s),
    )
    return replace(history, due=(*history.due, new))


def rescale(history: History, factor: float) -> History:
    """Return the history in another unit: of replicas that serve so many times less."""
    due = (
        replace(
            each,
            forecasts={name: factor * value for name, value in each.forecasts.items()},
            base=factor * each.base,
            peak=factor * each.peak,
            highest=tuple(factor * value for value in each.highest),
        )
        for each in history.due
    )
    return replace(
        history,
        recent=tuple((at_s, factor * value) for at_s, value in history.recent),
        pattern={at: (factor * mean, count) for at, (mean, count) in history.pattern.items()},
        due=tuple(due),
        peaks=tuple(
            replace(each, demand=factor * each.demand, height=factor * each.height)
            for each in history.peaks
        ),
        kept=replace(
            history.kept,
            held=tuple((factor * short, factor * over) for short, over in history.kept.held),
        ),
    )


def _in_pattern(history: History, at_s: float, demand: float) -> Mapping[int, tuple[float, int]]:
    number = int(at_s // BIN_S)
    mean, count = history.pattern.get(number, (0.0, 0))
    mean += (demand - mean) / (count + 1)
    oldest = number - int(PATTERN_S // BIN_S)
    kept = history.pattern
    if number not in kept:
        kept = {each: value for each, value in kept.items() if each >= oldest}
    return {**kept, number: (mean, count + 1)}


def _score_due(history: History, note: DemandSample) -> History:
    """Score the forecasts whose time has come, and keep by how much demand exceeded the plan."""
    scores, peaks = dict(history.kept.record), history.peaks
    rises, held = history.kept.rises, history.kept.held
    kept = math.exp(-SAMPLE_INTERVAL_S / FORGET_S)
    came = [each for each in history.due if each.due_s <= note.at_s]
    for each in came:
        if note.at_s - each.due_s > LATEST_S:
            continue
        for name, forecast in each.forecasts.items():
            before, missed = scores.get(name, UNSCORED), note.demand - forecast
            loss = UNDER * missed if missed > 0 else (UNDER - 1) * missed
            scores[name] = Score(loss=kept * before.loss + loss, weight=kept * before.weight + 1)
        peaks = _with_peak(peaks, each, stays=note.demand)
        rises = _with_rise(rises, history, each, note)
        held = with_held(held, [max(each.base, value) for value in each.highest], came=note.sure)
    if not came:
        return history
    oldest = int((note.at_s - DAY_S) // BIN_S)
    return replace(
        history,
        kept=KeptRecord(record=scores, rises=rises, held=held),
        peaks=tuple(each for each in peaks if each.bin >= oldest),
        due=tuple(each for each in history.due if each.due_s > note.at_s),
    )


def _with_rise(
    rises: ForecastErrors, history: History, due: PendingForecast, note: DemandSample
) -> ForecastErrors:
    """Return the record of rises above what the fleet stood for.

    That is not less than what came in the two minutes before the plan: one that was low for a tick,
    by chance of a short count, took no replica away.
    """
    if not due.base:
        return rises
    notes = (*history.recent, (note.at_s, note.demand))
    around = [(at_s, rate) for at_s, rate in notes if abs(at_s - due.noted_s) <= SEEN_S]
    rates = [rate for _, rate in around] or [due.base]
    provisioned_for = max([due.base, *(rate for at_s, rate in around if at_s <= due.noted_s)])
    # What did not stay was no jump: a count that was high by chance least of all.
    stayed, least = min(max(rates), note.sure), min(rates)
    return add_forecast_error(
        rises, note.sure / provisioned_for - 1, risen=stayed / least - 1 if least else math.inf
    )


def _with_peak(
    peaks: tuple[DemandPeak, ...], due: PendingForecast, *, stays: float
) -> tuple[DemandPeak, ...]:
    """Return the record with one more lead; ``stays``: the requests/s at its end.

    Many leads hold the same burst: it is kept in the bin in which it was seen.
    """
    base = max(due.base, stays)
    if base <= 0:
        return peaks
    new = DemandPeak(
        bin=int(due.peak_s // BIN_S), ratio=due.peak / base, demand=base, height=due.peak
    )
    if not peaks or peaks[-1].bin < new.bin:
        return (*peaks, new)
    last = peaks[-1]
    merged = replace(
        last,
        ratio=max(last.ratio, new.ratio),
        demand=max(last.demand, new.demand),
        height=max(last.height, new.height),
    )
    return (*peaks[:-1], merged)


def forecast(history: History, *, at_s: float, demand: float, lead_s: float) -> Forecast:
    """Return what is expected after ``lead_s``: the last value, if nothing does better."""
    ways = _forecasts(history, at_s, demand, lead_s)
    last = history.kept.record.get(LAST, UNSCORED)
    known = {
        name: score
        for name in ways
        if (score := history.kept.record.get(name, UNSCORED)).weight >= MIN_SCORED
    }
    # It never tells of less, so loses less than a trend does while demand falls: which is no merit.
    others = [name for name in known if name != RISE]
    best = min(others, key=lambda name: known[name].mean, default=LAST)
    if best != LAST and known[best].mean <= BETTER * last.mean:
        gain = 1 - known[best].mean / last.mean if last.mean else 0.0
        origin = f"{best}, whose error was {gain:.0%} below that of the last value"
        return Forecast(demand=ways[best], origin=origin)
    has_misled = RISE in known and known[RISE].mean > last.mean
    if ways.get(RISE, 0.0) > demand and not has_misled:
        return Forecast(demand=ways[RISE], origin=RISE)
    return Forecast(demand=demand, origin=LAST)


def _forecasts(history: History, at_s: float, demand: float, lead_s: float) -> Mapping[str, float]:
    """Return what each way comes to: what was just noted was forecast with that."""
    newest, last = history.due[-1:], history.recent[-1:]
    is_noted = last == ((at_s, demand),) and newest and newest[0].noted_s == at_s
    if is_noted and newest[0].due_s == at_s + lead_s:
        return newest[0].forecasts
    seen = ForecastInput(
        recent=history.recent, pattern=history.pattern, at_s=at_s, demand=demand, lead_s=lead_s
    )
    return dict(forecasts(seen))


def reserve(history: History, *, quantile: float) -> float:
    """Return the least share of demand to add that leaves few enough requests in higher bursts.

    ``quantile``: of the promise; the requests of a burst count for a note's time at its height.
    """
    if len(history.peaks) < RECURS:
        return 0.0
    highest = max(each.demand for each in history.peaks)
    usually = usual(history) or highest
    risen = max(1.0, usually / highest)
    bursts = sorted(  # by the height if they come again
        ((min(each.ratio * usually, each.height * risen), each.height) for each in history.peaks),
        reverse=True,
    )
    left = (1 - quantile) * sum(each.demand for each in history.peaks) * BIN_S
    least = usually
    for expected, came in bursts:
        left -= came * SAMPLE_INTERVAL_S
        if left < 0:
            least = min(expected, bursts[RECURS - 1][0])
            break
    return least / usually - 1 if least >= LEAST_PEAK * usually else 0.0


def usual(history: History) -> float | None:
    """Return the demand that usually comes: bursts leave a median alone; None: not known."""
    if len(history.recent) < MIN_USUAL:
        return None
    return median(rate for _, rate in noted_since(history.recent, history.recent[-1][0] - TREND_S))


def is_burst(history: History, *, sure: float) -> bool:
    """Tell whether a demand, chance taken off, is more than what usually comes."""
    calm = usual(history)
    return calm is not None and sure > BURST * calm


def without_chance(count: float, *, scv: float) -> float:
    """Return a count less what chance may have added, for arrivals of this burstiness.

    >>> without_chance(100, scv=1)
    80.0
    """
    return max(0.0, count - CHANCE_Z * math.sqrt(scv * max(0.0, count)))
