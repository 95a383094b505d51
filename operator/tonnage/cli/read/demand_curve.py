"""Demand as it comes: the rate of each hour of a day, a week or longer, from a file or counted."""

import csv
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tonnage.api.strict_json import read_json
from tonnage.cli.console import ManifestError, failing, number_in, read_every
from tonnage.cli.read.manifest import read_text
from tonnage.units import DAY_S, HOUR_S, MILLION, MINUTE_S, format_s

if TYPE_CHECKING:
    from tonnage.replay.traces import Trace

HOUR, RATE, COUNT = "hour", "requests_per_s", "requests"
TIMES: Final = (HOUR, "time", "timestamp", "date")
AMOUNTS: Final = (RATE, "requests_per_second", "requestspersecond", "rps", COUNT)
OF_TRACES: Final = (b"tokens", b"length")
"""Endings of columns that single requests have."""
P99: Final = 0.99
MOST_BYTES: Final = 8 * MILLION
LEAST_RATE: Final = 1e-4
"""Of a spec, which has four decimals."""
CLOCK: Final = re.compile(r"(\d{1,4}(?:[.]\d+)?)(?::(\d\d))?")
CURE: Final = "a first line 'hour,requests_per_s', and below it a line for each hour, such as 0,2.5"


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandCurve:
    """Mean rates of steps of one length, which follow each other and then begin anew."""

    source: str
    step_s: float
    requests_per_s: tuple[float, ...]
    begins_s: float = 0.0
    """Unix time, or of some day. Dates without a zone are of UTC."""
    lengths: tuple[tuple[str, int], ...] = ()
    """Fields of a spec, where requests were counted one by one."""

    @property
    def duration_s(self) -> float:
        return self.step_s * len(self.requests_per_s)

    @property
    def peak_ratio(self) -> float:
        """The highest rate over the mean."""
        return max(self.requests_per_s) * len(self.requests_per_s) / sum(self.requests_per_s)

    def at(self, step: int) -> str:
        """Return when a step begins: the number of the hour, or a date."""
        at_s = self.begins_s + step * self.step_s
        if self.begins_s < MILLION * MINUTE_S:
            return f"hour {at_s / HOUR_S:.5g}"
        return f"{datetime.fromtimestamp(at_s, UTC):%a %Y-%m-%d %H:%M} UTC"


def is_trace(path: Path) -> bool:
    """Tell a file of single requests from one of rates."""
    if path.suffix.lower() != ".csv":
        return path.suffix.lower() != ".json"
    with failing(OSError, where=f"{path}: "), path.open("rb") as file:
        names = file.readline(MOST_BYTES).lower().split(b",")
    return any(each.strip().endswith(OF_TRACES) for each in names)


def counted_curve(
    source: str, trace: "Trace", duration_s: float, *, begins_s: float = 0.0
) -> DemandCurve:
    """Return the rates and lengths of requests, in equal steps of about an hour."""
    number = max(1, round(duration_s / HOUR_S))
    step_s, counts = duration_s / number, [0] * number
    for at_s in trace.arrival_s:
        counts[min(number - 1, int((at_s - trace.arrival_s[0]) / step_s))] += 1
    lengths = {"promptTokens": trace.prompt_tokens, "outputTokens": trace.output_tokens}
    found = []
    for name, tokens in lengths.items():
        mean, p99 = round(sum(tokens) / len(tokens)), sorted(tokens)[int(P99 * (len(tokens) - 1))]
        found += [(f"demand.{name}.mean", mean), (f"demand.{name}.p99", max(mean, p99))]
    return DemandCurve(
        source=source,
        step_s=step_s,
        requests_per_s=tuple(count / step_s for count in counts),
        begins_s=begins_s,
        lengths=tuple(found),
    )


