"""GPU classes compared, as one page."""

from collections.abc import Iterator

from tonnage.cli.answers.comparing import Compared
from tonnage.cli.page.document import document
from tonnage.cli.page.drawing import SERIES, Picture
from tonnage.cli.page.throughput import throughput_picture
from tonnage.cli.text.compare import comparison_report


def compare_page(found: Compared) -> str:
    """Return the whole page: the answer, the ranking, each class in figures, the picture."""
    deployment = found.deployment
    title = f"Tonnage compare: {deployment.namespace}/{deployment.name}"
    return document(title, lambda console: comparison_report(found, console), _pictures(found))


def _pictures(found: Compared) -> Iterator[Picture]:
    choices = found.selection.choices[: len(SERIES)]
    if choices:
        yield throughput_picture(choices, found.request.slo, name="compare-throughput")
