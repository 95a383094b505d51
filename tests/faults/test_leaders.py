"""Operators are killed, asked to end, stopped, and two at a time: one of a class writes."""

import re
import shutil
import signal
import sys
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import pytest
import yaml

import tonnage
from api_world import an_api_world
from http_double import json_reply
from site_lab import a_model
from tonnage.cluster.calls import ConflictError
from tonnage.cluster.kube import DEPLOYMENTS, EVENTS, LEASES, MODEL_DEPLOYMENTS
from tonnage.cluster.lease import DURATION_S, NAME
from tonnage_lab.processes import run

pytestmark = pytest.mark.lab

CRD = Path(__file__).parents[2] / "crds/modeldeployments.tonnage.dev.yaml"


class TestRow28ItIsKilledAgainAndAgain:
    def test_and_comes_to_its_end_all_the_same(self, world):
        for replicas in (1, 2, 3):
            world.apply(a_model(scaling={"minReplicas": replicas, "maxReplicas": 4}))
            for _ in range(3):
                world.last(3)
                world.operator.kill()
                world.operator.start()
        world.until_replicas(3)
        world.rest()

        assert len(list(world.api.list(DEPLOYMENTS.path(world.namespace)))) == 1


class TestRow29ItIsAskedToEnd:
    def test_in_the_midst_of_work_and_ends_in_time_without_its_lease(self, world):
        world.begin()
        world.ask_for(2)
        code = world.operator.end(timeout_s=10)

        lease = world.get(LEASES, NAME)
        assert code == 0
        assert not lease["spec"].get("holderIdentity")
        world.operator.start()
        world.until_replicas(2)


def leader_of(world):
    """Index of the operator that holds the Lease; None: nobody does."""
    lease = world.get(LEASES, NAME) or {"spec": {}}
    holder = lease["spec"].get("holderIdentity") or ""
    found = [n for n, each in enumerate(world.operators) if holder.startswith(each.name)]
    return found[0] if found else None


@pytest.fixture
def pair(world):
    """Two operators of one Lease, the first of which leads."""
    world.begin()
    world.add_operator()
    assert leader_of(world) == 0
    world.until(lambda: world.operators[1].probe("/readyz") == 200, "the second waits")
    return world


def taken_over(pair, since_s):
    """Wait until the second leads and has written; return how long that took."""
    pair.until(lambda: leader_of(pair) == 1, "the second leads")
    took_s = time.time() - since_s
    pair.ask_for(2)
    pair.until_replicas(2)
    return took_s


class TestRow30TwoOperators:
    def test_write_one_at_a_time(self, pair):
        assert pair.proxies[1].writes() == []

    def test_of_which_the_first_cannot_renew_and_writes_no_more_when_the_second_does(self, pair):
        refusal = json_reply({"kind": "Status", "message": "no"}, status=500)
        since_s = time.time()
        pair.proxy.fault = lambda passed: refusal if "/leases" in passed.path else None
        took_s = taken_over(pair, since_s)
        pair.until(pair.proxies[1].writes, "what the second wrote is noted")

        assert took_s < 2 * DURATION_S + 5
        assert pair.proxy.writes(since_s=since_s + took_s) == []


CLASS = "two-releases"


def holder(world):
    """Return who holds the Lease, once there is one and somebody does."""
    return ((world.get(LEASES, NAME) or {}).get("spec") or {}).get("holderIdentity")


@pytest.fixture
def releases(fault_plane, administrator, tmp_path):
    """Operators of two namespaces that both serve the whole cluster, one class of it."""
    with an_api_world(fault_plane, administrator, tmp_path) as world:
        other = f"{world.namespace}-other"
        fault_plane.kubectl("create", "namespace", other)
        for namespace in (world.namespace, other):
            world.add_operator(namespaces=(), operatorNamespace=namespace, operatorClass=CLASS)
            world.until(lambda: world.operators[-1].probe("/readyz") == 200, "it began")
            world.until(lambda: holder(world), "one leads")
        yield world
    fault_plane.kubectl("delete", "namespace", other, "--wait=false")


class TestTwoReleasesServeTheWholeClusterAndOneClass:
    def test_and_one_writes_until_it_is_gone_and_the_other_says_who_it_is(self, releases):
        releases.begin(operatorClass=CLASS)

        assert releases.proxies[1].writes() == []
        first = holder(releases)
        assert first.startswith("operator-0_")
        assert first.endswith(f"@{releases.namespace}")
        assert f"not leading: {first} holds the Lease" in releases.operators[1].log()

        since_s = time.time()
        releases.operator.kill()
        releases.ask_for(2)
        releases.until_replicas(2)

        assert time.time() - since_s < 2 * DURATION_S + 5
        releases.until(releases.proxies[1].writes, "a write of the other release")
        assert holder(releases).startswith("operator-1_"), "of the same Lease, in another namespace"


