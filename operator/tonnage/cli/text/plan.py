"""A plan, or a reasoned no, as text for a person."""

from collections.abc import Iterable, Iterator

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tonnage.api.status import Reason
from tonnage.cli.answers.offers import Offer
from tonnage.cli.answers.plan_words import (
    OFFER_NUMBERS,
    SAVING_NUMBERS,
    headline,
    is_short,
    object_label,
    obstacles,
    offer_notes,
    offer_numbers,
    questions,
    saving_cells,
    subject,
    summary,
)
from tonnage.cli.answers.planning import CANNOT_RUN, Planned, Refused
from tonnage.cli.console import WIDEST, printable
from tonnage.cli.text.figures import DIM, batch_table, heading, memory_bar
from tonnage.explain.at_demand import demand_rows
from tonnage.explain.sources import citations
from tonnage.explain.words import Answer, inputs
from tonnage.sizing.plan import Sizing

INDENT = 3
SAVINGS = "For the same demand at a lower cost, the most saved first"
ORIGIN_STYLE = {"given": "", "looked up": "", "guessed": "yellow", "measured": "green"}


def plan_report(answer: Planned, *, is_ascii: bool = False, width: int = WIDEST) -> RenderableType:
    """Return the whole answer: headline, questions in order, inputs, plan."""
    sizing = answer.sizing
    figures: dict[int, RenderableType] = {
        0: memory_bar(sizing, is_ascii=is_ascii, width=width - INDENT),
        2: batch_table(sizing),
    }
    style = "yellow" if is_short(answer) or obstacles(answer) else "green"
    parts: list[RenderableType] = [_title(answer), Text(headline(answer), style=style)]
    parts += [_rows(demand_rows(sizing, answer.replicas))]
    if answer.savings:
        parts += [Text(), Text(SAVINGS, style="bold"), _savings(answer)]
    for number, each in enumerate(questions(answer)):
        parts += [Text(), *_question(number + 1, each, figures.get(number))]
    parts += [Text(), Text("Assumptions", style="bold"), _inputs(sizing)]
    parts += [Text(), Text("Plan", style="bold"), _summary(answer)]
    if answer.validation is not None:
        parts += [Text(), Text(str(answer.validation), style="green")]
    return Group(*parts)


def _rows(rows: Iterable[tuple[str, str]]) -> RenderableType:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    for name, value in rows:
        grid.add_row(name, value)
    return Padding(grid, (0, 0, 0, INDENT), expand=False)


def _savings(answer: Planned) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    table.add_column("change in the spec")
    for name in SAVING_NUMBERS:
        table.add_column(name, justify="right", no_wrap=True)
    for each in answer.savings:
        table.add_row(*saving_cells(each))
    return Padding(table, (0, 0, 0, INDENT), expand=False)


def _title(answer: Planned | Refused) -> RenderableType:
    return heading(f"{object_label(answer)}: {subject(answer)}")


def _question(
    number: int, answer: Answer, figure: RenderableType | None
) -> Iterator[RenderableType]:
    yield Text(f"{number}. {answer.question}", style="bold")
    yield Padding(Text(answer.answer), (0, 0, 0, INDENT), expand=False)
    if answer.lines:
        yield Padding(_bullet_list(answer.lines), (0, 0, 0, INDENT), expand=False)
    if figure is not None:
        yield Padding(figure, (1, 0, 0, INDENT), expand=False)


def _bullet_list(lines: Iterable[str]) -> Table:
    """Return lines whose continuation hangs below their first word."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    for line in lines:
        grid.add_row(Text("-", style=DIM), Text(line, style=DIM))
    return grid


def _inputs(sizing: Sizing) -> RenderableType:
    grid = Table.grid(padding=(0, 2, 0, 0))
    for name, value, origin in inputs(sizing):
        grid.add_row(name, value, Text(origin, style=ORIGIN_STYLE.get(origin, "")))
    return Padding(grid, (0, 0, 0, INDENT), expand=False)


def sources_of(answer: Planned) -> RenderableType:
    """Return what the figures of a plan are taken from."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(2):
        grid.add_column(overflow="fold")
    for each in citations(answer.sizing.request):
        said = " - ".join(part for part in (each.title, each.quote, each.where) if part)
        grid.add_row(each.figure, Text(said, style=DIM))
    indented = Padding(grid, (0, 0, 0, INDENT), expand=False)
    return Group(Text(), Text("Sources", style="bold"), indented)


def _summary(answer: Planned) -> RenderableType:
    grid = Table.grid(padding=(0, 2, 0, 0))
    for name, value in summary(answer).items():
        grid.add_row(name, value)
    for reason in answer.reasons:
        grid.add_row(*_reason(reason))
    return Padding(grid, (0, 0, 0, INDENT), expand=False)


def _reason(reason: Reason) -> tuple[Text, Text]:
    style = "yellow" if reason.code in {"MaxReplicas", CANNOT_RUN} else ""
    return Text(reason.code, style=style), Text(reason.message, style=style)


def refusal_report(answer: Refused) -> RenderableType:
    """Return the no: why, with the numbers, and what would make it a yes."""
    message = Text(f"No ({answer.code}): {printable(answer.message)}", style="red")
    parts: list[RenderableType] = [_title(answer), message]
    if answer.offers:
        parts += [Text(), Text("Ways out, the cheapest first", style="bold")]
        parts.append(Padding(_offers(answer.offers), (0, 0, 0, INDENT), expand=False))
        notes = (Text(note, style=DIM) for note in offer_notes(answer.offers))
        parts += [Padding(note, (0, 0, 0, INDENT), expand=False) for note in notes]
    return Group(*parts)


def _offers(offers: Iterable[Offer]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    table.add_column("change in the spec")
    for name in OFFER_NUMBERS:
        table.add_column(name, justify="right", no_wrap=True)
    for offer in offers:
        table.add_row("\n".join(offer.changes), *offer_numbers(offer))
    return table


def answer_report(
    answer: Planned | Refused, *, is_ascii: bool = False, width: int = WIDEST
) -> RenderableType:
    """Return one answer, whatever it is."""
    if isinstance(answer, Refused):
        return refusal_report(answer)
    return plan_report(answer, is_ascii=is_ascii, width=width)
