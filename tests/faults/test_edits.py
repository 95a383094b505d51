"""What users and other controllers change beside a real API server, the operator a process."""

import itertools
import time
import uuid

import pytest

from api_world import MOST_PER_S, NAME, an_api_world
from site_lab import a_model
from tonnage.cluster.kube import DEPLOYMENTS, EVENTS, MODEL_DEPLOYMENTS
from tonnage.control.observe.ownership import GONE_S
from tonnage.manifests.names import DIGEST_ANNOTATION, RECORD, TEMPLATE_ANNOTATION

pytestmark = pytest.mark.lab

THEIRS = "example.test/theirs:1"

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
        world.last(5)

        assert world.scales(since_s=since_s) == []
        assert "rival" in world.condition("ScalingActive")["message"]


class TestRow51TheNamespaceGoes:
    @pytest.fixture
    def other(self):
        return f"fault-other-{uuid.uuid4().hex[:8]}"

    @pytest.fixture
    def world(self, fault_plane, administrator, tmp_path, other):
        fault_plane.kubectl("create", "namespace", other)
        with an_api_world(fault_plane, administrator, tmp_path) as made:
            made.add_operator(namespaces=(made.namespace, other))
            yield made

    def test_and_nothing_is_written_to_it_and_others_are_served(self, fault_plane, world, other):
        world.begin()
        world.plane.kubectl.apply([a_model() | {"metadata": {"name": "llama", "namespace": other}}])
        path = DEPLOYMENTS.path(other, "llama")
        world.until(lambda: world.api.get(path), "the other has its Deployment")
        fault_plane.kubectl("delete", "namespace", other, "--wait=true", "--timeout=60s")
        gone_s = time.time()
        world.ask_for(2)
        world.until_replicas(2)
        world.last(5)

        assert [e for e in world.proxy.writes(since_s=gone_s) if f"/{other}/" in e.path] == []
        assert world.proxy.per_s(since_s=gone_s) < MOST_PER_S


KEPT = {"metadata": {"finalizers": ["example.test/keeps-it"]}}
CONFIG_MAP, LEASE = "tonnage-calibration", "tonnage-operator"
FREED = {"metadata": {"finalizers": None}}


class TestAFinalizerKeepsADeletedObject:
    def keep(self, world, resource, cascade="background"):
        path = resource.path(world.namespace, NAME)
        world.api.merge_patch(path, KEPT, manager="mallory")
        world.plane.kubectl("delete", resource.plural, NAME, "--namespace", world.namespace,
                            f"--cascade={cascade}", "--wait=false")  # fmt: skip
        return path

    def test_and_its_replicas_follow_the_load_until_they_go_and_nothing_is_made(self, world):
        world.begin()
        ran = world.get(DEPLOYMENTS)["spec"]["template"]
        path, deleted_s = self.keep(world, MODEL_DEPLOYMENTS), time.time()
        world.change(contextLength=2048, scaling={"minReplicas": 3})
        world.until_replicas(3)
        world.until(
            lambda: world.condition("ScalingActive").get("reason") == "ScalingWhatRuns",
            "the status says what is scaled",
        )
        child = self.keep(world, DEPLOYMENTS)
        world.ask_for(4)
        world.last(5)

        assert world.replicas() == 3, "what goes is not scaled"
        assert world.get(DEPLOYMENTS)["spec"]["template"] == ran
        assert self.written(world, deleted_s) <= {"scale", "status", "events"}
        world.api.merge_patch(child, FREED, manager="mallory")
        world.until(lambda: world.get(DEPLOYMENTS) is None, "the Deployment goes")
        world.api.merge_patch(path, FREED, manager="mallory")
        world.until(lambda: world.get(MODEL_DEPLOYMENTS) is None, "the object goes")

    def written(self, world, since_s):
        """What was written beside what the operator remembers and its Lease."""
        paths = (each.path for each in world.proxy.writes(since_s=since_s))
        return {each.rpartition("/")[2] for each in paths} - {CONFIG_MAP, LEASE}

    def test_and_what_the_garbage_collector_takes_is_not_made_again(self, world):
        world.begin()
        path = self.keep(world, MODEL_DEPLOYMENTS, cascade="foreground")
        world.until(lambda: world.get(DEPLOYMENTS) is None, "the Deployment goes")
        since_s = world.last(GONE_S + 5)

        assert self.written(world, since_s) == set()
        assert world.get(DEPLOYMENTS) is None
        world.api.merge_patch(path, FREED, manager="mallory")

    def test_of_which_the_namespace_goes_and_nothing_is_written_to_it(self, world):
        world.begin()
        path = self.keep(world, MODEL_DEPLOYMENTS)
        world.plane.kubectl("delete", "namespace", world.namespace, "--wait=false")
        world.until(lambda: world.get(DEPLOYMENTS) is None, "the Deployment goes")
        since_s = world.last(GONE_S + 5)

        assert self.written(world, since_s) == set()
        world.api.merge_patch(path, FREED, manager="mallory")


