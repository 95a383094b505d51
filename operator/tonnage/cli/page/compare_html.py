"""GPU classes compared, as one page that needs nothing beside itself."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from tonnage.cli.answers.compare_words import (
    CLASS,
    RANKING,
    WORDS,
    as_written,
    class_stages,
    headline,
    in_short,
    notes,
    ranked_by,
    row_cells,
    to_write,
    validated,
)
from tonnage.cli.answers.comparing import Compared
from tonnage.cli.page.compare_layout import MAX_LINES, course, throughput_layout
from tonnage.cli.page.compare_svg import cost_picture, throughput_picture
from tonnage.cli.page.markup import Markup, element, joined
from tonnage.cli.page.plan_html import WORDS as PLAN_WORDS
from tonnage.cli.page.plan_html import batches, document, facts, figure, wide, words
from tonnage.sizing.selection import Choice

STYLES: Final = ("plan.css", "compare.css")
MAX_BARS: Final = 14
COST_CAPTION: Final = (
    "Full use: every replica at its load line, the least that a token can cost. As asked: the "
    "same replicas with no more tokens than the demand has, which pay for what is idle; the light "
    "part of a bar is that difference. A bar with a gap goes on."
)
GLOSSARY: Final = {
    "split": "how the model is spread over the GPUs of a replica: TP tensor, PP pipeline, DP data "
    "parallel",
    "full use": "every replica at its load line",
    **{
        word: PLAN_WORDS[word]
        for word in (
            "replica",
            "TTFT",
            "TPOT",
            "SLO",
            "KV cache",
            "max-num-seqs",
            "decoding",
            "prefill",
            "load line",
            "SLO ceiling",
            "memory ceiling",
        )
    },
}


def page(found: Compared) -> str:
    """Return the whole page: the answer, both pictures, the ranking, each class in its stages."""
    deployment = found.deployment
    name = f"{deployment.namespace}/{deployment.name}"
    return document(
        f"Tonnage compare: {name}",
        element("h1", "Tonnage compare"),
        element("p", "Which GPU class serves a model for least, and what that stands on."),
        element("section", *_body(found, name), class_=_kind(found)),
        words(GLOSSARY),
        styles=STYLES,
    )


def _kind(found: Compared) -> str:
    return "yes" if found.selection.choices else "no"


def _body(found: Compared, name: str) -> Iterator[Markup]:
    yield element(
        "h2",
        element("span", f"{name}: {found.deployment.spec.model.id}", class_="name"),
        element("span", headline(found), class_="answer"),
    )
    yield element("p", as_written(found))
    if found.selection.choices:
        yield from _pictures(found)
        yield from _ranking(found)
    yield from _refused(found)
    if found.in_full:
        yield element("h3", "The stages of each class")
        yield from (_class(found, choice) for choice in found.in_full)
        yield element("h3", "To be validated by measurement")
        yield _validation(found)


def drawn(found: Compared) -> tuple[Choice, ...]:
    """Return the classes that have a line: the first of the ranking, and the manifest's own."""
    first = found.selection.choices[:MAX_LINES]
    if any(choice.gpu == found.question.gpu for choice in first):
        return first
    own = [choice for choice in found.selection.choices if choice.gpu == found.question.gpu]
    return (*first[: MAX_LINES - len(own)], *own)


def _pictures(found: Compared) -> Iterator[Markup]:
    choices = drawn(found)
    courses = [course(choice, number + 1) for number, choice in enumerate(choices)]
    layout = throughput_layout(courses, found.question.slo)
    yield figure(
        "comparison",
        "Throughput against latency, by batch",
        throughput_picture(layout, name="compare-throughput"),
        _throughput_caption(found, len(choices)),
    )
    priced = [(choice, bill) for choice in found.selection.choices if (bill := choice.bill)]
    if priced:
        series = {each.name: each.series for each in courses}
        yield figure(
            "comparison",
            "USD per million output tokens",
            cost_picture(priced[:MAX_BARS], series, name="compare-cost"),
            _cost_caption(len(priced)),
        )


def _throughput_caption(found: Compared, number: int) -> str:
    hidden = len(found.selection.choices) - number
    shown = f" {hidden} more classes are in the ranking only." if hidden else ""
    promised = (
        "left of the SLO the mean step is fast enough"
        if found.question.slo.tpot
        else "nothing is promised about TPOT"
    )
    return (
        "Each point is a batch, from few requests to many: higher is cheaper, further left is "
        f"faster; {promised}. The large point is the load line with its number of decoding "
        f"requests: where the class is to be run. Hollow points break a limit.{shown}"
    )


def _cost_caption(number: int) -> str:
    hidden = number - MAX_BARS
    return f"{COST_CAPTION} The {hidden} dearest are left out." if hidden > 0 else COST_CAPTION


def _ranking(found: Compared) -> Iterator[Markup]:
    columns = ("#", CLASS, *RANKING)
    yield element("h3", ranked_by(found))
    rows = (
        element(
            "tr",
            *_cells(columns, dict(row_cells(number + 1, choice))),
            class_="own" if choice.gpu == found.question.gpu else "class",
        )
        for number, choice in enumerate(found.selection.choices)
    )
    yield element("div", _table(columns, rows), class_="ranking")
    yield from (element("p", note, class_="note") for note in notes(found))


def _cells(columns: Sequence[str], row: dict[str, str]) -> Iterator[Markup]:
    for name in columns:
        if name == CLASS:
            yield element("th", row[name], scope="row")
        else:
            yield element("td", row[name], class_="word" if name in WORDS else "number")


def _table(columns: Iterable[str], rows: Iterable[Markup]) -> Markup:
    head = (
        element(
            "th",
            joined(*name.split("\n"), by="<br/>"),
            scope="col",
            class_="word" if name in WORDS else "number",
        )
        for name in columns
    )
    return wide(element("thead", element("tr", *head)), element("tbody", *rows))


def _refused(found: Compared) -> Iterator[Markup]:
    """Yield the reasons: at once where nothing else is to be seen, else behind a line."""
    refused = found.selection.refused
    if not refused:
        return
    reasons = facts((each.gpu.name, f"{each.reason}: {each.message}") for each in refused)
    if found.selection.choices:
        number = len(refused)
        said = "1 class cannot serve it" if number == 1 else f"{number} classes cannot serve it"
        yield element("details", element("summary", said), reasons)
    else:
        yield from (element("h3", "Why"), reasons)


def _class(found: Compared, choice: Choice) -> Markup:
    number = found.selection.choices.index(choice) + 1
    title = element("summary", f"{number}. {choice.gpu.name}: {in_short(choice)}")
    parts = (
        element("p", element("code", to_write(choice))),
        element("div", facts(class_stages(found, choice)), class_="stages"),
        *batches(choice.sizing),
    )
    if number == 1:
        return element("details", title, *parts, open="open")
    return element("details", title, *parts)


def _validation(found: Compared) -> Markup:
    rows = (
        element(
            "tr",
            element("th", each.name, scope="row"),
            element("td", each.value),
            element("td", each.origin, class_=each.origin.replace(" ", "-")),
            element("td", each.confirmed_by),
        )
        for each in validated(found)
    )
    columns = ("figure", "value", "origin", "confirmed by")
    head = (element("th", name, scope="col") for name in columns)
    return wide(element("thead", element("tr", *head)), element("tbody", *rows))
