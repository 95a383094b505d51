"""Under a constant load the operator comes to rest: it looks, and writes nothing."""

import time
from collections import Counter
from dataclasses import dataclass

import pytest

import site_lab
from site_lab import NAME, OPERATOR, Site, a_model, a_site, a_tenant, show, until
from tonnage_lab.load import LoadControl, LoadTarget, background_load
from tonnage_lab.load_client import LengthDistribution, RequestShape
from tonnage_lab.load_endpoints import ServiceRef

pytestmark = site_lab.pytestmark

TICK_S = 2
NUM_USERS = 20
RESIDENCE_S = 6.0
"""About what an answer takes: users who come over this time do not walk in step."""
REST_TICKS = 20
"""In a row without a write, each of which would write gauges that moved."""
REST_TIMEOUT_S = 360
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
    return LoadTarget(kubeconfig=tenant.site.plane.kubeconfig, service=service)


def shape():
    return RequestShape(
        model="meta-llama/Llama-3.3-70B-Instruct",
        prompt=LengthDistribution(mean_tokens=500),
        output=LengthDistribution(mean_tokens=200),
    )


@dataclass
class Rest:
    """Since when nothing was written, and how many ticks ended before that."""

    site: Site
    since_s: float
    ticks: int = 0

    def is_long(self):
        """Tell whether a speed was learned and written, and all ticks since then wrote nothing."""
        writes = self.site.writes(since_s=self.since_s)
        if writes or not self.site.learned_speeds():
            self.since_s, self.ticks = time.time(), self.site.num_ticks()
        return self.num_ticks >= REST_TICKS

    @property
    def num_ticks(self):
        return self.site.num_ticks() - self.ticks


def named(writes):
    return dict(Counter(f"{each.verb} {each.resource} {each.name}" for each in writes))


def test_at_the_fixed_point_nothing_is_written(loaded, request, tmp_path):
    site, began_s = loaded.site, time.time()
    rest = Rest(site, since_s=began_s, ticks=site.num_ticks())
    until(
        rest.is_long, f"{REST_TICKS} ticks without a write", timeout_s=REST_TIMEOUT_S, every_s=0.5
    )
    since_s = rest.since_s
    measured = loaded.status()["measured"]
    figures = {
        "load_to_rest_s": round(since_s - began_s, 1),
        "ticks_at_rest": rest.num_ticks,
        "writes_before": named(site.writes(since_s=began_s)),
        "reads_in_those_ticks": named(
            each for each in site.requests(user=OPERATOR, since_s=since_s) if each.verb == "get"
        ),
        "requests_per_s": measured["requestsPerSecond"]["value"],
        "running": measured["running"]["value"],
        "mbu": measured["memoryBandwidthUtilization"]["value"],
    }
    show(request.config, "Fixed point under constant closed-loop load", figures, tmp_path)

    assert measured["running"]["value"] == pytest.approx(NUM_USERS, abs=5)

    # Nothing was merely put off: a change of the spec shows what the operator knows now.
    generation = loaded.change(scaling={"maxReplicas": 5})["metadata"]["generation"]
    until(lambda: loaded.status()["observedGeneration"] == generation, "the change is seen")
    known = loaded.status()["calibration"]["bandwidthEfficiency"]["learned"]
    (entry,) = site.learned_speeds()

    assert known == pytest.approx(entry["bandwidth_efficiency"], rel=MATERIAL + 0.001)


def test_nothing_was_refused(loaded):
    refused = [each for each in loaded.site.requests(user=OPERATOR) if each.code in {401, 403}]

    assert refused == []
