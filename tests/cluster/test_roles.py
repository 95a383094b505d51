"""Prefill and decode apart: two objects, real pods, and a proxy that sends each request to both."""

import time
from dataclasses import dataclass
from functools import partial
from statistics import fmean

import pytest

import site_lab
from site_lab import a_model, a_site, a_tenant, rounded, show, until
from tonnage_lab.load import LoadControl, LoadTarget, background_load
from tonnage_lab.load_client import LengthDistribution, RequestShape
from tonnage_lab.load_endpoints import ServiceRef
from tonnage_lab.load_records import attainment, quantile, within

pytestmark = [*site_lab.pytestmark, pytest.mark.thorough]

TICK_S = 2
PROMPT_TOKENS, OUTPUT_TOKENS = 1000, 400
TRANSFER_S = 0.02
"""Of a prompt: 160 MB of cache at 8 GB/s."""
BASE_PER_S, SURGE_PER_S = 1.5, 7.5
TTFT = {"timeToFirstToken": {"p95": "2s"}}
TPOT = {"timePerOutputToken": {"p95": "50ms"}}
TTFT_S, TPOT_S = 2.0, 0.05
SETTLED_S = 20.0
"""Of the high load, after both roles have what they asked for."""
TITLE = "Roles: prefill and decode, load times five"


def a_role(role, slo):
    return a_model(
        role,
        slo=slo,
        demand={
            "requestsPerSecond": str(BASE_PER_S),
            "promptTokens": {"mean": PROMPT_TOKENS},
            "outputTokens": {"mean": OUTPUT_TOKENS, "p99": OUTPUT_TOKENS},
            "cacheTransfer": f"{TRANSFER_S:g}s",
        },
        hardware={"gpu": "H200", "parallelism": {"tensor": 1}},
        scaling={"maxReplicas": 6},
        engine={"version": "0.33", "role": role},
    )


def target(tenant):
    services = {
        role: ServiceRef(namespace=tenant.namespace, name=role) for role in ("prefill", "decode")
    }
    return LoadTarget(
        kubeconfig=tenant.site.plane.kubeconfig,
        service=services["decode"],
        prefill=services["prefill"],
    )


def shape():
    return RequestShape(
        model="meta-llama/Llama-3.3-70B-Instruct",
        prompt=LengthDistribution(mean_tokens=PROMPT_TOKENS),
        output=LengthDistribution(mean_tokens=OUTPUT_TOKENS),
    )


@dataclass(kw_only=True)
class Run:
    """What was seen of a load that grew and fell."""

    tenant: site_lab.Tenant
    load: LoadControl
    surge_s: float = 0.0
    settled_s: float = 0.0
    low_s: float = 0.0
    base: tuple[int, ...] = ()
    peak: tuple[int, ...] = ()
    statuses: tuple[site_lab.Object, ...] = ()

    def replicas(self):
        return tuple(self.tenant.replicas(role) or 0 for role in ("prefill", "decode"))

    def are_ready(self):
        ready = tuple(self.tenant.num_ready(role) for role in ("prefill", "decode"))
        return ready == self.replicas()

    def asked(self, query):
        (series,) = self.tenant.site.ask_prometheus(query, at_s=self.low_s)
        return float(series["value"][1])

    def tokens(self, role, source):
        """Return prompt tokens by where they came from, of all pods that a role has had."""
        of = f'pod=~"{role}-.*",source="{source}",namespace="{self.tenant.namespace}"'
        return self.asked(f"sum(max_over_time(vllm:prompt_tokens_by_source_total{{{of}}}[20m]))")


def has_grown(run, number):
    return run.replicas()[number] > run.base[number]


def has_shrunk(run, number):
    return run.replicas()[number] < run.peak[number]


def drive(run):
    run.load.requests_per_s = BASE_PER_S
    until(
        lambda: all(run.tenant.status(role).get("measured") for role in ("prefill", "decode")),
        "both roles are measured",
    )
    time.sleep(SETTLED_S)
    run.base = run.replicas()
    run.surge_s = time.time()
    run.load.requests_per_s = SURGE_PER_S
    for number, role in enumerate(("prefill", "decode")):
        until(partial(has_grown, run, number), f"{role} is scaled up", timeout_s=60)
    until(run.are_ready, "what was asked for is Ready", timeout_s=60)
    time.sleep(3 * SETTLED_S)
    run.settled_s = time.time()
    time.sleep(SETTLED_S)
    run.peak = run.replicas()
    run.statuses = tuple(run.tenant.status(role) for role in ("prefill", "decode"))
    run.low_s = time.time()
    run.load.requests_per_s = BASE_PER_S
    for number, role in enumerate(("prefill", "decode")):
        until(partial(has_shrunk, run, number), f"{role} is scaled down", timeout_s=180)
    time.sleep(SETTLED_S / 2)


@pytest.fixture(scope="module")
def run(tmp_path_factory, programs):
    truth = {
        "load_s": 1,
        "step": {"gpu": "H200"},
        "transfer_s_per_token": TRANSFER_S / PROMPT_TOKENS,
    }
    settings = {"tickS": TICK_S, "coldStartS": 5, "scaleDownWindowS": 20, "statusIntervalS": 2}
    folder = tmp_path_factory.mktemp("roles")
    with (
        a_site(folder, programs, truth=truth, scrape_interval_s=TICK_S, settings=settings) as site,
        a_tenant(site) as tenant,
    ):
        tenant.apply(a_role("prefill", TTFT), a_role("decode", TTFT | TPOT))
        for role in ("prefill", "decode"):
            until(partial(tenant.num_ready, role), f"a replica of {role} is Ready")
        with background_load(target(tenant), shape()) as control:
            found = Run(tenant=tenant, load=control)
            drive(found)
        yield found


def test_no_request_is_lost_while_either_role_grows_and_shrinks(run):
    failed = [each.error for each in run.load.records if not each.is_complete]

    assert failed == []
    assert len(run.load.records) > 500


def test_the_cache_of_each_prompt_is_read_by_one_role_and_taken_by_the_other(run):
    read, taken = (
        run.tokens("prefill", "local_compute"), run.tokens("decode", "external_kv_transfer")
    )  # fmt: skip

    assert read == pytest.approx(taken, rel=0.05)
    assert run.tokens("decode", "local_compute") < 0.01 * read


def test_each_role_has_its_own_replicas_for_the_same_requests(run):
    prefill, decode = (status["measured"] for status in run.statuses)

    assert run.peak[0] > run.base[0]
    assert run.peak[1] > run.base[1]
    for measured in (prefill, decode):
        assert float(measured["requestsPerSecond"]["value"]) == pytest.approx(SURGE_PER_S, rel=0.25)


def test_at_the_high_load_both_targets_are_kept(run, request, tmp_path):
    settled = within(run.load.records, since_s=run.settled_s, until_s=run.low_s)
    kept = attainment(settled, ttft_s=TTFT_S, tpot_s=TPOT_S)
    show(
        request.config,
        TITLE,
        {
            "requests": len(run.load.records),
            "replicas_prefill_decode": {"base": run.base, "high": run.peak},
            "kept_share_high": rounded(kept),
            "ttft_p95_s": rounded(quantile([each.ttft_s for each in settled], 0.95)),
            "tpot_mean_s": rounded(fmean(each.tpot_s for each in settled), 4),
        },
        tmp_path,
    )

    assert kept >= 0.95
