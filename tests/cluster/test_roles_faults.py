"""Faults of prefill and decode under load: what one role lacks is not blamed on the other.

Nor on either, where it is the link between them.
"""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

import kind_lab
import site_lab
from roles_lab import ROLES, TICK_S, TRANSFER_S, Roles, a_site_of_roles, both_loaded, set_transfer
from site_lab import Object, Site, a_tenant, rounded, show, until
from tonnage.estimate.metrics import ATTAINMENT_SCRAPES
from tonnage_lab.load_client import quantile, within

pytestmark = [*site_lab.pytestmark, pytest.mark.thorough]

JUDGED_S = ATTAINMENT_SCRAPES * TICK_S
"""What is late is judged once in so long a time."""
SLOW_S = 4.0
"""A transfer over the slow link: two hundred times what the spec says."""
ON = {role: {"kubernetes.io/hostname": f"gpu-{number}"} for number, role in enumerate(ROLES)}
MOVED, COMPUTED = 0.85, 0.1
"""Shares of prompt tokens from which on decode takes all and none: a figure moves by a tenth."""
FULL = 20
"""Requests that wait at prefill: more than come at once."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, programs: dict[str, Path]) -> Iterator[Site]:
    with a_site_of_roles(tmp_path_factory.mktemp("roles-faults"), programs) as made:
        yield made


@dataclass(kw_only=True)
class Seen:
    """What was seen of both roles in a time."""

    since_s: float = field(default_factory=time.time)
    replicas: list[tuple[int, ...]] = field(default_factory=list)
    statuses: list[dict[str, Object]] = field(default_factory=list)

    def codes(self, role: str) -> set[str]:
        """Return the codes of all reasons of a role's plans."""
        return {code for each in self.statuses for code in codes(each, role)}

    def said(self, role: str, kind: str) -> set[str]:
        """Return the messages of a condition while it was False."""
        return {
            each["message"]
            for status in self.statuses
            for each in status[role]["conditions"]
            if (each["type"], each["status"]) == (kind, "False")
        }


def codes(statuses: dict[str, Object], role: str) -> set[str]:
    return {each["code"] for each in statuses[role]["plan"]["reasons"]}


def watched(roles: Roles, seconds: float) -> Seen:
    seen = Seen()
    while time.time() < seen.since_s + seconds:
        seen.replicas.append(roles.replicas())
        seen.statuses.append({role: roles.tenant.status(role) for role in ROLES})
        time.sleep(TICK_S / 2)
    return seen


def until_said(roles: Roles, role: str, kind: str, **wanted: str) -> Object:
    """Wait for a condition with these fields."""

    def ask() -> Object:
        found = roles.tenant.condition(kind, role)
        return found if wanted.items() <= found.items() else {}

    found: Object = until(ask, f"{kind} of {role}: {wanted}", told=partial(roles.tenant.told, role))
    return found


def until_measured(roles: Roles, role: str, name: str, is_so: Callable[[float], bool]) -> None:
    def ask() -> bool:
        found = roles.measured(role, name)
        return found is not None and is_so(found)

    until(ask, f"{name} of {role}", told=partial(roles.tenant.told, role))


def ttft_p50_s(roles: Roles, seen: Seen) -> float:
    records = within(roles.load.records, since_s=seen.since_s)
    return quantile([each.ttft_s for each in records], 0.5) or 0.0


class TestALinkThatIsSlow:
    @pytest.mark.skipif(kind_lab.on_kind(), reason="the truth of engines is a part of their image")
    def test_is_said_and_takes_no_replicas(
        self, site: Site, request: pytest.FixtureRequest, tmp_path: Path
    ):
        with a_tenant(site) as tenant, both_loaded(tenant, requests_per_s=2) as roles:
            until(lambda: roles.replicas() == (1, 1), "the load of one replica each")
            until_said(roles, "decode", "SLOMet", status="True")
            set_transfer(site, SLOW_S)
            try:
                until_said(roles, "decode", "SLOMet", status="False", reason="CachesLate")
                seen = watched(roles, 4 * JUDGED_S)
                late = roles.measured("decode", "ttftAttainment")
                message = tenant.condition("SLOMet", "decode")["message"]
                ttft_s = ttft_p50_s(roles, seen)
            finally:
                set_transfer(site, TRANSFER_S)
            until_said(roles, "decode", "SLOMet", status="True")
        show(
            request.config,
            "Roles: a slow link",
            {
                "ttft_p50_s": rounded(ttft_s),
                "ttft_attained": late,
                "decode_says": message,
                "replicas": seen.replicas[-1],
            },
            tmp_path,
        )

        assert roles.failed() == []
        assert ttft_s > SLOW_S
        assert late < 0.01
        assert seen.said("prefill", "SLOMet") == set()
        assert set(seen.replicas) == {(1, 1)}
        assert not {"CapacityAdjusted", "Backlog"} & (seen.codes("prefill") | seen.codes("decode"))
        waits_s = [float(each) for each in re.findall("caches take (\\S+) s", message)]
        assert waits_s == [pytest.approx(SLOW_S, rel=0.3)]


