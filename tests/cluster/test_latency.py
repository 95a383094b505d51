"""How long a change of a ModelDeployment takes to reach its Deployment.

The changes follow one another: the rollout of one still goes on when the next one comes, so the
loop seldom rests. A change that comes alone is there sooner.
"""

import random
import time

import site_lab
from site_lab import NAME, OPERATOR, a_model, pause, rounded, show, until
from tonnage_lab.load_client import quantile

pytestmark = site_lab.pytestmark

NUM_CHANGES = 20
LONGEST_PAUSE_S = 0.3
LOOSE_S = 10.0
"""No guarantee: what would mean that the watch does not wake the loop."""


def cpu(tenant):
    container = tenant.deployment()["spec"]["template"]["spec"]["containers"][0]
    return container["resources"].get("requests", {}).get("cpu")


def change(tenant, number):
    """Change the spec, and wait until the Deployment has it."""
    tenant.change(pods={"cpu": f"{number}m"})
    until(lambda: cpu(tenant) == f"{number}m", "the Deployment is changed", every_s=0.05)


def latencies_s(tenant, *, since_s):
    """Return the time from each change to the answered write of the Deployment.

    From when the change was asked for: the operator may write before the answer is on its way.
    """
    patches = [
        each
        for each in tenant.site.requests(since_s=since_s)
        if (each.namespace, each.name, each.verb) == (tenant.namespace, NAME, "patch")
    ]
    change_asked_at_s, taken = None, []
    # As they were asked for: a write can be seen, and the next change sent, before it is answered.
    for each in sorted(patches, key=lambda each: each.asked_at_s):
        if each.resource == "modeldeployments" and each.user != OPERATOR:
            change_asked_at_s = each.asked_at_s
        elif each.resource == "deployments" and each.user == OPERATOR and change_asked_at_s:
            taken.append(each.at_s - change_asked_at_s)
            change_asked_at_s = None
    return taken


def test_a_change_reaches_the_deployment(tenant, request, tmp_path):
    generator = random.Random(1)  # noqa: S311 -- when people change things is no secret
    tenant.apply(a_model(scaling={"maxReplicas": 1}))
    created = tenant.wait_ready()["metadata"]["creationTimestamp"]
    began_s = time.time()
    for number in range(1, NUM_CHANGES + 1):
        pause(generator, longest_s=LONGEST_PAUSE_S)
        change(tenant, number)
    # The API server writes its audit log after it has answered.
    until(lambda: len(latencies_s(tenant, since_s=began_s)) >= NUM_CHANGES, "all writes are logged")
    taken = latencies_s(tenant, since_s=began_s)
    figures = {
        "changes": len(taken),
        "p50_s": rounded(quantile(taken, 0.5)),
        "p90_s": rounded(quantile(taken, 0.9)),
        "most_s": rounded(max(taken)),
    }
    show(request.config, "Change of a ModelDeployment to changed Deployment", figures, tmp_path)

    assert len(taken) == NUM_CHANGES
    assert quantile(taken, 0.5) < LOOSE_S
    assert tenant.deployment()["metadata"]["creationTimestamp"] == created
