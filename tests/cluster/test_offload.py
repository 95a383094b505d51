"""A KV cache in host memory: what it holds is measured and planned for, until it is taken out."""

import time
from dataclasses import dataclass, field
from functools import partial

import pytest

import site_lab
from site_lab import NAME, a_model, a_site, a_tenant, until
from tonnage_lab.load import LoadControl, LoadTarget, background_load
from tonnage_lab.load_client import LengthDistribution, RequestShape
from tonnage_lab.load_endpoints import ServiceRef

pytestmark = [*site_lab.pytestmark, pytest.mark.thorough]

TICK_S = 2
RATE = 1.0
PROMPT_TOKENS, OUTPUT_TOKENS = 2000, 50
HELD = 0.8
"""Share of each prompt that the host's memory holds."""
MODEL = {"id": "meta-llama/Llama-3.3-70B-Instruct", "weights": "fp8"}
HOST_CACHE = {"gib": 8, "workingSetTokens": 20_000}


def a_model_with(kv_offload):
    return a_model(
        model=MODEL | ({"kvOffload": kv_offload} if kv_offload else {}),
        slo={"timeToFirstToken": {"p95": "1s"}, "timePerOutputToken": {"p95": "50ms"}},
        demand={
            "requestsPerSecond": int(RATE),
            "promptTokens": {"mean": PROMPT_TOKENS},
            "outputTokens": {"mean": OUTPUT_TOKENS},
        },
        scaling={"maxReplicas": 8},
    )


@dataclass(kw_only=True)
class Run:
    """What was seen with the cache, and after it was taken out."""

    tenant: site_lab.Tenant
    load: LoadControl
    planned: int = 0
    """Replicas for the prompts as the spec has them."""
    with_cache: site_lab.Object = field(default_factory=dict)
    replicas: int = 0
    """That run with what was measured of the cache."""
    pods: tuple[tuple[str, ...], ...] = ()
    """Their arguments, before and after it was taken out."""
    revisions: tuple[str, ...] = ()

    def deployment(self):
        return self.tenant.deployment()

    def measured(self, name):
        found = self.tenant.status().get("measured", {}).get(name)
        return None if found is None else float(found["value"])


def arguments(deployment):
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return tuple(container["args"])


def revision(deployment):
    return deployment["metadata"]["annotations"]["deployment.kubernetes.io/revision"]


def is_rolled(run):
    deployment = run.deployment()
    status, replicas = deployment["status"], deployment["spec"]["replicas"]
    is_seen = status.get("observedGeneration") == deployment["metadata"]["generation"]
    is_new = "--kv-offloading-size" not in arguments(deployment)
    return is_seen and is_new and status.get("updatedReplicas") == replicas == status["replicas"]


def drive(run):
    run.planned = run.tenant.replicas() or 0
    run.load.requests_per_s = RATE
    until(lambda: run.measured("movedPromptFraction"), "the cache is measured", timeout_s=90)
    until(
        lambda: (run.tenant.replicas() or 0) < run.planned,
        "fewer replicas than for whole prompts",
        timeout_s=180,
    )
    run.with_cache, run.replicas = run.tenant.status(), run.tenant.replicas() or 0
    before = run.deployment()
    run.tenant.apply(a_model_with(None))
    until(partial(is_rolled, run), "pods without the cache", timeout_s=180)
    time.sleep(5 * TICK_S)
    after = run.deployment()
    run.pods = arguments(before), arguments(after)
    run.revisions = revision(before), revision(after)


@pytest.fixture(scope="module")
def run(tmp_path_factory, programs):
    truth = {
        "load_s": 1,
        "step": {"gpu": "H200"},
        "host_cached_prompt_fraction": HELD,
        "transfer_s_per_token": 1e-6,
    }
    settings = {"tickS": TICK_S, "coldStartS": 5, "scaleDownWindowS": 20, "statusIntervalS": 2}
    folder = tmp_path_factory.mktemp("offload")
    shape = RequestShape(
        model=MODEL["id"],
        prompt=LengthDistribution(mean_tokens=PROMPT_TOKENS),
        output=LengthDistribution(mean_tokens=OUTPUT_TOKENS),
    )
    with (
        a_site(folder, programs, truth=truth, scrape_interval_s=TICK_S, settings=settings) as site,
        a_tenant(site) as tenant,
    ):
        tenant.apply(a_model_with(HOST_CACHE))
        until(lambda: (tenant.replicas() or 0) > 1, "more replicas than that of the first apply")
        tenant.wait_ready(replicas=tenant.replicas())
        service = ServiceRef(namespace=tenant.namespace, name=NAME)
        target = LoadTarget(kubeconfig=site.plane.kubeconfig, service=service)
        with background_load(target, shape) as control:
            found = Run(tenant=tenant, load=control)
            drive(found)
        yield found


def test_what_the_host_holds_is_measured_and_planned_for(run):
    moved = float(run.with_cache["measured"]["movedPromptFraction"]["value"])

    assert moved == pytest.approx(HELD, abs=0.05)
    assert run.replicas < run.planned


def test_the_plan_says_whether_the_cache_is_worth_it(run):
    [message] = [
        each["message"] for each in run.with_cache["plan"]["reasons"] if each["code"] == "KVOffload"
    ]

    assert message.startswith("not worth it: the working set of 20,000 tokens is within the ")


def test_pods_are_replaced_once_when_it_is_taken_out(run):
    before, after = run.pods

    assert "--kv-offloading-size" in before
    assert "--kv-offloading-size" not in after
    assert int(run.revisions[1]) == int(run.revisions[0]) + 1


def test_no_request_is_lost(run):
    assert [each.error for each in run.load.records if not each.is_complete] == []
    assert len(run.load.records) > 20
