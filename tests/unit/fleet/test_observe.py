"""The store and the answers of Prometheus, joined into one fleet."""

import threading
from typing import ClassVar

import pytest

from bad_input import LLAMA_8B
from fleet_builders import (
    NOW_S,
    R1,
    a_deployment_body,
    a_group_pod_body,
    a_groups_body,
    a_manifest,
    a_model,
    a_model_over_nodes,
    a_pod_body,
    a_replica_set_body,
    the_sets_of_groups,
)
from kube_double import KubeDouble
from page_builders import labels_of
from prometheus_double import asking
from query_api import name_of
from tonnage.api.objects import InvalidSpecError
from tonnage.catalog.gpu import built_in_gpus
from tonnage.catalog.shape import ModelShape
from tonnage.cluster.calls import KubernetesError, PrometheusError
from tonnage.cluster.kube import DEPLOYMENTS
from tonnage.estimate.calibration import Calibrations
from tonnage.estimate.metrics import DECIDING, LATENCIES, QUERIES
from tonnage.fleet.observe import Observer
from tonnage.fleet.references import AGE_S
from tonnage.fleet.store import Kind, Store
from tonnage.manifests.children import site_of, spec_digest
from tonnage.settings import Settings

CONFIG_PLACE = "/api/v1/namespaces/serving/configmaps/my-model"
CONFIGURED = {
    "id": "my/model",
    "config": {"configMapKeyRef": {"name": "my-model", "key": "config.json"}},
}


def an_observer(kube=None, *, ask=lambda text: [], **settings):
    known = Settings(prometheus_url="http://prometheus.test:9090", **settings)
    return Observer(
        kube=kube or KubeDouble(),
        ask=asking(ask),
        settings=known,
        gpus=built_in_gpus(),
        site=site_of(known, has_pod_monitors=True),
    )


def a_store(*bodies):
    """A store of (kind, body) pairs."""
    store = Store()
    for kind, body in bodies:
        store.note(kind, None, body)
    return store


def served(name="llama", *, namespace="serving", pods=("a", "b")):
    """Everything about one object that runs."""
    model = a_model(name, namespace=namespace)
    return [
        (Kind.MODEL, a_manifest(name, namespace=namespace)),
        (Kind.DEPLOYMENT, a_deployment_body(model)),
        (Kind.REPLICA_SET, a_replica_set_body(model)),
        *((Kind.POD, a_pod_body(pod, model=model)) for pod in pods),
    ]


def group(flag):
    """A LeaderWorkerSet of somebody else, of one group of two pods, with such a flag."""
    model = a_model_over_nodes()
    live = a_groups_body(model, replicas=1, ownerReferences=[])
    template = live["spec"]["leaderWorkerTemplate"]
    [leader] = template["leaderTemplate"]["spec"]["containers"]
    leader["args"] = [*leader["args"], flag]
    template["workerTemplate"] = template["leaderTemplate"]
    spec = {**R1, "scaleTarget": {"kind": "LeaderWorkerSet", "name": "r1"}, "engine": None}
    sets = the_sets_of_groups(model, num_groups=1)
    pods = [a_group_pod_body("r1-0", of="r1"), a_group_pod_body("r1-0-1", of="r1-0")]
    return [
        (Kind.MODEL, a_manifest(**spec)),
        (Kind.GROUPS, live),
        *((Kind.REPLICA_SET, each) for each in sets),
        *((Kind.POD, each) for each in pods),
    ]


def observed(observer, *bodies, now_s=NOW_S):
    snapshot = a_store(*bodies).snapshot()
    observer.begin_round(snapshot, now_s, threading.Event())
    return observer.observe(snapshot, Calibrations(), now_s)


def one(observer, *bodies, now_s=NOW_S):
    [state] = observed(observer, *bodies, now_s=now_s).models
    return state


