"""What answers on a terminal are laid out with: titles, parts, tables as wide as the screen."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding, PaddingDimensions
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


def heading(title: str) -> RenderableType:
    """Return the title of an answer."""
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


def plain_table(padding: PaddingDimensions = (0, 1)) -> Table:
    """Return a table without columns: a line below its head, and no other."""
    return Table(
        box=box.SIMPLE_HEAD, padding=padding, pad_edge=False, show_edge=False, header_style="bold"
    )


def table(*names: str, numbers: Iterable[str] = (), no_wrap: bool = False) -> Table:
    """Return a table without rows: columns of words, then of numbers, aligned right.

    ``no_wrap``: the words of a cell stay in one line, as numbers do.
    """
    found = plain_table()
    for name in names:
        found.add_column(name, no_wrap=no_wrap)
    for name in numbers:
        found.add_column(name, justify="right", no_wrap=True)
    return found


def parts(
    rows: Sequence[Mapping[str, str]],
    *,
    names: Sequence[str],
    words: Collection[str],
    console: Console,
    indent: int = 0,
) -> Iterator[Table]:
    """Yield one table where there is room for it, else several of as many columns as there is.

    ``names``: columns of what a row is about, which every part begins with; ``words``: columns that
    are no numbers.
    """
    most, room = console.width // 3, console.width + GAP - indent
    columns = list(rows[0]) if rows else []
    widths = {name: _width(name, rows, most if name in names else None) for name in columns}
    dropped = [name for name in columns if name not in names]
    while dropped:
        shown = [*names, dropped.pop(0)]
        while dropped and sum(widths[name] for name in (*shown, dropped[0])) <= room:
            shown.append(dropped.pop(0))
        table = plain_table(padding=(0, 1, 0, 0))
        for name in shown:
            table.add_column(
                name,
                justify="left" if name in words else "right",
                no_wrap=name not in words,
                overflow="fold",
                max_width=most if name in names else None,
            )
        for row in rows:
            table.add_row(*(row[name] for name in shown))
        yield table


def _width(name: str, rows: Sequence[Mapping[str, str]], most: int | None) -> int:
    """Return the characters that a column would like to have, with the gap behind it."""
    widest = max(cell_len(each) for each in (*name.split("\n"), *(row[name] for row in rows)))
    return GAP + (widest if most is None else min(widest, most))
