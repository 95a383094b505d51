"""The lane of the alerts: it runs when it is asked for by its mark, and is skipped otherwise."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "alerts" in (config.getoption("-m") or ""):
        return
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.skip(reason="only with -m alerts"))
