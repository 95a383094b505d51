"""The forms that an answer is printed in beside text: JSON, YAML, Markdown and CSV."""

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import yaml

NUMBER: Final = re.compile(r"[-+]?[0-9][0-9,.]*|-|")


def serialize(content: object, form: str, *, rows: Sequence[Mapping[str, str]] = ()) -> str:
    """Write data in a form. ``rows``: what Markdown and CSV hold of it."""
    if form == "markdown":
        columns = list(rows[0]) if rows else []
        return "\n".join(markdown_table(columns, [list(row.values()) for row in rows]))
    if form == "csv":
        return _comma_separated(rows)
    if form == "json":
        return json.dumps(content, indent=2, ensure_ascii=False)
    return str(yaml.safe_dump(content, sort_keys=False, allow_unicode=True)).rstrip("\n")


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a Markdown table; columns of numbers stand right.

    >>> list(markdown_table(["GPU", "TB/s"], [["H200", "4.8"]]))
    ['| GPU | TB/s |', '| :-- | --: |', '| H200 | 4.8 |']
    """
    cells = list(zip(*rows, strict=True)) or [() for _ in columns]
    yield _line(columns)
    yield _line(["--:" if all(map(NUMBER.fullmatch, each)) else ":--" for each in cells])
    yield from (_line(row) for row in rows)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _comma_separated(rows: Sequence[Mapping[str, str]]) -> str:
    text = io.StringIO()
    if rows:
        writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return text.getvalue().rstrip("\n")
