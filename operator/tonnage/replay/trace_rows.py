"""The rows of a trace file, by column: csv, jsonl or parquet; bounded before a row is read.

A packed file of 1 MB can hold 1 GiB: lines and bytes are counted first, in pieces, which takes a
second for a GiB. What is read after that fits into memory.
"""

import csv
import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, TextIO

from tonnage.units import GIB, MIB, MILLION, MS_PER_S, NS_PER_S, US_PER_S, count_of, format_bytes

PIECE_BYTES: Final = MIB
"""Read at once."""

MOST_REQUESTS: Final = 20 * MILLION
"""Of a replay."""

Tell = Callable[[int, str], None]
"""Takes how many of something there were so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceLimits:
    """How much of a file is read."""

    max_rows: int = MOST_REQUESTS
    """Lines of text, or rows of parquet. A request takes 24 bytes of memory, and 120 while rows
    that are out of order are sorted: a million take 24 or 120 MB, and 6 s to read."""
    max_bytes: int = 2 * GIB
    """After unpacking; of parquet in the columns that are read."""
    max_line_bytes: int = MIB
    """Of a line of text, and of a csv record whose fields have line breaks. Three figures need 100
    bytes, a request's text beside them some 100 KiB."""


class TraceError(ValueError):
    """A trace cannot be read: which file, and where in it."""

    def __init__(
        self, message: str, *, path: Path, line: int | None = None, column: str | None = None
    ) -> None:
        """``line``: counted from 1; of parquet the row. ``column``: its name."""
        where = ":".join(str(part) for part in (path, line, column) if part is not None)
        super().__init__(f"{where}: {message}")
        self.path, self.line, self.column = path, line, column


@contextmanager
def trace_errors(path: Path) -> Iterator[None]:
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
def open_text(path: Path, limits: TraceLimits, tell: Tell) -> Iterator[TextIO]:
    """Yield the text of a file that is within the limits, unpacked where its name ends in .gz.

    Raises:
        TraceError: it has more lines or bytes, or a longer line.
    """
    opened = gzip.open if path.name.lower().endswith(".gz") else open
    with opened(path, "rb") as file:
        _check_text(file, path, limits, tell)
        file.seek(0)
        yield io.TextIOWrapper(file, encoding="utf-8-sig", newline="")


def _check_text(file: io.BufferedIOBase, path: Path, limits: TraceLimits, tell: Tell) -> None:
    num_lines = num_bytes = begun_bytes = 0
    while piece := file.read(PIECE_BYTES):
        first, ended, _ = piece.partition(b"\n")
        check_line(begun_bytes + len(first), path, num_lines + 1, limits)
        begun_bytes = len(piece.rpartition(b"\n")[2]) + (0 if ended else begun_bytes)
        num_lines += piece.count(b"\n")
        num_bytes += len(piece)
        if num_lines > limits.max_rows + 1:  # one is a header
            lines = count_of(f"{limits.max_rows:,}", "line")
            raise TraceError(f"more than {lines}", path=path)
        check_bytes(num_bytes, path, limits)
        tell(num_lines, "line")


def check_line(num_bytes: int, path: Path, line: int, limits: TraceLimits) -> None:
    """Refuse a line, or a record of several, that is no row of a trace."""
    if num_bytes > limits.max_line_bytes:
        most = format_bytes(limits.max_line_bytes)
        message = f"longer than {most}: leave out columns that are no figures of a request"
        raise TraceError(message, path=path, line=line)


def check_bytes(num_bytes: int, path: Path, limits: TraceLimits) -> None:
    if num_bytes > limits.max_bytes:
        most = format_bytes(limits.max_bytes)
        raise TraceError(f"more than {most} unpacked", path=path)


SHOWN: Final = 40
"""Characters of a wrong value that are shown, and columns."""
MOST_COLUMN_BYTES: Final = 32 * MIB
"""Of a column in a row group of parquet, after unpacking. A million rows, the most that writers put
into one unasked, take 8 MB of numbers or 31 MB of dates as text; reading takes four times that."""


