"""The one reader of request traces: when each request came, and its lengths.

Files are csv, jsonl (either may end in .gz) or parquet. Beside our own columns, ``arrival_s,
prompt_tokens,output_tokens``, the names of the published formats are known; others are named, and
ignored. The unit of a time is given, or that of its column's name or of a known format: never
guessed.
"""

import math
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from itertools import compress, islice
from operator import add, gt, not_
from pathlib import Path
from typing import Any, Final

from tonnage.engine.chance import Chance
from tonnage.replay.trace_rows import (
    FORMATS,
    NAMED_UNITS,
    SHOWN,
    UNITS_PER_S,
    UNUSED,
    Columns,
    Row,
    Tell,
    TraceError,
    TraceLimits,
    rows_of,
    trace_errors,
)
from tonnage.replay.traffic import Traffic
from tonnage.sizing.workload import Lengths, Workload
from tonnage.units import DAY_S, MINUTE_S, count_of

LARGEST_TOKENS: Final = 1 << 31
"""More than any engine's context: beyond, a figure is about something else."""
UNIX_S: Final = 30 * 365 * DAY_S
"""Since 1970, in the unit that is read; no trace lasts as many of any unit without being that."""
NUMBERS: Final = (int, float, Decimal)
LONGEST_VALUE: Final = 64
"""Characters. No number and no date is longer; a few bytes of parquet can repeat a longer one in
every row."""
DEFAULT_LIMITS: Final = TraceLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Requests in order of arrival, as columns of the same length, which is at least 1."""

    arrival_s: "array[float]"
    """As the file counts them; dates count from the first of them."""
    prompt_tokens: "array[int]"
    output_tokens: "array[int]"
    was_unsorted: bool = False
    """The file has them in another order."""
    num_empty: int = 0
    """Rows of the file without a token of prompt or answer, which are left out: logs of services
    have requests that failed."""
    clock: str = ""
    """How times are read, and why; empty: the trace is no file's."""
    unused: tuple[str, ...] = ()
    """Columns that are ignored, at most ``SHOWN``."""

    def __len__(self) -> int:
        return len(self.arrival_s)


def read_trace(
    path: Path,
    *,
    unit: str | None = None,
    limits: TraceLimits = DEFAULT_LIMITS,
    tell: Tell = lambda _, __: None,
) -> Trace:
    """Read a trace; rows that stand in another order are sorted by arrival, equal ones kept so.

    ``unit``: of times, a key of ``UNITS_PER_S``; None: the file says it. ``tell``: called as the
    file is read.

    Raises:
        TraceError: the file is not there, empty, beyond the limits, in no known format, lacks a
            column, has times without a unit, a value that is negative, not finite or no number,
            dates with and without a time zone, or no row with tokens of both kinds.
    """
    arrival, prompt, output = array("d"), array("q"), array("q")
    num_rows = 0
    zoned, names = set[bool](), dict[str, None]()
    columns, clock = None, _Clock()
    with trace_errors(path):
        for num_rows, (line, row) in enumerate(rows_of(path, limits, tell), 1):
            tell(num_rows, "row")
            at = _Place(path=path, line=line, row=row, zoned=zoned)
            if columns is None:
                columns = Columns.among(row, path=path, line=line)
                clock = _clock(at, columns.arrival, unit)
            if len(names) <= SHOWN:
                names.update(dict.fromkeys(row))
            came_s = at.arrival_s(columns.arrival, clock)
            prompt_tokens, output_tokens = at.tokens(columns.prompt), at.tokens(columns.output)
            if prompt_tokens and output_tokens:
                arrival.append(came_s)
                prompt.append(prompt_tokens)
                output.append(output_tokens)
    found = Trace(
        arrival_s=arrival,
        prompt_tokens=prompt,
        output_tokens=output,
        num_empty=num_rows - len(arrival),
        clock=f"{columns.arrival} {clock.source}" if columns else "",
        unused=tuple(_shown(name) for name in names if name not in (columns or ()))[:SHOWN],
    )
    _check_clock(found, columns, clock, path)
    return _in_order(found, is_date=clock.units_per_s is None)


