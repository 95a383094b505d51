"""The lane of the alerts: it runs when it is asked for by its mark, and is skipped otherwise."""

from pathlib import Path

import pytest

from lane import skip_unless_asked


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    skip_unless_asked("alerts", Path(__file__).parent, config=config, items=items)
