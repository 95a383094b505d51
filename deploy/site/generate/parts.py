"""What pages show of the program and of other files, between comments that say what it is."""

import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from reference import output_of

PART: Final = re.compile(
    r"^(?P<head><!-- (?P<kind>output|section|file): (?P<what>.*?) -->\n)"
    r".*?^(?P<foot><!-- /(?P=kind) -->)$",
    re.MULTILINE | re.DOTALL,
)
"""A part: the output of a command or some of its lines, a section of another page, a file."""
PICTURE: Final = re.compile(
    r"^<!-- picture: (?P<id>[\w-]+): tonnage (?P<line>.*?) -->\n!\[[^\]]*\]\((?P<path>[^)]+)\)",
    re.MULTILINE,
)
"""A picture, and the command whose HTML page has it as a drawing of this id."""
WRITTEN: Final = re.compile(r"^tonnage (?P<line>.*) > (?P<file>\S+)$", re.MULTILINE)
"""A command of a page that writes a file, which later ones may read."""
GIVEN: Final = re.compile(
    r'^```yaml title="(?P<file>\S+[.]yaml)"\n(?P<text>.*?)^```$', re.MULTILINE | re.DOTALL
)
"""A block of a page that is a file, which its commands may read."""
LINK: Final = re.compile(r"(\]\()(?!\w+:)([^)#\s]*)")
FOLDER: Final = TemporaryDirectory()
"""Of files that commands of pages write."""
SVG: Final = (
    '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
    'font-family="sans-serif" style="background: #ffffff" '
)


def filled(page: str, folder: Path) -> str:
    """Return a page of this folder with its parts as the program and the files have them now."""
    lines = WRITTEN.finditer(page.replace("\\\n", ""))
    written = {each["file"]: partial(_printed, each["line"]) for each in lines}
    written |= {each["file"]: partial(str, each["text"]) for each in GIVEN.finditer(page)}
    make: Mapping[str, Callable[[str], str]] = {
        "output": lambda what: _output(what, written),
        "section": lambda what: _section(what, folder),
        "file": lambda what: _file(folder / what),
    }
    return PART.sub(
        lambda part: part["head"] + make[part["kind"]](part["what"]) + part["foot"], page
    )


def drawings(page: str, folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield the file of each picture of a page that a command draws, and its text."""
    for each in PICTURE.finditer(page):
        html = _printed(f"{each['line']} --html -")
        [svg] = re.findall(rf'<svg (id="{each["id"]}".*?</svg>)', html, re.DOTALL)
        width, height = re.findall(r'viewBox="0 0 (\d+) (\d+)"', svg)[0]
        size = f'width="{width}" height="{height}" '
        yield (folder / each["path"]).resolve(), f"{SVG}{size}{svg}\n"


def _output(what: str, written: Mapping[str, Callable[[], str]]) -> str:
    found = re.fullmatch(r"(?:lines (?:(\d+) to )?(\d+): )?tonnage (.*)", what)
    if not found:
        raise ValueError(f"an output of no command: {what}")
    words = shlex.split(found[3])
    made = {word: _made(word, written[word]()) for word in words if word in written}
    printed = _printed(shlex.join([made.get(word, word) for word in words]))
    for name, path in made.items():
        printed = printed.replace(path, name)
    first, last = int(found[1] or 1), int(found[2]) if found[2] else None
    shown = map(str.rstrip, printed.splitlines()[first - 1 : last])
    return "\n".join(["```text", *shown, "```", ""])


def _section(what: str, folder: Path) -> str:
    """Return what a page has below a heading, with its links led from this folder."""
    name, _, heading = what.partition("#")
    path = folder / name
    _, _, rest = path.read_text().partition(f"\n## {heading.strip()}\n")
    text, _, _ = rest.partition("\n## ")
    if not text.strip():
        raise ValueError(f"no section: {what}")

    def led(link: re.Match[str]) -> str:
        return link[1] + os.path.relpath(path.parent / link[2], folder)

    return LINK.sub(led, f"\n{text.strip()}\n\n")


def _file(path: Path) -> str:
    return f"```{path.suffix[1:]}\n{path.read_text().rstrip()}\n```\n"


def _made(name: str, text: str) -> str:
    """Write a file where no other page writes one, so that what reads it is another line."""
    path = Path(FOLDER.name) / sha256(text.encode()).hexdigest()[:16] / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return str(path)


@cache
def _printed(line: str) -> str:
    return output_of(shlex.split(line))
