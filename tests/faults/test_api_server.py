"""The API server fails as the fault table says: a real one behind a proxy, the operator a process.

The operator ticks every second, and is started again when it ends, as a kubelet does. The engines
are not there and nobody measures them: what is changed is the least number of replicas.
"""

import json
import time
from collections import Counter

import pytest

from api_proxy import Trouble, none
from api_world import MOST_PER_S, an_api_world, everything
from http_double import Reply, json_reply, new_certificates
from site_lab import a_model
from tonnage.cluster.kube import DEPLOYMENTS, MODEL_DEPLOYMENTS

pytestmark = pytest.mark.lab

OUTAGE_S = 20
"""Longer than a Lease lasts."""
ANSWER_S = 3
"""Of each answer of a slow one: longer than a tick waits for a write, and the Lease is renewed."""


class TestRow18TheApiServerIsDown:
    def test_and_what_was_missed_is_done_once_when_it_is_back(self, world):
        world.begin()
        world.proxy.fail(everything(Trouble.REFUSED))
        world.ask_for(2)
        since_s = world.last(OUTAGE_S)

        assert world.replicas() == 1
        assert world.proxy.per_s(since_s=since_s) < MOST_PER_S

        world.proxy.fail(none)
        world.until_replicas(2)
        world.until(lambda: world.scales(since_s=since_s), "the proxy has noted the write")
        world.rest()

        assert world.scales(since_s=since_s).count(200) == 1


class TestRow18TheApiServerIsDownWhenItStarts:
    def test_and_it_waits_alive_and_not_ready_and_then_serves(self, world):
        world.proxy.fail(everything(Trouble.REFUSED))
        world.operator.kill()
        world.operator.start()
        world.until(lambda: world.operator.probe("/healthz") == 200, "it is alive")

        assert world.operator.probe("/readyz") == 503

        world.proxy.fail(none)
        world.begin()
        assert world.operator.codes == []


class TestRow19TheApiServerRefuses:
    def test_all_with_500_and_it_is_not_ready_and_does_not_spin(self, world):
        world.begin()
        refusal = json_reply({"kind": "Status", "message": "storm"}, status=500)
        world.proxy.fail(everything(refusal))
        since_s = world.last(OUTAGE_S)

        assert world.operator.probe("/readyz") != 200
        assert world.proxy.per_s(since_s=since_s) < MOST_PER_S

        world.proxy.fail(none)
        world.ask_for(2)
        world.until_replicas(2)

    def test_because_our_rights_are_gone_until_they_are_back(self, world):
        world.begin()
        world.unbind(world.proxy.user)
        world.proxy.drop()
        since_s = world.last(OUTAGE_S)

        assert world.operator.probe("/readyz") != 200
        assert world.proxy.per_s(since_s=since_s) < MOST_PER_S
        assert 403 in {each.status for each in world.proxy.passed}

        world.bind(world.proxy.user)
        world.ask_for(2)
        world.until_replicas(2)


class TestRow20TooManyRequests:
    @pytest.mark.parametrize(
        "told",
        [
            "1",
            *(
                pytest.param(each, marks=pytest.mark.thorough)
                for each in ("30", "Wed, 21 Oct 2026 07:28:00 GMT")
            ),
        ],
    )
    def test_are_obeyed_and_end(self, world, told):
        world.begin()
        reply = json_reply({"kind": "Status", "message": "later"}, status=429)
        reply.headers["Retry-After"] = told
        world.proxy.fail(everything(reply))
        world.ask_for(2)
        since_s = world.last(6)

        assert world.proxy.per_s(since_s=since_s) < MOST_PER_S

        world.proxy.fail(none)
        world.until_replicas(2)


def watches(trouble):
    return lambda passed: trouble if passed.is_watch else None


def an_error(code):
    """A watch that says one thing and ends."""
    status = {"kind": "Status", "code": code, "message": "told by a test", "metadata": {}}
    return Reply(body=json.dumps({"type": "ERROR", "object": status}).encode() + b"\n")


class TestRow21WatchesEnd:
    @pytest.mark.parametrize(
        "trouble",
        [Trouble.ENDS, an_error(410), pytest.param(an_error(500), marks=pytest.mark.thorough)],
        ids=["closed", "410", "500"],
    )
    def test_and_no_change_is_missed(self, world, trouble):
        world.begin()
        world.proxy.fail(watches(trouble))
        since_s = time.time()
        for replicas in (2, 3):
            world.ask_for(replicas)
            world.until_replicas(replicas)

        assert world.proxy.per_s(since_s=since_s) < MOST_PER_S


class TestRow22WatchesAreSilent:
    def test_and_that_is_noticed(self, world):
        world.begin()
        world.proxy.fail(watches(Trouble.SILENT))
        time.sleep(2)
        world.proxy.fault = none
        world.ask_for(2)

        world.until_replicas(2, timeout_s=120)


class TestRow62TheApiServerIsSlow:
    def test_and_no_probe_fails_and_what_is_asked_for_is_done(self, world):
        world.begin()
        held = Counter()

        def hold(passed):
            held[passed.method] += 1
            world.proxy.stopping.wait(ANSWER_S)

        world.proxy.fail(hold)
        world.ask_for(2)
        probed = []

        def is_done():
            probed.append(world.operator.probe("/healthz"))
            return world.replicas() == 2

        world.until(is_done, "2 replicas")

        assert set(probed) == {200}
        assert held["PATCH"] > 0, "its writes are slow too"