def running_on(*pods):
    """A Prometheus that knows these (namespace, pod) pairs."""

    def ask(text):
        if name_of(text) not in DECIDING:
            return []
        return [
            (labels_of("running", pod), [(NOW_S - 5, float(number))])
            for number, pod in enumerate(pods, start=1)
        ]

    return ask


DOWN = ("PrometheusUnreachable", "Prometheus: ClientConnectorError")


def failing(*names):
    """A Prometheus that knows a pod, and does not answer these queries."""

    def ask(text):
        if name_of(text) in names:
            raise PrometheusError(DOWN[1], reason=DOWN[0])
        return running_on(("serving", "a"))(text)

    return ask


class TestJoining:
    def test_an_object_has_its_deployment_pods_and_series(self):
        state = one(an_observer(ask=running_on(("serving", "a"))), *served())

        assert state.model == a_model()
        assert state.deployment.name == "llama"
        assert [pod.name for pod in state.pods] == ["a", "b"]
        assert [each.running for each in state.engines] == [1]

    def test_series_of_other_pods_do_not_count(self):
        ask = running_on(("serving", "gone"), ("elsewhere", "a"), ("serving", "b"))

        state = one(an_observer(ask=ask), *served())

        assert [(each.pod, each.running) for each in state.engines] == [("b", 3)]

    @pytest.mark.parametrize(
        ("flag", "known", "expected"),
        [
            ("--data-parallel-hybrid-lb", ("r1-0", "r1-0-1"), [("r1-0", 1), ("r1-0", 2)]),
            ("--data-parallel-hybrid-lb", ("r1-0",), [("r1-0", 1), ("r1-0", None)]),
            ("--enable-expert-parallel", ("r1-0", "r1-0-1"), [("r1-0", 1)]),
        ],
        ids=["both answer", "a worker is silent", "workers do not answer"],
    )
    def test_what_workers_say_that_answer_is_of_their_replica(self, flag, known, expected):
        state = one(an_observer(ask=running_on(*(("serving", pod) for pod in known))), *group(flag))

        assert [pod.name for pod in state.pods] == ["r1-0"]
        assert [(each.pod, each.running) for each in state.engines] == expected
        assert len({each.engine for each in state.engines}) == len(expected)

    def test_tenants_with_pods_of_the_same_name_are_kept_apart(self):
        ask = running_on(("blue", "a"), ("green", "a"))
        bodies = [
            *served("llama", namespace="blue", pods="a"),
            *served("mixtral", namespace="green", pods="a"),
        ]

        blue, green = observed(an_observer(ask=ask), *bodies).models

        assert [each.running for each in blue.engines] == [1]
        assert [each.running for each in green.engines] == [2]

    def test_objects_come_in_one_order_whatever_was_seen_first(self):
        bodies = [(Kind.MODEL, a_manifest(name)) for name in ("b", "c", "a")]

        fleet = observed(an_observer(), *bodies)

        assert [state.view.name for state in fleet.models] == ["a", "b", "c"]

    def test_an_invalid_object_keeps_what_was_made_for_it(self):
        broken = a_manifest()
        broken["spec"]["scaling"] = {}

        ours = one(an_observer(), (Kind.MODEL, broken), *served()[1:])
        foreign = (Kind.DEPLOYMENT, a_deployment_body(ownerReferences=[]))
        alone = one(an_observer(), (Kind.MODEL, broken), foreign)

        assert isinstance(ours.model, InvalidSpecError)
        assert ours.deployment.replicas == 2
        assert alone.deployment is None

    def test_a_field_of_tomorrow_in_a_stored_object_is_skipped(self):
        state = one(an_observer(), (Kind.MODEL, a_manifest(fieldOfTomorrow={"x": 1})))

        assert state.model == a_model()


