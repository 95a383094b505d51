"""The writes themselves, against an API server in memory."""

import threading
from dataclasses import replace

import pytest

from fleet_builders import (
    SITE,
    a_deployment_body,
    a_manifest,
    a_model,
    a_pod_body,
    a_sizing,
    owned_by,
)
from kube_double import KubeDouble, led
from tonnage.api.status import ReplicasStatus, Status
from tonnage.cluster.calls import ConflictError, KubernetesError
from tonnage.cluster.kube import (
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    MODEL_DEPLOYMENTS,
    NETWORK_POLICIES,
    POD_MONITORS,
    PODS,
    SERVICES,
)
from tonnage.control.decide.situation import PodCost
from tonnage.control.input.writers import Cause, Fate, Result, WriteKind
from tonnage.control.report.event_records import EventRecord
from tonnage.fleet.act import Scale, Writer, Writes
from tonnage.fleet.background import beside
from tonnage.fleet.write_queue import WriteQueue
from tonnage.manifests.children import deployment
from tonnage.manifests.roles import RoleManifest

NOW = "2026-01-02T00:00:00Z"
PLACE = DEPLOYMENTS.path("serving", "llama")
OBJECT = MODEL_DEPLOYMENTS.path("serving", "llama")
SERVICE = SERVICES.path("serving", "llama")
A_STATUS = Status(replicas=ReplicasStatus(desired=1, current=1, ready=1, summary="1/1"))
TEMPLATE = deployment(a_model(), a_sizing(), SITE)
SCALED = "patch deployments/llama/scale"
LATER = Result()
SCALED_EVENT = EventRecord(reason="Scaled", message="x", is_warning=False, at="1")


def a_kube(*, replicas=2, **metadata):
    """An object and the Deployment that was made for it."""
    body = a_deployment_body(replicas=replicas)
    body["metadata"] |= metadata
    return KubeDouble([(OBJECT, a_manifest()), (PLACE, body)])


def asking(*, name="llama", **changes):
    made = Writes(namespace="serving", name=name, uid=f"uid-of-{name}", model=a_model(name))
    return replace(made, **changes)


def a_scale(seen, replicas, *, uid="uid-of-deployment-llama"):
    return Scale(deployment="llama", uid=uid, seen=seen, replicas=replicas)


def act(kube, *all_writes, leads=True):
    writer = Writer(kube=led(kube, lambda: leads), site=SITE)
    return frozenset(writer.act(all_writes, now=NOW))


def carried(kube, writes, *, leads=True):
    """What became of the writes for one object."""
    writer = Writer(kube=led(kube, lambda: leads), site=SITE)
    return writer.act([writes], now=NOW).get(writes.uid, {})


def is_stale(found):
    """Nothing failed, and the replicas are decided anew."""
    [(kind, result)] = found.items()
    return (kind, result.fate, result.cause) == (WriteKind.SCALE, Fate.NOT_APPLIED, Cause.LATER)


def done(kube):
    return [call.short for call in kube.writes]


def live_replicas(kube):
    return kube.objects[PLACE]["spec"].get("replicas")


