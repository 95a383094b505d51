"""The lab's control plane is a real one, and leaves nothing behind."""

import json
import uuid
from pathlib import Path

import pytest
import requests

import kind_lab
from tonnage_lab import controlplane, kwok, prometheus, state
from tonnage_lab.controlplane import ControlPlane
from tonnage_lab.kubectl import Kubectl
from tonnage_lab.processes import LabError, ProcessGroup, answers, is_alive, wait_until

pytestmark = pytest.mark.lab


def a_deployment(name: str, *, replicas: int = 1, annotations=None, **resources: str):
    labels = {"app": name, "tonnage.dev/managed": "true"}
    container = {
        "name": "main",
        "image": "none",
        "ports": [{"name": "http", "containerPort": 8000}],
        "resources": {"limits": resources},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": labels, "annotations": annotations or {}},
                "spec": {"containers": [container]},
            },
        },
    }


def apply(kubectl: Kubectl, namespace: str, *manifests) -> None:
    kubectl.apply([{**m, "metadata": {**m["metadata"], "namespace": namespace}} for m in manifests])


def pods(kubectl: Kubectl, namespace: str):
    return kubectl.get("pods", "-n", namespace)["items"]


def eventually(condition, what: str) -> None:
    wait_until(condition, what=what, timeout_s=60, needs={})


@pytest.fixture
def gpu_nodes(kwok_plane: ControlPlane):
    """Two nodes of eight GPUs that only this test's pods select."""
    pool = uuid.uuid4().hex[:8]
    nodes = [
        kwok.gpu_node(
            f"gpu-{pool}-{i}", num_gpus=8, gpu_product="NVIDIA-H200", labels={"pool": pool}
        )
        for i in range(2)
    ]
    kwok_plane.kubectl.apply(nodes)
    yield pool
    kwok_plane.kubectl("delete", "nodes", "-l", f"pool={pool}")


def on_pool(deployment, pool: str):
    deployment["spec"]["template"]["spec"]["nodeSelector"] = {"pool": pool}
    return deployment


def test_it_reports_the_version_it_was_built_from(control_plane, kubectl: Kubectl):
    if kind_lab.on_kind():
        pytest.skip("a cluster of kind has the version of its node image")
    version = json.loads(kubectl("version", "-o", "json"))

    assert version["serverVersion"]["gitVersion"] == "v1.36.4"
    assert version["clientVersion"]["gitVersion"] == "v1.36.4"


def test_a_deployment_becomes_pods_that_wait_for_a_node(kubectl: Kubectl, namespace: str):
    apply(kubectl, namespace, a_deployment("web", replicas=2, **{"example.com/none": "1"}))

    eventually(
        lambda: [p["status"]["phase"] for p in pods(kubectl, namespace)] == ["Pending"] * 2,
        "two pending pods",
    )
    eventually(
        lambda: all(p["status"].get("conditions") for p in pods(kubectl, namespace)),
        "the scheduler's verdict",
    )
    assert {p["status"]["conditions"][0]["reason"] for p in pods(kubectl, namespace)} == {
        "Unschedulable"
    }


def test_deleting_a_namespace_completes(kubectl: Kubectl):
    kubectl("create", "namespace", "to-be-deleted")

    kubectl("delete", "namespace", "to-be-deleted", "--wait", "--timeout=60s")

    assert "to-be-deleted" not in kubectl("get", "namespaces", "-o", "name")


def test_rbac_is_on(kubectl: Kubectl, namespace: str):
    account = f"system:serviceaccount:{namespace}:default"

    with pytest.raises(LabError, match="forbidden"):
        kubectl("get", "pods", "-n", namespace, "--as", account)


def test_a_failing_command_raises_with_what_kubectl_said(kubectl: Kubectl):
    with pytest.raises(LabError, match='pods "missing" not found'):
        kubectl("get", "pod", "missing")


def test_the_audit_log_has_every_request(
    control_plane: ControlPlane, kubectl: Kubectl, namespace: str
):
    if control_plane.audit_log is None:
        pytest.skip("who is not root cannot read kind's audit log")
    kubectl("get", "configmaps", "-n", namespace)

    entries = [json.loads(line) for line in control_plane.audit_log.read_text().splitlines()]
    listed = [
        entry
        for entry in entries
        if entry["verb"] == "list"
        and entry["objectRef"].get("resource") == "configmaps"
        and entry["objectRef"].get("namespace") == namespace
        and entry["userAgent"].startswith("kubectl")
    ]
    assert [(e["level"], e["stage"]) for e in listed] == [("Metadata", "ResponseComplete")]
    assert {entry["stage"] for entry in entries}.isdisjoint({"RequestReceived"})


