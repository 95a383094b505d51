"""Fields of ``pods`` that a template takes the place of: upgraded, and moved, without a roll.

pytest -m upgrade tests/upgrade/test_pod_fields.py
"""

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

import earlier
import site_lab
from helm import CHART
from site_lab import CRDS, NAME, a_model, until
from tonnage.api.pods import DEPRECATED, Pods
from tonnage.cluster.kube import REPLICA_SETS
from upgrade_lab import NEW, OLD, Record, an_old_site

NO_COMMIT = earlier.obstacle(earlier.BEFORE_TEMPLATES)
pytestmark = [
    pytest.mark.upgrade,
    *site_lab.pytestmark,
    pytest.mark.skipif(NO_COMMIT is not None, reason=str(NO_COMMIT)),
]
GOING = {
    "nodeSelector": {"nvidia.com/gpu.present": "true"},
    "tolerations": [{"key": "pool", "value": "chat", "effect": "NoSchedule"}],
    "cpu": "10m",
    "cpuLimit": "2",
    "memory": "1Mi",
    "memoryLimit": "8Gi",
    "ephemeralStorage": "1Mi",
    "ephemeralStorageLimit": "1Gi",
    "priorityClassName": "serving",
    "runtimeClassName": "nvidia",
    "topologySpreadConstraints": [{"topologyKey": "kubernetes.io/hostname"}],
    "serviceAccountName": "default",
    "imagePullSecrets": [{"name": "mirror"}],
    "env": [{"name": "AWS_ACCESS_KEY_ID", "secretKeyRef": {"name": "store", "key": "id"}}],
    "fsGroupChangePolicy": "OnRootMismatch",
    "labels": {"inference-pool": "chat"},
    "annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"},
}
KEPT = {"maxSurge": 0, "gpuNodes": [{"key": "nvidia.com/gpu.present", "values": ["true"]}]}
NEEDED = (
    ("scheduling.k8s.io/v1", "PriorityClass", "serving", {"value": 1}),
    ("node.k8s.io/v1", "RuntimeClass", "nvidia", {"handler": "nvidia"}),
)
SECRET = {
    "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "store"}, "stringData": {"id": "x"},
}  # fmt: skip


@dataclass(slots=True, kw_only=True)
class Run:
    """What there was after each step."""

    record: Record
    replica_sets: dict[str, set[str]] = field(default_factory=dict)
    reasons: dict[str, dict[str, str]] = field(default_factory=dict)
    """Of the plan: messages by their codes."""
    digests: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Of the pod template and of the spec that it was made from, as the Deployment has them."""

    def look(self, step: str) -> None:
        tenant = self.record.tenant
        self.record.look(step)
        found = tenant.all_of(REPLICA_SETS)
        self.replica_sets[step] = {each["metadata"]["name"] for each in found}
        self.reasons[step] = told(tenant)
        notes = (tenant.deployment() or {})["metadata"]["annotations"]
        self.digests[step] = tuple(
            notes[f"tonnage.dev/{each}-digest"] for each in ("template", "spec")
        )


def told(tenant: site_lab.Tenant) -> dict[str, str]:
    reasons = tenant.status().get("plan", {}).get("reasons", ())
    return {each["code"]: each["message"] for each in reasons}


def template_told(message: str) -> Any:
    return json.loads(message.partition("pods.template: ")[2].rpartition(", which")[0])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The operator of then, that of now, and the template in place of the fields."""
    folder = tmp_path_factory.mktemp("pod-fields")
    with an_old_site(folder, earlier.BEFORE_TEMPLATES) as driver:
        record, kubectl = driver.record, driver.record.site.plane.kubectl
        found, tenant = Run(record=record), driver.record.tenant
        driver.release(driver.old_chart, OLD)
        for version, kind, name, more in NEEDED:
            body = {"apiVersion": version, "kind": kind, "metadata": {"name": name}, **more}
            kubectl.apply([body])
        tenant.apply(SECRET, a_model(scaling={"maxReplicas": 1}, pods=GOING | KEPT))
        tenant.wait_ready()
        found.look("old")
        kubectl("apply", "--server-side", "-f", CRDS)
        driver.release(CHART, NEW)
        message = until(
            lambda: told(tenant).get("DeprecatedFields"), "the fields are named", told=tenant.told
        )
        driver.settle()
        found.look("new")
        template = template_told(message)
        tenant.apply(a_model(scaling={"maxReplicas": 1}, pods=KEPT | {"template": template}))
        until(lambda: "DeprecatedFields" not in told(tenant), "nothing is left", told=tenant.told)
        driver.settle()
        found.look("moved")
        return found


def test_the_upgrade_names_all_fields_and_what_to_write(run: Run):
    fields = {Pods.model_fields[name].alias for name in DEPRECATED}
    message = run.reasons["new"]["DeprecatedFields"]

    assert GOING.keys() == fields
    assert {each for each in fields if f"pods.{each}" in message} == fields
    assert message.endswith(", which replaces no pod")
    assert "DeprecatedFields" not in run.reasons["old"]


@pytest.mark.parametrize("step", ["new", "moved"])
def test_no_pod_is_replaced_and_no_replica_set_is_made(run: Run, step: str):
    before, after = run.record.pictures["old"], run.record.pictures[step]

    assert after.templates == before.templates
    assert after.generations == before.generations
    assert after.processes == before.processes
    assert run.replica_sets[step] == run.replica_sets["old"]
    assert len(run.replica_sets[step]) == 1
    assert run.digests[step][0] == run.digests["old"][0]


def test_the_spec_that_is_recorded_changes_when_the_fields_move_alone(run: Run):
    assert run.digests["new"][1] == run.digests["old"][1]
    assert run.digests["moved"][1] != run.digests["new"][1]
    assert NAME in run.record.pictures["moved"].templates