class TestScaling:
    @pytest.mark.parametrize("replicas", [1, 5])
    def test_writes_through_the_scale_subresource(self, replicas):
        kube = a_kube(replicas=2)

        failed = act(kube, asking(scale=a_scale(2, replicas)))

        assert failed == frozenset()
        assert done(kube) == [SCALED]
        assert live_replicas(kube) == replicas
        assert kube.writes[0].manager == "tonnage-scale"

    def test_writes_nothing_when_somebody_else_scaled_meanwhile(self):
        kube = a_kube(replicas=3)

        assert is_stale(carried(kube, asking(scale=a_scale(2, 5))))
        assert done(kube) == []

    def test_writes_nothing_to_a_namesake(self):
        # Ours was deleted and somebody made another while no watch told us.
        kube = a_kube(uid="uid-of-another")

        act(kube, asking(scale=a_scale(2, 5)))

        assert done(kube) == []

    @pytest.mark.parametrize(
        "owners", [[], [{"kind": "Rollout", "name": "x", "uid": "of-another", "controller": True}]]
    )
    def test_writes_nothing_when_the_deployment_is_not_ours_any_more(self, owners):
        kube = a_kube(replicas=2, ownerReferences=owners)

        assert is_stale(carried(kube, asking(scale=a_scale(2, 5))))
        assert done(kube) == []

    @pytest.mark.parametrize(("opted_in", "replicas"), [("true", 5), ("false", 2)])
    def test_writes_to_a_scale_target_while_its_owner_opts_in(self, opted_in, replicas):
        kube = a_kube(replicas=2, ownerReferences=[], labels={"tonnage.dev/managed": opted_in})
        model = a_model(engine=None, scaleTarget={"name": "llama"})

        carried(kube, asking(scale=a_scale(2, 5), model=model))

        assert live_replicas(kube) == replicas

    def test_writes_nothing_when_the_deployment_is_gone(self):
        kube = KubeDouble([(OBJECT, a_manifest())])

        assert is_stale(carried(kube, asking(scale=a_scale(2, 5))))
        assert done(kube) == []

    def test_tries_again_when_something_else_changed_meanwhile(self):
        kube = a_kube(replicas=2)

        def changed_once(verb, path):
            if verb == "patch":
                kube.fail = lambda verb, path: None
                kube.put(PLACE, kube.objects[PLACE])

        kube.fail = changed_once
        act(kube, asking(scale=a_scale(2, 5)))

        assert live_replicas(kube) == 5

    def test_is_not_tried_again_once_the_object_is_paused(self):
        kube = a_kube(replicas=2)

        def paused_meanwhile(verb, path):
            if verb == "patch":
                kube.fail = lambda verb, path: None
                kube.put(PLACE, kube.objects[PLACE])
                body = a_manifest(scaling={"mode": "Paused", "maxReplicas": 8})
                body["metadata"]["generation"] = 2
                kube.put(OBJECT, body)

        kube.fail = paused_meanwhile
        act(kube, asking(scale=a_scale(2, 5), generation=1))

        assert live_replicas(kube) == 2

    def test_gives_up_until_the_next_tick_after_three_conflicts(self):
        kube = a_kube(replicas=2)

        def always_changed(verb, path):
            if verb == "patch":
                raise ConflictError("modified", status=409)

        kube.fail = always_changed

        assert is_stale(carried(kube, asking(scale=a_scale(2, 5))))
        assert live_replicas(kube) == 2

    def test_to_nothing_is_seen_as_nothing(self):
        kube = a_kube(replicas=0)

        act(kube, asking(scale=a_scale(0, 2)))

        assert live_replicas(kube) == 2

    @pytest.mark.parametrize("uid", [None, "uid-of-the-next"])
    def test_takes_nothing_away_for_an_object_that_is_gone_or_made_anew(self, uid):
        kube = a_kube(replicas=2)
        if uid is None:
            del kube.objects[OBJECT]
        else:
            kube.put(OBJECT, a_manifest(uid=uid))

        failed = act(kube, asking(scale=a_scale(2, 1)))

        assert failed == {"uid-of-llama"}
        assert done(kube) == []


COST = "controller.kubernetes.io/pod-deletion-cost"
GOES = PodCost(pod="b", uid="uid-of-b", cost=-1)
DOWN = replace(a_scale(2, 1), costs=(GOES,))
MARKED = "patch pods/b"


def a_kube_with_pods(**metadata):
    kube = a_kube(**metadata)
    for name in "ab":
        kube.put(PODS.path("serving", name), a_pod_body(name))
    return kube


def costs(kube):
    pods = {name: kube.objects[PODS.path("serving", name)] for name in "ab"}
    return {
        name: (pod["metadata"].get("annotations") or {}).get(COST) for name, pod in pods.items()
    }


class TestMarkingThePodsToGo:
    def test_comes_right_before_the_scale_is_written(self):
        kube = a_kube_with_pods()

        assert act(kube, asking(scale=DOWN)) == frozenset()
        assert done(kube) == [MARKED, SCALED]
        assert costs(kube) == {"a": None, "b": "-1"}

    def test_is_left_out_where_somebody_else_scaled_meanwhile(self):
        kube = a_kube_with_pods()
        kube.put(PLACE, a_deployment_body(replicas=3))

        act(kube, asking(scale=DOWN))

        assert done(kube) == []

    def test_is_done_once_when_the_scale_is_tried_again(self):
        kube = a_kube_with_pods()

        def always_changed(verb, path):
            if verb == "patch" and path.endswith("/scale"):
                raise ConflictError("modified", status=409)

        kube.fail = always_changed
        act(kube, asking(scale=DOWN))

        assert done(kube) == [MARKED]

    @pytest.mark.parametrize("status", [0, 403, 404, 409])
    def test_that_fails_does_not_stop_the_scale(self, status):
        kube = a_kube_with_pods()

        def no_pods(verb, path):
            if verb == "patch" and "/pods/" in path:
                raise KubernetesError("no", status=status)

        kube.fail = no_pods

        assert act(kube, asking(scale=DOWN)) == frozenset()
        assert done(kube) == [SCALED]

    def test_leaves_a_namesake_of_the_pod_alone(self):
        kube = a_kube_with_pods()
        kube.put(PODS.path("serving", "b"), a_pod_body("b") | {"metadata": {"uid": "the-next"}})

        assert act(kube, asking(scale=DOWN)) == frozenset()
        assert costs(kube) == {"a": None, "b": None}
        assert live_replicas(kube) == 1

    def test_is_not_done_without_the_lease(self):
        kube = a_kube_with_pods()

        assert act(kube, asking(scale=DOWN), leads=False) == {"uid-of-llama"}
        assert done(kube) == []

    def test_is_the_last_write_when_the_lease_is_lost_over_it(self):
        kube = a_kube_with_pods()
        writer = Writer(kube=led(kube, lambda: not kube.writes), site=SITE)

        failed = writer.act([asking(scale=DOWN)], now=NOW)

        assert set(failed) == {"uid-of-llama"}
        assert done(kube) == [MARKED]


