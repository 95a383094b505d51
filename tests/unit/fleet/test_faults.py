"""What disturbs the loop: writes that fail, bugs, nonsense, namesakes."""

import copy
import itertools
import math
import re

import pytest

from fleet_builders import a_manifest, a_sizing, first_replicas, recorded_by
from loop_builders import a_loop, a_world, condition, replicas_of, served, status_of, tick
from tonnage.catalog.gpu import built_in_gpus
from tonnage.cluster.calls import KubernetesError
from tonnage.cluster.kube import DEPLOYMENTS, MODEL_DEPLOYMENTS
from tonnage.estimate.metrics import WINDOWS
from tonnage.manifests.names import MANAGER, RECORD

EACH = a_sizing().goodput_requests_per_s
FIRST_REPLICAS = first_replicas()
OBJECT = MODEL_DEPLOYMENTS.path("serving", "llama")
PLACE = DEPLOYMENTS.path("serving", "llama")
COMPLETIONS = [f"completions_{scrapes}" for scrapes in WINDOWS]


class TestTheWorldFails:
    def test_a_tick_that_cannot_read_writes_nothing_and_the_next_one_goes_on(self):
        world = a_world()
        loop = a_loop(world)

        def down(verb, path):
            raise KubernetesError("down", status=0)

        world.kube.fail = down
        with pytest.raises(KubernetesError):
            loop.tick()
        world.kube.fail = lambda verb, path: None

        assert "apply deployments/llama" in tick(loop, world)

    def test_each_write_that_fails_is_made_up_for(self):
        for number in range(6):
            world = a_world()
            loop = a_loop(world)
            asked = iter(range(100))

            def cut_off(verb, path, *, asked=asked, number=number):
                if verb not in {"get", "list"} and next(asked) == number:
                    raise KubernetesError("cut off", status=0)

            world.kube.fail = cut_off
            tick(loop, world)
            world.kube.fail = lambda verb, path: None
            for _ in range(3):
                tick(loop, world)

            assert replicas_of(world) == FIRST_REPLICAS, f"write {number} was cut off"
            assert len([path for path in world.kube.objects if "llama" in path]) >= 4
            assert tick(loop, world) == []

    def test_a_refusal_calls_for_a_person_until_it_ends(self):
        world = a_world()
        loop = a_loop(world)

        def denied(verb, path):
            if verb == "apply" and path.endswith("deployments/llama"):
                raise KubernetesError("denied by a webhook", status=403)

        world.kube.fail = denied
        for _ in range(2):
            tick(loop, world)
        assert condition(world, "Stalled") == ("True", "WriteRefused")

        world.kube.fail = lambda verb, path: None
        for _ in range(3):  # the second refusal is followed by a pause of 30 s
            tick(loop, world)
        assert "Stalled" not in {each["type"] for each in status_of(world)["conditions"]}

    @pytest.mark.parametrize("status", [0, 401, 409, 429, 500, 503])
    def test_a_failure_of_a_moment_calls_for_nobody(self, status):
        loop, world = served()
        for pod in world.completions_per_s:
            world.completions_per_s[pod] = 1.6 * EACH

        def down(verb, path):
            if verb in {"apply", "patch"}:
                raise KubernetesError("not now", status=status)

        world.kube.fail = down
        tick(loop, world, after_s=60)
        world.kube.fail = lambda verb, path: None
        tick(loop, world)

        assert replicas_of(world) == math.ceil(1.6 * FIRST_REPLICAS)
        assert "Stalled" not in {each["type"] for each in status_of(world)["conditions"]}

    def test_nothing_is_written_without_the_lease(self):
        world = a_world()
        world.leads = False

        assert tick(a_loop(world), world) == []

    def test_a_correction_of_drift_that_failed_is_tried_again(self):
        loop, world = served()
        edited = copy.deepcopy(world.kube.objects[PLACE])
        edited["spec"]["template"]["spec"]["containers"][0]["image"] = "example.test/other:1"
        world.kube.put(PLACE, edited)

        def denied(verb, path):
            if verb == "apply":
                raise KubernetesError("denied", status=403)

        world.kube.fail = denied
        tick(loop, world)
        world.kube.fail = lambda verb, path: None

        assert "apply deployments/llama" in tick(loop, world)
        assert "apply deployments/llama" not in tick(loop, world)


