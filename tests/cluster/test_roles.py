"""Prefill and decode apart: one object, real pods, and a proxy that sends each request to both."""

import time
from dataclasses import dataclass
from functools import partial
from statistics import fmean

import pytest

import site_lab
from roles_lab import ROLES, TPOT_S, TTFT_S, Roles, a_site_of_roles, one_loaded
from site_lab import a_tenant, rounded, show, until
from tonnage_lab.load_client import attainment, quantile, within

pytestmark = [*site_lab.pytestmark, pytest.mark.thorough]

BASE_PER_S, SURGE_PER_S = 1.5, 7.5
SETTLED_S = 20.0
"""Of the high load, after both roles have what they asked for."""
TITLE = "Roles: prefill and decode, load times five"


@dataclass(kw_only=True)
class Run:
    """What was seen of a load that grew and fell."""

    roles: Roles
    settled_s: float = 0.0
    low_s: float = 0.0
    base: tuple[int, ...] = ()
    peak: tuple[int, ...] = ()
    statuses: tuple[site_lab.Object, ...] = ()

    def asked(self, query):
        (series,) = self.roles.tenant.site.ask_prometheus(query, at_s=self.low_s)
        return float(series["value"][1])

    def tokens(self, role, source):
        """Return prompt tokens by where they came from, of all pods that a role has had."""
        of = f'pod=~"both-{role}-.*",source="{source}",namespace="{self.roles.tenant.namespace}"'
        return self.asked(f"sum(max_over_time(vllm:prompt_tokens_by_source_total{{{of}}}[20m]))")


def has_grown(run, number):
    return run.roles.replicas()[number] > run.base[number]


def has_shrunk(run, number):
    return run.roles.replicas()[number] < run.peak[number]


def drive(run):
    time.sleep(SETTLED_S)
    run.base = run.roles.replicas()
    run.roles.load.requests_per_s = SURGE_PER_S
    for number, role in enumerate(ROLES):
        until(partial(has_grown, run, number), f"{role} is scaled up", timeout_s=60)
    until(run.roles.are_ready, "what was asked for is Ready", timeout_s=60)
    time.sleep(3 * SETTLED_S)
    run.settled_s = time.time()
    time.sleep(SETTLED_S)
    run.peak = run.roles.replicas()
    run.statuses = tuple(run.roles.status(role) for role in ROLES)
    run.low_s = time.time()
    run.roles.load.requests_per_s = BASE_PER_S
    for number, role in enumerate(ROLES):
        until(partial(has_shrunk, run, number), f"{role} is scaled down", timeout_s=180)
    time.sleep(SETTLED_S / 2)


@pytest.fixture(scope="module")
def run(tmp_path_factory, programs):
    with (
        a_site_of_roles(tmp_path_factory.mktemp("roles"), programs) as site,
        a_tenant(site) as tenant,
        one_loaded(tenant, requests_per_s=BASE_PER_S) as roles,
    ):
        found = Run(roles=roles)
        drive(found)
        roles.load.stop()
        yield found


def test_no_request_is_lost_while_either_role_grows_and_shrinks(run):
    assert run.roles.failed() == []
    assert len(run.roles.load.records) > 500


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


def test_nobody_is_said_to_have_edited_what_the_operator_wrote(run):
    conditions = [each for status in run.statuses for each in status["conditions"]]

    assert [each["status"] for each in conditions if each["type"] == "Drifted"] == ["False"] * 2


def test_at_the_high_load_both_targets_are_kept(run, request, tmp_path):
    settled = within(run.roles.load.records, since_s=run.settled_s, until_s=run.low_s)
    kept = attainment(settled, ttft_s=TTFT_S, tpot_s=TPOT_S)
    show(
        request.config,
        TITLE,
        {
            "requests": len(run.roles.load.records),
            "replicas_prefill_decode": {"base": run.base, "high": run.peak},
            "kept_share_high": rounded(kept),
            "ttft_p95_s": rounded(quantile([each.ttft_s for each in settled], 0.95)),
            "tpot_mean_s": rounded(fmean(each.tpot_s for each in settled), 4),
        },
        tmp_path,
    )

    assert kept >= 0.95
