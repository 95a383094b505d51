"""GPU classes compared, as one page that needs nothing beside itself."""

from collections.abc import Iterator
from typing import Final

from tonnage.cli.answers import compare_words as words
from tonnage.cli.answers.batches import BATCH_NUMBERS, batch_rows
from tonnage.cli.answers.comparing import Compared
from tonnage.cli.page.cost import cost_picture, cost_table
from tonnage.cli.page.document import document
from tonnage.cli.page.drawing import SERIES
from tonnage.cli.page.tables import Column, Row, Table, facts, numbers, plain_table
from tonnage.cli.page.throughput import load_lines, throughput_picture
from tonnage.sizing.compare import Choice
from tonnage.sizing.plan import Sizing

MAX_LINES: Final = len(SERIES)
MAX_BARS: Final = 14
BATCHES: Final = (
    *numbers(*BATCH_NUMBERS),
    Column(title="bound by"),
    Column(title=""),
)
VALIDATED: Final = (
    Column(title="figure", kind="name"),
    Column(title="value", kind="text"),
    Column(title="origin", kind="origin"),
    Column(title="confirmed by", kind="text"),
)


def compare_page(found: Compared) -> str:
    """Return the whole page: the answer, both pictures, the ranking, each class in figures."""
    deployment = found.deployment
    return document(
        "compare.html.j2",
        object=f"{deployment.namespace}/{deployment.name}",
        model=deployment.spec.model.id,
        kind="yes" if found.selection.choices else "no",
        verdict=words.headline(found),
        as_written=words.as_written(found),
        refused=facts(
            (each.gpu.name, f"{each.reason}: {each.message}") for each in found.selection.refused
        ),
        classes=[_class(found, choice) for choice in found.in_full],
        **(_ranking_page(found) if found.selection.choices else {"ranking": None}),
    )


def _ranking_page(found: Compared) -> dict[str, object]:
    choices = choices_with_line(found)
    priced = [(each.gpu.name, bill) for each in found.selection.choices if (bill := each.bill)]
    shown = priced[:MAX_BARS]
    colors = {choice.gpu.name: color for choice, (color, _) in zip(choices, SERIES, strict=False)}
    return {
        "ranking": _ranking(found),
        "ranked_by": words.ranked_by(found),
        "notes": list(words.notes(found)),
        "throughput": throughput_picture(choices, found.request.slo, name="compare-throughput"),
        "load_lines": load_lines(choices),
        "has_tpot_target": bool(found.request.slo.tpot),
        "num_hidden": len(found.selection.choices) - len(choices),
        "cost": cost_picture(shown, colors, name="compare-cost") if shown else None,
        "costs": cost_table(shown, colors),
        "num_dearer": len(priced) - len(shown),
        "validated": _unconfirmed_table(found),
    }


def choices_with_line(found: Compared) -> tuple[Choice, ...]:
    """Return the classes that have a line: the first of the ranking, and the manifest's own."""
    first = found.selection.choices[:MAX_LINES]
    if any(choice.gpu == found.request.gpu for choice in first):
        return first
    own = [choice for choice in found.selection.choices if choice.gpu == found.request.gpu]
    return (*first[: MAX_LINES - len(own)], *own)


def _ranking(found: Compared) -> Table:
    titles = ("#", words.CLASS, *words.RANKING)
    columns = tuple(
        Column(
            title=each,
            kind="name" if each == words.CLASS else "word" if each in words.WORDS else "number",
        )
        for each in titles
    )
    return Table(columns=columns, rows=tuple(_rows(found, titles)))


def _rows(found: Compared, titles: tuple[str, ...]) -> Iterator[Row]:
    for number, choice in enumerate(found.selection.choices, start=1):
        cells = dict(words.row_cells(number, choice))
        is_own = choice.gpu == found.request.gpu
        yield Row(cells=tuple(cells[each] for each in titles), mark="own" if is_own else "")


def _class(found: Compared, choice: Choice) -> dict[str, object]:
    return {
        "number": found.selection.choices.index(choice) + 1,
        "gpu": choice.gpu.name,
        "in_short": words.in_short(choice),
        "to_write": words.to_write(choice),
        "rows": facts(words.class_rows(found, choice)),
        "batches": _batches(choice.sizing),
    }


def _batches(sizing: Sizing) -> Table:
    return Table(
        columns=BATCHES,
        rows=tuple(
            Row(cells=(*row.cells, row.remark), mark="load-line" if row.is_load_line else "")
            for row in batch_rows(sizing)
        ),
    )


def _unconfirmed_table(found: Compared) -> Table:
    _, figures = words.to_validate(found)
    return plain_table(VALIDATED, (tuple(each.to_dict().values()) for each in figures))