def take_by_force(world):
    """Give the Lease to a stranger, who never renews it."""

    def is_taken():
        lease = world.get(LEASES, NAME)
        lease["spec"] |= {"holderIdentity": "stranger"}
        with suppress(ConflictError):  # a renewal came first
            world.api.replace(LEASES.path(world.namespace, NAME), lease)
            return True
        return False

    world.until(is_taken, "the Lease is the stranger's")


class TestAStrangerTakesTheLeaseByForce:
    def test_and_nothing_is_written_from_when_the_operator_has_seen_it_until_it_leads_again(
        self, world
    ):
        world.begin()
        ours = holder(world)
        take_by_force(world)
        line = "not leading: stranger holds the Lease"
        world.until(lambda: line in world.operator.log(), "it has seen that")
        seen_s = time.time()
        world.ask_for(2)
        world.until(lambda: holder(world) == ours, "it leads again")
        acquired = world.get(LEASES, NAME)["spec"]["acquireTime"]
        acquired_s = datetime.fromisoformat(acquired).timestamp()
        world.until_replicas(2)

        assert min(each.at_s for each in world.proxy.writes(since_s=seen_s)) > acquired_s


SECTIONS = ("Replicas", "Plan", "Estimate", "Calibration", "Decision")
"""Of the status, by their class."""
NEW_FIELD = '    of_tomorrow: Name = "new"\n    """A field that this version does not know."""\n'
OF_TOMORROW = "ofTomorrow"


@pytest.fixture
def newer(tmp_path):
    """The package as a later version may be: with one more field in each section of a status."""
    package = tmp_path / "newer" / "tonnage"
    shutil.copytree(Path(tonnage.__file__).parent, package)
    code = package / "api" / "status.py"
    text = code.read_text()
    for name in (*(f"{each}Status" for each in SECTIONS), "Status", "Condition", "Display"):
        pattern = rf'(class {name}\(ApiModel\):\n    """.*?"""\n)'
        text, number = re.subn(pattern, rf"\1\n{NEW_FIELD}", text, flags=re.DOTALL)
        assert number == 1, name
    code.write_text(text)
    return package.parent


@pytest.fixture
def with_its_crd(fault_plane, newer):
    command = [sys.executable, "-m", "tonnage", "crd"]
    crd = yaml.safe_load(run(command, environment={"PYTHONPATH": str(newer)}))
    fault_plane.kubectl.apply([crd])
    yield
    fault_plane.kubectl.apply([yaml.safe_load(CRD.read_text())])


@pytest.mark.usefixtures("with_its_crd")
class TestANewerVersionHandsOver:
    def times(self, status):
        return {
            each["type"]: (each["lastTransitionTime"], each["status"], each["reason"])
            for each in status["conditions"]
        }

    def decisions(self, status):
        return [(each["time"], each["toReplicas"]) for each in status["decisions"]]

    def events(self, world):
        return {each["metadata"]["name"] for each in world.api.list(EVENTS.path(world.namespace))}

    def test_and_this_one_goes_on_from_its_status(
        self, fault_plane, administrator, tmp_path, newer, monkeypatch
    ):
        with an_api_world(fault_plane, administrator, tmp_path) as world:
            with monkeypatch.context() as environment:
                environment.setenv("PYTHONPATH", str(newer))
                world.add_operator()
            world.begin()
            world.ask_for(2)
            world.until_replicas(2)
            world.rest(quiet_s=10)
            before, told = world.get(MODEL_DEPLOYMENTS)["status"], self.events(world)
            world.add_operator()
            world.operator.end(timeout_s=10)
            world.until(lambda: leader_of(world) == 1, "this version leads")
            world.rest(quiet_s=15)
            after = world.get(MODEL_DEPLOYMENTS)["status"]

            assert OF_TOMORROW in before
            assert all(OF_TOMORROW in each for each in before["conditions"])
            assert all(OF_TOMORROW in before[each] for each in ("plan", "calibration", "display"))
            assert self.times(after) == self.times(before)
            assert self.decisions(after) == self.decisions(before) != []
            assert self.events(world) == told

            fault_plane.kubectl.apply([yaml.safe_load(CRD.read_text())])
            world.operators[1].kill()
            world.operators[1].start()
            world.ask_for(3)
            world.until_replicas(3)
            world.rest(quiet_s=10)
            last = world.get(MODEL_DEPLOYMENTS)["status"]

            assert self.decisions(last)[1:] == self.decisions(before)
            same = {"Ready", "PlanValid", "ScalingActive", "Drifted"}
            assert {each: self.times(last)[each][0] for each in same} == {
                each: self.times(before)[each][0] for each in same
            }
            assert OF_TOMORROW not in str(last)


class TestRow31TheLeaderIsStopped:
    def test_and_writes_nothing_when_it_goes_on(self, pair):
        since_s = time.time()
        pair.operator.send(signal.SIGSTOP)
        took_s = taken_over(pair, since_s)
        going_s = time.time()
        pair.operator.send(signal.SIGCONT)
        pair.ask_for(3)
        pair.until_replicas(3)

        assert took_s < 2 * DURATION_S + 5
        assert pair.proxy.writes(since_s=going_s) == []
        assert leader_of(pair) == 1
