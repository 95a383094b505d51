"""A replay for a terminal: what Tonnage saves, and every policy in a row."""

from collections.abc import Iterator, Sequence
from typing import Final

from rich import box
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tonnage.cli.answers.replay_words import (
    COLUMNS,
    GIVES,
    POLICY,
    TAKES,
    case_title,
    cells,
    fluid_words,
    headline,
    notes,
    ran_words,
    verdict_kind,
)
from tonnage.cli.answers.replays import CaseResult, Replays
from tonnage.cli.console import printable
from tonnage.cli.text.figures import DIM, heading
from tonnage.cli.text.plan import INDENT

COLORS: Final = {"yes": "green", "short": "yellow", "no": "red"}


def replay_report(found: Replays, console: Console) -> Iterator[RenderableType]:
    """Yield the parts of the answer, as wide as the console."""
    deployment, question = found.deployment, found.question
    name = f"{deployment.namespace}/{deployment.name}: {deployment.spec.model.id}"
    yield heading(f"{name}, {printable(question.source)}")
    for case, fared in found.by_case():
        kind = verdict_kind(fared, question.target)
        yield Text(headline(fared, question.target), style=COLORS[kind])
        if ran := ran_words(case, fared, question):
            yield Text(ran)
        yield Text(case_title(case), style="bold")
        yield from (_indent(table) for table in _tables(fared, question.target, console))
        for each in fared:
            for note in each.notes:
                yield _indent(Text(f"{each.policy}: {note}", style=DIM))
        yield _indent(Text(fluid_words(fared), style=DIM))
        yield Text()
    for refused in question.refused:
        yield Text(f"{refused.gpu}: {printable(refused.message)}", style="red")
    for note in notes(found):
        yield Text(note, style=DIM)


def _tables(found: Sequence[CaseResult], target: float, console: Console) -> Iterator[Table]:
    """Yield one table where there is room for it, else one of the cost and one of what is kept."""
    whole = _table(found, target, COLUMNS)
    if console.measure(whole).maximum + INDENT <= console.width:
        yield whole
        return
    yield _table(found, target, TAKES)
    yield _table(found, target, GIVES)


def _table(found: Sequence[CaseResult], target: float, columns: Sequence[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    table.add_column(POLICY, no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for each in found:
        row = dict(zip(COLUMNS, cells(each), strict=True))
        style = "" if each.keeps(target) else "red"
        table.add_row(str(each.policy), *(row[name] for name in columns), style=style)
    return table


def _indent(content: RenderableType) -> Padding:
    return Padding(content, (0, 0, 0, INDENT), expand=False)
