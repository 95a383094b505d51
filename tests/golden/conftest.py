"""The report at the end: what was predicted beside what the documents call typical."""

import pytest

REPORT = pytest.StashKey[list]()
HEADER = ("row", "kind", "cells", "ours", "stated", "ours / stated")


@pytest.fixture
def report(request):
    """Collect lines for the table that is printed after the run."""
    return request.config.stash.setdefault(REPORT, [])


def pytest_terminal_summary(terminalreporter, config):
    lines = config.stash.get(REPORT, [])
    if not lines:
        return
    terminalreporter.section("published figures that are no arithmetic")
    table = [HEADER, *lines]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for line in table:
        text = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        terminalreporter.write_line(text.rstrip())
