"""GPU classes compared, as one page."""

from collections.abc import Iterator
from typing import Final

from tonnage.cli.answers.comparing import Compared
from tonnage.cli.page.document import document
from tonnage.cli.page.drawing import SERIES, Picture
from tonnage.cli.page.throughput import throughput_picture
from tonnage.cli.text.compare import comparison_report
from tonnage.sizing.compare import Choice

MAX_LINES: Final = len(SERIES)


def compare_page(found: Compared) -> str:
    """Return the whole page: the answer, the ranking, each class in figures, the picture."""
    deployment = found.deployment
    title = f"Tonnage compare: {deployment.namespace}/{deployment.name}"
    return document(title, lambda console: comparison_report(found, console), _pictures(found))


def _pictures(found: Compared) -> Iterator[Picture]:
    choices = choices_with_line(found)
    if choices:
        yield throughput_picture(choices, found.request.slo, name="compare-throughput")


def choices_with_line(found: Compared) -> tuple[Choice, ...]:
    """Return the classes that have a line: the first of the ranking, and the manifest's own."""
    first = found.selection.choices[:MAX_LINES]
    if any(choice.gpu == found.request.gpu for choice in first):
        return first
    own = [choice for choice in found.selection.choices if choice.gpu == found.request.gpu]
    return (*first[: MAX_LINES - len(own)], *own)