class TestCreating:
    def test_applies_without_force_and_then_scales(self):
        kube = KubeDouble([(OBJECT, a_manifest())])

        failed = act(kube, asking(template=TEMPLATE, first_replicas=3, creates=True))

        assert failed == frozenset()
        assert done(kube) == ["apply deployments/llama", SCALED]
        assert (kube.writes[0].force, kube.writes[0].manager) == (False, "tonnage")
        assert "replicas" not in kube.writes[0].body["spec"]
        assert live_replicas(kube) == 3

    def test_of_one_replica_needs_no_scaling(self):
        kube = KubeDouble([(OBJECT, a_manifest())])

        act(kube, asking(template=TEMPLATE, first_replicas=1, creates=True))

        assert done(kube) == ["apply deployments/llama"]

    def test_of_a_deployment_that_lost_its_label_shows_it_again_and_keeps_its_flags(self):
        # No watch shows it, so the template was made without its live flags.
        kube = a_kube(labels={})
        before = kube.objects[PLACE]["spec"]["template"]

        failed = act(kube, asking(template=TEMPLATE | {"spec": {}}, first_replicas=4, creates=True))

        assert failed == frozenset()
        assert done(kube) == ["patch deployments/llama"]
        assert kube.objects[PLACE]["metadata"]["labels"]["tonnage.dev/managed"] == "true"
        assert kube.objects[PLACE]["spec"]["template"] == before
        assert live_replicas(kube) == 2

    def test_of_a_deployment_that_the_watch_has_not_shown_yet_writes_nothing(self):
        kube = a_kube()

        failed = act(kube, asking(template=TEMPLATE, first_replicas=4, creates=True))

        assert failed == frozenset()
        assert done(kube) == []

    def test_is_cut_off_anywhere_and_finished_by_the_next_tick(self):
        kube = KubeDouble([(OBJECT, a_manifest())])

        def breaks_off(verb, path):
            if verb == "patch":
                raise KubernetesError("cut off", status=0)

        kube.fail = breaks_off
        failed = act(kube, asking(template=TEMPLATE, first_replicas=3, creates=True))
        kube.fail = lambda verb, path: None
        created = kube.objects[PLACE]["metadata"]["uid"]
        act(kube, asking(scale=a_scale(1, 3, uid=created)))

        assert failed == {"uid-of-llama"}
        assert live_replicas(kube) == 3


class TestUpdating:
    def test_applies_with_force_what_is_provably_ours(self):
        kube = a_kube()

        act(kube, asking(template=TEMPLATE))

        [call] = kube.writes
        assert call.force is True
        assert call.body["metadata"]["uid"] == "uid-of-deployment-llama"
        assert live_replicas(kube) == 2

    @pytest.mark.parametrize(
        "owners",
        [
            [],
            [{"kind": "Other", "name": "x", "uid": "other", "controller": True}],
            [{"kind": "ModelDeployment", "name": "llama", "uid": "uid-of-llama"}],
            [{"kind": "ModelDeployment", "name": "llama", "uid": "earlier", "controller": True}],
        ],
    )
    @pytest.mark.parametrize("creates", [True, False])
    def test_leaves_a_foreign_deployment_alone(self, owners, creates):
        kube = a_kube(ownerReferences=owners)

        failed = act(kube, asking(template=TEMPLATE, first_replicas=3, creates=creates))

        assert failed == {"uid-of-llama"}
        assert done(kube) == []

    @pytest.mark.parametrize(
        ("uid", "owners", "is_taken"),
        [
            ("uid-of-llama", [], True),
            ("uid-of-another", [], False),
            ("uid-of-llama", owned_by("Other", "x", "other"), False),
        ],
    )
    def test_takes_what_nobody_controls_and_was_handed_over(self, uid, owners, is_taken):
        kube = a_kube(ownerReferences=owners, labels={"tonnage.dev/adopt": uid})

        act(kube, asking(template=TEMPLATE))

        assert done(kube) == (["apply deployments/llama"] if is_taken else [])

    def test_does_not_bring_back_what_was_deleted_meanwhile(self):
        kube = a_kube()

        def deleted(verb, path):
            if verb == "apply":
                del kube.objects[PLACE]

        kube.fail = deleted

        assert act(kube, asking(template=TEMPLATE)) == {"uid-of-llama"}
        assert PLACE not in kube.objects


