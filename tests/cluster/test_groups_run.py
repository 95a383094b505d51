"""Groups over nodes as the real controller of LeaderWorkerSets makes them, with emulated engines.

The model is that of the how-to page: DeepSeek-R1 on two nodes of eight H100 for each replica. A
worker finds its leader by the address that the controller tells it, and a leader serves when its
worker has come.
"""

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import requests

import site_lab
from groups_lab import NAME, Groups, GroupSite, a_site_of_groups, the_model
from site_lab import Object, a_tenant, until
from tonnage.cluster.kube import MODEL_DEPLOYMENTS, PODS
from tonnage_lab.load import LoadControl, LoadTarget, background_load
from tonnage_lab.load_client import LengthDistribution, RequestShape
from tonnage_lab.load_endpoints import ServiceRef
from tonnage_lab.site import operator_is_ready

pytestmark = [*site_lab.pytestmark, pytest.mark.thorough]

NODES = tuple(f"h100-{number}" for number in range(8))
"""Room for three groups and the one that comes first where they are replaced."""
MODEL_ID = "deepseek-ai/DeepSeek-R1"
SHORT = {
    "requestsPerSecond": 1,
    "promptTokens": {"mean": 50, "p99": 60},
    "outputTokens": {"mean": 20, "p99": 30},
}
"""Answers that are over soon: a leader that lost its worker waits in vain for those in flight."""


@pytest.fixture(scope="module")
def group_site(
    tmp_path_factory: pytest.TempPathFactory, programs: dict[str, Path]
) -> Iterator[GroupSite]:
    folder = tmp_path_factory.mktemp("group-site")
    with a_site_of_groups(folder, programs, num_nodes=len(NODES), load_s=1.0) as made:
        yield made


@pytest.fixture
def groups(group_site: GroupSite) -> Iterator[Groups]:
    """A namespace with what the page shows; all of it is gone before the next test begins."""
    with a_tenant(group_site.site) as tenant:
        made = Groups(tenant=tenant)
        yield made
        tenant.delete("mdep", NAME)
        until(lambda: not tenant.all_of(PODS), "the pods are gone", told=made.told)


def scaling(least: int) -> Object:
    return {"scaling": {"minReplicas": least, "maxReplicas": 3}}


@contextmanager
def a_load(groups: Groups, requests_per_s: float, output_tokens: int = 20) -> Iterator[LoadControl]:
    """Send requests; those in flight are waited for in the end."""
    service = ServiceRef(namespace=groups.tenant.namespace, name=NAME)
    target = LoadTarget(kubeconfig=groups.tenant.site.plane.kubeconfig, service=service)
    shape = RequestShape(
        model=MODEL_ID,
        prompt=LengthDistribution(mean_tokens=50),
        output=LengthDistribution(mean_tokens=output_tokens),
    )
    with background_load(target, shape) as control:
        control.requests_per_s = requests_per_s
        yield control


def failed(control: LoadControl) -> list[str]:
    return [f"{each.pod}: {each.error}" for each in control.records if not each.is_complete]


def num_answered(control: LoadControl, pod: str) -> int:
    return sum(each.is_complete and each.pod == pod for each in control.records)


def condition_time_s(found: Object, type_: str) -> float:
    (condition,) = (each for each in found["status"]["conditions"] if each["type"] == type_)
    return datetime.fromisoformat(condition["lastTransitionTime"]).timestamp()


def log_of(groups: Groups, pod: str) -> str:
    logs = groups.tenant.site.plane.folder / "runner" / "state" / "logs"
    return (logs / groups.tenant.namespace / pod / "vllm.log").read_text()