def _shown(name: str) -> str:
    return name[:SHOWN] if name.isprintable() else ascii(name)[:SHOWN]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Clock:
    """What the times of a file are."""

    units_per_s: float | None = None
    """None: dates of ISO 8601."""
    source: str = "as dates"
    is_of_format: bool = False


def _clock(at: "_Place", column: str, unit: str | None) -> _Clock:
    """Return the unit of a column: the given one, its name's, a date's or a known format's."""
    format_ = next((each for each in FORMATS if at.row.keys() >= each.columns), None)
    if unit is not None:
        return _Clock(units_per_s=UNITS_PER_S[unit], source=f"in {unit}, as given")
    if named := NAMED_UNITS.get(column):
        return _Clock(units_per_s=UNITS_PER_S[named], source=f"in {named}")
    if at.is_date(column):
        return _Clock()
    if format_ is None:
        message = (
            "numbers without a unit: the columns are of no format that is known. Give --time-unit "
            f"({', '.join(UNITS_PER_S)}), or name the column arrival_s or arrival_ms"
        )
        raise TraceError(message, path=at.path, line=at.line, column=column)
    return _Clock(
        units_per_s=UNITS_PER_S[format_.unit],
        source=f"in {format_.unit}, as {format_.name} has it",
        is_of_format=True,
    )


def _check_clock(trace: Trace, columns: Columns | None, clock: _Clock, path: Path) -> None:
    """Refuse a file without requests, and one that has another unit than its format."""
    if columns is None or not trace:
        rows = count_of(trace.num_empty, "row is without a token", "rows are without a token")
        without = f": {rows}" if trace.num_empty else ""
        raise TraceError(f"it has no requests{without}", path=path)
    first_s = min(trace.arrival_s)
    is_since_1970 = first_s * (clock.units_per_s or 1) >= UNIX_S
    if clock.is_of_format and is_since_1970 and not UNIX_S <= first_s < 10 * UNIX_S:
        message = f"times since 1970, and not {clock.source}: give their --time-unit"
        raise TraceError(message, path=path, column=columns.arrival)


def notes_of(trace: Trace) -> Iterator[str]:
    """Yield what a reader of a file should know of what became of it."""
    if trace.num_empty:
        rows = count_of(len(trace) + trace.num_empty, "request")
        yield f"{trace.num_empty} of {rows} without a token are skipped"
    if trace.was_unsorted:
        yield "requests were not in order of arrival; they are replayed in it"


def unused_of(trace: Trace) -> str:
    """Return the columns that are ignored, with what that means where it means something."""
    means = [f"{name} ({UNUSED[name]})" if name in UNUSED else name for name in trace.unused]
    return ", ".join(means) + (", ..." if len(means) == SHOWN else "")


