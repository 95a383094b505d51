"""What the chart grants is what the operator needs: nothing is refused, nothing lies idle."""

import json

import pytest

import site_lab
from family_configs import LLAMA_3_1_8B
from site_lab import CALIBRATION, NAMESPACE, OPERATOR, WRITE_VERBS, a_model, show, until
from tonnage.cluster.kube import (
    ACCESS_REVIEWS,
    DISRUPTION_BUDGETS,
    MODEL_DEPLOYMENTS,
    NETWORK_POLICIES,
)
from tonnage_lab.processes import LabError

pytestmark = site_lab.pytestmark

RECOMMEND = {"mode": "Recommend", "maxReplicas": 2}
EXPLAINED = {
    "create deployments": "the API server asks for it when an apply makes an object",
    "create services": "the same",
    "create modeldeployments": "the same",
    "create configmaps": "the same",
    "create poddisruptionbudgets": "the same",
    "create networkpolicies": "the same",
    "get podmonitors": "needs the CRD of the Prometheus operator",
    "create podmonitors": "the same",
    "patch podmonitors": "the same",
    "list leaderworkersets": "needs the CRD of LeaderWorkerSet",
    "watch leaderworkersets": "the same",
    "get leaderworkersets": "the same",
    "create leaderworkersets": "the same",
    "patch leaderworkersets": "the same",
    "patch leaderworkersets/scale": "the same",
    "list statefulsets": "reads those of LeaderWorkerSets, so it needs their CRD",
    "watch statefulsets": "the same",
    "get modeldeployments/status": "reads no more than get modeldeployments does",
}
"""Rights that no request of these tests shows, and why they are granted all the same."""


def granted(kubectl):
    """Return the rights of the operator's account: ``verb resource``."""
    roles = [
        kubectl.get("clusterrole", f"tonnage.{NAMESPACE}"),
        kubectl.get("role", "tonnage", "-n", NAMESPACE),
    ]
    return {
        f"{verb} {resource}"
        for role in roles
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def use_everything(tenant):
    """Have the operator do all that it does: make, scale, learn, protect, read a model's config."""
    tenant.apply(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "my-model"},
            "data": {"config.json": json.dumps(LLAMA_3_1_8B)},
        },
        a_model(
            model={
                "id": "example/unknown-8b",
                "config": {"configMapKeyRef": {"name": "my-model", "key": "config.json"}},
            },
            scaling={"minReplicas": 2, "maxReplicas": 4},
            pods={
                "disruptionBudget": {"maxUnavailable": 1},
                "networkPolicy": {"clients": [{"podSelector": {"app": "gateway"}}]},
            },
        ),
        a_model("with-claim", pods={"modelCacheClaim": "weights"}, scaling=RECOMMEND),
        a_model("with-roles", topology={}, hardware={"gpu": "H200"}),
    )
    tenant.wait_ready(replicas=2)
    until(lambda: tenant.get(MODEL_DEPLOYMENTS, "with-roles-decode"), "roles are made")
    assert tenant.get(DISRUPTION_BUDGETS)
    assert tenant.get(NETWORK_POLICIES)
    until(tenant.site.calibration, f"{CALIBRATION} is written", timeout_s=90)
    template = tenant.deployment()["spec"]["template"]
    tenant.change(scaling={"minReplicas": 1}, pods=None)
    until(
        lambda: not tenant.get(DISRUPTION_BUDGETS) and not tenant.get(NETWORK_POLICIES),
        "what the spec asks for no more is gone",
    )
    tenant.wait_ready()
    assert tenant.deployment()["spec"]["template"] == template


def test_the_operator_has_the_rights_it_needs_and_uses_those_it_has(tenant, request, tmp_path):
    use_everything(tenant)
    used = {
        f"{each.verb} {each.resource}"
        for each in tenant.site.requests(user=OPERATOR)
        if each.is_allowed
    }
    unused = granted(tenant.site.plane.kubectl) - used
    figures = {
        "used": sorted(each for each in used if "/api" not in each),
        "granted_and_unused": {each: EXPLAINED.get(each, "") for each in sorted(unused)},
    }
    show(request.config, "Rights of the operator", figures, tmp_path)

    assert tenant.site.refused() == []
    assert unused <= EXPLAINED.keys()


def test_it_writes_in_no_other_ways_than_these(tenant):
    tenant.apply(a_model())
    tenant.wait_ready()
    written = {
        f"{each.verb} {each.resource}"
        for each in tenant.site.requests(user=OPERATOR)
        if each.verb in WRITE_VERBS and each.resource != ACCESS_REVIEWS.plural  # it asks
    }

    assert written <= {
        "create events", "create leases", "patch configmaps", "patch deployments",
        "patch deployments/scale", "patch modeldeployments", "patch modeldeployments/status",
        "patch pods", "patch services",
        "patch networkpolicies", "patch poddisruptionbudgets", "delete networkpolicies",
        "delete poddisruptionbudgets", "update leases",
    }  # fmt: skip


@pytest.mark.parametrize(
    "deed",
    [
        "get secrets", "create pods", "create pods/exec", "delete deployments.apps",
        "delete services", "deletecollection networkpolicies.networking.k8s.io",
        "delete modeldeployments.tonnage.dev", "update deployments.apps", "patch nodes",
        "create clusterrolebindings.rbac.authorization.k8s.io",
    ],
)  # fmt: skip
def test_it_has_no_right_to(tenant, deed):
    with pytest.raises(LabError, match="ended with 1"):  # kubectl's way to say no
        tenant.kubectl("auth", "can-i", *deed.split(), f"--as={OPERATOR}")
