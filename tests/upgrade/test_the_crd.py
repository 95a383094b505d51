"""The CRD where the chart brings it: upgraded, rolled back, kept, taken over. Helm and API only.

pytest -m upgrade tests/upgrade
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import earlier
import site_lab
from helm import CHART, NAMESPACE, Helm, with_prometheus
from site_lab import CRDS, a_model
from tonnage_lab import assets, controlplane
from tonnage_lab.kubectl import Kubectl
from tonnage_lab.processes import LabError

NO_COMMIT = earlier.obstacle()
pytestmark = [
    pytest.mark.upgrade,
    *site_lab.pytestmark,
    pytest.mark.skipif(NO_COMMIT is not None, reason=str(NO_COMMIT)),
]
NAME = "modeldeployments.tonnage.dev"
ELSEWHERE = "tonnage-elsewhere"
NEWER = "operatorClass"
"""A field of ``spec`` that the CRD of then did not have."""


@pytest.fixture(scope="module")
def old_chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("old")
    helm = assets.ensure(["helm"])["helm"]
    return earlier.packaged_chart(helm, earlier.sources(folder / "sources"), folder)


class Cluster:
    """An API server on which the chart of then is installed, with an object of a user."""

    def __init__(self, kubectl: Kubectl, helm: Helm) -> None:
        self.kubectl, self.helm = kubectl, helm

    def release(self, chart: Path, *options: str, namespace: str = NAMESPACE) -> None:
        arguments = ("upgrade", "--install", "tonnage", chart, "--create-namespace")
        self.helm(*arguments, "--namespace", namespace, *options, values=with_prometheus({}))

    def crd(self) -> Any:
        return self.kubectl.get("crd", NAME)

    def knows_newer(self) -> bool:
        schema = self.crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        return NEWER in schema["properties"]["spec"]["properties"]

    def identities(self) -> tuple[str, str]:
        """Return the UIDs of the CRD and of the object: another one was made anew."""
        made = self.kubectl.get("mdep", "llama", "-n", "default")
        return self.crd()["metadata"]["uid"], made["metadata"]["uid"]


@pytest.fixture
def cluster(tmp_path: Path, old_chart: Path) -> Iterator[Cluster]:
    programs = assets.ensure()
    plane = controlplane.start(tmp_path / "plane", programs=programs)
    try:
        helm = Helm(program=programs["helm"], home=tmp_path, kubeconfig=plane.kubeconfig)
        made = Cluster(plane.kubectl, helm)
        made.release(old_chart)
        plane.kubectl("wait", "--for=condition=Established", f"crd/{NAME}", "--timeout=30s")
        plane.kubectl.apply([a_model()])
        yield made
    finally:
        plane.stop()


def test_it_goes_with_the_release_and_stays_without_it(cluster: Cluster, old_chart: Path):
    first, newer = cluster.identities(), [cluster.knows_newer()]

    def after(step: Callable[[], object]) -> tuple[str, str]:
        step()
        newer.append(cluster.knows_newer())
        return cluster.identities()

    assert after(lambda: cluster.release(CHART)) == first
    assert after(lambda: cluster.helm("rollback", "tonnage", "-n", NAMESPACE)) == first
    assert after(lambda: cluster.release(CHART)) == first
    assert after(lambda: cluster.helm("uninstall", "tonnage", "-n", NAMESPACE)) == first
    with pytest.raises(LabError, match="cannot be imported into the current release"):
        cluster.release(CHART, namespace=ELSEWHERE)
    taken = after(lambda: cluster.release(CHART, "--take-ownership", namespace=ELSEWHERE))
    assert taken == first
    assert newer == [False, True, False, True, True, True]


def test_applied_by_hand_before_the_chart_it_is_taken_back_only_by_force(cluster: Cluster):
    first = cluster.identities()
    with pytest.raises(LabError, match="conflict"):
        cluster.kubectl("apply", "--server-side", "-f", CRDS)
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", CRDS)
    cluster.release(CHART)

    assert cluster.knows_newer()
    with pytest.raises(LabError, match=r"conflict with \"kubectl\""):
        cluster.helm("rollback", "tonnage", "-n", NAMESPACE)
    assert cluster.knows_newer()
    cluster.helm("rollback", "tonnage", "1", "-n", NAMESPACE, "--force-conflicts")
    assert not cluster.knows_newer()
    assert cluster.identities() == first
