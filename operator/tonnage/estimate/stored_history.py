"""The kept history of demand as JSON, with a version of its own, checked when it is read.

The form, of which ``kept_history`` says what the texts are::

    {"version": 1, "keptAt", "unit": memory key, "unitRequestsPerSecond",
     "means": {"first", "text"}, "peaks": {"first", "text"}, "planned": {"first", "text"},
     "heights": {"first", "text"}, "record": {WAY TO FORECAST: [loss, weight]},
     "rises": [weight of notes, by how far demand rose], "held": [[short, held for nothing], ...]}

Those without ``rises``, ``held`` and ``heights`` were written before there were any; a peak is then
as high as it can have been.
"""

from collections.abc import Mapping
from typing import Any, Final

from tonnage.estimate.checked import (
    LARGEST,
    NewerStateError,
    amount,
    check,
    count,
    figure,
    name,
    positive,
)
from tonnage.estimate.forecast import Score
from tonnage.estimate.headroom import FIRST, FORGET_NOTES, Rises
from tonnage.estimate.holding import NOTHING_HELD, Held
from tonnage.estimate.kept_history import (
    LETTERS,
    MAX_BINS,
    MAX_PEAK_BINS,
    MOST,
    MOST_WEIGHT,
    KeptHistory,
    Row,
    figures,
    row,
)
from tonnage.estimate.ways import WAYS

VERSION: Final = 1
"""Raised when the meaning of a figure changes. States that have no history are of any version."""
MOST_NOTES: Final = 1.1 * FORGET_NOTES
"""What the weight of notes comes to if none is missed, and a rounding."""


def history_entry(known: KeptHistory) -> dict[str, Any]:
    return {
        "version": VERSION,
        "keptAt": round(known.kept_at_s),
        "unit": known.unit,
        "unitRequestsPerSecond": figure(known.unit_requests_per_s),
        "means": _row_entry(known.means),
        "peaks": _row_entry(known.peaks),
        "planned": _row_entry(known.planned),
        "heights": _row_entry(known.heights),
        "record": {
            way: [figure(score.loss), figure(score.weight)] for way, score in known.scores.items()
        },
        "rises": [figure(weight) for weight in known.rises],
        "held": [[figure(short), figure(over)] for short, over in known.held],
    }


def read_history(entry: Any) -> KeptHistory:
    """Return the history that an entry holds.

    Raises:
        NewerStateError: of a later version.
        ValueError, TypeError, LookupError: with a figure that we would not write.
    """
    version = count(entry["version"])
    if version > VERSION:
        raise NewerStateError(f"history of version {version}, this operator knows up to {VERSION}")
    check(version == VERSION)
    record = entry["record"]
    check(isinstance(record, dict) and len(record) <= len(WAYS))
    peaks, planned = (_row(entry[key], MAX_PEAK_BINS) for key in ("peaks", "planned"))
    known = KeptHistory(
        kept_at_s=amount(entry["keptAt"]),
        unit=name(entry["unit"]),
        unit_requests_per_s=positive(entry["unitRequestsPerSecond"], LARGEST),
        means=_row(entry["means"], MAX_BINS),
        peaks=peaks,
        planned=planned,
        heights=_row(entry["heights"], MAX_PEAK_BINS)
        if "heights" in entry
        else _highest(figures(peaks), figures(planned)),
        scores={name(way): _score(score) for way, score in record.items()},
        rises=_rises(entry["rises"]) if "rises" in entry else FIRST,
        held=_held(entry["held"]) if "held" in entry else NOTHING_HELD,
    )
    bins = figures(peaks).keys()
    check(bins == figures(planned).keys() == figures(known.heights).keys())
    return known


def _highest(peaks: Mapping[int, float], planned: Mapping[int, float]) -> Row:
    check(peaks.keys() == planned.keys())
    return row({at: ratio * planned[at] for at, ratio in peaks.items()})


def _row_entry(written: Row) -> Mapping[str, Any]:
    return {"first": written.first, "text": written.text}


def _row(entry: Any, max_bins: int) -> Row:
    text = entry["text"]
    check(isinstance(text, str) and len(text) <= LETTERS * max_bins)
    found = Row(first=count(entry["first"]), text=text)
    figures(found)
    return found


def _score(entry: Any) -> Score:
    check(isinstance(entry, list))
    loss, weight = entry
    found = Score(loss=amount(loss), weight=positive(weight, MOST_WEIGHT))
    check(found.mean <= MOST)
    return found


def _rises(entry: Any) -> Rises:
    check(isinstance(entry, list) and len(entry) == len(FIRST))
    found = tuple(map(amount, entry))
    check(sum(found) <= MOST_NOTES)
    return found


def _held(entry: Any) -> Held:
    check(isinstance(entry, list) and len(entry) == len(NOTHING_HELD))
    found = tuple((amount(short), amount(over)) for short, over in entry)
    check(all(max(each) <= MOST_NOTES * MOST for each in found))
    return found
