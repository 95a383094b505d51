"""The API server fails as the fault table says: a real one behind a proxy, the operator a process.

The operator ticks every second, and is started again when it ends, as a kubelet does. The engines
are not there and nobody measures them: what is changed is the least number of replicas.
"""

import itertools
import json
import signal
import time

import pytest

from api_proxy import Trouble, none
from api_world import an_api_world
from http_double import Reply, json_reply, new_certificates
from site_lab import a_model
from tonnage.cluster.kube import DEPLOYMENTS, LEASES, MODEL_DEPLOYMENTS
from tonnage.cluster.lease import DURATION_S, NAME

pytestmark = pytest.mark.lab

OUTAGE_S = 20
"""Longer than a Lease lasts."""
MOST_PER_S = 40
"""Requests of an operator that is in trouble: five watches, a tick and a Lease each second."""


def everything(trouble):
    return lambda passed: trouble


def lasting(world, seconds):
    """Let so much time pass, as a kubelet would see it."""
    since_s = time.time()
    world.until(lambda: time.time() - since_s > seconds, "time passes", timeout_s=10 * seconds)
    return since_s


class TestRow18TheApiServerIsDown:
    def test_and_what_was_missed_is_done_once_when_it_is_back(self, world):
        world.begin()
        world.proxy.fail(everything(Trouble.REFUSED))
        world.ask_for(2)
        since_s = lasting(world, OUTAGE_S)

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
        since_s = lasting(world, OUTAGE_S)

        assert world.operator.probe("/readyz") != 200
        assert world.proxy.per_s(since_s=since_s) < MOST_PER_S

        world.proxy.fail(none)
        world.ask_for(2)
        world.until_replicas(2)

    def test_because_our_rights_are_gone_until_they_are_back(self, world):
        world.begin()
        world.unbind(world.proxy.user)
        world.proxy.drop()
        since_s = lasting(world, OUTAGE_S)

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
        since_s = lasting(world, 6)

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
        lasting(world, 4)

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


class TestRow28ItIsKilledAgainAndAgain:
    def test_and_comes_to_its_end_all_the_same(self, world):
        for replicas in (1, 2, 3):
            world.apply(a_model(scaling={"minReplicas": replicas, "maxReplicas": 4}))
            for _ in range(3):
                lasting(world, 3)
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


class TestRow32TheTokenIsRefused:
    def test_for_a_moment_and_it_goes_on(self, world):
        world.begin()
        refusal = json_reply({"kind": "Status", "message": "Unauthorized"}, status=401)
        world.proxy.fail(everything(refusal))
        since_s = lasting(world, 6)

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
        refused_s = lasting(world, 4)
        world.ask_for(2)

        assert world.proxy.writes(since_s=refused_s) == []

        certificates.ca.write_bytes(new.ca.read_bytes())
        world.until_replicas(2)  # by a watch: the lists come after minutes

        assert "watching anew" in world.operator.log()
        assert world.operator.num_starts == 1


class TestRow33ThereIsNoRoom:
    def test_in_etcd_and_replicas_come_when_there_is(self, world):
        world.begin()
        message = "etcdserver: mvcc: database space exceeded"
        full = json_reply({"kind": "Status", "message": message}, status=500)
        world.proxy.fault = lambda passed: full if passed.is_write else None
        world.ask_for(2)
        since_s = lasting(world, 8)

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
        since_s = lasting(world, 10)

        assert "exceeded quota: none" in told
        tried = [
            each for each in world.proxy.writes(since_s=since_s) if "/deployments/" in each.path
        ]
        assert len(tried) <= 12, "times within 10 s"
        assert world.replicas() is None


DENIAL = "a test denies all Deployments here"


class TestRow36AWebhookRefuses:
    def test_our_deployment_and_the_status_says_what_it_said(self, world):
        name = f"deny-{world.namespace}"
        policy = {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": name},
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": {
                    "namespaceSelector": {
                        "matchLabels": {"kubernetes.io/metadata.name": world.namespace}
                    },
                    "resourceRules": [
                        {
                            "apiGroups": ["apps"],
                            "apiVersions": ["v1"],
                            "operations": ["CREATE"],
                            "resources": ["deployments"],
                        }
                    ],
                },
                "validations": [{"expression": "false", "message": DENIAL}],
            },
        }
        binding = {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": name},
            "spec": {"policyName": name, "validationActions": ["Deny"]},
        }
        world.plane.kubectl.apply([policy, binding])
        probe = {
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "probe"},
            "spec": {
                "replicas": 0, "selector": {"matchLabels": {"a": "b"}},
                "template": {
                    "metadata": {"labels": {"a": "b"}},
                    "spec": {"containers": [{"name": "c", "image": "i"}]},
                },
            },
        }  # fmt: skip
        world.until(lambda: is_denied(world, probe), "the policy is in force")
        world.apply(a_model())
        told = world.until(lambda: world.condition("Stalled").get("message"), "it is stalled")

        assert DENIAL in told
        world.plane.kubectl("delete", "validatingadmissionpolicybinding", name)
        world.until_replicas(1)
        world.until(lambda: not world.condition("Stalled"), "it is stalled no more")


def is_denied(world, body):
    path = DEPLOYMENTS.path(world.namespace) + "?dryRun=All"
    try:
        world.api.create(path, body)
    except Exception as error:
        return DENIAL in str(error)
    return False