def kill_engine(pod: Object) -> None:
    """End the container's first process as a crash would."""
    (state,) = pod["status"]["containerStatuses"]
    outer = int(state["containerID"].removeprefix("process://"))
    children = Path(f"/proc/{outer}/task/{outer}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGKILL)


def uids(groups: Groups) -> dict[str, str]:
    return {name: pod["metadata"]["uid"] for name, pod in groups.pods().items()}


class TestAGroup:
    def test_serves_when_its_leader_does_and_no_sooner(self, groups: Groups):
        groups.tenant.apply(the_model())
        groups.wait_ready(1)
        pods = groups.pods()
        leader, worker = (pods[f"{NAME}-{end}"] for end in ("0", "0-1"))
        model = groups.tenant.get(MODEL_DEPLOYMENTS, NAME)
        asked = {"model": MODEL_ID, "prompt": [1, 2, 3], "max_tokens": 2}
        with requests.Session() as session:
            session.trust_env = False
            url = f"http://{leader['status']['podIP']}:8000/v1/completions"
            answer = session.post(url, json=asked, timeout=10)

        assert answer.json()["usage"]["completion_tokens"] == 2
        assert condition_time_s(model or {}, "Ready") >= condition_time_s(leader, "Ready")
        assert condition_time_s(leader, "Ready") > condition_time_s(worker, "Ready")
        assert leader["spec"]["nodeName"] != worker["spec"]["nodeName"]
        address = f"{NAME}-0.{NAME}-0.{groups.tenant.namespace}"
        assert f"joined {address} as node 1" in log_of(groups, f"{NAME}-0-1")
        table = groups.tenant.kubectl("get", "mdep", NAME)
        assert " 1/1 " in table

    def test_of_data_parallel_ranks_answers_with_those_of_both_nodes(self, groups: Groups):
        ranks = {"gpu": "H100", "parallelism": {"data": 16}, "nodeLink": "400Gb/s"}
        groups.tenant.apply(the_model(hardware=ranks, demand=SHORT))
        groups.wait_ready(1)
        with a_load(groups, 20.0) as control:
            until(lambda: len(control.records) > 100, "requests are answered", told=groups.told)
        with requests.Session() as session:
            session.trust_env = False
            address = groups.pods()[f"{NAME}-0"]["status"]["podIP"]
            page = session.get(f"http://{address}:8000/metrics", timeout=10).text
        answered = re.findall(
            r'^vllm:e2e_request_latency_seconds_count{engine="(\d+)".* (\S+)$', page, re.M
        )

        assert failed(control) == []
        assert {int(rank) for rank, number in answered if float(number) > 0} == set(range(16))
        assert groups.tenant.status(NAME)["plan"]["parallelism"]["data"] == 16

    def test_whose_worker_crashes_is_made_anew_beside_one_that_serves_on(self, groups: Groups):
        groups.tenant.apply(the_model(**scaling(2), demand=SHORT))
        groups.wait_ready(2)
        before = uids(groups)
        with a_load(groups, 2.0) as control:
            until(lambda: num_answered(control, f"{NAME}-1") > 0, "the group has load")
            kill_engine(groups.pods()[f"{NAME}-1-1"])
            num_before = num_answered(control, f"{NAME}-0")
            until(lambda: num_answered(control, f"{NAME}-0") > num_before, "the other serves on")
            until(
                lambda: changed(before, groups) == {f"{NAME}-1", f"{NAME}-1-1"},
                "the group is made anew",
                timeout_s=180,
                told=groups.told,
            )
            groups.wait_ready(2)

        assert changed(before, groups) == {f"{NAME}-1", f"{NAME}-1-1"}
        assert {each.partition(":")[0] for each in failed(control)} <= {f"{NAME}-1"}

    def test_whose_leader_is_lost_is_made_anew(self, groups: Groups):
        groups.tenant.apply(the_model())
        groups.wait_ready(1)
        before = uids(groups)
        groups.tenant.kubectl("delete", "pod", f"{NAME}-0", "--wait=false")
        until(
            lambda: groups.tenant.condition("Ready", NAME).get("status") == "False",
            "the status says that none is Ready",
            told=groups.told,
        )
        groups.wait_ready(1)

        assert changed(before, groups) == before.keys()

    def test_half_of_which_finds_no_node_is_named(self, groups: Groups):
        kubectl = groups.tenant.site.plane.kubectl
        with cordoned(kubectl, NODES[3:]):
            groups.tenant.apply(the_model(**scaling(2)))
            found = until(
                lambda: (
                    len(groups.ready_leaders()) == 1
                    and groups.tenant.status(NAME).get("replicas", {}).get("ready") == 1
                    and (said := groups.tenant.condition("CapacityAvailable", NAME))
                    and said["status"] == "False"
                    and said
                ),
                "the status says what has no node",
                told=groups.told,
            )
            [serving] = groups.ready_leaders()
            waiting = {f"{NAME}-0": f"{NAME}-1", f"{NAME}-1": f"{NAME}-0"}[serving]
        groups.wait_ready(2)

        assert found["reason"] == "InsufficientGPU"
        assert f"worker {waiting}-1: " in found["message"]


def changed(before: dict[str, str], groups: Groups) -> set[str]:
    """Return the names of pods that others have now."""
    return {name for name, uid in uids(groups).items() if before.get(name, uid) != uid}


@contextmanager
def cordoned(kubectl: Any, nodes: tuple[str, ...]) -> Iterator[None]:
    kubectl("cordon", *nodes)
    try:
        yield
    finally:
        kubectl("uncordon", *nodes)


class TestAFleetOfGroups:
    def test_grows_and_shrinks_by_the_highest_index_and_loses_no_request(self, groups: Groups):
        groups.tenant.apply(the_model())
        groups.wait_ready(1)
        first = uids(groups)
        with a_load(groups, 4.0) as control:
            groups.tenant.change(NAME, **scaling(3))
            groups.wait_ready(3)
            grown = uids(groups)
            until(lambda: len({each.pod for each in control.records}) == 3, "all three answer")
            groups.tenant.change(NAME, **scaling(1))
            groups.wait_ready(1)

        assert failed(control) == []
        assert grown.keys() == {f"{NAME}-{end}" for end in ("0", "0-1", "1", "1-1", "2", "2-1")}
        assert uids(groups) == first

    def test_is_rolled_group_by_group_and_loses_no_request(self, groups: Groups):
        groups.tenant.apply(the_model(**scaling(2)))
        groups.wait_ready(2)
        before = uids(groups)
        least = []
        with a_load(groups, 4.0) as control:
            groups.tenant.change(NAME, engine={"args": ["--seed=7"]})

            def is_rolled() -> bool:
                least.append(len(groups.ready_leaders()))
                return changed(before, groups) == before.keys()

            until(is_rolled, "all pods are replaced", timeout_s=180, told=groups.told)
            groups.wait_ready(2)

        assert failed(control) == []
        assert min(least) == 2
        assert all(
            "--seed=7" in pod["spec"]["containers"][0]["args"] for pod in groups.pods().values()
        )

    def test_is_left_alone_by_an_operator_that_is_killed_or_replaced(self, groups: Groups):
        groups.tenant.apply(the_model())
        groups.wait_ready(1)
        before = uids(groups)
        site = groups.tenant.site
        num_restarts = site.kill_operator()
        until(
            lambda: (
                site.operator_state()["restartCount"] > num_restarts
                and operator_is_ready(site.plane.kubectl)
            ),
            "it is there again",
        )
        site.upgrade_operator(podAnnotations={"again": "1"})
        groups.tenant.settled("nothing is written")

        assert uids(groups) == before


class TestWithoutTheController:
    def test_what_is_asked_for_and_not_made_is_told_and_made_when_it_is_back(
        self, groups: Groups, group_site: GroupSite
    ):
        groups.tenant.apply(the_model())
        groups.wait_ready(1)
        before = uids(groups)
        group_site.controller.stop()
        try:
            groups.tenant.change(NAME, **scaling(2))
            until(lambda: groups.live()["spec"]["replicas"] == 2, "two are asked for")
            found = until(
                lambda: (
                    (said := groups.tenant.condition("CapacityAvailable", NAME))
                    and said["status"] == "False"
                    and said
                ),
                "the status says who does not act",
                told=groups.told,
            )
        finally:
            group_site.controller.start()
        groups.wait_ready(2)

        assert found["reason"] == "WorkloadControllerNotObserving"
        assert before.items() <= uids(groups).items()
