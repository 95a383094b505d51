"""Lanes: folders of tests that run when they are asked for by their mark, and are skipped else."""

from collections.abc import Iterable
from pathlib import Path

import pytest


def skip_unless_asked(
    mark: str, folder: Path, *, config: pytest.Config, items: Iterable[pytest.Item]
) -> None:
    """Skip the tests of a folder in a run without ``-m`` and the mark."""
    if mark in (config.getoption("-m") or ""):
        return
    for item in items:
        if item.path.is_relative_to(folder):
            item.add_marker(pytest.mark.skip(reason=f"only with -m {mark}"))