ROLE = MODEL_DEPLOYMENTS.path("serving", "llama-decode")


def a_role(**metadata):
    body = a_manifest("llama-decode")
    body["metadata"]["ownerReferences"] = owned_by("ModelDeployment", "llama", "uid-of-llama")
    body["metadata"] |= metadata
    return body


def asking_for_a_role():
    wanted = a_role()
    del wanted["metadata"]["uid"]
    return asking(roles=(RoleManifest(role="decode", manifest=wanted, digest="x"),))


class TestRoles:
    def test_are_made_without_force(self):
        kube = KubeDouble([(OBJECT, a_manifest())])

        assert act(kube, asking_for_a_role()) == frozenset()
        assert [(call.verb, call.force) for call in kube.writes] == [("apply", False)]

    def test_that_are_ours_are_changed_with_force_and_no_namesake_is(self):
        kube = KubeDouble([(OBJECT, a_manifest()), (ROLE, a_role(uid="uid-of-ours"))])

        act(kube, asking_for_a_role())
        (call,) = kube.writes

        assert call.force
        assert call.body["metadata"]["uid"] == "uid-of-ours"

    def test_of_somebody_else_are_left_alone(self):
        kube = KubeDouble([(OBJECT, a_manifest()), (ROLE, a_role(ownerReferences=[]))])

        assert carried(kube, asking_for_a_role())[WriteKind.TEMPLATE].fate is Fate.NOT_APPLIED
        assert kube.writes == []

    def test_are_not_written_for_a_spec_that_changed_meanwhile(self):
        kube = KubeDouble([(OBJECT, a_manifest(generation=2))])

        act(kube, replace(asking_for_a_role(), generation=1))

        assert kube.writes == []


class TestAStatusThatHangs:
    """A webhook on the status of 200 objects of one namespace gives no answer."""

    @pytest.fixture
    def hung(self):
        over, kube = threading.Event(), a_kube(replicas=2)

        def hang(verb, path):
            if path.startswith("/apis/tonnage.dev/v1alpha1/namespaces/evil/") and verb != "get":
                over.wait(30)

        for number in range(200):
            body = a_manifest(f"m{number}", namespace="evil")
            kube.put(MODEL_DEPLOYMENTS.path("evil", f"m{number}"), body)
        kube.fail = hang
        writer = Writer(kube=led(kube), site=SITE, queue=WriteQueue(start=beside))
        yield kube, writer
        over.set()
        for begun in list(writer.queue.others._begun.values()):
            begun.work.wait()

    def statuses(self):
        return [
            asking(name=f"m{number}", namespace="evil", status=A_STATUS) for number in range(200)
        ]

    def test_holds_up_neither_its_tick_nor_replicas_templates_and_status_of_others(self, hung):
        kube, writer = hung

        first = writer.act(self.statuses(), now=NOW)
        others = asking(scale=a_scale(2, 5), template=TEMPLATE, status=A_STATUS)
        second = writer.act([*self.statuses(), others], now=NOW)

        assert len(first) == 200
        assert others.uid not in second
        assert done(kube) == [
            SCALED,
            "apply deployments/llama",
            "apply modeldeployments/llama/status",
        ]

    def test_takes_no_event_of_its_object_along(self, hung):
        kube, writer = hung
        [said] = [replace(each, event_records=(SCALED_EVENT,)) for each in self.statuses()[:1]]
        kube.put(
            MODEL_DEPLOYMENTS.path("evil", said.name),
            a_manifest(said.name, namespace="evil", uid=said.uid),
        )

        writer.act([said], now=NOW)

        assert done(kube) == ["create events"]

    def test_is_no_overload_of_the_server(self, hung):
        _, writer = hung

        writer.act(self.statuses(), now=NOW)

        assert writer.queue.share == 1


class TestWithoutTheLease:
    @pytest.mark.parametrize(
        "part",
        [
            {"scale": a_scale(2, 3)},
            {"template": TEMPLATE},
            {"template": TEMPLATE, "rolls": True, "status": A_STATUS},
            {"check_children": True},
            {"status": A_STATUS},
            {
                "event_records": (
                    EventRecord(reason="Scaled", message="x", is_warning=False, at="1"),
                )
            },
        ],
    )
    def test_nothing_is_read_either_so_that_a_server_that_hangs_costs_no_time(self, part):
        kube, asked = a_kube(), []
        kube.fail = lambda verb, path: asked.append((verb, path))

        act(kube, asking(generation=1, **part), leads=False)

        assert asked == []


