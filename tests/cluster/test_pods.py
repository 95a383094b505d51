"""What ``spec.pods`` asks for, on engines that run: labels, a user, an API key, what it costs."""

import pytest
import requests
import yaml

import site_lab
from site_lab import NAME, a_model, until
from tonnage.cluster.kube import DISRUPTION_BUDGETS, NETWORK_POLICIES, PODS

pytestmark = site_lab.pytestmark

SECRET = {
    "apiVersion": "v1",
    "kind": "Secret",
    "metadata": {"name": "clients"},
    "stringData": {"api-key": "of-the-clients"},
}
ASKED = {
    "apiKeySecret": {"name": "clients", "key": "api-key"},
    "labels": {"inference-pool": "chat"},
    "annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"},
    "topologySpreadConstraints": [{"topologyKey": "kubernetes.io/hostname"}],
    "serviceAccountName": "default",
    "memoryLimit": "8Gi",
    "gpuNodes": [{"key": "nvidia.com/gpu.present", "values": ["true"]}],
}


def answer(pod, path, **headers):
    """Return the status of a request to the engine in a pod."""
    with requests.Session() as session:
        session.trust_env = False
        url = f"http://{pod['status']['podIP']}:8000{path}"
        return session.get(url, headers=headers, timeout=10).status_code


def identities(tenant):
    return {
        pod["metadata"]["uid"]: [
            each["restartCount"] for each in pod["status"]["containerStatuses"]
        ]
        for pod in tenant.all_of(PODS)
    }


def test_engines_ask_clients_for_their_key_and_are_measured_without_it(tenant):
    tenant.apply(SECRET, a_model(pods=ASKED))
    tenant.wait_ready()
    [pod] = tenant.all_of(PODS)

    assert answer(pod, "/v1/models") == 401
    assert answer(pod, "/v1/models", Authorization="Bearer of-the-clients") == 200
    assert answer(pod, "/health") == 200
    assert pod["metadata"]["labels"]["inference-pool"] == "chat"
    assert not any("serviceAccountToken" in str(each) for each in pod["spec"]["volumes"])
    until(
        lambda: tenant.condition("MetricsAvailable").get("status") == "True",
        "the engine is measured",
        told=tenant.told,
    )


def test_protection_comes_and_goes_without_touching_an_engine(tenant):
    tenant.apply(a_model())
    before, pods = tenant.wait_ready(), identities(tenant)
    policy = {"clients": [{"podSelector": {"app": "gateway"}}]}
    tenant.change(pods={"disruptionBudget": {"maxUnavailable": 1}, "networkPolicy": policy})
    made = until(
        lambda: tenant.get(DISRUPTION_BUDGETS) and tenant.get(NETWORK_POLICIES), "both are there"
    )
    tenant.change(pods=None)
    until(
        lambda: not tenant.get(DISRUPTION_BUDGETS) and not tenant.get(NETWORK_POLICIES),
        "both are gone",
    )
    tenant.settled("nothing more is written")
    after = tenant.deployment()

    assert made["spec"]["podSelector"]["matchLabels"]["tonnage.dev/model-deployment"] == NAME
    assert after["metadata"]["generation"] == before["metadata"]["generation"]
    assert after["metadata"]["annotations"] == before["metadata"]["annotations"]
    assert identities(tenant) == pods


@pytest.fixture
def upgraded(quick_site):
    """Return a way to change settings by ``helm upgrade``; afterwards they are as before."""
    yield lambda **settings: quick_site.upgrade_operator(
        settings=settings_of(quick_site) | settings
    )
    quick_site.apply_chart()


def settings_of(site):
    return dict(yaml.safe_load((site.plane.folder / "values.yaml").read_text())["settings"])


def test_children_follow_changed_settings_and_engines_keep_running(tenant, upgraded):
    tenant.apply(a_model(pods={"networkPolicy": {}}))
    before, pods = tenant.wait_ready(), identities(tenant)
    closed = tenant.get(NETWORK_POLICIES)["spec"]
    upgraded(scraperNamespaces=["monitoring"])
    opened = until(
        lambda: tenant.get(NETWORK_POLICIES)["spec"].get("ingress"), "the policy lets scrapers in"
    )
    tenant.settled("nothing more is written")

    assert "ingress" not in closed
    [peer] = opened[0]["from"]
    assert peer["namespaceSelector"]["matchExpressions"][0]["values"] == ["monitoring"]
    assert tenant.deployment()["metadata"]["generation"] == before["metadata"]["generation"]
    assert identities(tenant) == pods
