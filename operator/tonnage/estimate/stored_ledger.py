"""The ledger of requests in time and late as JSON, checked when it is read.

The form::

    {"windowSeconds", "limits": {LATENCY AND LIMIT: {"first": number of the bin,
                                                      "bins": [[requests, late requests], ...]}}}

A bin in which nothing was judged is [0, 0].
"""

from collections.abc import Mapping
from typing import Any, Final

from tonnage.estimate.budget import BINS, LEAST_WINDOW_S, MOST_WINDOW_S, Bins, Judged, Ledger
from tonnage.estimate.checked import amount, check, count, figure, figure_between, name

MOST_LIMITS: Final = 8
"""Four percentiles of each latency."""


def ledger_entry(known: Ledger) -> dict[str, Any]:
    limits = {limit: _bins_entry(bins) for limit, bins in known.limits.items()}
    return {"windowSeconds": figure(known.window_s), "limits": limits}


def read_ledger(entry: Any) -> Ledger:
    """Return the ledger that an entry holds.

    Raises:
        ValueError, TypeError, LookupError: with a figure that we would not write.
    """
    limits = entry["limits"]
    check(isinstance(limits, dict) and len(limits) <= MOST_LIMITS)
    return Ledger(
        window_s=figure_between(LEAST_WINDOW_S, MOST_WINDOW_S)(entry["windowSeconds"]),
        limits={name(limit): _read_bins(bins) for limit, bins in limits.items()},
    )


def _bins_entry(bins: Bins) -> Mapping[str, Any]:
    first, last = min(bins), max(bins)
    row = (bins.get(at, (0.0, 0.0)) for at in range(first, last + 1))
    return {"first": first, "bins": [[*map(figure, each)] for each in row]}


def _read_bins(entry: Any) -> Bins:
    first, row = count(entry["first"]), entry["bins"]
    check(isinstance(row, list) and 0 < len(row) <= BINS)
    found = {first + number: each for number, each in enumerate(map(_judged, row)) if each[0]}
    check(bool(found))
    return found


def _judged(entry: Any) -> Judged:
    requests, late = map(amount, entry)
    check(late <= requests)
    return requests, late
