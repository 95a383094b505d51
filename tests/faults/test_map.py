"""The page of faults and abuse names every row once, and tests that exist."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PAGE = (Path(__file__).parent / "README.md").read_text()
ROW = re.compile(r"^\| (\d+) \| (.+?) \| (.+) \| (.+?) \|$", re.MULTILINE)
RESULTS = ("holds", "partly: ", "none: ")
FAULTS, ABUSE = (ROW.findall(part) for part in PAGE.split("## Abuse and bad input"))
NAMED = sorted(set(re.findall(r"`((?!support/)[\w/]+\.py(?:::\w+)*)`", PAGE)))


def names(tree):
    """Dotted by ``::``, as pytest does."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        if isinstance(node, ast.ClassDef):
            yield from (f"{node.name}::{name}" for name in names(node))


@cache
def names_in(path):
    folder = TESTS / "faults" if "/" not in path else TESTS
    return frozenset(names(ast.parse((folder / path).read_text()))) | {""}


def test_every_test_that_is_named_exists():
    found = [named.partition("::") for named in NAMED]

    assert [f"{path}::{name}" for path, _, name in found if name not in names_in(path)] == []
    tests = [name.rpartition("::")[2] for _, _, name in found if name]
    assert [name for name in tests if not name.startswith(("test_", "Test"))] == []


@pytest.mark.parametrize(("rows", "number"), [(FAULTS, 75), (ABUSE, 50)])
def test_every_row_is_there_with_a_test_and_its_result(rows, number):
    assert [int(row) for row, *_ in rows] == list(range(1, number + 1))
    for row, _, tests, result in rows:
        assert result.startswith(RESULTS), row
        assert (tests == "none") == result.startswith("none: "), row
        assert tests == "none" or "`" in tests or tests.startswith("the same"), row