UNITS_PER_S: Final[Mapping[str, float]] = {
    "s": 1, "ms": MS_PER_S, "us": US_PER_S, "ns": NS_PER_S,
}  # fmt: skip
"""In a second, by their names."""
NAMED_UNITS: Final = {"arrival_s": "s", "time_s": "s", "arrival_ms": "ms"}
"""Of columns whose names say it."""
ARRIVAL: Final = (*NAMED_UNITS, "TIMESTAMP", "Timestamp", "timestamp")
PROMPT: Final = (
    "prompt_tokens", "input_tokens", "ContextTokens", "Request tokens", "input_length",
)  # fmt: skip
OUTPUT: Final = ("output_tokens", "GeneratedTokens", "Response tokens", "output_length")


class TraceFormat(NamedTuple):
    """A published format, known by columns that others with the same three figures lack."""

    name: str
    columns: frozenset[str]
    unit: str


FORMATS: Final = (
    # HPMLL/BurstGPT, 1.0 and 2.0: seconds, from some day on
    TraceFormat("BurstGPT", frozenset({"Timestamp", "Request tokens"}), "s"),
    # alibaba-edu/qwen-bailian-usagetraces-anon, README: seconds from the first request
    TraceFormat("Qwen-Bailian", frozenset({"timestamp", "chat_id", "input_length"}), "s"),
    # kvcache-ai/Mooncake, and AIPerf and Dynamo, which replay it: milliseconds
    TraceFormat("Mooncake", frozenset({"timestamp", "hash_ids", "input_length"}), "ms"),
)
"""The first whose columns a file has says the unit. GuideLLM reads ``timestamp`` without one of
these columns as seconds, AIPerf as milliseconds: who hands it in says which."""
UNUSED: Final = {
    "hash_ids": "prefix hits are those of spec.demand.cachedPromptPercent",
    "NumImages": "time and tokens of images are not counted beside those of the prompt",
    "session_id": "each turn comes at its own time, whatever the answer before it takes",
}
"""What it means that columns are ignored, where it means something."""


Row = Mapping[str, Any]


class Columns(NamedTuple):
    """The names under which a file has the three figures."""

    arrival: str
    prompt: str
    output: str

    @classmethod
    def among(cls, names: Iterable[str], *, path: Path, line: int | None) -> "Columns":
        there = list(names)
        return cls(
            *(_one(known, there, path=path, line=line) for known in (ARRIVAL, PROMPT, OUTPUT))
        )


def _one(known: Iterable[str], there: list[str], *, path: Path, line: int | None) -> str:
    """Return the one name that is there."""
    own, *aliases = known
    found = [name for name in (own, *aliases) for _ in range(there.count(name))]
    if not found:
        names = ", ".join(name[:SHOWN] for name in there[:SHOWN]) or "none"
        message = f"missing (or {', '.join(aliases)}); the columns are: {names}"
        raise TraceError(message, path=path, line=line, column=own)
    if len(found) > 1:
        message = f"given twice, as {' and '.join(found[:2])}"
        raise TraceError(message, path=path, line=line, column=found[1])
    return found[0]


def rows_of(path: Path, limits: TraceLimits, tell: Tell) -> Iterator[tuple[int, Row]]:
    """Yield the number of each row's line, and its values by column."""
    name = path.name.lower()
    plain = name.removesuffix(".gz")
    if plain.endswith(".csv"):
        with open_text(path, limits, tell) as lines:
            yield from _csv_rows(path, lines, limits)
    elif plain.endswith(".jsonl"):
        with open_text(path, limits, tell) as lines:
            yield from _jsonl_rows(path, lines)
    elif name.endswith(".parquet"):
        yield from _parquet_rows(path, limits)
    else:
        raise TraceError("a trace ends in .csv, .csv.gz, .jsonl, .jsonl.gz or .parquet", path=path)