def _in_order(trace: Trace, *, is_date: bool) -> Trace:
    arrival, prompt, output = trace.arrival_s, trace.prompt_tokens, trace.output_tokens
    was_unsorted = any(map(gt, arrival, islice(arrival, 1, None)))
    if was_unsorted:
        order = sorted(range(len(arrival)), key=arrival.__getitem__)
        arrival = array("d", map(arrival.__getitem__, order))
        prompt = array("q", map(prompt.__getitem__, order))
        output = array("q", map(output.__getitem__, order))
    if is_date:
        arrival = array("d", (each - arrival[0] for each in arrival))
    return replace(
        trace,
        arrival_s=arrival,
        prompt_tokens=prompt,
        output_tokens=output,
        was_unsorted=was_unsorted,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """A row, and where it stands."""

    path: Path
    line: int
    row: Row
    zoned: set[bool]
    """Whether a date had a time zone: of all rows so far, which must agree."""

    def is_date(self, column: str) -> bool:
        """Tell numbers, which need a unit, from what can only be a date."""
        value = self._value(column)
        if not isinstance(value, str):
            return isinstance(value, datetime)
        try:
            float(value)
        except ValueError:
            return True
        return False

    def arrival_s(self, column: str, clock: _Clock) -> float:
        if self.row.get(column) is None and self.row.keys() & {"delay", "delay_ms"}:
            message = (
                "no time, but a delay after the answer before: when that ends depends on the "
                "engine. Requests of a replay come at given times: give each turn its own"
            )
            raise TraceError(message, path=self.path, line=self.line, column=column)
        if clock.units_per_s is None:
            return self._date_s(column)
        value = self._number(column)
        if value < 0:
            raise self._error(column, "is negative")
        return value / clock.units_per_s

    def tokens(self, column: str) -> int:
        value = self._number(column)
        if value < 0:
            raise self._error(column, "is negative")
        if value != int(value) or value > LARGEST_TOKENS:
            raise self._error(column, "is no number of tokens")
        return int(value)

    def _date_s(self, column: str) -> float:
        value = self._value(column)
        try:
            date = value if isinstance(value, datetime) else datetime.fromisoformat(value)
        except (TypeError, ValueError) as error:
            raise self._error(column, "is no date") from error
        self.zoned.add(date.tzinfo is not None)
        if len(self.zoned) > 1:
            has, had = ("a", "none") if date.tzinfo else ("no", "one")
            raise self._error(column, f"has {has} time zone, rows above have {had}")
        return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()

    def _number(self, column: str) -> float:
        value = self._value(column)
        is_written = isinstance(value, str) and "_" not in value  # Python would read 1_0 as 10
        if isinstance(value, bool) or not (is_written or isinstance(value, NUMBERS)):
            raise self._error(column, "is no number")
        try:
            number = float(value)
        except (ValueError, OverflowError) as error:
            raise self._error(column, "is no number") from error
        if not math.isfinite(number):
            raise self._error(column, "is not finite")
        return number

    def _value(self, column: str) -> Any:
        value = self.row.get(column)
        if value is None:
            raise TraceError("no value", path=self.path, line=self.line, column=column)
        if isinstance(value, str) and len(value) > LONGEST_VALUE:
            message = f"a value of {len(value):,} characters, more than {LONGEST_VALUE}"
            raise TraceError(message, path=self.path, line=self.line, column=column)
        return value

    def _error(self, column: str, what: str) -> TraceError:
        value = repr(self.row[column])[:SHOWN]
        return TraceError(f"{value} {what}", path=self.path, line=self.line, column=column)


COPY_JITTER_S: Final = 20.0
"""To either side, by which the second and further copies of a request come at another time."""
SHAPES_AT_MOST: Final = 48
SHORTEST_SHAPE_S: Final = 600.0
FIRST_SEED: Final = 9_000
"""Beyond those that synthetic traffic is drawn with."""
P99: Final = 0.99


def window_of(trace: Trace, from_s: float = 0.0, until_s: float = math.inf) -> Trace:
    """Return the requests of a time, which is counted from the first request of the trace.

    Raises:
        ValueError: there are none.
    """
    start_s = trace.arrival_s[0] + from_s
    first = bisect_left(trace.arrival_s, start_s)
    last = bisect_left(trace.arrival_s, trace.arrival_s[0] + until_s)
    if first >= last:
        span_s = trace.arrival_s[-1] - trace.arrival_s[0]
        raise ValueError(f"no request comes in it; the trace is {span_s:.0f} s long")
    return replace(
        trace,
        arrival_s=array("d", (at_s - start_s for at_s in trace.arrival_s[first:last])),
        prompt_tokens=trace.prompt_tokens[first:last],
        output_tokens=trace.output_tokens[first:last],
    )


def duration_of(trace: Trace, from_s: float = 0.0, until_s: float = math.inf) -> float:
    """Return how long a window of a trace is: to its end, or to the minute of the last request."""
    span_s = trace.arrival_s[-1] - trace.arrival_s[0]
    whole_s = MINUTE_S * (math.floor(span_s / MINUTE_S) + 1)
    return min(until_s, whole_s) - from_s


def times(trace: Trace, factor: float, *, duration_s: float, seed: int) -> Trace:
    """Return so many times as many requests: a share of them, or copies that come near them."""
    if factor == 1:
        return trace
    chance = Chance(FIRST_SEED + seed)
    whole, share = int(factor), factor - int(factor)
    rows: list[tuple[float, int]] = []
    for number, at_s in enumerate(trace.arrival_s):
        copies = whole + (chance.share() < share)
        for copy in range(copies):
            moved_s = COPY_JITTER_S * (2 * chance.share() - 1) if copy else 0.0
            rows.append((_within(at_s + moved_s, duration_s), number))
    rows.sort()
    return replace(
        trace,
        arrival_s=array("d", (at_s for at_s, _ in rows)),
        prompt_tokens=array("q", (trace.prompt_tokens[number] for _, number in rows)),
        output_tokens=array("q", (trace.output_tokens[number] for _, number in rows)),
    )


def _within(at_s: float, duration_s: float) -> float:
    """Return a time, turned back where it lies beyond an end."""
    turned_s = 2 * duration_s - at_s if at_s >= duration_s else abs(at_s)
    return min(max(0.0, turned_s), duration_s * (1 - 1e-9))


def drawn_from(
    trace: Trace, *, duration_s: float, context_tokens: int, cached_fraction: float = 0.0
) -> Traffic:
    """Return the traffic of a trace that begins at 0; what exceeds the context is left out."""
    lengths = map(add, trace.prompt_tokens, trace.output_tokens)
    fits = [each <= context_tokens for each in lengths]
    prompts = array("q", compress(trace.prompt_tokens, fits))
    outputs = array("q", compress(trace.output_tokens, fits))
    arrival_s = array("d", compress(trace.arrival_s, fits))
    return Traffic(
        arrival_s=arrival_s,
        prompt_tokens=prompts,
        output_tokens=outputs,
        cached_tokens=array("q", (min(p - 1, round(p * cached_fraction)) for p in prompts)),
        shapes=tuple(_shapes(arrival_s, prompts, outputs, duration_s, cached_fraction))
        or ((0.0, _shape([1], [1], cached_fraction)),),
        duration_s=duration_s,
        too_long_s=array("d", compress(trace.arrival_s, map(not_, fits))),
    )


def _shapes(
    arrival_s: Sequence[float],
    prompts: Sequence[int],
    outputs: Sequence[int],
    duration_s: float,
    cached_fraction: float,
) -> Iterator[tuple[float, Workload]]:
    """Yield the mean request of windows; one in which none came is like the one before."""
    each_s = max(SHORTEST_SHAPE_S, duration_s / SHAPES_AT_MOST)
    start_s, is_first = 0.0, True
    while start_s < duration_s:
        low, high = (bisect_left(arrival_s, edge_s) for edge_s in (start_s, start_s + each_s))
        if low < high:
            yield (
                0.0 if is_first else start_s,
                _shape(prompts[low:high], outputs[low:high], cached_fraction),
            )
            is_first = False
        start_s += each_s


def _shape(prompts: Sequence[int], outputs: Sequence[int], cached_fraction: float) -> Workload:
    number = len(prompts)
    return Workload(
        prompt=Lengths(
            mean_tokens=sum(prompts) / number,
            p99_tokens=float(sorted(prompts)[math.ceil(P99 * number) - 1]),
        ),
        output_tokens=sum(outputs) / number,
        cached_fraction=cached_fraction,
        output_second_moment=sum(tokens * tokens for tokens in outputs) / number,
    )