class TestASpecThatChangedMeanwhile:
    """Somebody set the object to Paused while the tick decided."""

    @pytest.mark.parametrize(
        "part",
        [
            {"scale": a_scale(2, 3)},
            {"template": TEMPLATE},
            {"status": A_STATUS},
            {
                "event_records": (
                    EventRecord(reason="Scaled", message="x", is_warning=False, at="1"),
                )
            },
        ],
    )
    @pytest.mark.parametrize(("generation", "is_written"), [(1, True), (2, False)])
    def test_is_decided_on_anew(self, part, generation, is_written):
        kube = a_kube()
        kube.put(OBJECT, a_manifest(generation=generation))

        failed = carried(kube, asking(generation=1, **part))

        assert bool(done(kube)) is is_written
        assert {each.cause for each in failed.values()} <= {Cause.LATER}

    @pytest.mark.parametrize(
        ("part", "during"),
        [
            ({"scale": a_scale(2, 1)}, ("get", PLACE)),
            ({"scale": replace(a_scale(2, 1), costs=(GOES,))}, ("get", PLACE)),
            ({"template": TEMPLATE}, ("get", PLACE)),
            ({"check_children": True}, ("get", SERVICE)),
        ],
    )
    def test_while_what_stands_there_was_read_is_too(self, part, during):
        kube = a_kube()

        def pause(*call):
            if call == during:
                kube.put(OBJECT, a_manifest(generation=2))

        kube.fail = pause
        failed = carried(kube, asking(generation=1, **part))

        assert done(kube) == []
        assert {each.cause for each in failed.values()} <= {Cause.LATER}


MONITOR = POD_MONITORS.path("serving", "llama")
BUDGET = DISRUPTION_BUDGETS.path("serving", "llama")
POLICY = NETWORK_POLICIES.path("serving", "llama")
PROTECTED = a_model(
    pods={"disruptionBudget": {"maxUnavailable": 1}, "networkPolicy": {"egressPorts": [443]}}
)
CHECKED = {"check_children": True, "check_leftovers": True}


class TestChildren:
    def test_are_made_where_they_are_missing(self):
        kube = a_kube()

        act(kube, asking(**CHECKED))

        assert done(kube) == ["apply services/llama", "apply podmonitors/llama"]
        assert all(call.force is False for call in kube.writes)

    def test_of_somebody_else_are_left_alone(self):
        kube = a_kube()
        kube.put(
            SERVICE, {"kind": "Service", "metadata": {"name": "llama"}, "spec": {"mine": True}}
        )

        writer = Writer(kube=kube, site=SITE)
        failed = writer.act([asking(**CHECKED)], now=NOW)

        assert done(kube) == ["apply podmonitors/llama"]
        assert kube.objects[SERVICE]["spec"] == {"mine": True}
        assert failed["uid-of-llama"][WriteKind.CHILDREN].detail == (
            "Service serving/llama exists, not made by Tonnage: unchanged"
        )

    def test_have_no_pod_monitor_where_there_is_no_such_kind(self):
        kube = a_kube()
        alone = replace(SITE, has_pod_monitors=False)
        writer = Writer(kube=kube, site=alone)

        writer.act([asking(**CHECKED)], now=NOW)

        assert done(kube) == ["apply services/llama"]

    def test_that_are_as_wanted_are_not_written_again(self):
        kube = a_kube()

        act(kube, asking(model=PROTECTED, **CHECKED))
        num_made = len(kube.writes)
        act(kube, asking(model=PROTECTED, **CHECKED))

        assert (num_made, len(kube.writes)) == (4, 4)

    def test_follow_changed_settings(self):
        kube = a_kube()
        act(kube, asking(**CHECKED))
        site = replace(SITE, scrape_interval_s=30, monitor_labels={"release": "prometheus"})
        writer = Writer(kube=kube, site=site)

        writer.act([asking(**CHECKED)], now=NOW)

        assert done(kube)[2:] == ["apply podmonitors/llama"]
        assert kube.writes[-1].force is True
        assert kube.writes[-1].body["metadata"]["uid"] == f"uid-of-{MONITOR}"
        assert kube.objects[MONITOR]["metadata"]["labels"]["release"] == "prometheus"

    def test_beside_which_ours_is_invalid_are_cleared_first(self):
        kube = a_kube()
        act(kube, asking(**CHECKED))
        kube.objects[SERVICE]["spec"]["ports"] = [{"name": "http", "port": 9000}]

        def two_of_a_name(verb, path):
            ports = kube.objects[SERVICE]["spec"]["ports"]
            if (verb, path) == ("apply", SERVICE) and ports[0]["port"] == 9000:
                raise KubernetesError("Duplicate value", status=422)

        kube.fail = two_of_a_name

        assert act(kube, asking(**CHECKED)) == frozenset()
        assert done(kube)[2:] == ["patch services/llama", "apply services/llama"]
        assert [each["port"] for each in kube.objects[SERVICE]["spec"]["ports"]] == [8000]

    def test_that_are_refused_for_another_reason_stay_refused(self):
        kube = a_kube()
        act(kube, asking(**CHECKED))
        kube.objects[SERVICE]["spec"]["selector"] = {"app": "theirs"}

        def never(verb, path):
            if (verb, path) == ("apply", SERVICE):
                raise KubernetesError("a policy forbids it", status=422)

        kube.fail = never

        assert "a policy forbids it" in carried(kube, asking(**CHECKED))[WriteKind.CHILDREN].detail
        assert done(kube)[2:] == []

    def test_that_were_made_anew_meanwhile_are_not_forced(self):
        kube = a_kube()
        act(kube, asking(**CHECKED))
        theirs = {"kind": "PodMonitor", "metadata": {"name": "llama", "uid": "theirs"}, "spec": {}}

        def replaced(verb, path):
            if verb == "apply" and path == MONITOR:
                kube.put(MONITOR, theirs)

        kube.fail = replaced
        site = replace(SITE, scrape_interval_s=30)
        writer = Writer(kube=kube, site=site)

        failed = writer.act([asking(**CHECKED)], now=NOW)

        assert set(failed) == {"uid-of-llama"}
        assert kube.objects[MONITOR]["spec"] == {}


