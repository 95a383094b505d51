"""The glossary as text for a person."""

from collections.abc import Iterable, Mapping
from typing import Final

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

DIM: Final = "dim"


def terms(entries: Iterable[Mapping[str, str]]) -> RenderableType:
    """Lay out terms and meanings; what vLLM calls it is on a line of its own."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for entry in entries:
        meaning = Text(entry["meaning"])
        if "vllm" in entry:
            meaning.append(f"\nvLLM: {entry['vllm']}", style=DIM)
        grid.add_row(Text(entry["term"], style="bold"), meaning)
    return grid