def _csv_rows(path: Path, lines: TextIO, limits: TraceLimits) -> Iterator[tuple[int, Row]]:
    names: list[str] | None = None
    first_line, num_characters = 1, 0

    def of_record() -> Iterator[str]:
        nonlocal num_characters
        for line in lines:
            num_characters += len(line)
            check_line(num_characters, path, first_line, limits)
            yield line

    reader = csv.reader(of_record(), strict=True)
    try:
        for record in reader:
            line, fields = reader.line_num, [field.strip() for field in record]
            first_line, num_characters = line + 1, 0
            if names is None and any(fields):
                names = fields
                Columns.among(names, path=path, line=line)
            elif names is not None and any(fields):
                if len(fields) > len(names):
                    message = f"{count_of(len(fields), 'field')}, the header has {len(names)}"
                    raise TraceError(message, path=path, line=line)
                yield line, dict(zip(names, (each or None for each in fields), strict=False))
    except csv.Error as error:
        raise TraceError(str(error), path=path, line=reader.line_num) from error


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


def _parquet_rows(path: Path, limits: TraceLimits) -> Iterator[tuple[int, Row]]:
    try:
        import pyarrow  # noqa: PLC0415  (an extra)
        from pyarrow import parquet  # noqa: PLC0415
    except ModuleNotFoundError as error:
        message = "parquet needs pyarrow, which is not installed: pip install pyarrow"
        raise TraceError(message, path=path) from error
    try:
        with parquet.ParquetFile(path) as file:
            columns = Columns.among(file.schema_arrow.names, path=path, line=None)
            texts = _text_columns(file.metadata.schema, columns, path)
            _check_groups(file.metadata, columns, path, limits)
        with parquet.ParquetFile(path, read_dictionary=texts) as file:
            others = dict.fromkeys(file.schema_arrow.names)
            for number, values in enumerate(_parquet_values(pyarrow, file, columns), 1):
                yield number, others | dict(zip(columns, values, strict=True))
    except pyarrow.ArrowException as error:
        raise TraceError(f"no parquet: {error}", path=path) from error


def _text_columns(schema: Any, columns: Columns, path: Path) -> list[str]:
    """Return the columns of text: a file may have one copy of what is in every row, so read one."""
    leaves = [schema.column(place) for place in range(len(schema))]
    kinds = {each.path: each.physical_type for each in leaves}
    for name in columns:
        if name not in kinds:
            raise TraceError("has no number or date in a row", path=path, column=name)
    return [name for name in columns if kinds[name] == "BYTE_ARRAY"]


def _check_groups(footer: Any, columns: Columns, path: Path, limits: TraceLimits) -> None:
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    num_rows = sum(group.num_rows for group in groups)
    if num_rows > limits.max_rows:
        rows = count_of(f"{num_rows:,}", "row")
        raise TraceError(f"{rows}, more than {limits.max_rows:,}", path=path)
    parts = (group.column(place) for group in groups for place in range(group.num_columns))
    sizes = [each.total_uncompressed_size for each in parts if each.path_in_schema in columns]
    if max(sizes, default=0) > MOST_COLUMN_BYTES:
        found, most = format_bytes(max(sizes)), format_bytes(MOST_COLUMN_BYTES)
        message = f"a column of {found} in a row group, more than {most}: write smaller row groups"
        raise TraceError(message, path=path)
    check_bytes(sum(sizes), path, limits)


def _parquet_values(pyarrow: Any, file: Any, columns: Columns) -> Iterator[Iterator[Any]]:
    for batch in file.iter_batches(columns=list(columns)):
        for row in zip(*(_in_us(pyarrow, each) for each in batch.columns), strict=True):
            yield (value.as_py() for value in row)


def _in_us(pyarrow: Any, column: Any) -> Any:
    """Return an Arrow array whose dates are no finer than Python's."""
    if not pyarrow.types.is_timestamp(column.type):
        return column
    return column.cast(pyarrow.timestamp("us", column.type.tz), safe=False)