class TestProtection:
    def test_comes_before_the_pods(self):
        kube = KubeDouble([(OBJECT, a_manifest())])

        act(kube, asking(model=PROTECTED, template=TEMPLATE, creates=True, **CHECKED))

        assert done(kube) == [
            "apply networkpolicies/llama",
            "apply poddisruptionbudgets/llama",
            "apply deployments/llama",
            "apply services/llama",
            "apply podmonitors/llama",
        ]

    @pytest.mark.parametrize("path", [POLICY, BUDGET])
    def test_that_somebody_else_stands_in_the_way_of_stops_the_pods(self, path):
        kube = KubeDouble([(OBJECT, a_manifest())])
        kube.put(path, {"metadata": {"name": "llama"}, "spec": {"mine": True}})
        writer = Writer(kube=kube, site=SITE)

        failed = writer.act([asking(model=PROTECTED, template=TEMPLATE, **CHECKED)], now=NOW)

        stopped = failed["uid-of-llama"][WriteKind.TEMPLATE]
        assert "serving/llama exists, not made by Tonnage: unchanged" in stopped.detail
        assert stopped.fate is Fate.NOT_APPLIED
        assert kube.objects[path]["spec"] == {"mine": True}
        assert PLACE not in kube.objects

    def test_goes_when_the_spec_asks_for_none(self):
        kube = a_kube()
        act(kube, asking(model=PROTECTED, **CHECKED))

        act(kube, asking(**CHECKED))

        assert done(kube)[4:] == [
            "delete networkpolicies/llama",
            "delete poddisruptionbudgets/llama",
        ]
        assert not {POLICY, BUDGET} & set(kube.objects)

    def test_is_not_looked_for_in_every_check(self):
        asked = []
        kube = a_kube()
        kube.fail = lambda verb, path: asked.append(path)

        act(kube, asking(check_children=True))

        assert not {POLICY, BUDGET} & set(asked)

    @pytest.mark.parametrize("path", [POLICY, BUDGET])
    def test_of_somebody_else_stays(self, path):
        kube = a_kube()
        kube.put(path, {"metadata": {"name": "llama"}, "spec": {"mine": True}})

        assert act(kube, asking(**CHECKED)) == frozenset()
        assert path in kube.objects

    def test_that_may_not_be_read_is_none_of_ours(self):
        kube = a_kube()

        def forbidden(verb, path):
            if path in {POLICY, BUDGET}:
                raise KubernetesError("forbidden", status=403)

        kube.fail = forbidden

        assert act(kube, asking(**CHECKED)) == frozenset()
        assert done(kube) == ["apply services/llama", "apply podmonitors/llama"]

    def test_is_not_taken_away_without_the_lease(self):
        kube = a_kube()
        act(kube, asking(model=PROTECTED, **CHECKED))

        assert act(kube, asking(**CHECKED), leads=False) == {"uid-of-llama"}
        assert {POLICY, BUDGET} <= set(kube.objects)


class TestStatus:
    def test_is_applied_to_the_very_object_that_was_seen(self):
        kube = a_kube()

        act(kube, asking(status=A_STATUS))

        [call] = kube.writes
        assert call.short == "apply modeldeployments/llama/status"
        assert call.body["metadata"]["uid"] == "uid-of-llama"
        assert kube.objects[OBJECT]["status"] == A_STATUS.to_dict()

    def test_is_not_given_to_an_object_that_was_made_anew(self):
        kube = a_kube()
        kube.put(OBJECT, a_manifest(uid="uid-of-the-next"))

        assert act(kube, asking(status=A_STATUS)) == {"uid-of-llama"}
        assert "status" not in kube.objects[OBJECT]


