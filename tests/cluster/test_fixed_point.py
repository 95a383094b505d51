"""Under a constant load the operator comes to rest: it looks, and writes nothing."""

import time
from collections import Counter

import pytest

import site_lab
from site_lab import NAME, OPERATOR, a_model, a_site, a_tenant, show, until
from tonnage.lab.load import LoadControl, Target, background_load
from tonnage.lab.load_client import Lengths, RequestShape
from tonnage.lab.load_endpoints import ServiceRef

pytestmark = site_lab.pytestmark

TICK_S = 2
NUM_USERS = 20
RESIDENCE_S = 6.0
"""About what an answer takes: users who come over this time do not walk in step."""
QUIET_TICKS, COUNTED_TICKS = 10, 10
STEADY_TIMEOUT_S = 180
MATERIAL = 0.02


@pytest.fixture(scope="module")
def loaded(tmp_path_factory, programs):
    """A site whose one replica serves users who wait for their answers."""
    truth = {"load_s": 1, "step": {"gpu": "H200"}}
    settings = {"tickS": TICK_S, "statusIntervalS": TICK_S}
    folder = tmp_path_factory.mktemp("fixed-point")
    with (
        a_site(folder, programs, truth=truth, scrape_interval_s=TICK_S, settings=settings) as site,
        a_tenant(site) as tenant,
    ):
        tenant.apply(a_model())
        tenant.wait_ready()
        control = LoadControl()
        with background_load(target(tenant), shape(), control):
            for number in range(NUM_USERS):
                control.num_users = number + 1
                time.sleep(RESIDENCE_S / NUM_USERS)
            yield tenant


def target(tenant):
    service = ServiceRef(namespace=tenant.namespace, name=NAME)
    return Target(kubeconfig=tenant.site.plane.kubeconfig, service=service)


def shape():
    return RequestShape(
        model="meta-llama/Llama-3.3-70B-Instruct",
        prompt=Lengths(mean_tokens=500),
        output=Lengths(mean_tokens=200),
    )


def is_steady(site):
    """Tell whether a speed was learned and written, and nothing was written since for a while."""
    if not site.learned_speeds():
        return False
    return not site.writes(since_s=time.time() - QUIET_TICKS * TICK_S)


def named(writes):
    return dict(Counter(f"{each.verb} {each.resource} {each.name}" for each in writes))


def test_at_the_fixed_point_nothing_is_written(loaded, request, tmp_path):
    site, began_s = loaded.site, time.time()
    until(lambda: is_steady(site), "it is steady", timeout_s=STEADY_TIMEOUT_S, every_s=0.5)
    since_s, ticks = time.time(), site.num_ticks()
    until(
        lambda: site.num_ticks() >= ticks + COUNTED_TICKS,
        f"{COUNTED_TICKS} ticks",
        timeout_s=3 * COUNTED_TICKS * TICK_S,
        every_s=0.5,
    )
    writes = site.writes(since_s=since_s)
    measured = loaded.status()["measured"]
    figures = {
        "load_to_steady_s": round(since_s - began_s, 1),
        "ticks": site.num_ticks() - ticks,
        "writes_before": named(site.writes(since_s=began_s)),
        "writes_in_those_ticks": named(writes),
        "reads_in_those_ticks": named(
            each for each in site.requests(user=OPERATOR, since_s=since_s) if each.verb == "get"
        ),
        "requests_per_s": measured["requestsPerSecond"]["value"],
        "running": measured["running"]["value"],
        "mbu": measured["memoryBandwidthUtilization"]["value"],
    }
    show(request.config, "Fixed point under constant closed-loop load", figures, tmp_path)

    assert measured["running"]["value"] == pytest.approx(NUM_USERS, abs=4)
    assert writes == []

    # Nothing was merely put off: a change of the spec shows what the operator knows now.
    generation = loaded.change(scaling={"maxReplicas": 5})["metadata"]["generation"]
    until(lambda: loaded.status()["observedGeneration"] == generation, "the change is seen")
    known = loaded.status()["calibration"]["bandwidthEfficiency"]["learned"]
    (entry,) = site.learned_speeds()

    assert known == pytest.approx(entry["bandwidthEfficiency"], rel=MATERIAL + 0.001)


def test_nothing_was_refused(loaded):
    refused = [each for each in loaded.site.requests(user=OPERATOR) if each.code in {401, 403}]

    assert refused == []
