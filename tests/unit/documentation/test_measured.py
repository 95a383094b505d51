"""Pages of figures name the commit that they were taken at, and say when they are out of date."""

import re
import subprocess

import pytest
from measured import FOLDERS, ROOT

SITE = ("accuracy/index.md", "comparison.md", "how-to/replay.md")
PAGES = [
    *sorted((ROOT / "tests/bench").glob("*.md")),
    *(ROOT / "deploy/site/pages" / name for name in SITE),
]
FRONT = re.compile(r"<!-- measured at ([0-9a-f]{8}); of operator/tonnage/\{([\w,/]+)\} -->")
STALE = re.compile(r"Stale since [0-9a-f]{8}: .+")
FIRST_LINES = 6
MOST_CHANGED = 0.25
"""Of the lines of the folders, added and taken away since the page was written."""
EMPTY = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
"""Git's tree without a file."""


def git(*arguments):
    asked = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(asked, check=False, capture_output=True, text=True)  # noqa: S603


def lines_changed(before, after, folders):
    paths = [f"operator/tonnage/{each}" for each in folders]
    found = git("diff", "-M", "--numstat", before, after, "--", *paths)
    numbers = (part for line in found.stdout.splitlines() for part in line.split("\t")[:2])
    return sum(int(number) for number in numbers if number != "-")


def front(page):
    found = FRONT.fullmatch(page.read_text().partition("\n")[0])
    assert found, f"{page.name} does not begin with <!-- measured at COMMIT; of FOLDERS -->"
    return found[1], found[2].split(",")


def name_of(page):
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_of_figures_says_what_it_measures(page):
    _, folders = front(page)

    assert folders == FOLDERS.get(page.name, ",".join(folders)).split(",")
    assert all((ROOT / "operator/tonnage" / each).is_dir() for each in folders)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_of_figures_is_of_what_is_there_or_says_that_it_is_stale(page):
    commit, folders = front(page)
    if git("cat-file", "-e", f"{commit}^{{commit}}").returncode:
        pytest.skip(f"no history back to {commit} here")
    changed = lines_changed(commit, "HEAD", folders)
    share = changed / lines_changed(EMPTY, commit, folders)
    first = page.read_text().splitlines()[:FIRST_LINES]

    assert share <= MOST_CHANGED or any(map(STALE.search, first)), (
        f"{share:.0%} of the lines of {', '.join(folders)} changed since {commit}: measure again, "
        "or say 'Stale since COMMIT: why' below the title"
    )


def test_what_changed_is_counted_in_lines():
    """So that a page of yesterday is not called fresh because nothing could be read."""
    assert lines_changed(EMPTY, "HEAD", ["policy"]) == sum(
        len(path.read_text().splitlines())
        for path in (ROOT / "operator/tonnage/policy").rglob("*.py")
    )
