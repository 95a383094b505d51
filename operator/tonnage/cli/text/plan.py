"""A plan, or a reasoned no, as text for a person."""

from collections.abc import Iterable, Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from tonnage.api.status import Reason
from tonnage.cli.console import WIDEST, printable
from tonnage.cli.results import plan_summary as words
from tonnage.cli.results.planning import CANNOT_RUN, Planned, Refused
from tonnage.cli.text.figures import batch_table, memory_bar
from tonnage.cli.text.layout import DIM, INDENT, Tiles, grid, heading, indent, section, table
from tonnage.explain.cost_words import price_notes
from tonnage.explain.demand_outcome import demand_rows
from tonnage.explain.report import assumptions_written
from tonnage.explain.words import Answer, inputs
from tonnage.sizing.plan import Sizing

CHANGE = "change in the spec"
SAVINGS = {
    False: ("For the same demand at a lower cost, the most saved first", CHANGE),
    True: ("If prompts share their beginnings, which no field makes them do", "what they share"),
}
"""What a spec brings about, and what only the traffic does."""
ORIGIN_STYLE = {
    "given": "",
    "looked up": "",
    "guessed": "yellow",
    "assumed": "yellow",
    "measured": "green",
}


def first_report(answer: Planned | Refused) -> Iterator[RenderableType]:
    """Yield what is known at once: the headline and figures at the demand, or why it is no."""
    yield _title(answer)
    if isinstance(answer, Refused):
        yield Text(f"No ({answer.code}): {printable(answer.message)}", style="red")
        yield from _assumed(answer.assumed)
        return
    style = "yellow" if words.is_short(answer) or words.obstacles(answer) else "green"
    yield Text(words.headline(answer), style=style)
    yield from _assumed(assumptions_written(answer.sizing.request))
    yield Tiles(tuple(demand_rows(answer.sizing, answer.replicas)))


def _plan_report(answer: Planned, *, is_ascii: bool, width: int) -> RenderableType:
    """Return what costs less, questions in order, inputs, plan."""
    sizing = answer.sizing
    figures: dict[int, RenderableType] = {
        0: memory_bar(sizing, is_ascii=is_ascii, width=width - INDENT),
        2: batch_table(sizing),
    }
    parts: list[RenderableType] = []
    for is_traffic, (title, head) in SAVINGS.items():
        if found := [each for each in answer.savings if each.is_traffic == is_traffic]:
            cells = map(words.saving_cells, found)
            parts += section(title, _changes(words.SAVING_NUMBERS, cells, head))
    for number, each in enumerate(words.questions(answer)):
        parts += _question(number + 1, each, figures.get(number))
    parts += section("Assumptions", _inputs(sizing))
    summary = grid(words.summary(answer).items())
    for reason in answer.reasons:
        summary.add_row(*_reason(reason))
    parts += section("Plan", indent(summary))
    return Group(*parts)


def _changes(
    numbers: Iterable[str], rows: Iterable[tuple[str, ...]], head: str = CHANGE
) -> RenderableType:
    found = table(head, numbers=numbers)
    for row in rows:
        found.add_row(*row)
    return indent(found)


def _title(answer: Planned | Refused) -> RenderableType:
    spec = answer.deployment.spec
    return heading(f"{words.object_label(answer)}: {spec.model.id} on {spec.hardware.gpu}")


def _question(
    number: int, answer: Answer, figure: RenderableType | None
) -> Iterator[RenderableType]:
    yield from section(f"{number}. {answer.question}", indent(Text(answer.answer)))
    if answer.lines:
        # Continued lines hang below their first word.
        lines = ((Text("-", style=DIM), Text(line, style=DIM)) for line in answer.lines)
        yield indent(grid(lines, gap=1))
    if figure is not None:
        yield indent(figure, above=1)


def _inputs(sizing: Sizing) -> RenderableType:
    return indent(
        grid(
            (name, value, Text(origin, style=ORIGIN_STYLE.get(origin, "")))
            for name, value, origin in inputs(sizing)
        )
    )


def _assumed(written: Iterable[str]) -> list[Text]:
    return [Text(f"assumed: {printable(each)}", style="yellow") for each in written]


def _reason(reason: Reason) -> tuple[Text, Text]:
    style = "yellow" if reason.code in {"MaxReplicas", CANNOT_RUN} else ""
    return Text(reason.code, style=style), Text(reason.message, style=style)


def _refusal_report(answer: Refused) -> RenderableType:
    """Return what would make the no a yes."""
    offers = (("\n".join(each.changes), *words.offer_numbers(each)) for each in answer.offers)
    hours = (
        (each.sizing.request.gpu.name, cost.hour) for each in answer.offers if (cost := each.bill)
    )
    return Group(
        *section("Ways out, the cheapest first", _changes(words.OFFER_NUMBERS, offers)),
        *(indent(Text(note, style=DIM)) for note in price_notes(hours)),
    )


def further_report(
    answer: Planned | Refused, *, is_ascii: bool = False, width: int = WIDEST
) -> RenderableType:
    """Return what follows the first answer, whatever it is."""
    if isinstance(answer, Refused):
        return _refusal_report(answer)
    return _plan_report(answer, is_ascii=is_ascii, width=width)
