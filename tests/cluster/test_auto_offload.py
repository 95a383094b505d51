"""KV offload that decides: what it chose runs, stays, and is chosen again with the spec."""

import site_lab
from site_lab import a_model, until

pytestmark = site_lab.pytestmark

MODEL = {"id": "meta-llama/Llama-3.3-70B-Instruct", "weights": "fp8"}
BEYOND, WITHIN = 300_000, 20_000
"""Tokens: the GPU's cache has 130,000 to 180,000."""


def an_object(working_set_tokens, **spec):
    cache = {"mode": "Auto", "gib": 200, "workingSetTokens": working_set_tokens}
    return a_model(model=MODEL | {"kvOffload": cache}, **spec)


def cache_gib(tenant):
    """What the engines of the template have of host memory; None: they have none."""
    [container] = tenant.deployment()["spec"]["template"]["spec"]["containers"]
    arguments = container["args"]
    flag = "--kv-offloading-size"
    return int(arguments[arguments.index(flag) + 1]) if flag in arguments else None


def said(tenant):
    reasons = tenant.status().get("plan", {}).get("reasons", [])
    return next((each["message"] for each in reasons if each["code"] == "KVOffload"), "")


def wait_rolled(tenant, *, generation):
    """Wait until pods of a later template are all there are."""

    def is_rolled():
        status = tenant.deployment()["status"]
        is_new = status.get("observedGeneration", 0) > generation
        return is_new and status.get("updatedReplicas") == status.get("readyReplicas") == 1

    until(is_rolled, "a rollout", told=tenant.told)


def generation(tenant):
    return tenant.deployment()["metadata"]["generation"]


def test_what_auto_chose_runs_and_is_chosen_again_with_the_spec(tenant):
    tenant.apply(an_object(BEYOND))
    tenant.wait_ready()
    assert cache_gib(tenant) == 92
    until(lambda: said(tenant).startswith("Auto: on, 92 GiB a replica; worth it: "), "the reason")
    assert tenant.condition("Drifted").get("status") == "False"

    before = generation(tenant)
    tenant.apply(an_object(BEYOND, pods={"labels": {"team": "a"}}))
    wait_rolled(tenant, generation=before)
    assert cache_gib(tenant) == 92, "pods alone changed"

    before = generation(tenant)
    tenant.apply(an_object(WITHIN, pods={"labels": {"team": "a"}}))
    wait_rolled(tenant, generation=before)
    assert cache_gib(tenant) is None
    until(lambda: said(tenant).startswith("Auto: off; not worth it: "), "the reason")


def test_a_figure_that_is_missing_is_off_and_named(tenant):
    tenant.apply(a_model(model=MODEL | {"kvOffload": {"mode": "Auto", "gib": 200}}))
    tenant.wait_ready()

    assert cache_gib(tenant) is None
    until(
        lambda: said(tenant) == "Auto: off; model.kvOffload.workingSetTokens is not given",
        "the reason",
    )
