"""Plans, and reasoned noes, as one page that needs nothing beside itself."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Final

from tonnage.cli.answers.batches import BATCH_NOTE, BATCH_NUMBERS, batch_rows
from tonnage.cli.answers.offers import Offer
from tonnage.cli.answers.plan_words import (
    OFFER_NUMBERS,
    headline,
    offer_numbers,
    questions,
    subject,
    summary,
)
from tonnage.cli.answers.planning import Planned, Refused
from tonnage.cli.answers.roofline import roofline
from tonnage.cli.page.markup import Markup, element, joined
from tonnage.cli.page.plan_memory_svg import has_edge, memory_picture
from tonnage.cli.page.plan_roofline_svg import roofline_picture
from tonnage.sizing.explain import Answer, inputs
from tonnage.sizing.memory import MemoryBudget
from tonnage.sizing.plan import Sizing
from tonnage.units import format_bytes

POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
BATCH_QUESTION: Final = 2
"""The place, among the questions, of the one that the table of batches belongs to."""
STEP: Final = re.compile(r" (?=- |is [0-9.]+ \w+ short|leaves [0-9])|(?<=;) ")
"""Where the arithmetic of a refusal goes on in another line."""
NOES: Final = {
    "DoesNotFit": "it does not fit into the memory",
    "SLOInfeasible": "the promised latencies are out of reach, with any number of replicas",
    "ContextTooLong": "the model was not made for so long a context",
    "InvalidParallelism": "it cannot be split over that many GPUs",
}
WORDS: Final = {
    "replica": "one running engine, on all the GPUs that it is split over",
    "TTFT": "time to first token: from the request to the first token of its answer",
    "TPOT": "time per output token, each one after the first",
    "SLO": "the latencies that are promised, each for a share of the requests (p95: 95 of 100)",
    "KV cache": "what the model remembers of each token of the requests that run",
    "max-num-seqs": "the engine's flag for how many requests run at once",
    "decoding": "requests that receive their answer, one token of each per step",
    "prefill": "reading a prompt, before its first token",
    "load line": "the highest load that keeps every promise; replicas are counted at it",
    "SLO ceiling": "requests with which the mean step takes as long as the promised TPOT",
    "memory ceiling": "requests of the usual length that the KV cache holds",
    "FLOP per byte": "work for each byte that is read from the GPU's memory",
    "ridge": "FLOP per byte at which memory and arithmetic of a GPU take equally long",
    "TP, PP, DP": "tensor, pipeline, data parallel: how a replica is split over GPUs",
    "origin": "given in the manifest, looked up in the catalogue, guessed, or measured",
}


def page(found: Sequence[Planned | Refused]) -> str:
    """Return the whole page: every object with its answer, figures and reasons."""
    names = ", ".join(_name(answer) for answer in found)
    sections = (_section(answer, f"plan-{number + 1}") for number, answer in enumerate(found))
    return document(f"Tonnage plan: {names}", *_opening(found), *sections, words(WORDS))


def document(title: str, *body: Markup, styles: Sequence[str] = ("plan.css",)) -> str:
    """Return a page that holds its style sheets, and may load nothing."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        element("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        element("style", *map(_style, styles)),
    )
    return f"<!DOCTYPE html>\n{element('html', head, element('body', *body), lang='en')}\n"


def _style(name: str) -> Markup:
    return Markup(files("tonnage.cli.page").joinpath(name).read_text(encoding="utf-8"))


def _name(answer: Planned | Refused) -> str:
    return f"{answer.deployment.namespace}/{answer.deployment.name}"


def _sentence(answer: Planned | Refused) -> str:
    if isinstance(answer, Planned):
        return headline(answer)
    return f"No: {NOES.get(answer.code, 'the question has no answer')} ({answer.code})"


def _opening(found: Sequence[Planned | Refused]) -> Iterator[Markup]:
    """Yield the title and, where there are several objects, a list of the answers."""
    yield element("h1", "Tonnage plan")
    yield element("p", "What it takes to serve each model, with every number that leads there.")
    if len(found) > 1:
        entries = (
            element(
                "li",
                element("a", _name(answer), href=f"#plan-{number + 1}"),
                f": {_sentence(answer)}",
            )
            for number, answer in enumerate(found)
        )
        yield element("ol", *entries)


def _section(answer: Planned | Refused, name: str) -> Markup:
    body = _planned(answer, name) if isinstance(answer, Planned) else _refused(answer)
    heading = element(
        "h2",
        element("span", f"{_name(answer)}: {subject(answer)}", class_="name"),
        element("span", _sentence(answer), class_="answer"),
    )
    return element("section", heading, *body, id=name, class_=_kind(answer))


def _kind(answer: Planned | Refused) -> str:
    if isinstance(answer, Refused):
        return "no"
    return "short" if answer.replicas < answer.sizing.replicas else "yes"


