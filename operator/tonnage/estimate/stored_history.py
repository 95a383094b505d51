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
    Field,
    NewerStateError,
    amount,
    check,
    count,
    entry_of,
    figure,
    figure_up_to,
    name,
    values_of,
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
    BinRow,
    KeptHistory,
    figures,
    row,
)
from tonnage.estimate.ways import WAYS

VERSION: Final = 1
"""Raised when the meaning of a figure changes. States that have no history are of any version."""
MOST_NOTES: Final = 1.1 * FORGET_NOTES
"""What the weight of notes comes to if none is missed, and a rounding."""


def history_entry(known: KeptHistory) -> dict[str, Any]:
    return {"version": VERSION, **entry_of(_FIELDS, known)}


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
    found = values_of(_FIELDS, entry)
    peaks, planned = figures(found["peaks"]), figures(found["planned"])
    check(peaks.keys() == planned.keys())
    if "heights" not in found:
        found["heights"] = row({at: ratio * planned[at] for at, ratio in peaks.items()})
    check(peaks.keys() == figures(found["heights"]).keys())
    return KeptHistory(**found)


def _row_entry(written: BinRow) -> Mapping[str, Any]:
    return {"first": written.first, "text": written.text}


def _row(entry: Any, max_bins: int = MAX_PEAK_BINS) -> BinRow:
    text = entry["text"]
    check(isinstance(text, str) and len(text) <= LETTERS * max_bins)
    found = BinRow(first=count(entry["first"]), text=text)
    figures(found)
    return found


def _record(entry: Any) -> dict[str, Score]:
    check(isinstance(entry, dict) and len(entry) <= len(WAYS))
    return {name(way): _score(score) for way, score in entry.items()}


def _record_entry(scores: Mapping[str, Score]) -> Mapping[str, Any]:
    return {way: [figure(each.loss), figure(each.weight)] for way, each in scores.items()}


def _score(entry: Any) -> Score:
    check(isinstance(entry, list))
    loss, weight = entry
    found = Score(loss=amount(loss), weight=figure_up_to(MOST_WEIGHT)(weight))
    check(found.mean <= MOST)
    return found


def _rises(entry: Any) -> Rises:
    check(isinstance(entry, list) and len(entry) == len(FIRST))
    found = tuple(map(amount, entry))
    check(sum(found) <= MOST_NOTES)
    return found


def _read_held(entry: Any) -> Held:
    check(isinstance(entry, list) and len(entry) == len(NOTHING_HELD))
    found = tuple((amount(short), amount(over)) for short, over in entry)
    check(all(max(each) <= MOST_NOTES * MOST for each in found))
    return found


_FIELDS: Final = (
    Field("kept_at_s", "keptAt", amount, round),
    Field("unit", "unit", name, str),
    Field("unit_requests_per_s", "unitRequestsPerSecond", figure_up_to(LARGEST)),
    Field("means", "means", lambda each: _row(each, MAX_BINS), _row_entry),
    Field("peaks", "peaks", _row, _row_entry),
    Field("planned", "planned", _row, _row_entry),
    Field("heights", "heights", _row, _row_entry, is_optional=True),
    Field("scores", "record", _record, _record_entry),
    Field("rises", "rises", _rises, lambda each: [*map(figure, each)], is_optional=True),
    Field(
        "held",
        "held",
        _read_held,
        lambda each: [[*map(figure, two)] for two in each],
        is_optional=True,
    ),
)
