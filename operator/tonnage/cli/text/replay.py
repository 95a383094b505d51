"""A replay for a terminal: what Tonnage saves, and every policy in a row."""

from collections.abc import Iterator
from typing import Final

from rich.console import Console, RenderableType
from rich.text import Text

from tonnage.cli.console import printable
from tonnage.cli.results import replay_summary as words
from tonnage.cli.results.replays import Replays
from tonnage.cli.text.layout import DIM, INDENT, fitting_table, heading, indent

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
        rows = [{words.POLICY: str(each.policy), **words.cells(each)} for each in fared]
        styles = ["" if each.keeps(question.target) else "red" for each in fared]
        table = fitting_table(
            rows, names=[words.POLICY], console=console, indent=INDENT, styles=styles
        )
        yield from map(indent, table)
        for each in fared:
            for note in each.notes:
                yield indent(Text(f"{each.policy}: {note}", style=DIM))
        yield indent(Text(words.fluid_words(fared), style=DIM))
        yield Text()
    for note in words.notes(found):
        yield Text(note, style=DIM)