class TestRow48AnAutoscalerHasTheSameTarget:
    def test_and_replicas_are_left_to_it(self, world):
        world.begin()
        world.apply(
            {
                "apiVersion": "autoscaling/v2",
                "kind": "HorizontalPodAutoscaler",
                "metadata": {"name": "rival"},
                "spec": {
                    "scaleTargetRef": {
                        "apiVersion": "apps/v1", "kind": "Deployment", "name": "llama",
                    },
                    "maxReplicas": 2,
                },
            }
        )  # fmt: skip
        world.until(
            lambda: world.condition("ScalingActive").get("status") == "False", "it gives way"
        )
        since_s = time.time()
        world.ask_for(3)
        lasting(world, 5)

        assert world.scales(since_s=since_s) == []
        assert "rival" in world.condition("ScalingActive")["message"]


class TestRow51TheNamespaceGoes:
    def test_and_nothing_is_written_to_it_and_others_are_served(self, fault_plane, world):
        other = f"{world.namespace}-b"
        fault_plane.kubectl("create", "namespace", other)
        world.operator.kill()
        world.operators.clear()
        world.proxies.clear()
        world.unbind(f"operator-{world.namespace}-0")
        (world.folder / "0").rename(world.folder / "former")
        world.add_operator(namespaces=(world.namespace, other))
        world.begin()
        world.plane.kubectl.apply([a_model() | {"metadata": {"name": "llama", "namespace": other}}])
        path = DEPLOYMENTS.path(other, "llama")
        world.until(lambda: world.api.get(path), "the other has its Deployment")
        fault_plane.kubectl("delete", "namespace", other, "--wait=true", "--timeout=60s")
        gone_s = time.time()
        world.ask_for(2)
        world.until_replicas(2)
        lasting(world, 5)

        assert [e for e in world.proxy.writes(since_s=gone_s) if f"/{other}/" in e.path] == []
        assert world.proxy.per_s(since_s=gone_s) < MOST_PER_S


class TestRow58ItOnlyRecommends:
    def test_and_asks_for_no_write_but_of_its_status(self, world):
        world.apply(a_model(scaling={"maxReplicas": 4, "mode": "Recommend"}))
        world.until(lambda: world.condition("PlanValid"), "there is a plan")
        world.change(scaling={"minReplicas": 3})
        lasting(world, 5)

        asked = {each.path.rpartition("/")[2] for each in world.proxy.writes()}
        assert asked <= {"status", "events"}


class TestAbuse33AModeThatIsToggled:
    def test_a_hundred_times_and_the_last_one_holds(self, world):
        world.begin()
        since_s = time.time()
        modes = itertools.cycle(["Paused", "Auto"])
        for mode, _ in zip(modes, range(101), strict=False):
            world.change(scaling={"mode": mode})
            time.sleep(0.1)
        world.ask_for(3)
        took_s = time.time() - since_s
        lasting(world, 4)

        assert world.replicas() == 1, "Paused at the end"
        status = [e for e in world.proxy.writes(since_s=since_s) if e.path.endswith("/status")]
        assert len(status) <= took_s + 6, "one a tick"
        assert not [e for e in world.proxy.writes(since_s=since_s) if "deployments/" in e.path
                    and "modeldeployments" not in e.path]  # fmt: skip


class TestRow34TheCrdGoes:
    def test_and_it_waits_for_it_and_serves_again(self, fault_plane, world):
        world.begin()
        crds = fault_plane.kubectl.get("crd", "modeldeployments.tonnage.dev")
        fault_plane.kubectl("delete", "crd", "modeldeployments.tonnage.dev", "--timeout=60s")
        since_s = lasting(world, 10)

        assert world.proxy.per_s(since_s=since_s) < MOST_PER_S
        assert [e for e in world.proxy.writes(since_s=since_s) if e.method == "DELETE"] == []

        del crds["status"]
        crds["metadata"] = {"name": crds["metadata"]["name"]}
        fault_plane.kubectl.apply([crds])
        fault_plane.kubectl("wait", "--for=condition=Established", "--timeout=60s",
                            "crd/modeldeployments.tonnage.dev")  # fmt: skip
        world.apply(a_model("another"))
        world.until(lambda: world.get(DEPLOYMENTS, "another"), "it serves again")


class TestRow65TheSettingsBecomeWrong:
    def test_and_those_of_the_start_stay_and_it_is_told(self, world):
        world.begin()
        settings = world.operator.folder / "settings.yaml"
        settings.write_text(settings.read_text().replace("tickS: 1", "tickS: -1"))
        world.until(lambda: "settings.tickS" in world.operator.log(), "the log names the field")
        world.ask_for(2)
        world.until_replicas(2)

        assert "tonnage_settings_valid 0.0" in world.operator.page("/metrics").text
        assert world.operator.probe("/readyz") == 200
        assert world.operator.num_starts == 1


class TestASpecThatCannotBePlanned:
    def test_leaves_what_runs_to_be_scaled_and_says_so(self, world):
        world.begin()
        ran = world.get(DEPLOYMENTS)["spec"]["template"]
        world.change(hardware={"gpu": "H900"})
        world.until(
            lambda: world.condition("PlanValid").get("reason") == "UnknownGpu", "it is refused"
        )
        world.ask_for(3)
        world.until_replicas(3)

        assert world.get(DEPLOYMENTS)["spec"]["template"] == ran
        world.until(
            lambda: world.condition("ScalingActive").get("reason") == "ScalingWhatRuns",
            "the status says what is scaled",
        )

        world.change(hardware={"gpu": "H200"})
        world.until(
            lambda: world.condition("ScalingActive").get("reason") == "Scaling", "it is planned"
        )