def read_curve(path: Path) -> DemandCurve:
    """Read the rates of a csv or JSON file.

    Raises:
        ManifestError: with the file, the row, what is wrong and what to write.
    """
    rows = _rows(path)
    places = list(rows)
    if len(places) <= 1:
        raise ManifestError(f"{path}: rates of fewer than two hours: write {CURE}")
    if broad := next((where for where, row in rows.items() if None in row), None):
        raise ManifestError(f"{broad}: more fields than the first line: write 2.5 rather than 2,5")
    first = rows[places[0]]
    clock, amount = (
        next((each for each in some if each in first), "") for some in (TIMES, AMOUNTS)
    )
    if not (clock and amount):
        there = ", ".join(first)
        raise ManifestError(f"{path}: columns {there}: {CURE}; or requests, counted, or a trace")
    found = read_every(
        lambda where, row: (
            _time_s(row.get(clock), clock, where),
            _rate(row.get(amount), amount, where),
        ),
        rows.items(),
    )
    times, rates = [at_s for at_s, _ in found], [rate for _, rate in found]
    if clock != HOUR and 0 < times[1] - times[0] < MINUTE_S:  # no seconds, but hours
        times = [HOUR_S * each for each in times]
    step_s = times[1] - times[0]
    for where, (before, at) in zip(places[1:], pairwise(times), strict=True):
        if not MINUTE_S <= step_s <= DAY_S or abs(at - before - step_s) >= 1:
            raise ManifestError(
                f"{where}: {format_s(at - before)} after the row before, {format_s(step_s)} in the "
                "first rows: write rows in order, all as far apart, a minute to a day, with 0 "
                "where nothing came"
            )
    divisor = step_s if amount == COUNT else 1.0
    per_s = tuple(rate / divisor for rate in rates)
    if max(per_s) < LEAST_RATE:
        raise ManifestError(f"{path}: no request comes in any step: there is no demand")
    return DemandCurve(source=path.name, step_s=step_s, requests_per_s=per_s, begins_s=times[0])


def _rows(path: Path) -> Mapping[str, Mapping[Any, Any]]:
    """Return the values of each row by column, by the place of the row."""
    text = read_text(str(path), max_bytes=MOST_BYTES)
    with failing(csv.Error, ValueError, where=f"{path}: "):
        if path.suffix.lower() != ".json":
            lines = io.StringIO(text.removeprefix("\ufeff").lower())
            reader = csv.DictReader(lines, skipinitialspace=True)
            return {f"{path}:{reader.line_num}": row for row in reader}
        content = read_json(text)
        if not isinstance(content, list):
            raise ManifestError(f"{path}: no list: write the rates of hours, such as [0.5, 2.5]")
    rows = (each if isinstance(each, dict) else {HOUR: hour, RATE: each}
            for hour, each in enumerate(content))  # fmt: skip
    return {f"{path}: row {number}": row for number, row in enumerate(rows, 1)}


def _time_s(value: object, column: str, where: str) -> float:
    """Read a number of hours, hours and minutes, seconds since 1970, or a date."""
    text = str(value).strip()
    hours = CLOCK.fullmatch(text)
    try:
        if hours and (column == HOUR or hours[2]):
            return HOUR_S * float(hours[1]) + MINUTE_S * int(hours[2] or 0)
        if text.replace(".", "", 1).isdecimal():
            return datetime.fromtimestamp(float(text), UTC).timestamp()
        date = datetime.fromisoformat(text.upper())
        return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError) as error:
        raise ManifestError(
            f"{where}: {column}: {text[:40]!r} is no time: write the hour as 13 or 13:00, a date "
            "as 2026-11-23T13:00 (UTC, where it has no zone), or seconds since 1970"
        ) from error


def _rate(value: object, column: str, where: str) -> float:
    rate = number_in(value)
    if not 0 <= rate <= MILLION:
        raise ManifestError(
            f"{where}: {column}: {str(value)[:40]!r} is no number from 0 to {MILLION}"
        )
    return rate
