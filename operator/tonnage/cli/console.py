"""What every command shares: where and in which forms it prints, how it says no, exit codes."""

import csv
import io
import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import click

if TYPE_CHECKING:  # slow to import, and help and version print without it
    from rich.console import Console, RenderableType

T = TypeVar("T")
WIDEST: Final = 120
"""Longer lines are hard to read, however wide the terminal."""

MOST_PROBLEMS: Final = 20

OK: Final = 0
UNEXPECTED: Final = 1
EXIT_INFEASIBLE: Final = 2
"""The question was understood, and its answer is no."""
BAD_INPUT: Final = 3
NO_CLUSTER: Final = 4
NO_CRD: Final = 5
NO_RIGHTS: Final = 6
OVER_BUDGET: Final = 7
INTERRUPTED: Final = 130
"""As shells have it for SIGINT."""
PIPE_CLOSED: Final = 141
"""As shells have it for SIGPIPE."""

_CONTROL: Final = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069]"
)


class Failure(click.ClickException):
    """Ends a command with one line on standard error and this exit code: any part of it may."""

    def __init__(self, message: str, exit_code: int = BAD_INPUT) -> None:
        super().__init__(printable(message))
        self.__dict__["exit_code"] = exit_code  # click declares it for the whole class


class ManifestError(Failure):
    """A file cannot be read as manifests. The message has the file, the line and the reason."""


def raise_all(problems: Sequence[str]) -> None:
    """End with every one of some problems, a line each; of many the first. None: go on.

    Raises:
        ManifestError: with the last of these lines.
    """
    if problems:
        *earlier, last = problems[:MOST_PROBLEMS]
        for each in earlier:
            print_error(each)
        more = len(problems) - MOST_PROBLEMS
        raise ManifestError(f"{last}; and {more} more" if more > 0 else last)


def read_every(read: Callable[..., T], rows: Iterable[tuple[Any, ...]]) -> list[T]:
    """Return what is read of each row; where some cannot be, end with the problems of all."""
    found, problems = list[T](), list[str]()
    for row in rows:
        try:
            found.append(read(*row))
        except ManifestError as error:
            problems.append(error.message)
    raise_all(problems)
    return found


def number_in(value: object) -> float:
    """Return the number that is written; NaN: it is none.

    >>> number_in(" 2.5"), number_in("2,5")
    (2.5, nan)
    """
    try:
        return float(str(value))
    except ValueError:
        return math.nan


@contextmanager
def failing(*kinds: type[Exception], where: str = "") -> Iterator[None]:
    """Turn errors of these kinds into one line that begins with ``where``."""
    try:
        yield
    except kinds as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise Failure(f"{where}{why}") from error


@contextmanager
def needs_extra(installs: str, user: str, modules: frozenset[str]) -> Iterator[None]:
    """Turn a missing module of an extra into one line; ``installs``: what pip is given for it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in modules:
            raise
        raise Failure(
            f"{user} needs {error.name}, which is not installed: pip install {installs}"
        ) from error


def output(*, is_wide: bool = False) -> "Console":
    """Return where answers go. Colour only on a terminal; ``is_wide``: a table, not prose."""
    from rich.console import Console  # noqa: PLC0415  (slow)

    class Terminal(Console):
        """Leaves a closed pipe to whoever runs the command, which knows the exit code for it."""

        def on_broken_pipe(self) -> NoReturn:
            raise BrokenPipeError

    has_width = sys.stdout.isatty() or "COLUMNS" in os.environ
    width = None if has_width else WIDEST
    console = Terminal(highlight=False, markup=False, emoji=False, width=width)
    if not is_wide:
        console.width = min(console.width, WIDEST)
    return console


def show(console: "Console", content: "RenderableType") -> None:
    """Print something; in a file without the blanks that pad its lines on a terminal."""
    if console.is_terminal:
        console.print(content)
        return
    with console.capture() as captured:
        console.print(content)
    for line in captured.get().splitlines():
        console.out(line.rstrip(), highlight=False)


def print_error(message: str) -> None:
    """Print one line of trouble on standard error."""
    click.echo(f"Error: {printable(message)}", err=True)


def remark(message: str) -> None:
    """Print one line on standard error that needs no action."""
    click.echo(printable(message), err=True)


def printable(text: str) -> str:
    r"""Return the text in one line, without characters that a terminal would obey.

    >>> printable("two\n  lines and \x1b[31mred")
    'two lines and ?[31mred'
    """
    return _CONTROL.sub("?", " ".join(text.split()))


NUMBER: Final = re.compile(r"[-+]?[0-9][0-9,.]*|-|")


def serialize(content: object, form: str, *, rows: Sequence[Mapping[str, str]] = ()) -> str:
    """Write data in a form. ``rows``: what Markdown and CSV hold of it."""
    if form == "markdown":
        columns = list(rows[0]) if rows else []
        return "\n".join(markdown_table(columns, [list(row.values()) for row in rows]))
    if form == "csv":
        text = io.StringIO()
        if rows:
            writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        return text.getvalue().rstrip("\n")
    if form == "json":
        return json.dumps(content, indent=2, ensure_ascii=False)
    import yaml  # noqa: PLC0415  (slow)

    return str(yaml.safe_dump(content, sort_keys=False, allow_unicode=True)).rstrip("\n")


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a Markdown table; columns of numbers stand right.

    >>> list(markdown_table(["GPU", "TB/s"], [["H200", "4.8"]]))
    ['| GPU | TB/s |', '| :-- | --: |', '| H200 | 4.8 |']
    """
    cells = list(zip(*rows, strict=True)) or [() for _ in columns]
    yield _line(columns)
    yield _line(["--:" if all(map(NUMBER.fullmatch, each)) else ":--" for each in cells])
    yield from (_line(row) for row in rows)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