def _planned(answer: Planned, name: str) -> Iterator[Markup]:
    sizing = answer.sizing
    yield element("div", _memory(sizing.budget, name), _roofline(sizing, name), class_="figures")
    yield element("h3", "Why")
    for number, each in enumerate(questions(answer)):
        yield from _question(number + 1, each)
        if number == BATCH_QUESTION:
            yield from batches(sizing)
    yield element("h3", "What it stands on")
    yield _inputs(sizing)
    yield element("h3", "Plan")
    reasons = [(reason.code, reason.message) for reason in answer.reasons]
    yield facts([*summary(answer).items(), *reasons])


def _memory(budget: MemoryBudget, name: str) -> Markup:
    spread = " Each ± holds nine times in ten." if budget.kv_pool_spread_bytes > 0 else ""
    edge = " The I on the bar is the range of the cache's edge." if has_edge(budget) else ""
    caption = (
        f"To scale. The engine may use {format_bytes(budget.usable_bytes)} "
        f"({budget.utilization_fraction:.0%}, gpu-memory-utilization); what the rest leaves of it "
        f"is the KV cache.{spread}{edge}"
    )
    drawn = memory_picture(budget, name=f"{name}-memory")
    return figure("memory", "Memory of one GPU", drawn, caption)


def _roofline(sizing: Sizing, name: str) -> Markup:
    caption = (
        "The line is the most one GPU can do: left of the ridge its memory bandwidth is the limit, "
        "right of it its arithmetic. The points are batches, each with its number of decoding "
        "requests; the large one is the load line, hollow ones break a limit. The gap between a "
        "point and the roof is time that goes to prefill, overhead and links."
    )
    drawn = roofline_picture(roofline(sizing), name=f"{name}-roofline")
    return figure("roofline", f"Roofline of {sizing.question.gpu.name}", drawn, caption)


def figure(kind: str, title: str, drawn: Markup, caption: str) -> Markup:
    """Return a picture with its title above and its caption below."""
    return element(
        "figure",
        element("h3", title),
        element("div", drawn, class_="drawing"),
        element("figcaption", caption),
        class_=kind,
    )


def _question(number: int, answer: Answer) -> Iterator[Markup]:
    yield element("h4", f"{number}. {answer.question}")
    yield element("p", answer.answer)
    if answer.lines:
        yield element("ul", *(element("li", line) for line in answer.lines), class_="why")


def batches(sizing: Sizing) -> Iterator[Markup]:
    """Yield the table of batches and its note."""
    head = [element("th", name, class_="number", scope="col") for name in BATCH_NUMBERS]
    head += [element("th", "bound by", scope="col"), element("th", "", scope="col")]
    rows = []
    for row in batch_rows(sizing):
        numbers, words = row.cells[: len(BATCH_NUMBERS)], row.cells[len(BATCH_NUMBERS) :]
        cells = [element("td", each, class_="number") for each in numbers]
        cells += [element("td", each) for each in (*words, row.remark)]
        rows.append(element("tr", *cells, class_="load-line" if row.is_load_line else "batch"))
    yield wide(element("thead", element("tr", *head)), element("tbody", *rows))
    yield element("p", BATCH_NOTE, class_="note")


def _inputs(sizing: Sizing) -> Markup:
    rows = (
        element(
            "tr",
            element("th", name, scope="row"),
            element("td", value),
            element("td", origin, class_=origin.replace(" ", "-")),
        )
        for name, value, origin in inputs(sizing)
    )
    head = (element("th", name, scope="col") for name in ("input", "value", "origin"))
    return wide(element("thead", element("tr", *head)), element("tbody", *rows))


def _refused(answer: Refused) -> Iterator[Markup]:
    """Yield the reason with its numbers, a line for each step, and the ways out."""
    steps = STEP.split(answer.message)
    yield element("p", joined(*steps, by="<br/>"), class_="arithmetic")
    if answer.offers:
        yield element("h3", "Ways out, the cheapest first")
        yield _offers(answer.offers)


def _offers(offers: Iterable[Offer]) -> Markup:
    head = [element("th", "change in the spec", scope="col")]
    head += [element("th", name, class_="number", scope="col") for name in OFFER_NUMBERS]
    rows = (
        element(
            "tr",
            element("td", joined(*offer.changes, by="<br/>")),
            *(element("td", number, class_="number") for number in offer_numbers(offer)),
        )
        for offer in offers
    )
    return wide(element("thead", element("tr", *head)), element("tbody", *rows))


def facts(rows: Iterable[tuple[str, str]]) -> Markup:
    """Return a table of names and what they are."""
    body = (
        element("tr", element("th", name, scope="row"), element("td", value))
        for name, value in rows
    )
    return wide(element("tbody", *body))


def wide(*parts: Markup) -> Markup:
    """Return a table that scrolls where the page is too narrow for it."""
    return element("div", element("table", *parts), class_="wide")


def words(meanings: Mapping[str, str]) -> Markup:
    """Return a footer with what the words of the page mean."""
    entries = [
        each
        for word, meaning in meanings.items()
        for each in (element("dt", word), element("dd", meaning))
    ]
    return element("footer", element("h3", "Words"), element("dl", *entries))
