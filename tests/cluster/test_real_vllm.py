"""Real vLLM for CPU as pods: only where somebody asks for it, and has it installed.

    TONNAGE_REAL_VLLM=1 pytest tests/cluster/test_real_vllm.py

``python -m tonnage_lab demo --engine vllm`` installs it. One engine on one core,
then two: five minutes.
"""

import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import site_lab
from site_lab import Tenant, a_site_of, a_tenant, until
from tonnage_lab import vllm_cpu, vllm_site
from tonnage_lab.load import LoadControl, LoadTarget, background_load
from tonnage_lab.load_client import LengthDistribution, RequestRecord, RequestShape
from tonnage_lab.load_endpoints import ServiceRef

ASKED = os.environ.get("TONNAGE_REAL_VLLM") == "1"
pytestmark = [
    *site_lab.pytestmark,
    pytest.mark.skipif(not ASKED, reason="set TONNAGE_REAL_VLLM=1 to start real engines"),
    pytest.mark.skipif(ASKED and vllm_cpu.find() is None, reason="vLLM for CPU is not installed"),
]
READY_S = 900.0
NUM_REQUESTS = 8
PROMPT_TOKENS = 160
"""More than one block of the cache, which on a CPU has 128 tokens."""
TOO_MUCH = 4
"""Times the example's rate, which is 0.4 of what one replica is planned to serve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What was planned, and what a real engine then did."""

    real: vllm_site.RealSite
    tenant: Tenant
    records: list[RequestRecord]

    def metric(self, name: str) -> list[dict[str, Any]]:
        """Return the series of a metric once it was scraped after the load."""
        return until(
            lambda: self.tenant.site.ask_prometheus(name, at_s=time.time()),
            f"{name} is scraped",
            timeout_s=60,
        )

    def value(self, name: str) -> float:
        (series,) = self.metric(name)
        return float(series["value"][1])


def load_on(
    real: vllm_site.RealSite, tenant: Tenant, control: LoadControl, *, prompt: float, output: float
) -> AbstractContextManager[LoadControl]:
    """Return a load on the Service of the example."""
    target = LoadTarget(
        kubeconfig=tenant.site.plane.kubeconfig,
        service=ServiceRef(namespace=tenant.namespace, name=real.manifest["metadata"]["name"]),
    )
    shape = RequestShape(
        model=real.manifest["spec"]["model"]["id"],
        prompt=LengthDistribution(mean_tokens=prompt),
        output=LengthDistribution(mean_tokens=output),
    )
    return background_load(target, shape, control)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, programs: dict[str, Path]) -> Iterator[Served]:
    real = vllm_site.prepare()
    folder = tmp_path_factory.mktemp("real-vllm")
    with a_site_of(folder, programs, real.config) as made, a_tenant(made) as tenant:
        name = real.manifest["metadata"]["name"]
        tenant.apply(dict(real.model_config_map), dict(real.manifest))
        until(lambda: tenant.num_ready(name), "the first replica is Ready", timeout_s=READY_S)
        control = LoadControl(num_users=2)
        with load_on(real, tenant, control, prompt=PROMPT_TOKENS, output=8):
            until(lambda: len(control.records) >= NUM_REQUESTS, "requests end", timeout_s=READY_S)
        time.sleep(2 * real.config.scrape_interval_s)
        yield Served(real=real, tenant=tenant, records=control.records)


def test_the_engine_has_the_kv_tokens_that_were_planned_before_it_started(served):
    (series,) = served.metric("vllm:cache_config_info")

    assert int(series["metric"]["kv_cache_size_tokens"]) == round(served.real.sizing.kv_tokens)


def test_every_request_is_answered_and_counted(served):
    num_prompt_tokens = sum(each.prompt_tokens for each in served.records)

    assert [each.error for each in served.records if not each.is_complete] == []
    assert served.value("vllm:prompt_tokens_total") == num_prompt_tokens


def test_no_prompt_comes_from_the_prefix_cache(served):
    assert served.value("vllm:prefix_cache_hits_total") == 0
    assert served.value("vllm:prefix_cache_queries_total") > 0


def test_the_operator_measures_it(served):
    name = served.real.manifest["metadata"]["name"]

    assert served.tenant.condition("PlanValid", name)["status"] == "True"
    assert served.tenant.condition("MetricsAvailable", name)["status"] == "True"


def test_more_than_one_replica_serves_takes_a_second_one_and_no_request_fails(served):
    demand = served.real.manifest["spec"]["demand"]
    name = served.real.manifest["metadata"]["name"]
    control = LoadControl(requests_per_s=TOO_MUCH * float(demand["requestsPerSecond"]))
    lengths = {key: demand[f"{key}Tokens"]["mean"] for key in ("prompt", "output")}
    assert served.tenant.num_ready(name) == 1

    with load_on(served.real, served.tenant, control, **lengths):
        until(
            lambda: len({each.pod for each in control.records if each.is_complete}) == 2,
            "two replicas have answered",
            timeout_s=READY_S,
            told=lambda: served.tenant.told(name),
        )

    assert served.tenant.num_ready(name) == 2
    assert [each.error for each in control.records if not each.is_complete] == []