def test_kwok_nodes_run_gpu_pods(kubectl: Kubectl, namespace: str, gpu_nodes: str):
    deployment = a_deployment("llm", replicas=4, **{"nvidia.com/gpu": "4"})

    apply(kubectl, namespace, on_pool(deployment, gpu_nodes))

    kubectl("rollout", "status", "-n", namespace, "deployment/llm", "--timeout=60s")
    nodes = sorted(p["spec"]["nodeName"] for p in pods(kubectl, namespace))
    assert nodes == [f"gpu-{gpu_nodes}-{i}" for i in (0, 0, 1, 1)]


def test_a_kwok_pod_that_crashes_recovers_when_told_to(
    kubectl: Kubectl, namespace: str, gpu_nodes: str
):
    apply(kubectl, namespace, on_pool(a_deployment("llm"), gpu_nodes))
    kubectl("rollout", "status", "-n", namespace, "deployment/llm", "--timeout=60s")
    in_pods = ("-n", namespace, "pods", "--all")

    kubectl("annotate", *in_pods, "lab.tonnage.dev/crash=")
    kubectl("wait", *in_pods, "--for=condition=Ready=false", "--timeout=60s")
    crashed = pods(kubectl, namespace)[0]["status"]["containerStatuses"][0]
    kubectl("annotate", *in_pods, "lab.tonnage.dev/crash-")
    kubectl("wait", *in_pods, "--for=condition=Ready", "--timeout=60s")

    assert crashed["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    assert crashed["restartCount"] == 1


def test_a_kwok_pod_that_is_stuck_stays_loading(kubectl: Kubectl, namespace: str, gpu_nodes: str):
    stuck = a_deployment("stuck", annotations={"lab.tonnage.dev/stuck": ""})
    slow = a_deployment("slow", annotations={"lab.tonnage.dev/load-duration": "1s"})

    apply(kubectl, namespace, on_pool(stuck, gpu_nodes), on_pool(slow, gpu_nodes))

    kubectl("rollout", "status", "-n", namespace, "deployment/slow", "--timeout=60s")
    statuses = kubectl.get("pods", "-n", namespace, "-l", "app=stuck")["items"][0]["status"]
    ready = [c["status"] for c in statuses["conditions"] if c["type"] == "Ready"]
    assert (statuses["phase"], ready) == ("Running", ["False"])


def test_a_kwok_node_can_fail(kubectl: Kubectl, gpu_nodes: str):
    node = f"node/gpu-{gpu_nodes}-0"
    kubectl("wait", node, "--for=condition=Ready", "--timeout=60s")

    kubectl("annotate", node, "lab.tonnage.dev/not-ready=")

    kubectl("wait", node, "--for=condition=Ready=false", "--timeout=60s")


def test_prometheus_finds_the_managed_pods(
    programs, kwok_plane: ControlPlane, kubectl: Kubectl, namespace: str, gpu_nodes: str
):
    apply(kubectl, namespace, on_pool(a_deployment("llm"), gpu_nodes))
    url = prometheus.start(kwok_plane, scrape_interval_s=1, program=programs["prometheus"])
    query = f'{url}/api/v1/query?query=count(up{{namespace="{namespace}"}})'

    eventually(lambda: b'"value"' in body_of(query), "a target for the pod")

    kwok_plane.group.stop("prometheus")


def body_of(url: str) -> bytes:
    return requests.get(url, timeout=5).content


def test_stop_leaves_no_process(tmp_path: Path, programs):
    plane = controlplane.start(tmp_path, programs=programs)
    records = dict(plane.group.records)

    plane.stop()

    assert list(records) == ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"]
    assert not any(is_alive(record) for record in records.values())
    assert not answers(f"{plane.server}/readyz")()


def test_a_part_that_does_not_start_says_why_and_stops_the_others(tmp_path: Path, programs):
    group = ProcessGroup(logs=tmp_path / "logs")
    broken = {**programs, "kube-apiserver": Path("/bin/false")}

    with pytest.raises(LabError, match="kube-apiserver ended"):
        controlplane.start(tmp_path, programs=broken, group=group)

    assert group.records == {}


def test_a_lab_stays_up_until_it_is_taken_down(tmp_path: Path, programs):
    lab = state.up(folder=tmp_path / "lab")
    loaded = state.load(tmp_path / "lab")
    kubectl = Kubectl(program=programs["kubectl"], kubeconfig=lab.kubeconfig)
    namespaces = kubectl("get", "namespaces", "-o", "name")
    alive = state.status(lab)

    state.down(loaded)

    assert loaded == lab
    assert "namespace/default" in namespaces
    assert alive == dict.fromkeys(lab.members, True)
    assert list(lab.members)[-1] == "prometheus"
    assert set(lab.addresses) == {"kubernetes", "prometheus"}
    assert set(state.status(lab).values()) == {False}
