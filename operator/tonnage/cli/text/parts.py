"""A table in as many parts as the screen is narrow: a figure is neither cut nor broken."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

UNBOUNDED: Final = 10_000
"""Characters: a table is asked how wide it would like to be."""


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

    def table(rows: Sequence[Mapping[str, str]], columns: Sequence[str]) -> Table:
        table = _table(names, columns, words=words, most=console.width // 3)
        for row in rows:
            table.add_row(*(row[name] for name in (*names, *columns)))
        return table

    widest = [_widest(rows)]  # as wide as all of them, and measured at once
    left = [name for name in widest[0] if name not in names]
    while left:
        shown = [left.pop(0)]
        while left and _fits(table(widest, [*shown, left[0]]), console, indent):
            shown.append(left.pop(0))
        yield table(rows, shown)


def _widest(rows: Sequence[Mapping[str, str]]) -> Mapping[str, str]:
    """Return the widest cell of each column."""
    columns = rows[0] if rows else ()
    return {name: max((row[name] for row in rows), key=cell_len) for name in columns}


def _fits(table: Table, console: Console, indent: int) -> bool:
    unbounded = console.options.update(max_width=UNBOUNDED)
    return console.measure(table, options=unbounded).maximum + indent <= console.width


def _table(
    names: Sequence[str], columns: Sequence[str], *, words: Collection[str], most: int
) -> Table:
    """Return a part without rows; ``most``: characters of a name in one line."""
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
        header_style="bold",
    )
    for name in (*names, *columns):
        is_word = name in words
        table.add_column(
            name,
            justify="left" if is_word else "right",
            no_wrap=not is_word,
            overflow="fold",
            max_width=most if name in names else None,
        )
    return table
