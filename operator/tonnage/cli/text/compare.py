"""GPU classes compared, as text for a person: the ranking, then the aspects of each class."""

from collections.abc import Iterator
from typing import Final

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tonnage.cli.answers.compare_words import (
    CLASS,
    RANKING,
    WORDS,
    as_written,
    class_aspects,
    headline,
    in_short,
    notes,
    priced_choices,
    ranked_by,
    row_cells,
    to_write,
    unconfirmed_once,
    unpriced_choices,
)
from tonnage.cli.answers.comparing import Compared
from tonnage.cli.console import printable
from tonnage.cli.text.figures import DIM, batch_table, heading
from tonnage.cli.text.parts import parts
from tonnage.cli.text.plan import INDENT
from tonnage.sizing.compare import Choice
from tonnage.units import count_of

NAMES: Final = ("#", CLASS)


def comparison_report(found: Compared, console: Console) -> Iterator[RenderableType]:
    """Yield the parts of the answer, as wide as the console."""
    yield _title(found)
    yield Text(headline(found), style="green" if found.selection.choices else "red")
    yield Text(as_written(found))
    if found.selection.choices:
        yield Text()
        yield Text(ranked_by(found), style="bold")
        yield from (_indent(table) for table in _ranking(found, console))
        yield from (_indent(Text(note, style=DIM)) for note in notes(found))
    if found.selection.refused:
        yield Group(Text(), Text("Refused", style="bold"), _indent(_refused_table(found)))
    for choice in found.in_full:
        yield Group(Text(), *_class(found, choice))
    yield from _validation(found)


def _title(found: Compared) -> RenderableType:
    deployment, selection = found.deployment, found.selection
    number = len(selection.choices) + len(selection.refused)
    classes = count_of(number, "GPU class", "GPU classes")
    name = f"{deployment.namespace}/{deployment.name}: {deployment.spec.model.id} on {classes}"
    return heading(name)


def _ranking(found: Compared, console: Console) -> Iterator[RenderableType]:
    """Yield the classes that have a price, then those without one."""
    rows = [dict(row_cells(number, choice)) for number, choice in priced_choices(found)]
    apart = [dict(row_cells(number, choice)) for number, choice in unpriced_choices(found)]
    yield from _tables(rows, console)
    if rows and apart:
        yield Padding(Text("Without a price, by number of GPUs", style="bold"), (1, 0, 0, 0))
    yield from _tables(apart, console)


def _tables(rows: list[dict[str, str]], console: Console) -> Iterator[RenderableType]:
    shown = [{name: row[name] for name in (*NAMES, *RANKING)} for row in rows]
    found = parts(shown, names=NAMES, words=WORDS, console=console, indent=INDENT)
    for number, table in enumerate(found):
        yield Padding(table, (1 if number else 0, 0, 0, 0))


def _refused_table(found: Compared) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    for each in found.selection.refused:
        why = printable(each.message).partition(";")[0]
        grid.add_row(each.gpu.name, Text(why, style=DIM))
    return grid


def _class(found: Compared, choice: Choice) -> Iterator[RenderableType]:
    number = found.selection.choices.index(choice) + 1
    yield Text(f"{number}. {choice.gpu.name}: {in_short(choice)}", style="bold")
    yield _indent(Text(to_write(choice)))
    grid = Table.grid(padding=(0, 2, 0, 0))
    for aspect, said in class_aspects(found, choice):
        grid.add_row(Text(aspect), Text(said, style=DIM))
    yield _indent(grid)
    yield Padding(batch_table(choice.sizing), (1, 0, 0, INDENT), expand=False)


def _validation(found: Compared) -> Iterator[RenderableType]:
    """Yield what only a measurement can confirm, and how."""
    if not found.in_full:
        return
    yield Group(Text(), Text("To be validated by measurement, for every class", style="bold"))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for name in ("figure", "value", "origin", "confirmed by"):
        table.add_column(name)
    for each in unconfirmed_once(found):
        table.add_row(each.name, each.value, each.origin, each.confirmed_by)
    yield _indent(table)


def _indent(content: RenderableType) -> Padding:
    return Padding(content, (0, 0, 0, INDENT), expand=False)
