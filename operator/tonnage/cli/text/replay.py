"""A replay for a terminal: what Tonnage saves, and every policy in a row."""

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from tonnage.cli.answers.replay_words import (
    COLUMNS,
    POLICY,
    case_title,
    cells,
    fluid_words,
    headline,
    is_kept,
    notes,
)
from tonnage.cli.answers.replays import Fared, Replays
from tonnage.cli.console import printable
from tonnage.cli.text.figures import DIM
from tonnage.cli.text.plan import INDENT


def replayed(found: Replays) -> Iterator[RenderableType]:
    """Yield the parts of the answer."""
    deployment, question = found.deployment, found.question
    name = f"{deployment.namespace}/{deployment.name}: {deployment.spec.model.id}"
    yield Rule(Text(f"{name}, {printable(question.source)}", style="bold"), align="left", style=DIM)
    for case, fared in found.by_case():
        color = "green" if is_kept(fared, question.target) else "red"
        yield Text(headline(fared, question.target), style=color)
        yield Text(case_title(case), style="bold")
        yield _indented(_table(fared, question.target))
        for each in fared:
            for note in each.notes:
                yield _indented(Text(f"{each.policy}: {note}", style=DIM))
        yield _indented(Text(fluid_words(fared), style=DIM))
        yield Text()
    for refused in question.refused:
        yield Text(f"{refused.gpu}: {printable(refused.message)}", style="red")
    for note in notes(found):
        yield Text(note, style=DIM)


def _table(found: Sequence[Fared], target: float) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    table.add_column(POLICY, no_wrap=True)
    for name in COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for each in found:
        table.add_row(str(each.policy), *cells(each), style="" if each.keeps(target) else "red")
    return table


def _indented(content: RenderableType) -> Padding:
    return Padding(content, (0, 0, 0, INDENT), expand=False)
