"""Helm without a cluster."""

import pytest

from helm import Helm
from tonnage_lab import assets


@pytest.fixture(scope="session")
def helm(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Helm:
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        program = assets.ensure(["helm"])["helm"]
    return Helm(program=program, home=tmp_path_factory.mktemp("helm"))