@pytest.mark.parametrize(
    ("stated", "settings", "mode"),
    [
        ("Auto", "recommend", "Recommend"),
        ("Approve", "recommend", "Recommend"),
        ("Paused", "recommend", "Paused"),
        ("Auto", "scaleOnly", "Auto"),
    ],
)
def test_an_operator_that_recommends_acts_on_no_object(stated, settings, mode):
    observer = an_observer(mode=settings)
    body = a_manifest(scaling={"mode": stated, "maxReplicas": 8})

    first, again = (one(observer, (Kind.MODEL, body)) for _ in range(2))

    assert first.model.spec.scaling.mode == mode
    assert first.model.spec.scaling.max_replicas == 8
    assert spec_digest(first.model) == spec_digest(a_model())
    assert first == again


def test_a_bug_in_reading_one_object_leaves_the_others():
    kube = KubeDouble()

    def broken(verb, path):
        raise RuntimeError("a bug")

    kube.fail = broken
    bad = a_manifest("bad", model=CONFIGURED)

    found, well = observed(an_observer(kube), (Kind.MODEL, bad), *served()).models

    assert str(found.bug) == "a bug"
    assert (well.bug, well.deployment.replicas) == (None, 2)


class TestOperatorClass:
    BODIES = (
        (Kind.MODEL, a_manifest("plain")),
        (Kind.MODEL, a_manifest("blue", operatorClass="blue")),
        (Kind.MODEL, a_manifest("broken", operatorClass="blue", hardware={"gpu": 7})),
        (Kind.MODEL, a_manifest("mistyped", operatorClass=7)),
    )

    @pytest.mark.parametrize(
        ("settings", "names"),
        [
            ({}, ["mistyped", "plain"]),
            ({"operator_class": "blue"}, ["blue", "broken"]),
            ({"operator_class": "green"}, []),
        ],
    )
    def test_only_the_release_of_an_objects_class_sees_it(self, settings, names):
        fleet = observed(an_observer(**settings), *self.BODIES)

        assert [state.view.name for state in fleet.models] == names

    def test_is_no_part_of_what_pods_are_made_from(self):
        assert spec_digest(a_model(operatorClass="blue")) == spec_digest(a_model())


class TestPrometheus:
    def test_is_asked_as_often_for_a_fleet_as_for_one_object(self):
        asked = []

        def ask(text):
            asked.append(text)
            return []

        observed(an_observer(ask=ask), *((Kind.MODEL, a_manifest(f"m{n}")) for n in range(50)))

        assert len(asked) == len(QUERIES)

    def test_is_not_asked_without_objects(self):
        def ask(text):
            raise AssertionError(text)

        assert observed(an_observer(ask=ask)).models == ()

    def test_that_fails_leaves_everything_unmeasured(self):
        fleet = observed(an_observer(ask=failing(*QUERIES)), *served())

        assert fleet.metrics_problem == DOWN
        assert fleet.problems == dict.fromkeys(QUERIES, DOWN)
        assert fleet.models[0].engines == ()
        assert fleet.models[0].deployment is not None

    def test_that_fails_to_answer_one_query_leaves_the_others(self):
        fleet = observed(an_observer(ask=failing(LATENCIES)), *served())

        assert fleet.metrics_problem is None
        assert fleet.problems == {LATENCIES: DOWN}
        assert [each.running for each in fleet.models[0].engines] == [1]

    def test_that_answers_nothing_which_decides_is_a_problem_of_all(self):
        fleet = observed(an_observer(ask=failing(*DECIDING)), *served())

        assert fleet.metrics_problem == DOWN
        assert set(fleet.problems) == set(DECIDING)

    def test_tells_what_it_said(self):
        told = []
        observer = an_observer(ask=failing(LATENCIES))
        observer.tell = told.append

        observed(observer, *served())

        assert [set(answers.problems) for answers in told] == [{LATENCIES}]


