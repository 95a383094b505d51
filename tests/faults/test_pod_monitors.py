"""The Prometheus operator comes after Tonnage, and goes, beside a real API server."""

import pytest

from pod_monitor_crd import POD_MONITOR_CRD
from tonnage.cluster.kube import DEPLOYMENTS, POD_MONITORS
from tonnage.fleet.lists import LOOK_S

pytestmark = [pytest.mark.lab, pytest.mark.thorough]

CRD = POD_MONITOR_CRD["metadata"]["name"]
LOOKED_S = 3 * LOOK_S


@pytest.fixture
def crd(fault_plane):
    """Bring the CRD; it goes in the end."""

    def bring():
        fault_plane.kubectl.apply([POD_MONITOR_CRD])
        fault_plane.kubectl("wait", "--for=condition=Established", f"crd/{CRD}", "--timeout=30s")

    yield bring
    fault_plane.kubectl("delete", "crd", CRD, "--ignore-not-found")


def template(world):
    return world.get(DEPLOYMENTS)["spec"]["template"]


def test_monitors_are_made_and_no_pod_is_replaced_by_that_nor_when_it_goes(world, crd):
    world.begin()
    before = template(world)
    assert before["metadata"]["annotations"]["prometheus.io/scrape"] == "true"
    crd()
    log = world.operator.log
    world.until(lambda: "PodMonitors are made" in log(), "it was looked for", timeout_s=LOOKED_S)
    world.change(scaling={"maxReplicas": 7})  # children are looked at for each spec
    world.until(lambda: world.get(POD_MONITORS), "the PodMonitor is made")
    world.rest()

    world.operator.kill()
    world.operator.start()
    world.until(lambda: world.operator.probe("/readyz") == 200, "it is ready")
    world.rest()
    assert world.condition("Drifted").get("reason") == "AsWritten"
    assert template(world) == before

    world.plane.kubectl("delete", "crd", CRD)
    world.until(lambda: "PodMonitors do not exist" in log(), "it is missed", timeout_s=LOOKED_S)
    world.rest()
    assert world.condition("Drifted").get("reason") == "AsWritten"
    assert template(world) == before
