"""What plan and compare print alike: what they skipped, their data, their page."""

import json
from collections.abc import Iterable
from pathlib import Path

import click
import yaml

from tonnage.cli.console import Failure, remark
from tonnage.cli.read.manifest import Resource


def mention(others: Iterable[Resource]) -> None:
    for resource in others:
        kind = " ".join(part for part in (resource.api_version, resource.kind) if part)
        remark(
            f"Note: {resource.place}: skipped {kind or 'an object without a kind'} {resource.name}"
        )


def write_page(page_file: str, text: str) -> None:
    """Write a page to a file or, for ``-``, to standard output."""
    if page_file == "-":
        click.echo(text, nl=False)
        return
    try:
        Path(page_file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise Failure(f"--html {page_file}: {error.strerror}") from error
    remark(f"Wrote {page_file}")


def written(content: object, form: str) -> str:
    if form == "json":
        return json.dumps(content, indent=2, ensure_ascii=False)
    return str(yaml.safe_dump(content, sort_keys=False, allow_unicode=True)).rstrip("\n")
