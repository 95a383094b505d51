"""A table in as many parts as the screen is narrow: a figure is neither cut nor broken."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from tonnage.cli.text.layout import plain_table

GAP: Final = 2
"""Characters between columns."""


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
    left = [name for name in columns if name not in names]
    while left:
        shown = [*names, left.pop(0)]
        while left and sum(widths[name] for name in (*shown, left[0])) <= room:
            shown.append(left.pop(0))
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
