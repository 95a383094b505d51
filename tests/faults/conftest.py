"""One control plane for all rows that need a real API server, and a namespace for each of them."""

from pathlib import Path

import pytest
from rich.console import Console

from api_hand import administering
from api_world import an_api_world
from tonnage_lab import assets, controlplane, kwok
from tonnage_lab.progress import on_console

CRDS = Path(__file__).parents[2] / "crds"


@pytest.fixture(scope="session")
def fault_plane(tmp_path_factory, pytestconfig):
    """etcd, API server, controllers; the minutes of a first build are shown, not captured."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        programs = assets.ensure(step=on_console(Console(stderr=True)))
    made = controlplane.start(tmp_path_factory.mktemp("fault-plane"), programs=programs, crds=CRDS)
    yield made
    made.stop()


@pytest.fixture(scope="session")
def kwok_plane(fault_plane):
    """The same, with KWOK beside it: a second one would wait for the Leases of the first."""
    kwok.start(fault_plane)
    return fault_plane


@pytest.fixture(scope="session")
def administrator(fault_plane):
    with administering(fault_plane.kubeconfig) as api:
        yield api


@pytest.fixture
def world(fault_plane, administrator, tmp_path):
    """A namespace that one operator serves, through a proxy that a test lets fail."""
    with an_api_world(fault_plane, administrator, tmp_path) as made:
        made.add_operator()
        yield made
