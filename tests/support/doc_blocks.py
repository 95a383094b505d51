"""Blocks of Markdown pages: commands, and files that commands beside them read."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SITE = ROOT / "deploy/site"
NEEDS = {"Builds a control plane", "Installs packages", "Needs a cluster", "Needs an engine"}
"""Titles of blocks whose commands are read, not run."""
FENCE = re.compile(
    r'^(?P<indent> *)```(?P<language>\w+)(?: title="(?P<title>[^"]*)")?\n'
    r"(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
COMMENT = re.compile(r"(?:^|\s)#.*$", re.MULTILINE)
BETWEEN = {"&&", "|", ";"}


@dataclass(frozen=True, kw_only=True)
class Block:
    language: str
    title: str
    text: str

    @property
    def is_run(self):
        return self.language == "sh" and self.title not in NEEDS

    @property
    def file(self):
        """Return the path of the file that the block is, if it is one."""
        return self.title if self.language not in {"sh", "console"} else ""


def pages():
    """Return every page that the site shows or that stands beside it."""
    beside = [*ROOT.glob("*.md"), *(ROOT / "operator").rglob("*.md"), *ROOT.glob("deploy/*/*.md")]
    return sorted({*beside, *(SITE / "pages").rglob("*.md")})


def blocks(path):
    return blocks_in(path.read_text())


def blocks_in(page):
    for found in FENCE.finditer(page):
        text = re.sub(f"^{found['indent']}", "", found["text"], flags=re.MULTILINE)
        yield Block(language=found["language"], title=found["title"] or "", text=text)


def commands(block):
    """Yield the simple commands of a block, as lists of words."""
    lines = block.text.replace("\\\n", " ").splitlines()
    if block.language == "console":
        lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    for line in lines:
        words = shlex.split(COMMENT.sub("", line))
        while words:
            end = next((k for k, word in enumerate(words) if word in BETWEEN), len(words))
            if words[:end]:
                yield words[:end]
            words = words[end + 1 :]
