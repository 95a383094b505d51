"""The one reader of request traces: when each request came, and its lengths.

Files are csv, jsonl (either may end in .gz) or parquet. Beside our own columns, ``arrival_s,
prompt_tokens,output_tokens``, the names of the published formats are known; others are ignored.
"""

import csv
import gzip
import json
import math
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, Final, TextIO

from tonnage.units import DAY_S, MS_PER_S, count_of

LARGEST_TOKENS: Final = 1 << 31
"""More than any engine's context: beyond, a figure is about something else."""
UNIX_S: Final = 30 * 365 * DAY_S
"""Since 1970. Milliseconds from the beginning of a trace come to as many after 11 days."""
NUMBERS: Final = (int, float, Decimal)
SHOWN: Final = 40
"""Characters of a wrong value that are shown."""


class Clock(Enum):
    """How a column writes the time of an arrival."""

    SECONDS = "seconds"
    MILLISECONDS = "milliseconds"
    DATE = "ISO 8601"


ARRIVAL: Final = {
    "arrival_s": Clock.SECONDS,
    "time_s": Clock.SECONDS,
    "arrival_ms": Clock.MILLISECONDS,
    "TIMESTAMP": Clock.DATE,  # Azure
    "Timestamp": Clock.SECONDS,  # BurstGPT
    "timestamp": Clock.MILLISECONDS,  # Mooncake
}
PROMPT: Final = (
    "prompt_tokens", "input_tokens", "ContextTokens", "Request tokens", "input_length",
)  # fmt: skip
OUTPUT: Final = ("output_tokens", "GeneratedTokens", "Response tokens", "output_length")


class TraceError(ValueError):
    """A trace cannot be read: which file, and where in it."""

    def __init__(
        self, message: str, *, path: Path, line: int | None = None, column: str | None = None
    ) -> None:
        """``line``: counted from 1; of parquet the row. ``column``: its name."""
        where = ":".join(str(part) for part in (path, line, column) if part is not None)
        super().__init__(f"{where}: {message}")
        self.path, self.line, self.column = path, line, column


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

    def __len__(self) -> int:
        return len(self.arrival_s)


def read_trace(path: Path) -> Trace:
    """Read a trace; rows that stand in another order are sorted by arrival, equal ones kept so.

    Raises:
        TraceError: the file is not there, empty, in no known format, lacks a column, has a value
            that is negative, not finite or no number, dates with and without a time zone, or no
            row with tokens of both kinds.
    """
    arrival, prompt, output = array("d"), array("q"), array("q")
    num_empty = 0
    zoned = set[bool]()
    columns: _Columns | None = None
    with _trace_errors(path):
        for line, row in _rows(path):
            columns = columns or _Columns.among(row, path=path, line=line)
            at = _Place(path=path, line=line, row=row, zoned=zoned)
            came_s = at.arrival_s(columns.arrival)
            prompt_tokens, output_tokens = at.tokens(columns.prompt), at.tokens(columns.output)
            if not prompt_tokens or not output_tokens:
                num_empty += 1
                continue
            arrival.append(came_s)
            prompt.append(prompt_tokens)
            output.append(output_tokens)
    if columns is None or not arrival:
        are_empty = count_of(num_empty, "row is without a token", "rows are without a token")
        without = f": {are_empty}" if num_empty else ""
        raise TraceError(f"it has no requests{without}", path=path)
    clock = ARRIVAL[columns.arrival]
    if columns.arrival == "timestamp" and UNIX_S <= MS_PER_S * min(arrival) < MS_PER_S * UNIX_S:
        message = "is read as milliseconds, and holds seconds since 1970: name it arrival_s"
        raise TraceError(message, path=path, column=columns.arrival)
    found = _sort_requests(arrival, prompt, output, is_date=clock is Clock.DATE)
    return replace(found, num_empty=num_empty)


def notes_of(trace: Trace) -> Iterator[str]:
    """Yield what a reader of a file should know of what became of it."""
    if trace.num_empty:
        rows = count_of(len(trace) + trace.num_empty, "request")
        yield f"{trace.num_empty} of {rows} without a token are left out"
    if trace.was_unsorted:
        yield "requests were not in order of arrival; they are replayed in it"


def _sort_requests(
    arrival: "array[float]", prompt: "array[int]", output: "array[int]", *, is_date: bool
) -> Trace:
    order = sorted(range(len(arrival)), key=arrival.__getitem__)
    start_s = arrival[order[0]] if is_date else 0.0
    return Trace(
        arrival_s=array("d", (arrival[number] - start_s for number in order)),
        prompt_tokens=array("q", (prompt[number] for number in order)),
        output_tokens=array("q", (output[number] for number in order)),
        was_unsorted=any(number != place for place, number in enumerate(order)),
    )


Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Columns:
    """The names under which a file has the three figures."""

    arrival: str
    prompt: str
    output: str

    @classmethod
    def among(cls, names: Iterable[str], *, path: Path, line: int | None) -> "_Columns":
        there = list(names)
        return cls(
            arrival=_one(ARRIVAL, there, path=path, line=line),
            prompt=_one(PROMPT, there, path=path, line=line),
            output=_one(OUTPUT, there, path=path, line=line),
        )


