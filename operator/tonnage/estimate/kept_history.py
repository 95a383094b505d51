"""The history of demand as it is kept for the next process: some 3.5 KiB of text for an object.

Kept are the mean demand by ten minutes of eight days, the peaks of one, and the records of
forecasts, of rises and of what holding replicas would have cost. Notes of the last hour and
forecasts that are not due yet are not: after a restart they are of another time. A bin that has not
ended is left out, and one that nobody noted is missing.

A figure is two letters, a step on a scale of 4,094 from a ten-thousandth of a replica to ten
thousand, each 0.45 % above the last: so no text can tell of a demand that cannot be. Whether what
came since is worth a write is asked once an hour, and a load that stays as it is is not.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Final

from tonnage.estimate.forecast import FORGET_S, PATTERN_S, DemandPeak, History, Score, reserve
from tonnage.estimate.headroom import FIRST, Rises, headroom
from tonnage.estimate.holding import NOTHING_HELD, Held, held_starts
from tonnage.estimate.ways import BIN_S, DAY_S, NOTE_S, WAYS
from tonnage.units import HOUR_S

ALPHABET: Final = ascii_uppercase + ascii_lowercase + digits + "-_"
LETTERS: Final = 2
"""Of one figure."""
MISSING, NOTHING, FIRST_STEP = 0, 1, 2
LAST_STEP: Final = len(ALPHABET) ** LETTERS - 1
LEAST, MOST = 1e-4, 1e4
"""Of the scale: a fleet has a thousand replicas at most."""
GROWTH: Final = math.log(MOST / LEAST) / (LAST_STEP - FIRST_STEP)
MAX_BINS: Final = int(PATTERN_S // BIN_S)
MAX_PEAK_BINS: Final = int(DAY_S // BIN_S) + 1
MOST_WEIGHT: Final = 1.001 / (1 - math.exp(-NOTE_S / FORGET_S))
"""That a score comes to if it is never without a note, and a rounding."""
KEPT_S: Final = HOUR_S
"""Between two looks at whether a history is worth a write."""
CHANGE, LEAST_CHANGE = 0.1, 0.25
"""Of demand, as a share and in replicas: what exceeds both is worth a write."""
CHANCE_Z: Final = 4.0
"""Standard deviations of the difference of two means, which it has to exceed as well."""
RESERVE_CHANGE: Final = 0.1
QUANTILE: Final = 0.95
"""At which reserves are compared."""
HEADROOM_CHANGE: Final = 0.04
STRICT: Final = 0.99
"""The quantile at which headroom is compared, and for how long replicas are held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BinRow:
    """Figures of bins that follow each other."""

    first: int = 0
    """Number of the first bin: ten minutes each, since 1970."""
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptHistory:
    """The demand of one object as far as the next process is to know it."""

    kept_at_s: float
    unit: str
    """Memory key of the engines in whose replicas demand is told."""
    unit_requests_per_s: float
    """That one of them served at most."""
    means: BinRow
    peaks: BinRow
    """How far demand rose above what was planned for."""
    planned: BinRow
    """What was, in the same bins."""
    heights: BinRow
    """How high it rose, in the same bins."""
    scores: Mapping[str, Score]
    rises: Rises = FIRST
    held: Held = NOTHING_HELD


def to_stored(
    history: History, *, unit: str, unit_requests_per_s: float, now_s: float
) -> KeptHistory:
    """Return what is to be kept of a history."""
    means = {at: mean for at, (mean, _) in history.pattern.items()}

    def of_peaks(figure: Callable[[DemandPeak], float]) -> BinRow:
        return row(_within({each.bin: figure(each) for each in history.peaks}, now_s, DAY_S))

    return KeptHistory(
        kept_at_s=now_s,
        unit=unit,
        unit_requests_per_s=unit_requests_per_s,
        means=row(_within(means, now_s, PATTERN_S)),
        peaks=of_peaks(lambda each: each.ratio),
        planned=of_peaks(lambda each: each.demand),
        heights=of_peaks(lambda each: each.height),
        scores={way: score for way, score in history.scores.items() if way in WAYS},
        rises=tuple(history.rises),
        held=tuple(history.held),
    )


