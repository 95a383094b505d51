"""Tables as templates take them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["word", "text", "number", "name", "origin"]
"""``text`` may go on in another line; ``name``: what the row is about; ``origin``: given, looked
up, guessed or measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """What stands above a column, and how its cells are set."""

    title: str
    kind: Kind = "word"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The cells of a row; ``mark`` makes it stand out."""

    cells: tuple[str, ...]
    mark: Literal["", "own", "load-line"] = ""
    color: str = ""
    """Of what the row stands for in a picture."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table; one without titles lists names and what they are."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]

    @property
    def has_titles(self) -> bool:
        return any(column.title for column in self.columns)


FACTS: Final = (Column(title="", kind="name"), Column(title="", kind="text"))


def facts(pairs: Iterable[tuple[str, str]]) -> Table:
    """Return a table of names and what they are."""
    return plain_table(FACTS, pairs)


def plain_table(columns: tuple[Column, ...], rows: Iterable[Iterable[str]]) -> Table:
    """Return a table without highlighted rows."""
    return Table(columns=columns, rows=tuple(Row(cells=tuple(row)) for row in rows))


def numbers(*titles: str) -> tuple[Column, ...]:
    return tuple(Column(title=title, kind="number") for title in titles)