def _one(known: Iterable[str], there: list[str], *, path: Path, line: int | None) -> str:
    """Return the one name that is there.

    Raises:
        TraceError: none is, or several are and may contradict each other.
    """
    own, *aliases = known
    found = [name for name in (own, *aliases) for _ in range(there.count(name))]
    if not found:
        names = ", ".join(name[:SHOWN] for name in there) or "none"
        message = f"missing (or {', '.join(aliases)}); the columns are: {names}"
        raise TraceError(message, path=path, line=line, column=own)
    if len(found) > 1:
        message = f"given twice, as {' and '.join(found)}"
        raise TraceError(message, path=path, line=line, column=found[1])
    return found[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """A row, and where it stands."""

    path: Path
    line: int
    row: Row
    zoned: set[bool]
    """Whether a date had a time zone: of all rows so far, which must agree."""

    def arrival_s(self, column: str) -> float:
        clock = ARRIVAL[column]
        if clock is Clock.DATE:
            return self._date_s(column)
        value = self._number(column)
        if value < 0:
            raise self._error(column, "is negative")
        return value / MS_PER_S if clock is Clock.MILLISECONDS else value

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
        return value

    def _error(self, column: str, what: str) -> TraceError:
        value = repr(self.row[column])[:SHOWN]
        return TraceError(f"{value} {what}", path=self.path, line=self.line, column=column)


def _rows(path: Path) -> Iterator[tuple[int, Row]]:
    """Yield the number of each row's line, and its values by column."""
    name = path.name.lower()
    plain = name.removesuffix(".gz")
    if plain.endswith(".csv"):
        with _text(path) as lines:
            yield from _csv_rows(path, lines)
    elif plain.endswith(".jsonl"):
        with _text(path) as lines:
            yield from _jsonl_rows(path, lines)
    elif name.endswith(".parquet"):
        yield from _parquet_rows(path)
    else:
        raise TraceError("a trace ends in .csv, .csv.gz, .jsonl, .jsonl.gz or .parquet", path=path)


@contextmanager
def _trace_errors(path: Path) -> Iterator[None]:
    """Turn what files and decoders raise into an error that names the file."""
    try:
        yield
    except OSError as error:  # gzip's own included
        raise TraceError(error.strerror or str(error), path=path) from error
    except (EOFError, zlib.error) as error:
        raise TraceError(f"damaged: {error}", path=path) from error
    except UnicodeDecodeError as error:
        raise TraceError("is no text in UTF-8", path=path) from error


@contextmanager
def _text(path: Path) -> Iterator[TextIO]:
    if path.name.lower().endswith(".gz"):
        with gzip.open(path, "rt", encoding="utf-8-sig", newline="") as unpacked:
            yield unpacked
        return
    with path.open(encoding="utf-8-sig", newline="") as lines:
        yield lines


def _csv_rows(path: Path, lines: TextIO) -> Iterator[tuple[int, Row]]:
    reader = csv.reader(lines, strict=True)
    names: list[str] | None = None
    try:
        for fields in reader:
            if not any(field.strip() for field in fields):
                continue
            if names is None:
                names = [field.strip() for field in fields]
                _Columns.among(names, path=path, line=reader.line_num)
                continue
            if len(fields) > len(names):
                message = f"{count_of(len(fields), 'field')}, the header has {len(names)}"
                raise TraceError(message, path=path, line=reader.line_num)
            yield reader.line_num, dict(zip(names, map(_non_empty, fields), strict=False))
    except csv.Error as error:
        raise TraceError(str(error), path=path, line=reader.line_num) from error


def _non_empty(field: str) -> str | None:
    """Return what a field holds; None where it is empty."""
    return field.strip() or None


def _jsonl_rows(path: Path, lines: TextIO) -> Iterator[tuple[int, Row]]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            message = f"no JSON: {error.msg} at character {error.colno}"
            raise TraceError(message, path=path, line=number) from error
        except (RecursionError, ValueError) as error:
            raise TraceError(f"no JSON: {error}", path=path, line=number) from error
        if not isinstance(row, dict):
            raise TraceError("no JSON object", path=path, line=number)
        yield number, row


def _parquet_rows(path: Path) -> Iterator[tuple[int, Row]]:
    try:
        import pyarrow  # noqa: PLC0415  (an extra)
        from pyarrow import parquet  # noqa: PLC0415
    except ModuleNotFoundError as error:
        message = "parquet needs pyarrow, which is not installed: pip install pyarrow"
        raise TraceError(message, path=path) from error
    try:
        with parquet.ParquetFile(path) as file:
            there = file.schema_arrow.names
            columns = _Columns.among(there, path=path, line=None)
            wanted = [columns.arrival, columns.prompt, columns.output]
            number = 0
            for batch in file.iter_batches(columns=wanted):
                for row in _in_us(pyarrow, pyarrow.Table.from_batches([batch])).to_pylist():
                    number += 1
                    yield number, row
    except pyarrow.ArrowException as error:
        raise TraceError(f"no parquet: {error}", path=path) from error


def _in_us(pyarrow: Any, table: Any) -> Any:
    """Return an Arrow table whose dates are no finer than Python's."""
    fields = [
        field.with_type(pyarrow.timestamp("us", field.type.tz))
        if pyarrow.types.is_timestamp(field.type)
        else field
        for field in table.schema
    ]
    return table.cast(pyarrow.schema(fields), safe=False)
