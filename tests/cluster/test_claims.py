"""Claims of a real API server: several replicas on one that a single node can mount are refused."""

from site_lab import NAME, a_model, until


def a_claim(mode):
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "weights"},
        "spec": {
            "accessModes": [mode],
            "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": "none",
        },
    }


def test_several_replicas_on_a_claim_of_one_node_are_refused_until_there_is_to_be_one(tenant):
    tenant.apply(a_claim("ReadWriteOnce"))
    tenant.apply(a_model(pods={"modelCacheClaim": "weights"}, scaling={"maxReplicas": 4}))
    until(lambda: tenant.condition("Stalled").get("reason") == "ClaimNotShared", "it is refused")

    assert "weights is ReadWriteOnce" in tenant.condition("PlanValid")["message"]
    assert tenant.deployment() is None

    tenant.change(scaling={"maxReplicas": 1})
    until(tenant.deployment, f"Deployment {NAME} is made")
    assert tenant.site.refused() == []
