"""How much of a trace file is read."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tonnage.cli.commands.options import option, parsed
from tonnage.cli.console import failing, remark
from tonnage.replay.trace_file import TraceError, TraceLimits
from tonnage.units import quantity

if TYPE_CHECKING:  # slow to import, and help prints without it
    from tonnage.replay.traces import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions:
    """How much of a trace file is read."""

    max_rows: int = option(
        "--max-trace-rows",
        type=click.IntRange(min=1),
        default=TraceLimits().max_rows,
        help="Most rows of a trace that are read; a million take about 6 s and 24 to 120 MB.",
    )
    max_bytes: int = option(
        "--max-trace-bytes",
        metavar="SIZE",
        default="1Gi",
        callback=parsed(lambda size: int(quantity(size))),
        help="Most bytes of a trace that are read, after unpacking.",
    )

    max_line_bytes: int = option(
        "--max-trace-line",
        metavar="SIZE",
        default="1Mi",
        callback=parsed(lambda size: int(quantity(size))),
        help="Most bytes of a line, or of a csv record over several lines.",
    )

    def read(self, path: Path) -> "Trace":
        """Read a trace, and say what became of it; once that takes long, how far it is.

        Raises:
            Failure: it cannot be read.
        """
        from tonnage.cli.commands.writing import search_progress  # noqa: PLC0415  (slow)
        from tonnage.replay.traces import notes_of, read_trace  # noqa: PLC0415

        limits = TraceLimits(
            max_rows=self.max_rows, max_bytes=self.max_bytes, max_line_bytes=self.max_line_bytes
        )
        with failing(TraceError):
            trace = read_trace(path, limits=limits, tell=search_progress().reading(path.name))
        for note in notes_of(trace):
            remark(f"Note: {path}: {note}")
        return trace
