"""A replay for a terminal: what Tonnage saves, and every policy in a row."""

from collections.abc import Iterator, Sequence
from typing import Final

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from tonnage.cli.console import printable
from tonnage.cli.results import replay_summary as words
from tonnage.cli.results.replays import CaseResult, Replays
from tonnage.cli.text.layout import DIM, INDENT, heading, indent, table

COLORS: Final = {"yes": "green", "short": "yellow", "no": "red"}


def replay_report(found: Replays, console: Console) -> Iterator[RenderableType]:
    """Yield the parts of the answer, as wide as the console."""
    question = found.question
    deployment = question.model
    name = f"{deployment.namespace}/{deployment.name}: {deployment.spec.model.id}"
    yield heading(f"{name}, {printable(question.source)}")
    for start_s, fared in found.by_start():
        kind = words.verdict_kind(fared, question.target)
        yield Text(words.headline(fared, question.target), style=COLORS[kind])
        if ran := words.ran_words(fared, question):
            yield Text(ran)
        yield Text(words.case_title(question, start_s), style="bold")
        yield from (indent(part) for part in _tables(fared, question.target, console))
        for each in fared:
            for note in each.notes:
                yield indent(Text(f"{each.policy}: {note}", style=DIM))
        yield indent(Text(words.fluid_words(fared), style=DIM))
        yield Text()
    for note in words.notes(found):
        yield Text(note, style=DIM)


def _tables(found: Sequence[CaseResult], target: float, console: Console) -> Iterator[Table]:
    """Yield one table where there is room for it, else one of the cost and one of what is kept."""
    whole = _table(found, target, words.COLUMNS)
    if console.measure(whole).maximum + INDENT <= console.width:
        yield whole
        return
    yield _table(found, target, words.COST_COLUMNS)
    yield _table(found, target, words.LATENCY_COLUMNS)


def _table(found: Sequence[CaseResult], target: float, columns: Sequence[str]) -> Table:
    policies = table(words.POLICY, numbers=columns, no_wrap=True)
    for each in found:
        row = dict(zip(words.COLUMNS, words.cells(each), strict=True))
        style = "" if each.keeps(target) else "red"
        policies.add_row(str(each.policy), *(row[name] for name in columns), style=style)
    return policies
