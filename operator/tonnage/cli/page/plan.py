"""Plans, and reasoned noes, as one page."""

from collections.abc import Iterator, Sequence

from tonnage.cli.answers import plan_words as words
from tonnage.cli.answers.planning import Planned, Refused
from tonnage.cli.answers.roofline import roofline
from tonnage.cli.page.document import Section, document
from tonnage.cli.page.drawing import Picture
from tonnage.cli.page.roofline import roofline_picture
from tonnage.cli.text.plan import answer_report


def plan_page(answers: Sequence[Planned | Refused]) -> str:
    """Return the whole page: every object with its answer, figures and reasons."""
    names = ", ".join(map(words.object_label, answers))
    sections = (_section(answer, f"plan-{k}") for k, answer in enumerate(answers, start=1))
    return document(f"Tonnage plan: {names}", sections)


def _section(answer: Planned | Refused, name: str) -> Section:
    return Section(
        report=lambda console: [answer_report(answer, width=console.width)],
        pictures=tuple(_pictures(answer, name)),
    )


def _pictures(answer: Planned | Refused, name: str) -> Iterator[Picture]:
    if isinstance(answer, Planned):
        yield roofline_picture(roofline(answer.sizing), name=f"{name}-roofline")
