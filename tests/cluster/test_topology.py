"""One object with both roles: what is made of it, and what becomes of that."""

import pytest

import site_lab
from site_lab import a_model, until
from tonnage.cluster.kube import DEPLOYMENTS, MODEL_DEPLOYMENTS

pytestmark = site_lab.pytestmark

ROLES = ("llama-prefill", "llama-decode")
LONG_PROMPTS = {
    "requestsPerSecond": 2,
    "promptTokens": {"mean": 4000},
    "outputTokens": {"mean": 100, "p99": 100},
}


def an_object(topology, **spec):
    return a_model(
        topology=topology,
        hardware={"gpu": "H200"},
        **{"demand": LONG_PROMPTS, "scaling": {"maxReplicas": 3}} | spec,
    )


def roles(tenant):
    """Return the objects of both roles, once they are there."""
    return [tenant.get(MODEL_DEPLOYMENTS, name) for name in ROLES]


def wait_ready(tenant):
    until(
        lambda: tenant.condition("Ready").get("reason") == "MinimumReady",
        "both roles are Ready",
        told=tenant.told,
    )


def test_two_roles_are_made_followed_and_collected(tenant):
    tenant.apply(an_object({"kvLink": "50GB/s", "decode": {"maxReplicas": 2}}))
    wait_ready(tenant)
    prefill, decode = (each["spec"] for each in roles(tenant))

    assert [each["engine"]["role"] for each in (prefill, decode)] == ["prefill", "decode"]
    assert [each["scaling"]["maxReplicas"] for each in (prefill, decode)] == [3, 2]
    assert "timePerOutputToken" not in prefill["slo"]
    assert decode["demand"]["cacheTransfer"].endswith("ms")
    assert tenant.deployment() is None, "nothing serves both"
    assert [tenant.condition("Drifted", name).get("status") for name in ROLES] == ["False"] * 2
    message = tenant.condition("PlanValid")["message"]
    assert message.startswith("two roles: of TTFT decode has ")
    until(
        lambda: (
            tenant.status()["replicas"]["summary"]
            == " + ".join(tenant.status(name)["replicas"]["summary"] for name in ROLES)
        ),
        "replicas of both are shown",
    )

    tenant.change(scaling={"maxReplicas": 5})
    until(lambda: roles(tenant)[0]["spec"]["scaling"]["maxReplicas"] == 5, "a role follows")
    assert roles(tenant)[1]["spec"]["scaling"]["maxReplicas"] == 2, "which is its own"

    tenant.change("llama-decode", slo={"timePerOutputToken": {"p95": "1s"}})
    until(
        lambda: roles(tenant)[1]["spec"]["slo"]["timePerOutputToken"] == {"p95": "50ms"},
        "an edit of a role is reapplied",
    )

    tenant.delete("modeldeployment")
    until(
        lambda: not any(roles(tenant)) and not tenant.all_of(DEPLOYMENTS),
        "roles and their Deployments are collected",
    )


def test_a_role_that_is_deleted_is_made_again(tenant):
    tenant.apply(an_object({}))
    wait_ready(tenant)
    uid = roles(tenant)[0]["metadata"]["uid"]
    tenant.delete("modeldeployment", "llama-prefill")
    until(
        lambda: (roles(tenant)[0] or {"metadata": {"uid": uid}})["metadata"]["uid"] != uid,
        "another one is there",
    )


def test_nothing_is_made_where_only_advice_is_wanted(tenant):
    tenant.apply(an_object({}, scaling={"mode": "Recommend", "maxReplicas": 3}))
    until(lambda: tenant.condition("PlanValid").get("status") == "True", "it is planned")

    assert tenant.condition("Ready")["reason"] == "StatusOnly"
    assert roles(tenant) == [None, None]


def test_an_object_of_somebody_else_with_the_name_of_a_role_is_left_alone(tenant):
    tenant.apply(a_model("llama-decode"))
    tenant.apply(an_object({}))
    until(lambda: tenant.condition("Stalled"), "it says so")

    assert tenant.condition("Stalled")["reason"] == "NameConflict"
    assert "llama-decode exists" in tenant.condition("Stalled")["message"]
    assert "role" not in tenant.get(MODEL_DEPLOYMENTS, "llama-decode")["spec"]["engine"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"topology": None}, "topology cannot be added or removed"),
        ({"slo": {"timePerOutputToken": None}}, "topology needs both timeToFirstToken"),
    ],
)
def test_what_cannot_be_is_refused_by_the_api_server(tenant, change, message):
    tenant.apply(an_object({}, scaling={"mode": "Recommend", "maxReplicas": 3}))

    with pytest.raises(Exception, match=message):
        tenant.change(**change)
