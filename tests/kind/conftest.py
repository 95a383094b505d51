"""The lane of kind: it runs when it is asked for by its mark, and is skipped otherwise."""

from pathlib import Path

import pytest
from rich.console import Console

import kind_lab
from tonnage_lab import assets
from tonnage_lab.progress import on_console

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.kind)
            if problem := kind_lab.problem():
                item.add_marker(pytest.mark.skip(reason=problem))


@pytest.fixture(scope="session")
def programs() -> dict[str, Path]:
    return assets.ensure(step=on_console(Console(stderr=True)))