class TestRow58ItOnlyRecommends:
    def test_and_writes_nothing_but_its_status_events_and_what_the_operator_remembers(self, world):
        world.apply(a_model(scaling={"maxReplicas": 4, "mode": "Recommend"}))
        world.until(lambda: world.condition("PlanValid"), "there is a plan")
        world.change(scaling={"minReplicas": 3})
        world.last(5)

        written = {each.path.rpartition("/")[2] for each in world.proxy.writes()}
        memory = {name for name in written if name == "tonnage-calibration"}
        assert written - memory <= {"status", "events"}


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
        world.last(4)

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
        since_s = world.last(10)

        assert world.proxy.per_s(since_s=since_s) < MOST_PER_S
        assert [e for e in world.proxy.writes(since_s=since_s) if e.method == "DELETE"] == []

        del crds["status"]
        crds["metadata"] = {"name": crds["metadata"]["name"]}
        fault_plane.kubectl.apply([crds])
        fault_plane.kubectl("wait", "--for=condition=Established", "--timeout=60s",
                            "crd/modeldeployments.tonnage.dev")  # fmt: skip
        world.apply(a_model("another"))
        world.until(lambda: world.get(DEPLOYMENTS, "another"), "it serves again")


FORGED = dict.fromkeys(RECORD.values(), "0123456789abcdef")


class TestOurRecordOnADeploymentIsForged:
    """With another image, so that nobody would know by our record what we wrote."""

    def record(self, world):
        """Begin, and return our annotations once the operator has seen them."""
        world.begin()
        world.until(
            lambda: world.condition("Drifted").get("reason") == "AsWritten", "it knows its own"
        )
        return world.get(DEPLOYMENTS)["metadata"]["annotations"]

    def forge(self, world, annotations, image=None):
        live = world.get(DEPLOYMENTS)
        containers = live["spec"]["template"]["spec"]["containers"]
        containers[0]["image"] = image or containers[0]["image"]
        spec = {"template": {"spec": {"containers": containers}}}
        body = {"metadata": {"annotations": annotations}, "spec": spec}
        world.api.merge_patch(DEPLOYMENTS.path(world.namespace, NAME), body, manager="mallory")

    def until_as_written(self, world, ours):
        def is_as_written():
            live = world.get(DEPLOYMENTS)
            annotations = live["metadata"]["annotations"]
            is_ours = all(annotations.get(each) == ours[each] for each in FORGED)
            [container] = live["spec"]["template"]["spec"]["containers"]
            return is_ours and container["image"] != THEIRS

        world.until(is_as_written, "template and record are as they were written")

    def notes(self, world):
        events = world.api.list(EVENTS.path(world.namespace))
        return " ".join(each["note"] for each in events if each["reason"] == "TemplateEdited")

    def test_and_written_back_and_the_event_says_who(self, world):
        ours = self.record(world)
        self.forge(world, {DIGEST_ANNOTATION: "0123456789abcdef"})
        self.until_as_written(world, ours)
        world.until(lambda: self.notes(world), "an Event says it")

        assert "mallory wrote annotation tonnage.dev/spec-digest" in self.notes(world)

    @pytest.mark.parametrize("record", [FORGED, dict.fromkeys(FORGED)], ids=["forged", "removed"])
    def test_with_another_image_and_both_are_written_back(self, world, record):
        ours = self.record(world)
        self.forge(world, record, image=THEIRS)
        self.until_as_written(world, ours)
        world.until(lambda: "mallory wrote" in self.notes(world), "an Event says who")

    def test_while_no_operator_runs_and_the_next_one_writes_it_back(self, world):
        ours = self.record(world)
        world.operator.kill()
        self.forge(world, {TEMPLATE_ANNOTATION: "0123456789abcdef"}, image=THEIRS)
        world.operator.start()
        self.until_as_written(world, ours)
        world.until(lambda: self.notes(world), "an Event says it")

        assert "mallory wrote annotation tonnage.dev/template-digest" in self.notes(world)


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