@contextmanager
def no_node_for(site: Site, tenant: site_lab.Tenant, role: str) -> Iterator[None]:
    """Kill the pods of a role, and let none find a node."""
    (node,) = ON[role].values()
    site.plane.kubectl("cordon", node)
    try:
        selected = ("pods", "-l", f"app.kubernetes.io/instance={role}")
        tenant.kubectl("delete", *selected, "--grace-period=1", "--wait=false")
        yield
    finally:
        site.plane.kubectl("uncordon", node)


class TestPrefillThatIsGone:
    def test_is_said_and_decode_grows_by_the_prompts_that_it_computes(
        self, site: Site, request: pytest.FixtureRequest, tmp_path: Path
    ):
        pods = {role: {"pods": {"nodeSelector": ON[role]}} for role in ROLES}
        with (
            a_tenant(site) as tenant,
            both_loaded(tenant, requests_per_s=3.2, **pods) as roles,
        ):
            until(lambda: tenant.replicas("decode") == 1, "decode has the load of one replica")
            until_measured(roles, "decode", "movedPromptFraction", lambda share: share > MOVED)
            before = tenant.replicas("prefill")
            with no_node_for(site, tenant, "prefill"):
                gone = until_said(roles, "prefill", "CapacityAvailable", status="False")
                until_said(roles, "prefill", "Ready", status="False")
                until_measured(
                    roles, "decode", "movedPromptFraction", lambda share: share < COMPUTED
                )
                until(lambda: tenant.num_ready("decode") == 2, "decode has two replicas")
                seen = watched(roles, 2 * JUDGED_S)
                until_said(roles, "decode", "SLOMet", status="True")
            until_said(roles, "prefill", "Ready", status="True")
            until_measured(roles, "decode", "movedPromptFraction", lambda share: share > MOVED)
            until(lambda: tenant.replicas("decode") == 1, "decode has one replica again")
        show(
            request.config,
            "Roles: prefill is gone",
            {
                "requests": len(roles.load.records),
                "ttft_p50_s": rounded(ttft_p50_s(roles, seen)),
                "prefill_says": gone["message"],
                "replicas": seen.replicas[-1],
            },
            tmp_path,
        )

        assert roles.failed() == []
        assert gone["reason"] == "NoNodeFits"
        assert set(seen.replicas) == {(before, 2)}
        assert seen.codes("prefill").isdisjoint({"CapacityAdjusted", "Backlog"})


class TestDecodeThatIsFull:
    def test_limits_itself_and_takes_no_replica_of_prefill(
        self, site: Site, request: pytest.FixtureRequest, tmp_path: Path
    ):
        bounds = {
            "prefill": {"scaling": {"minReplicas": 4, "maxReplicas": 8}},
            "decode": {"scaling": {"maxReplicas": 1}},
        }
        with (
            a_tenant(site) as tenant,
            both_loaded(tenant, requests_per_s=2, **bounds) as roles,
        ):
            until(lambda: tenant.num_ready("prefill") == 4, "prefill is Ready")
            roles.load.requests_per_s = 15
            limited = until_said(roles, "decode", "ScalingLimited", status="True")
            until_measured(roles, "prefill", "queueDepth", lambda number: number > FULL)
            seen = watched(roles, 3 * JUDGED_S)
            waiting = roles.measured("prefill", "queueDepth")
            roles.load.requests_per_s = 1
            tenant.change("decode", scaling={"maxReplicas": 6})
            for role in ROLES:
                until_said(roles, role, "SLOMet", status="True")
            until_said(roles, "decode", "ScalingLimited", status="False")
            until_measured(roles, "prefill", "queueDepth", lambda number: number < 1)
        show(
            request.config,
            "Roles: decode is full",
            {
                "requests": len(roles.load.records),
                "ttft_p50_s": rounded(ttft_p50_s(roles, seen)),
                "waiting_at_prefill": waiting,
                "decode_says": limited["message"],
                "prefill_says": sorted(seen.said("prefill", "SLOMet")),
                "replicas": seen.replicas[-1],
            },
            tmp_path,
        )

        assert roles.failed() == []
        assert limited["reason"] == "MaxReplicas"
        assert waiting > FULL
        assert all("DecodeBacklogged" in codes(each, "prefill") for each in seen.statuses)
        assert max(seen.replicas) <= seen.replicas[0]
        assert seen.codes("prefill").isdisjoint({"CapacityAdjusted", "Backlog"})
        assert all("decode has not loaded" in each for each in seen.said("prefill", "SLOMet"))
        assert seen.said("decode", "SLOMet")
