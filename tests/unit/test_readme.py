"""What the README shows is what the program prints, and where Markdown leads to is there."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from doc_blocks import SITE, blocks, commands, pages
from tonnage.cli.commands.app import program

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
LINK = re.compile(r"\]\((?!\w+:)([^)#]+)")
SHOWN_LINES = 9
"""Of the plan: up to its price."""


@pytest.fixture
def shown(request):
    """Compare a marked part of the README with a text, or write it there."""

    def check(marker, text):
        readme = README.read_text()
        part = re.compile(rf"(<!-- {marker}[^>]*-->\n).*?(<!-- /{marker} -->)", re.DOTALL)
        if request.config.getoption("--update-golden"):
            readme = part.sub(lambda match: match[1] + text + match[2], readme)
            README.write_text(readme)
        assert part.search(readme)[0].partition("\n")[2].rpartition("<!--")[0] == text

    return check


def test_the_plan_in_the_readme_is_what_its_command_prints(shown):
    [words] = [
        each
        for block in blocks(README)
        for each in commands(block)
        if each[:2] == ["tonnage", "plan"]
    ]
    result = CliRunner(env={"COLUMNS": "100"}).invoke(program, words[1:])
    lines = result.stdout.splitlines()[:SHOWN_LINES]

    assert result.exit_code == 0, result.output
    shown("plan", "\n".join(["```text", *map(str.rstrip, lines), "```", ""]))


def test_every_file_that_a_page_of_the_repository_links_to_exists():
    missing = [
        f"{path.relative_to(ROOT)}: {link}"
        for path in pages()
        if not path.is_relative_to(SITE)
        for link in LINK.findall(path.read_text())
        if not (path.parent / link).exists()
    ]

    assert missing == []
