"""An upgrade of the operator, with other constants in its catalogue, restarts no engine."""

import re

import pytest

import site_lab
from site_lab import a_model, until
from tonnage.catalog.gpu import GPU_FOLDER
from tonnage.cluster.kube import PODS

pytestmark = [*site_lab.pytestmark, pytest.mark.thorough]

SLOWER = {"memory_bytes": "140_000_000_000", "memory_bytes_per_s": "4.0e12"}
"""H200 as another catalogue might have it: 6.7 % less memory, 16.7 % less bandwidth."""


def changed_class():
    """Return the TOML of H200 with these figures, as an administrator would write it."""
    text = (GPU_FOLDER / "h200.toml").read_text()
    for figure, value in SLOWER.items():
        text, count = re.subn(rf"(?m)^{figure} = \S+", f"{figure} = {value}", text)
        assert count == 1
    return text


@pytest.fixture
def upgraded(quick_site):
    """Return a way to upgrade; the operator becomes as it was afterwards."""
    yield lambda: quick_site.upgrade_operator(gpuClasses={"h200.toml": changed_class()})
    quick_site.apply_chart()


def running(tenant):
    """Return what must not move: pods and the processes in them."""
    return {
        pod["metadata"]["uid"]: [
            (each["containerID"], each["restartCount"])
            for each in pod["status"]["containerStatuses"]
        ]
        for pod in tenant.all_of(PODS)
    }


def test_a_running_deployment_survives_an_upgrade_with_a_changed_catalogue(tenant, upgraded):
    tenant.apply(a_model(scaling={"minReplicas": 2, "maxReplicas": 4}))
    before, pods = tenant.wait_ready(replicas=2), running(tenant)
    estimate = tenant.status()["estimate"]
    upgraded()
    until(lambda: tenant.status()["estimate"] != estimate, "the status has another estimate")
    tenant.settled("nothing more is written")
    after = tenant.deployment()
    expected = tenant.status()["estimate"]

    assert expected["requestsPerSecond"] < 0.95 * estimate["requestsPerSecond"]
    assert expected["timePerOutputTokenSeconds"] != estimate["timePerOutputTokenSeconds"]
    assert after["spec"] == before["spec"]
    assert after["metadata"]["generation"] == before["metadata"]["generation"]
    assert after["metadata"]["annotations"] == before["metadata"]["annotations"]
    assert running(tenant) == pods

    tenant.apply(a_model("new"))
    made = tenant.wait_ready("new")

    assert (
        made["metadata"]["annotations"]["tonnage.dev/flags"]
        != (before["metadata"]["annotations"]["tonnage.dev/flags"])
    )
