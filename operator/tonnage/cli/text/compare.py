"""GPU classes compared, as text for a person: the ranking, then each class in figures."""

from collections.abc import Iterator
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from tonnage.cli.answers import compare_words as words
from tonnage.cli.answers.comparing import Compared
from tonnage.cli.console import printable
from tonnage.cli.text.figures import batch_table
from tonnage.cli.text.layout import DIM, INDENT, grid, heading, indent, section
from tonnage.cli.text.parts import parts
from tonnage.sizing.compare import Choice
from tonnage.units import count_of

NAMES: Final = ("#", words.CLASS)


def comparison_report(found: Compared, console: Console) -> Iterator[RenderableType]:
    """Yield the parts of the answer, as wide as the console."""
    yield _title(found)
    yield Text(words.headline(found), style="green" if found.selection.choices else "red")
    yield Text(words.as_written(found))
    if found.selection.choices:
        yield Text()
        yield Text(words.ranked_by(found), style="bold")
        yield from (indent(part) for part in _ranking(found, console))
        yield from (indent(Text(note, style=DIM)) for note in words.notes(found))
    if found.selection.refused:
        refused = (
            (each.gpu.name, Text(printable(each.message).partition(";")[0], style=DIM))
            for each in found.selection.refused
        )
        yield Group(*section("Refused", indent(grid(refused))))
    for choice in found.in_full:
        yield Group(Text(), *_class(found, choice))


def _title(found: Compared) -> RenderableType:
    deployment, selection = found.deployment, found.selection
    number = len(selection.choices) + len(selection.refused)
    classes = count_of(number, "GPU class", "GPU classes")
    name = f"{deployment.namespace}/{deployment.name}: {deployment.spec.model.id} on {classes}"
    return heading(name)


def _ranking(found: Compared, console: Console) -> Iterator[RenderableType]:
    """Yield the classes that have a price, then those without one."""
    rows, apart = (
        [dict(words.row_cells(number, choice)) for number, choice in choices]
        for choices in (words.priced_choices(found), words.unpriced_choices(found))
    )
    yield from _tables(rows, console)
    if rows and apart:
        yield Padding(Text("Without a price, by number of GPUs", style="bold"), (1, 0, 0, 0))
    yield from _tables(apart, console)


def _tables(rows: list[dict[str, str]], console: Console) -> Iterator[RenderableType]:
    shown = [{name: row[name] for name in (*NAMES, *words.RANKING)} for row in rows]
    found = parts(shown, names=NAMES, words=words.WORDS, console=console, indent=INDENT)
    for number, part in enumerate(found):
        yield Padding(part, (1 if number else 0, 0, 0, 0))


def _class(found: Compared, choice: Choice) -> Iterator[RenderableType]:
    number = found.selection.choices.index(choice) + 1
    yield Text(f"{number}. {choice.gpu.name}: {words.in_short(choice)}", style="bold")
    yield indent(Text(words.to_write(choice)))
    rows = words.class_rows(choice)
    yield indent(grid((Text(name), Text(said, style=DIM)) for name, said in rows))
    yield indent(batch_table(choice.sizing), above=1)
