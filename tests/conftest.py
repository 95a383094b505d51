"""Settings of the whole suite."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import settings

GOLDEN = Path(__file__).parent / "golden"
LANES = ("alerts", "release", "upgrade")
"""Marks of tests that run when they are asked for by ``-m``, and are skipped otherwise."""

# The same examples in every run; no deadline, since machines differ. `--hypothesis-profile=default`
# looks for new ones. Without the thorough tests there are a quarter of them: drawing a hundred took
# half of the CPU of the tests of `policy` and `estimate`.
settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("quick", settings.get_profile("ci"), max_examples=25)
settings.load_profile("ci")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite generated files")


def pytest_configure(config: pytest.Config) -> None:
    """Let ``-m kind`` take clusters of kind where a test wants one, ``not thorough`` be quick."""
    match config.getoption("-m"):
        case "kind":
            os.environ["TONNAGE_CLUSTER"] = "kind"
        case "not thorough":
            settings.load_profile("quick")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    asked = config.getoption("-m") or ""
    for item in items:
        for lane in LANES:
            if lane not in asked and item.get_closest_marker(lane):
                item.add_marker(pytest.mark.skip(reason=f"only with -m {lane}"))


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Compare manifests with tests/golden/NAME.yaml, which is real YAML that one can apply."""

    def check(name: str, *manifests: Any) -> None:
        path = GOLDEN / f"{name}.yaml"
        text = yaml.safe_dump_all(manifests, sort_keys=False)
        if request.config.getoption("--update-golden"):
            path.write_text(text)

        assert path.read_text() == text

    return check
