"""What pages show of the program, made when the site is built: its output, and its pictures."""

import re
import shlex
from collections.abc import Mapping
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from reference import output_of

OUTPUT: Final = re.compile(
    r"^<!-- output: (?:lines (?P<lines>\d+): )?tonnage (?P<line>.*?) -->$", re.M
)
"""Stands for what the command prints, or its first lines."""
PICTURE: Final = re.compile(r"<!-- picture: (?P<id>[\w-]+): tonnage (?P<line>.*?) -->")
"""Stands for a drawing of the HTML page that the command writes, by its id."""
WRITTEN: Final = re.compile(r"^tonnage (?P<line>.*) > (?P<file>\S+)$", re.M)
"""A command of a page that writes a file, which later ones may read."""
FOLDER: Final = TemporaryDirectory()
"""Of these files, until the build ends."""


def with_outputs(markdown: str) -> str:
    """Return a page with the outputs that its comments ask for."""
    found = WRITTEN.finditer(markdown.replace("\\\n", ""))
    return OUTPUT.sub(partial(_output, {each["file"]: each["line"] for each in found}), markdown)


def _output(written: Mapping[str, str], match: re.Match[str]) -> str:
    words = [
        _file(word, written[word]) if word in written else word
        for word in shlex.split(match["line"])
    ]
    lines = _printed(shlex.join(words)).splitlines()
    kept = lines[: int(match["lines"])] if match["lines"] else lines
    return "\n".join(["```text", *kept, "```"])


def with_pictures(html: str) -> str:
    """Return a page with the pictures that its comments ask for."""
    return PICTURE.sub(_picture, html)


def _picture(match: re.Match[str]) -> str:
    page = _printed(f"{match['line']} --html -")
    [svg] = re.findall(rf'<svg id="{match["id"]}".*?</svg>', page, re.DOTALL)
    return f'<figure class="drawing">{svg}</figure>'


def _file(name: str, line: str) -> str:
    """Write a file where no other command writes one, so that what reads it is another line."""
    path = Path(FOLDER.name) / sha256(line.encode()).hexdigest()[:16] / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(_printed(line))
    return str(path)


@cache
def _printed(line: str) -> str:
    return output_of(shlex.split(line))