def managed_by(manager):
    fields = {"f:spec": {"f:replicas": {}}}
    return {"metadata": {"managedFields": [{"manager": manager, "fieldsV1": fields}]}}


OWNED = [*((name,) for name in RECORD.values()), tuple(RECORD.values())]


class TestOurRecordIsOwnedByOthers:
    """The annotations are as we wrote them, and managedFields say that others did."""

    @pytest.mark.parametrize("names", [*OWNED, None], ids=str)
    def test_and_an_operator_that_starts_replaces_no_pod(self, names):
        loop, world = served()
        tick(loop, world)
        live = world.kube.objects[PLACE]
        metadata = dict(live["metadata"])
        if names is None:
            del metadata["managedFields"]
        else:
            others = set(RECORD.values()) - set(names)
            theirs = recorded_by("kubectl-annotate", *names)
            metadata["managedFields"] = [
                *theirs,
                *(recorded_by(MANAGER, *others) if others else ()),
            ]
        world.kube.put(PLACE, live | {"metadata": metadata})
        loop = a_loop(world)
        loop.start_leading()
        for _ in range(3):
            tick(loop, world)

        assert world.kube.objects[PLACE]["spec"]["template"] == live["spec"]["template"]
        assert world.kube.objects[PLACE]["metadata"]["annotations"] == metadata["annotations"]


class TestAnotherWriter:
    """Sets replicas to what is not enough, as soon as they are written."""

    def undo(self, world, replicas):
        live = world.kube.objects[PLACE]
        generation = live["metadata"].get("generation", 1) + 2
        applied = [each for each in live["metadata"]["managedFields"] if each["manager"] == MANAGER]
        [entry] = managed_by("autoscaler")["metadata"]["managedFields"]
        metadata = live["metadata"] | {"generation": generation, "managedFields": [*applied, entry]}
        spec = live["spec"] | {"replicas": replicas}
        world.kube.put(PLACE, live | {"metadata": metadata, "spec": spec})

    def scales(self, loop, world, *, replicas):
        """Whether replicas were written, at each of ten ticks."""
        written = []
        for _ in range(10):
            self.undo(world, replicas)
            written.append("patch deployments/llama/scale" in tick(loop, world))
        return written

    def test_is_corrected_ever_later_and_named(self):
        loop, world = served()

        written = self.scales(loop, world, replicas=1)

        first, *waiting = written
        assert first
        assert waiting.count(True) <= 1
        assert not waiting[0]
        assert condition(world, "ScalingActive") == ("False", "ConflictingWriter")
        posted = [call.body for call in world.kube.writes if call.verb == "create"]
        [event] = [each for each in posted if each["reason"] == "ConflictingWriter"]
        assert "autoscaler changed the replicas from" in event["note"]

    def test_that_wants_none_is_not_corrected(self):
        loop, world = served()

        assert not any(self.scales(loop, world, replicas=0))
        assert condition(world, "ScalingActive") == ("False", "ScaledToZeroExternally")

    def test_is_not_corrected_by_writes_that_come_too_late(self):
        loop, world = served()
        numbers = itertools.cycle([1, 2])

        def scaled_meanwhile(verb, path):
            if verb == "get" and path.endswith("/deployments/llama"):
                self.undo(world, next(numbers))

        world.kube.fail = scaled_meanwhile
        self.undo(world, next(numbers))
        done = [write for _ in range(10) for write in tick(loop, world)]
        world.kube.fail = lambda verb, path: None

        assert "patch deployments/llama/scale" not in done
        assert "patch deployments/llama/scale" in tick(loop, world)
        assert condition(world, "ScalingActive") == ("True", "Scaling")

    def test_is_not_blamed_for_writes_of_ours_that_fail(self):
        loop, world = served()

        def denied(verb, path):
            if path.endswith("/scale"):
                raise KubernetesError("denied", status=403)

        world.kube.fail = denied
        self.undo(world, 1)
        for _ in range(10):
            tick(loop, world)
        world.kube.fail = lambda verb, path: None

        assert "patch deployments/llama/scale" in tick(loop, world)
        assert condition(world, "ScalingActive") == ("True", "Scaling")


