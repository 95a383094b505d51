"""What pages take from the program is current, and all links work where GitHub shows the pages."""

import importlib
import re
import runpy
from pathlib import Path

import pytest

from doc_blocks import ROOT, SITE

FOLDERS = ("charts", "deploy", "operator", "tests")
PAGES = sorted({*ROOT.glob("*.md"), *(p for each in FOLDERS for p in (ROOT / each).rglob("*.md"))})
FENCED = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!\w+:)([^)\s]+)\)")
RAW = re.compile(r"\{%|^!!! |^\?\?\? |^=== |\{: |\{ *[.#]\w", re.MULTILINE)
"""What mkdocs and its plugins read, and GitHub shows as it is."""


@pytest.fixture
def parts(monkeypatch):
    monkeypatch.syspath_prepend(SITE / "generate")
    return importlib.import_module("parts")


def test_what_is_written_from_the_code_is_current(parts, monkeypatch):
    monkeypatch.chdir(ROOT)
    documents = runpy.run_path(str(SITE / "generate/__main__.py"))["documents"]()

    assert parts
    assert [
        str(path.relative_to(ROOT))
        for path, text in documents
        if not path.exists() or path.read_text() != text
    ] == [], "make docs"


def test_pages_that_write_one_file_by_different_commands_show_their_own(parts, monkeypatch):
    def printed(words):
        return Path(words[-1]).read_text() if words[0] == "plan" else f"of {words[1]}"

    monkeypatch.setattr(parts, "output_of", printed)
    for name in ("one", "two"):
        command = f"tonnage init {name} > f.yaml"
        page = f"{command}\n<!-- output: tonnage plan -f f.yaml -->\n<!-- /output -->\n"
        shown = parts.filled(page, ROOT)
        assert f"of {name}" in shown.rpartition("```text")[2]
        assert parts.filled(shown, ROOT) == shown


def test_a_section_that_is_not_there_is_refused(parts):
    with pytest.raises(ValueError, match="no section: README"):
        parts.filled("<!-- section: README.md# Nowhere -->\n<!-- /section -->\n", ROOT)


def test_every_part_of_a_page_has_an_end(parts):
    for path in PAGES:
        text = path.read_text()
        begun = len(re.findall(r"^<!-- (?:output|section|file): ", text, re.MULTILINE))
        assert len(parts.PART.findall(text)) == begun, path


def prose(path):
    return FENCED.sub("", path.read_text())


def anchors(path):
    """Return the anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", prose(path), re.MULTILINE)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", each).strip().lower() for each in headings]
    return {re.sub(r"[^\w\- ]", "", each).replace(" ", "-") for each in plain}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_of_a_page_leads_somewhere_on_github(path):
    dead = []
    for link in LINK.findall(prose(path)):
        name, _, anchor = link.partition("#")
        target = path.parent / name if name else path
        is_there = target.exists() and (
            not anchor or target.suffix != ".md" or anchor in anchors(target)
        )
        dead += [] if is_there else [link]

    assert dead == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_stands_in_a_page_that_github_does_not_know(path):
    prose_only = re.sub(r"`[^`\n]*`", "", prose(path))

    assert RAW.findall(prose_only) == []


SCREENS_LINES = 60
"""Two screens, a line of 150 characters."""


@pytest.mark.parametrize(
    "path", sorted((ROOT / "operator/decisions").glob("0*.md")), ids=lambda path: path.stem
)
def test_a_decision_fits_on_two_screens(path):
    lines = path.read_text().splitlines()

    assert sum(max(1, -(-len(line) // 150)) for line in lines) <= SCREENS_LINES
    assert re.fullmatch(rf"# {int(path.stem[:4])}\. \S.+", lines[0])
    assert "uperseded by decision" not in lines[2]