class TestRow24AListOfLongAgo:
    def test_makes_a_new_process_write_nothing_over_what_stands_there(self, world):
        world.begin()
        path = f"/{DEPLOYMENTS.prefix}/namespaces/{world.namespace}/deployments"
        old = world.api.get(path)
        world.ask_for(3)
        world.until_replicas(3)
        world.rest()
        world.operator.kill()

        def long_ago(passed):
            if passed.is_watch:
                return Trouble.SILENT
            return json_reply(old) if passed.path == path else None

        world.proxy.fail(long_ago)
        since_s = time.time()
        world.operator.start()
        world.until(lambda: world.operator.probe("/readyz") == 200, "it decides")
        world.last(4)

        assert 200 not in world.scales(since_s=since_s)
        assert world.replicas() == 3


class TestRow25AnotherWasFaster:
    @pytest.mark.parametrize("ending", ["/scale", "/status"])
    def test_and_it_is_read_and_decided_again(self, world, ending):
        world.begin()
        refusal = json_reply({"kind": "Status", "message": "modified"}, status=409)
        left = iter(range(4))
        world.proxy.fault = lambda passed: (
            refusal
            if passed.path.endswith(ending) and passed.is_write and next(left, None) is not None
            else None
        )
        world.ask_for(2)
        world.until_replicas(2)
        generation = world.get(MODEL_DEPLOYMENTS)["metadata"]["generation"]
        world.until(
            lambda: world.get(MODEL_DEPLOYMENTS)["status"]["observedGeneration"] == generation,
            "the status is written",
        )

        assert next(left, None) is None


class TestRow26AnAnswerIsLost:
    def test_of_each_write_once_and_each_is_done_once(self, world):
        lost = set()

        def lose(passed):
            if not passed.is_write or passed.path in lost:
                return None
            lost.add(passed.path)
            return Trouble.CUT_AFTER

        world.proxy.fault = lose
        world.begin(scaling={"minReplicas": 1, "maxReplicas": 4})
        world.ask_for(3)
        world.until_replicas(3)
        world.rest()

        assert len(lost) >= 4
        found = list(world.api.list(DEPLOYMENTS.path(world.namespace)))
        assert [each["metadata"]["generation"] for each in found] == [2]


class TestRow32TheTokenIsRefused:
    def test_for_a_moment_and_it_goes_on(self, world):
        world.begin()
        refusal = json_reply({"kind": "Status", "message": "Unauthorized"}, status=401)
        world.proxy.fail(everything(refusal))
        since_s = world.last(6)

        assert world.proxy.per_s(since_s=since_s) < MOST_PER_S

        world.proxy.fail(none)
        world.ask_for(2)

        world.until_replicas(2)
        assert world.operator.num_starts == 1


class TestRow32TheAuthorityIsReplaced:
    @pytest.fixture
    def certificates(self, tmp_path):
        return new_certificates(tmp_path / "old")

    @pytest.fixture
    def world(self, fault_plane, administrator, tmp_path, certificates):
        with an_api_world(fault_plane, administrator, tmp_path) as made:
            made.add_operator(certificates=certificates)
            yield made

    def test_and_the_new_one_is_believed_by_the_same_process(self, world, certificates, tmp_path):
        world.begin()
        new = new_certificates(tmp_path / "new")
        world.proxy.certify(new.server)
        refused_s = world.last(4)
        world.ask_for(2)

        assert world.proxy.writes(since_s=refused_s) == []

        certificates.ca.write_bytes(new.ca.read_bytes())
        world.until_replicas(2)  # by a watch: the lists come after minutes

        world.until(lambda: "watching again" in world.operator.log(), "all is watched again")
        assert world.operator.num_starts == 1


class TestRow33ThereIsNoRoom:
    def test_in_etcd_and_replicas_come_when_there_is(self, world):
        world.begin()
        message = "etcdserver: mvcc: database space exceeded"
        full = json_reply({"kind": "Status", "message": message}, status=500)
        world.proxy.fault = lambda passed: full if passed.is_write else None
        world.ask_for(2)
        since_s = world.last(8)

        assert message in world.operator.log()
        assert world.proxy.per_s(since_s=since_s) < MOST_PER_S

        world.proxy.fault = none
        world.until_replicas(2)

    def test_for_a_deployment_in_the_quota_and_the_status_says_why(self, world):
        quota = {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "none"},
            "spec": {"hard": {"count/deployments.apps": "0"}},
        }
        world.apply(quota)
        world.until(
            lambda: (
                "hard"
                in world.plane.kubectl.get("resourcequota", "none", "-n", world.namespace).get(
                    "status", {}
                )
            ),
            "the quota counts",
        )
        world.apply(a_model())
        told = world.until(lambda: world.condition("Stalled").get("message"), "it is stalled")
        since_s = world.last(10)

        assert "exceeded quota: none" in told
        tried = [
            each for each in world.proxy.writes(since_s=since_s) if "/deployments/" in each.path
        ]
        assert len(tried) <= 12, "times within 10 s"
        assert world.replicas() is None