class Explosive(dict):
    """A catalogue in which one class of GPU is a bug."""

    def __contains__(self, name):
        if name == "BROKEN":
            raise RuntimeError("a bug")
        return super().__contains__(name)


class TestOneOfMany:
    def test_a_bug_in_one_object_does_not_stop_the_others(self):
        world = a_world(a_manifest("first", hardware={"gpu": "BROKEN"}), a_manifest("second"))
        loop = a_loop(world)
        loop.observer.gpus = Explosive(built_in_gpus())

        tick(loop, world)

        assert condition(world, "PlanValid", "first") == ("False", "InternalError")
        assert replicas_of(world, "second") == FIRST_REPLICAS

    @pytest.mark.parametrize("path", ["/services/first", "/deployments/first", "first/status"])
    def test_a_bug_in_writing_one_object_is_told_by_it_and_tried_again(self, path, caplog):
        world = a_world(a_manifest("first"), a_manifest("second"))
        loop = a_loop(world)

        def bug(_, asked):
            if asked.endswith(path):
                raise RuntimeError("a bug")

        world.kube.fail = bug
        tick(loop, world)
        assert replicas_of(world, "second") == FIRST_REPLICAS
        [line] = [each.msg for each in caplog.records if "internal error" in str(each.msg)]
        assert line.fields["object"] == "serving/first"
        if not path.endswith("status"):
            tick(loop, world)
            assert condition(world, "Stalled", "first") == ("True", "InternalError")
            assert f"internal error {line.fields['fault']} " in str(status_of(world, "first"))

        world.kube.fail = lambda verb, asked: None
        for _ in range(4):  # after the pause of 30 s that follows two failures
            tick(loop, world)
        assert replicas_of(world, "first") == FIRST_REPLICAS
        assert condition(world, "PlanValid", "first") == ("True", "Planned")
        assert "InternalError" not in str(status_of(world, "first"))

    def test_a_status_that_cannot_be_compared_does_not_stop_the_others(self):
        world = a_world(a_manifest("first") | {"status": {"plan": 7}}, a_manifest("second"))

        tick(a_loop(world), world)

        assert replicas_of(world, "second") == FIRST_REPLICAS

    @pytest.mark.parametrize("value", [1e300, -1.0, float("nan"), float("inf")])
    def test_a_pod_that_reports_nonsense_does_not_stop_the_others(self, value):
        loop, world = served(a_manifest("first"), a_manifest("second"))
        world.figures = {"first-0": dict.fromkeys(["waiting", "running", "completed"], value)}
        for pod in world.completions_per_s:
            if pod.startswith("second"):
                world.completions_per_s[pod] = 1.6 * EACH

        tick(loop, world, after_s=60)

        assert condition(world, "MetricsAvailable", "first") == ("False", "MetricsIncomplete")
        assert replicas_of(world, "first") == FIRST_REPLICAS
        assert replicas_of(world, "second") == math.ceil(1.6 * FIRST_REPLICAS)

    @pytest.mark.parametrize("waiting", [1e8, 1e12])
    def test_a_queue_that_no_engine_can_hold_is_missing_and_adds_nothing(self, waiting):
        loop, world = served()
        world.figures = {"llama-0": {"waiting": waiting}}

        tick(loop, world, after_s=60)

        assert condition(world, "MetricsAvailable") == ("False", "MetricsIncomplete")
        assert replicas_of(world) == FIRST_REPLICAS

    def test_an_invalid_object_is_told_so_and_the_others_are_served(self):
        broken = a_manifest("first")
        broken["spec"]["scaling"] = {}
        world = a_world(broken, a_manifest("second"))

        tick(a_loop(world), world)

        assert condition(world, "PlanValid", "first") == ("False", "InvalidSpec")
        assert replicas_of(world, "second") == FIRST_REPLICAS


