"""What pages show of the program, made when the site is built: its output, and its pictures."""

import re
import shlex
from functools import cache
from typing import Final

from reference import output_of

OUTPUT: Final = re.compile(
    r"^<!-- output: (?:lines (?P<lines>\d+): )?tonnage (?P<line>.*?) -->$", re.M
)
"""Stands for what the command prints, or its first lines."""
PICTURE: Final = re.compile(r"<!-- picture: (?P<id>[\w-]+): tonnage (?P<line>.*?) -->")
"""Stands for a drawing of the HTML page that the command writes, by its id."""


def with_outputs(markdown: str) -> str:
    """Return a page with the outputs that its comments ask for."""
    return OUTPUT.sub(_output, markdown)


def _output(match: re.Match[str]) -> str:
    lines = _printed(match["line"]).splitlines()
    kept = lines[: int(match["lines"])] if match["lines"] else lines
    return "\n".join(["```text", *kept, "```"])


def with_pictures(html: str) -> str:
    """Return a page with the pictures that its comments ask for, for wide and narrow screens."""
    return PICTURE.sub(_picture, html)


def _picture(match: re.Match[str]) -> str:
    page = _printed(f"{match['line']} --html -")
    drawn = [
        f'<div class="for-{screen}">{_svg(page, match["id"], screen)}</div>'
        for screen in ("wide", "narrow")
    ]
    return f'<figure class="drawing">{"".join(drawn)}</figure>'


def _svg(page: str, name: str, screen: str) -> str:
    title = f'aria-labelledby="{name}-{screen}-title'
    [svg] = [each for each in re.findall(r"<svg.*?</svg>", page, re.DOTALL) if title in each]
    return svg


@cache
def _printed(line: str) -> str:
    return output_of(shlex.split(line))
