"""What answers on a terminal are laid out with: titles, parts, tables as wide as the screen."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Final

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Column, Table
from rich.text import Text

GAP: Final = 2
"""Characters between columns."""
INDENT: Final = 3
DIM: Final = "dim"


@dataclass(frozen=True, slots=True)
class _Heading:
    """A title on a rule; one that is wider than the screen is wrapped, not cut."""

    title: Text

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        is_wide = len(self.title) + len("  ") <= options.max_width
        yield Rule(self.title, align="left", style=DIM) if is_wide else self.title


@dataclass(frozen=True, slots=True)
class Tiles:
    """The figures that decide, by their names: rows of a terminal, tiles of a page."""

    rows: tuple[tuple[str, str], ...]

    def __rich_console__(self, *_: object) -> RenderResult:
        yield indent(grid(self.rows, Column(no_wrap=True)))


def heading(title: str) -> RenderableType:
    return _Heading(Text(title, style="bold"))


def section(title: str, *content: RenderableType) -> list[RenderableType]:
    """Return a part of an answer, below an empty line and its title."""
    return [Text(), Text(title, style="bold"), *content]


def indent(content: RenderableType, *, above: int = 0) -> Padding:
    """Return something below a title; ``above``: empty lines before it."""
    return Padding(content, (above, 0, 0, INDENT), expand=False)


def grid(rows: Iterable[Iterable[str | Text]], *columns: Column, gap: int = 2) -> Table:
    """Return rows without a head; ``columns``: those that are set in another way than usual."""
    found = Table.grid(*columns, padding=(0, gap, 0, 0))
    for row in rows:
        found.add_row(*row)
    return found


def table(*names: str, numbers: Iterable[str] = ()) -> Table:
    """Return a table without rows: columns of words, then of numbers, aligned right."""
    found = Table(
        box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, show_edge=False, header_style="bold"
    )
    for name in names:
        found.add_column(name, overflow="fold")
    for name in numbers:
        found.add_column(name, justify="right", no_wrap=True)
    return found


def fitting_table(
    rows: Sequence[Mapping[str, str]],
    *,
    names: Sequence[str],
    console: Console,
    indent: int = 0,
    styles: Iterable[str] = (),
) -> Iterator[RenderableType]:
    """Yield one table of as many columns as there is room for, and what the others are.

    ``names``: columns of what a row is about, which come first and are never left out.
    ``styles``: of the rows.
    """
    most = console.width // (len(names) + 1)
    others = [name for name in rows[0] if name not in names]
    widths = {
        name: GAP + max(cell_len(each) for row in rows for each in (*name.split("\n"), row[name]))
        for name in rows[0]
    }
    room = console.width + GAP - indent - sum(min(GAP + most, widths[name]) for name in names)
    shown = []
    while others and (room := room - widths[others[0]]) >= 0:
        shown.append(others.pop(0))
    found = table()
    found.padding = (0, GAP - 1, 0, 0)
    for name in names:
        found.add_column(name, overflow="fold", max_width=most)
    for name in shown:
        is_words = any(row[name][:1].isalpha() for row in rows)
        found.add_column(name, justify="left" if is_words else "right", no_wrap=True)
    for row, style in zip(rows, (*styles, *repeat("", len(rows))), strict=False):
        found.add_row(*(row[name] for name in (*names, *shown)), style=style)
    yield found
    if others:
        left_out = ", ".join(" ".join(name.split()) for name in others)
        yield Text(f"not shown in {console.width} columns: {left_out}", style=DIM)