class TestIdentity:
    def test_made_anew_under_its_name_nothing_is_remembered(self):
        loop, world = served()
        world.kube.put(OBJECT, a_manifest(uid="uid-of-the-next"))

        tick(loop, world)

        assert set(loop.memory.objects) == {"uid-of-the-next"}
        assert condition(world, "PlanValid") == ("False", "NameConflict")

    def test_deleted_it_is_forgotten(self):
        loop, world = served()
        del world.kube.objects[OBJECT]

        assert tick(loop, world) == []
        assert loop.memory.objects == {}


def a_foreign_deployment():
    return {
        "metadata": {"name": "llama", "namespace": "serving", "generation": 1},
        "spec": {"replicas": 3, "template": {}},
    }


class TestADeploymentThatIsTooLarge:
    @pytest.mark.parametrize("labels", [{}, {"tonnage.dev/managed": "true"}])
    def test_is_refused_by_name_and_another_object_goes_on(self, labels):
        world = a_world(a_manifest(), a_manifest("other"))
        body = a_foreign_deployment()
        body["metadata"] |= {"labels": labels, "annotations": {"note": "x" * 300_000}}
        world.kube.put(PLACE, body)
        loop = a_loop(world)

        done = [write for _ in range(4) for write in tick(loop, world)]

        [said] = [
            each["message"]
            for each in status_of(world)["conditions"]
            if each["type"] == "PlanValid"
        ]
        assert condition(world, "PlanValid") == ("False", "DeploymentTooLarge")
        assert re.match("Deployment llama has 300[0-9]{3} bytes, and Tonnage reads no more", said)
        assert condition(world, "Ready")[0] == "False"
        assert "apply deployments/other" in done
        assert "apply deployments/llama" not in done
        assert replicas_of(world) == 3


class TestAModelDeploymentThatIsTooLarge:
    def test_is_refused_by_an_event_once_and_what_runs_stays(self):
        loop, world = served()
        before = replicas_of(world)
        finalizers = [f"example.test/{each:060}" for each in range(5000)]
        world.kube.objects[OBJECT]["metadata"]["finalizers"] = finalizers
        said, read = copy.deepcopy(status_of(world)), []
        world.kube.fail = lambda verb, path: read.append(path) if verb == "get" else None

        done = [write for _ in range(8) for write in tick(loop, world, after_s=60)]

        assert {each.split()[0] for each in done} == {"create"}
        [told] = [each for each in events(world) if each["reason"] == "InvalidSpec"]
        assert "more than 256 KiB" in told["note"]
        assert "take finalizers, ownerReferences," in told["note"]
        assert (replicas_of(world), status_of(world)) == (before, said)
        assert OBJECT not in read

        world.kube.objects[OBJECT]["metadata"]["finalizers"] = []
        for pod in world.completions_per_s:
            world.completions_per_s[pod] = 5.0
        for _ in range(4):
            tick(loop, world, after_s=60)
        assert replicas_of(world) > before


def events(world):
    return [call.body for call in world.kube.writes if call.short.startswith("create events")]


class TestNameConflict:
    @pytest.mark.parametrize("labels", [{}, {"tonnage.dev/managed": "true"}])
    def test_a_foreign_deployment_is_left_alone_and_told_of(self, labels):
        world = a_world()
        body = a_foreign_deployment()
        body["metadata"]["labels"] = labels
        world.kube.put(PLACE, body)
        loop = a_loop(world)

        done = [write for _ in range(4) for write in tick(loop, world)]

        assert set(done) <= {"apply modeldeployments/llama/status", "create events"}
        assert replicas_of(world) == 3
        assert condition(world, "PlanValid") == ("False", "NameConflict")

    def test_it_ends_when_the_other_one_goes(self):
        world = a_world()
        world.kube.put(PLACE, a_foreign_deployment())
        loop = a_loop(world)
        for _ in range(3):
            tick(loop, world)
        del world.kube.objects[PLACE]

        for _ in range(2):
            tick(loop, world)

        assert condition(world, "PlanValid") == ("True", "Planned")
        assert replicas_of(world) == FIRST_REPLICAS
