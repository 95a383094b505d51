"""One control plane for the session, one namespace for each test."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

import kind_lab
from api_hand import a_namespace, administering
from site_lab import Site, Tenant, a_quick_site, a_tenant
from tonnage.cluster.kube import KubeApi
from tonnage_lab import assets, controlplane, kwok
from tonnage_lab.controlplane import ControlPlane
from tonnage_lab.kubectl import Kubectl
from tonnage_lab.progress import on_console

CRDS = Path(__file__).parents[2] / "crds"
HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What runs on our own control plane runs on kind, in its lane."""
    if kind_lab.on_kind():
        for item in items:
            if item.path.is_relative_to(HERE):
                item.add_marker(pytest.mark.kind)


@pytest.fixture(scope="session")
def programs(pytestconfig: pytest.Config) -> dict[str, Path]:
    """The lab's programs; the minutes of a first build are shown, not captured."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        return assets.ensure(step=on_console(Console(stderr=True)))


@pytest.fixture(scope="session")
def control_plane(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[ControlPlane]:
    """A control plane with the CRDs of this repository: our own, or kind's with ``-m kind``."""
    folder = tmp_path_factory.mktemp("control-plane")
    if kind_lab.on_kind():
        with kind_lab.a_cluster(folder) as made:
            yield made.plane
        return
    found = request.getfixturevalue("programs")
    cluster = controlplane.start(folder, programs=found, crds=CRDS)
    yield cluster
    cluster.stop()


@pytest.fixture
def kubectl(control_plane: ControlPlane) -> Kubectl:
    return control_plane.kubectl


@pytest.fixture(scope="session")
def administrator(control_plane: ControlPlane) -> Iterator[KubeApi]:
    with administering(control_plane.kubeconfig) as api:
        yield api


@pytest.fixture
def namespace(administrator: KubeApi) -> Iterator[str]:
    """A new namespace in which pods can be created at once."""
    with a_namespace(administrator, f"test-{uuid.uuid4().hex[:8]}") as name:
        yield name


@pytest.fixture(scope="session")
def kwok_plane(control_plane: ControlPlane) -> ControlPlane:
    """The control plane with KWOK beside it: nodes made by `kwok.gpu_node` become Ready."""
    kwok.start(control_plane)
    return control_plane


@pytest.fixture(scope="session")
def quick_site(
    tmp_path_factory: pytest.TempPathFactory, programs: dict[str, Path]
) -> Iterator[Site]:
    """A control plane of its own with the operator on it, which decides every second."""
    with a_quick_site(tmp_path_factory.mktemp("quick-site"), programs) as made:
        yield made


@pytest.fixture
def tenant(quick_site: Site) -> Iterator[Tenant]:
    """A new namespace that the operator of the quick site serves."""
    with a_tenant(quick_site) as made:
        yield made
