"""The glossary as text for a person."""

from collections.abc import Iterable, Mapping

from rich.console import RenderableType
from rich.table import Column
from rich.text import Text

from tonnage.cli.text.layout import DIM, grid


def terms(entries: Iterable[Mapping[str, str]]) -> RenderableType:
    """Lay out terms and meanings; what vLLM calls it is on a line of its own."""
    rows = ((Text(each["term"], style="bold"), _meaning(each)) for each in entries)
    return grid(rows, Column(no_wrap=True), Column(overflow="fold"))


def _meaning(entry: Mapping[str, str]) -> Text:
    meaning = Text(entry["meaning"])
    if "vllm" in entry:
        meaning.append(f"\nvLLM: {entry['vllm']}", style=DIM)
    return meaning
