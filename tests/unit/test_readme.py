"""What the README shows is what the program prints."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from tonnage.cli.commands.app import program

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
EXAMPLE = ROOT / "deploy/examples/llama-3.3-70b-h200.yaml"


def printed(*arguments):
    result = CliRunner().invoke(program, [str(each) for each in arguments])
    assert result.exit_code == 0, result.output
    return result.output.rstrip() + "\n"


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


def test_the_plan_in_the_readme_is_what_is_printed(shown):
    plan = printed("plan", "-f", EXAMPLE).partition("\nWhat it stands on")[0]

    shown("plan", f"```text\n{plan.rstrip()}\n```\n")


def test_the_gpu_table_in_the_readme_is_the_catalogue(shown):
    lines = printed("catalog", "gpus", "-o", "markdown").splitlines()
    without_sources = [line.rsplit("|", 2)[0] + "|" for line in lines]

    shown("gpus", "\n".join(without_sources) + "\n")


def test_every_file_that_the_readme_links_to_exists():
    links = re.findall(r"\]\(([^)#]+)\)", README.read_text())

    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