class TestEvents:
    HAPPENING = EventRecord(reason="Scaled", message="x" * 5000, is_warning=False, at="1")

    def test_are_not_of_an_object_that_is_gone(self):
        kube = KubeDouble()

        act(kube, asking(event_records=(self.HAPPENING,)))

        assert done(kube) == []

    def test_are_about_the_object(self):
        kube = a_kube()

        act(kube, asking(event_records=(self.HAPPENING,)))

        [call] = kube.writes
        assert call.verb == "create"
        assert call.path == "/apis/events.k8s.io/v1/namespaces/serving/events"
        assert call.body["regarding"]["uid"] == "uid-of-llama"
        assert call.body["eventTime"] == "2026-01-02T00:00:00.000000Z"
        assert (call.body["type"], call.body["reason"]) == ("Normal", "Scaled")
        assert len(call.body["note"]) == 1024

    def test_of_an_object_that_changed_meanwhile_are_due_again(self):
        kube = a_kube()
        kube.put(OBJECT, a_manifest(generation=2))

        found = carried(kube, asking(generation=1, event_records=(self.HAPPENING,)))

        assert (done(kube), found.keys()) == ([], {WriteKind.EVENTS})

    @pytest.mark.parametrize("status", [0, 429, 500, 503])
    def test_that_get_no_answer_are_due_again_and_posted_once(self, status):
        kube = a_kube()
        writes = asking(event_records=(self.HAPPENING,))
        act(kube, writes)
        [posted] = [path for path in kube.objects if "/events/" in path]

        def lose(verb, path):
            if verb == "create":
                raise KubernetesError("no answer", status=status)

        kube.fail = lose
        lost = carried(kube, writes)
        kube.fail = lambda verb, path: None
        again = carried(kube, writes)

        assert (lost.keys(), again) == ({WriteKind.EVENTS}, {})
        assert [path for path in kube.objects if "/events/" in path] == [posted]

    def test_that_cannot_be_posted_are_no_failure_of_the_object(self):
        kube = a_kube()

        def no_events(verb, path):
            if verb == "create":
                raise KubernetesError("forbidden", status=403)

        kube.fail = no_events

        assert act(kube, asking(event_records=(self.HAPPENING,))) == frozenset()


EVERYTHING = {
    "scale": a_scale(2, 5),
    "template": TEMPLATE,
    **CHECKED,
    "status": A_STATUS,
    "event_records": (TestEvents.HAPPENING,),
}


class TestAll:
    def test_scale_comes_before_templates_before_status(self):
        kube = a_kube()

        act(kube, asking(**EVERYTHING))

        assert done(kube) == [
            SCALED,
            "apply deployments/llama",
            "apply services/llama",
            "apply podmonitors/llama",
            "apply modeldeployments/llama/status",
            "create events",
        ]

    def test_pods_are_replaced_after_the_status_says_so(self):
        kube = a_kube()

        act(kube, asking(template=TEMPLATE, rolls=True, status=A_STATUS))

        assert done(kube) == [
            "apply modeldeployments/llama/status",
            "apply deployments/llama",
        ]

    @pytest.mark.parametrize(("status", "refused"), [(403, "no right"), (503, None)])
    def test_pods_are_not_replaced_where_the_status_cannot_say_so(self, status, refused):
        def no_status(verb, path):
            if verb == "apply" and path.endswith("/status"):
                raise KubernetesError("no right", status=status)

        kube = a_kube()
        kube.fail = no_status

        fate = carried(kube, asking(template=TEMPLATE, rolls=True, status=A_STATUS))

        assert done(kube) == []
        assert fate[WriteKind.TEMPLATE].fate is Fate.NOT_APPLIED
        assert (fate[WriteKind.TEMPLATE].cause is Cause.REFUSED) == (refused is not None)
        assert refused is None or refused in fate[WriteKind.TEMPLATE].detail

    def test_a_template_that_replaces_no_pod_does_not_wait_for_the_status(self):
        def no_status(verb, path):
            if verb == "apply" and path.endswith("/status"):
                raise KubernetesError("later", status=503)

        kube = a_kube()
        kube.fail = no_status

        fate = carried(kube, asking(template=TEMPLATE, status=A_STATUS))

        assert done(kube) == ["apply deployments/llama"]
        assert WriteKind.TEMPLATE not in fate

    @pytest.mark.parametrize("creates", [True, False])
    def test_nothing_at_all_is_written_without_the_lease(self, creates):
        kube = a_kube() if not creates else KubeDouble([(OBJECT, a_manifest())])

        failed = act(kube, asking(**EVERYTHING | {"creates": creates}), leads=False)

        assert done(kube) == []
        assert failed == {"uid-of-llama"}

    def test_nothing_more_is_written_once_the_lease_is_lost(self):
        kube = a_kube()
        writer = Writer(kube=led(kube, lambda: not kube.writes), site=SITE)

        writer.act([asking(**EVERYTHING)], now=NOW)

        assert done(kube) == [SCALED]

    def test_an_object_that_fails_does_not_stop_the_others(self):
        other = DEPLOYMENTS.path("serving", "other")
        kube = a_kube()
        kube.put(OBJECT.replace("llama", "other"), a_manifest("other"))
        kube.put(other, a_deployment_body(a_model("other")))

        def llama_fails(verb, path):
            if verb != "get" and "llama" in path:
                raise KubernetesError("denied by a webhook", status=403)

        kube.fail = llama_fails
        scale = Scale(deployment="other", uid="uid-of-deployment-other", seen=2, replicas=4)
        failed = act(kube, asking(**EVERYTHING), asking(name="other", scale=scale, status=A_STATUS))

        assert failed == {"uid-of-llama"}
        assert [call for call in done(kube) if "other" in call] == [
            "patch deployments/other/scale",
            "apply modeldeployments/other/status",
        ]

    def test_nothing_to_write_writes_nothing(self):
        kube = a_kube()

        assert act(kube, asking()) == frozenset()
        assert act(kube) == frozenset()
        assert done(kube) == []