def from_stored(known: KeptHistory, *, now_s: float) -> History:
    """Return the history that was kept, without what is too old or still to come."""
    means = _within(figures(known.means), now_s, PATTERN_S)
    planned, heights = figures(known.planned), figures(known.heights)
    peaks = _within(figures(known.peaks), now_s, DAY_S)
    return History(
        pattern={at: (mean, 1) for at, mean in means.items()},
        scores=known.scores,
        peaks=tuple(
            DemandPeak(bin=at, ratio=ratio, demand=planned[at], height=heights[at])
            for at, ratio in peaks.items()
            if at in planned and at in heights
        ),
        rises=known.rises,
        held=known.held,
    )


def is_news(before: KeptHistory | None, after: KeptHistory) -> bool:
    """Tell whether a history holds what the kept one does not lead to expect.

    Of that the last mean is expected to stay: nothing else is known where a bin is missing.
    """
    if before is not None and before.unit != after.unit:
        return True
    known, now = figures(before.means) if before else {}, figures(after.means)
    newest = max(known, default=0)
    expected = known.get(newest, next(iter(now.values()), 0.0))
    least = _least_change(expected, after.unit_requests_per_s)
    has_changed = any(abs(mean - expected) > least for at, mean in now.items() if at > newest)
    is_reserve = abs(_reserve(after) - _reserve(before)) > RESERVE_CHANGE
    return has_changed or is_reserve or _has_record_changed(before, after)


def _has_record_changed(before: KeptHistory | None, after: KeptHistory) -> bool:
    """Tell whether rises ask for another headroom, or replicas are to be held for another time."""
    rises, held = (before.rises, before.held) if before else (FIRST, NOTHING_HELD)
    rooms = [headroom(each, quantile=STRICT) for each in (rises, after.rises)]
    starts = [held_starts(each, quantile=STRICT) for each in (held, after.held)]
    return abs(rooms[0] - rooms[1]) > HEADROOM_CHANGE or starts[0] != starts[1]


def _least_change(expected: float, unit_requests_per_s: float) -> float:
    """Return by how many replicas a mean has to differ, chance in two counts of requests left out.

    A mean stands on ``expected * unit_requests_per_s * BIN_S`` requests.
    """
    deviation = math.sqrt(2 * expected / (unit_requests_per_s * BIN_S))
    return max(CHANGE * expected, LEAST_CHANGE, CHANCE_Z * deviation)


def _reserve(known: KeptHistory | None) -> float:
    if known is None:
        return 0.0
    return reserve(from_stored(known, now_s=known.kept_at_s), quantile=QUANTILE)


def _within(bins: Mapping[int, float], now_s: float, for_s: float) -> dict[int, float]:
    """Return the bins that have ended, and began so long ago at most."""
    return {at: value for at, value in bins.items() if now_s - for_s <= at * BIN_S <= now_s - BIN_S}


def row(values: Mapping[int, float]) -> BinRow:
    """Return figures by bin as text; what is between them is missing.

    >>> row({7: 0.0, 9: 1.0})
    BinRow(first=7, text='ABAAgB')
    """
    if not values:
        return BinRow()
    first, last = min(values), max(values)
    steps = (_step(values.get(at)) for at in range(first, last + 1))
    return BinRow(first=first, text="".join(_letters(steps)))


def _letters(steps: Iterable[int]) -> Iterable[str]:
    for step in steps:
        high, low = divmod(step, len(ALPHABET))
        yield ALPHABET[high] + ALPHABET[low]


def _step(value: float | None) -> int:
    if value is None or not 0 <= value < math.inf:
        return MISSING
    if value < LEAST:
        return NOTHING
    return FIRST_STEP + round(math.log(min(value, MOST) / LEAST) / GROWTH)


def figures(written: BinRow) -> dict[int, float]:
    """Return figures by bin, without those that are missing.

    Raises:
        ValueError: the text is none of ours.
    """
    text = written.text
    if len(text) % LETTERS:
        raise ValueError("half a figure")
    places = [ALPHABET.index(letter) for letter in text]
    steps = [
        len(ALPHABET) * high + low for high, low in zip(places[::2], places[1::2], strict=True)
    ]
    return {written.first + at: _value(step) for at, step in enumerate(steps) if step != MISSING}


def _value(step: int) -> float:
    return 0.0 if step == NOTHING else LEAST * math.exp((step - FIRST_STEP) * GROWTH)