class TestModelConfig:
    @pytest.mark.parametrize("model", [None, CONFIGURED])
    def test_is_that_of_the_config_map_where_one_is_named(self, model):
        kube = KubeDouble([(CONFIG_PLACE, {"data": {"config.json": LLAMA_8B}})])
        body = a_manifest(model=model) if model else a_manifest()

        state = one(an_observer(kube), (Kind.MODEL, body))

        assert isinstance(state.model_config, ModelShape) == bool(model)

    def test_is_read_once_for_all_that_name_it(self):
        asked = []
        kube = KubeDouble([(CONFIG_PLACE, {"data": {"config.json": LLAMA_8B}})])
        kube.fail = lambda verb, path: asked.append(path) if path == CONFIG_PLACE else None
        bodies = [(Kind.MODEL, a_manifest(f"m{n}", model=CONFIGURED)) for n in range(50)]

        first, *others = observed(an_observer(kube), *bodies).models

        assert asked == [CONFIG_PLACE]
        assert all(each.model_config is first.model_config for each in others)


class TestFlagsInConfigMaps:
    """Of a target: a ``--config`` file, and variables."""

    PLACE = "/api/v1/namespaces/serving/configmaps/flags"

    def target(self, command, **container):
        live = a_deployment_body(name="my-vllm", ownerReferences=[], annotations={})
        pod = live["spec"]["template"]["spec"]
        mount = {"name": "flags", "mountPath": "/etc/vllm"}
        [engine] = pod["containers"]
        del engine["args"]
        engine |= {"command": command, "volumeMounts": [mount], **container}
        pod["volumes"] = [{"name": "flags", "configMap": {"name": "flags"}}]
        model = a_manifest(scaleTarget={"name": "my-vllm"}, engine=None)
        return [(Kind.MODEL, model), (Kind.DEPLOYMENT, live)]

    FILE: ClassVar = ["vllm", "serve", "m", "--config", "/etc/vllm/c.yaml"]

    def test_are_read_by_name_and_only_again_after_a_while(self):
        asked = []
        kube = KubeDouble([(self.PLACE, {"data": {"c.yaml": "max-num-seqs: 48"}})])
        kube.fail = lambda verb, path: asked.append(path)
        observer = an_observer(kube)

        for now_s in (NOW_S, NOW_S + 15, NOW_S + AGE_S):
            state = one(observer, *self.target(self.FILE), now_s=now_s)

        assert state.deployment.engine.arguments == ("--max-num-seqs", "48", "m")
        assert asked == [self.PLACE] * 2

    def test_are_read_of_variables_that_the_command_names(self):
        kube = KubeDouble([(self.PLACE, {"data": {"SEQS": "32"}})])
        source = [{"configMapRef": {"name": "flags"}}]
        command = ["vllm", "serve", "m", "--max-num-seqs=$(SEQS)"]

        state = one(an_observer(kube), *self.target(command, envFrom=source))

        assert state.deployment.engine.arguments == ("m", "--max-num-seqs=32")

    @pytest.mark.parametrize("problem", ["absent", "refused"])
    def test_that_cannot_be_read_are_named(self, problem):
        def fail(verb, path):
            if problem == "refused" and path == self.PLACE:
                raise KubernetesError("forbidden", status=403)

        kube = KubeDouble()
        kube.fail = fail
        state = one(an_observer(kube), *self.target(self.FILE))

        assert "in ConfigMap flags, of which it cannot be read" in state.deployment.engine.problem

    def test_of_which_no_flag_can_be_are_not_read(self):
        asked = []
        kube = KubeDouble()
        kube.fail = lambda verb, path: asked.append(path)
        source = [{"configMapRef": {"name": "flags"}}]

        one(an_observer(kube), *self.target(["vllm", "serve", "m"], envFrom=source))

        assert asked == []


def an_autoscaler(name="hpa", *, kind="Deployment", target="llama", namespace="serving"):
    reference = {"apiVersion": "apps/v1", "kind": kind, "name": target}
    metadata = {"name": name, "namespace": namespace, "uid": f"uid-of-{name}"}
    return Kind.AUTOSCALER, {"metadata": metadata, "spec": {"scaleTargetRef": reference}}