WHOLE = {"scale": a_scale(2, 3), "template": TEMPLATE, "status": A_STATUS}


class TestWhatBecameOfIt:
    def failing(self, verb, ending, *, status, **more):
        kube = a_kube()

        def fails(asked, path):
            if asked == verb and path.endswith(ending):
                raise KubernetesError("said so", status=status)

        kube.fail = fails
        return carried(kube, asking(**WHOLE, **more))

    def test_is_nothing_to_tell_where_all_is_done(self):
        assert carried(a_kube(), asking(**WHOLE)) == {}

    @pytest.mark.parametrize(
        ("status", "fate", "cause"),
        [
            (403, Fate.NOT_APPLIED, Cause.REFUSED),
            (422, Fate.NOT_APPLIED, Cause.REFUSED),
            (429, Fate.NOT_APPLIED, Cause.LATER),
            (404, Fate.NOT_APPLIED, Cause.LATER),
            (500, Fate.UNKNOWN, Cause.FAILED),
            (504, Fate.UNKNOWN, Cause.LATER),
            (0, Fate.UNKNOWN, Cause.LATER),
        ],
    )
    def test_is_unknown_where_no_answer_says_that_it_was_refused(self, status, fate, cause):
        result = Result(fate=fate, cause=cause, detail="said so")

        assert self.failing("patch", "/scale", status=status) == {WriteKind.SCALE: result}
        assert self.failing("apply", "/deployments/llama", status=status) == {
            WriteKind.TEMPLATE: result
        }

    def test_of_a_service_is_no_matter_of_the_template(self):
        kube = a_kube()

        def fails(_, path):
            if "/services/" in path:
                raise KubernetesError("said so", status=422)

        kube.fail = fails

        assert carried(kube, asking(**WHOLE, **CHECKED)) == {
            WriteKind.CHILDREN: Result(cause=Cause.REFUSED, detail="said so")
        }

    def test_of_a_template_leaves_what_comes_after_it_due(self):
        found = self.failing("apply", "/deployments/llama", status=403, **CHECKED)

        assert found.keys() == {WriteKind.TEMPLATE, WriteKind.CHILDREN}
        assert found[WriteKind.CHILDREN] == LATER

    def test_of_a_status_is_no_matter_of_the_others(self):
        assert self.failing("apply", "/status", status=500) == {
            WriteKind.STATUS: Result(fate=Fate.UNKNOWN, cause=Cause.FAILED, detail="said so")
        }

    def test_without_the_lease_is_undone(self):
        found = carried(a_kube(), asking(**WHOLE), leads=False)

        assert found.keys() == {WriteKind.SCALE, WriteKind.TEMPLATE, WriteKind.STATUS}
        assert {(each.fate, each.cause) for each in found.values()} == {
            (Fate.NOT_APPLIED, Cause.LATER)
        }

    def test_of_a_deployment_that_is_not_ours_is_undone(self):
        kube = a_kube(ownerReferences=[])

        found = carried(kube, asking(template=TEMPLATE))

        assert found[WriteKind.TEMPLATE].fate is Fate.NOT_APPLIED

    def test_of_the_first_replicas_costs_the_template_nothing(self):
        # Somebody scales it in the moment between its making and the first look.
        kube = KubeDouble([(OBJECT, a_manifest())])

        def scaled_meanwhile(verb, path):
            if (verb, path) == ("get", PLACE) and PLACE in kube.objects:
                kube.objects[PLACE]["spec"]["replicas"] = 7

        kube.fail = scaled_meanwhile

        assert carried(kube, asking(template=TEMPLATE, first_replicas=3, creates=True)) == {}
        assert live_replicas(kube) == 7
