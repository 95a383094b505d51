"""The file of a trace, unpacked and bounded before a row of it is read.

A packed file of 1 MB can hold 1 GiB: lines and bytes are counted first, in pieces, which takes a
second for a GiB. What is read after that fits into memory.
"""

import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TextIO

from tonnage.units import GIB, MIB, MILLION, count_of, format_bytes

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