class TestConflictingAutoscalers:
    def test_an_autoscaler_of_the_same_deployment_is_one(self):
        state = one(an_observer(), *served(), an_autoscaler("b"), an_autoscaler("a"))

        assert state.conflicting_autoscaler == "HorizontalPodAutoscaler a"

    @pytest.mark.parametrize(
        "other",
        [
            an_autoscaler(kind="StatefulSet"),
            an_autoscaler(target="other"),
            an_autoscaler(namespace="elsewhere"),
        ],
    )
    def test_of_anything_else_is_none(self, other):
        assert one(an_observer(), *served(), other).conflicting_autoscaler is None

    def test_there_is_none_before_there_is_a_deployment(self):
        bodies = [(Kind.MODEL, a_manifest()), an_autoscaler()]

        assert one(an_observer(), *bodies).conflicting_autoscaler is None


def claiming(name, created, *, target="my-vllm", namespace="serving", kind="Deployment"):
    scaled = {"kind": kind, "name": target}
    body = a_manifest(name, engine=None, scaleTarget=scaled, namespace=namespace)
    body["metadata"]["creationTimestamp"] = created
    return Kind.MODEL, body


OLD, NEW = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"


def test_a_scale_target_is_what_has_its_name_and_its_kind():
    bodies = [(Kind.DEPLOYMENT, a_deployment_body()), (Kind.GROUPS, a_groups_body())]
    names = {"Deployment": "llama", "LeaderWorkerSet": "r1"}

    for kind, name in names.items():
        for asked in names:
            target = claiming("a", OLD, target=name, kind=asked)
            found = one(an_observer(), target, *bodies).deployment

            assert (found and (found.kind, found.name)) == ((kind, name) if asked == kind else None)


class TestClaims:
    def claims(self, *bodies):
        return {s.view.name: s.earlier_owner for s in observed(an_observer(), *bodies).models}

    def test_the_older_one_wins_and_the_other_says_so(self):
        assert self.claims(claiming("a", NEW), claiming("b", OLD)) == {"a": "b", "b": None}

    def test_of_the_same_age_one_wins_in_any_order(self):
        first, second = claiming("a", OLD), claiming("b", OLD)

        assert self.claims(first, second) == self.claims(second, first) == {"a": None, "b": "a"}

    @pytest.mark.parametrize(
        "change",
        [
            {"target": "other"},
            {"namespace": "elsewhere"},
            {"kind": "LeaderWorkerSet"},
        ],
    )
    def test_on_something_else_are_none(self, change):
        found = observed(an_observer(), claiming("a", OLD), claiming("b", NEW, **change))

        assert [state.earlier_owner for state in found.models] == [None, None]


class TestWithoutOurLabel:
    """No watch shows it: it is read by its name."""

    def found(self, mode, **metadata):
        spec = {"scaling": {"mode": mode, "maxReplicas": 4}}
        body = a_deployment_body(a_model(**spec), **metadata)
        kube = KubeDouble([(DEPLOYMENTS.path("serving", "llama"), body)])
        [state] = observed(an_observer(kube), (Kind.MODEL, a_manifest(**spec))).models
        return state.deployment

    @pytest.mark.parametrize("mode", ["Auto", "Approve", "Recommend", "Paused"])
    def test_anothers_is_seen_in_every_mode(self, mode):
        assert self.found(mode, labels={}, ownerReferences=[]).owner_uid is None

    @pytest.mark.parametrize("mode", ["Recommend", "Paused"])
    def test_ours_is_seen_where_nobody_labels_it_again(self, mode):
        found = self.found(mode, labels={})

        assert (found.owner_uid, found.ready) == ("uid-of-llama", 2)

    @pytest.mark.parametrize("mode", ["Auto", "Approve"])
    def test_ours_is_left_to_the_writer_where_it_does(self, mode):
        assert self.found(mode, labels={}) is None
