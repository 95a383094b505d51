"""What the watches said, corrected by lists, and when the loop is woken."""

import copy
import json

import pytest

from fleet_builders import (
    a_deployment_body,
    a_manifest,
    a_model,
    a_pod_body,
    a_replica_set_body,
)
from tonnage.fleet.store import Kind, Store


@pytest.fixture
def store():
    return Store()


def woke(store):
    """Was the loop woken since the last time?"""
    was_set = store.changed.is_set()
    store.changed.clear()
    return was_set


def names(store, kind):
    return sorted(name for _, name in getattr(store.snapshot(), str(kind)))


class TestWaking:
    def test_a_new_object_wakes(self, store):
        store.note(Kind.MODEL, "ADDED", a_manifest())

        assert woke(store)

    def test_the_same_again_does_not(self, store):
        store.note(Kind.MODEL, None, a_manifest())
        woke(store)

        store.note(Kind.MODEL, "MODIFIED", a_manifest())

        assert not woke(store)

    def test_the_echo_of_our_own_status_does_not(self, store):
        store.note(Kind.MODEL, None, a_manifest())
        woke(store)

        store.note(Kind.MODEL, "MODIFIED", a_manifest() | {"status": {"plan": {"replicas": 3}}})

        assert not woke(store)
        assert json.loads(store.snapshot().models["serving", "llama"].status) == {
            "plan": {"replicas": 3}
        }

    def test_a_new_version_with_nothing_of_interest_does_not(self, store):
        store.note(Kind.DEPLOYMENT, None, a_deployment_body())
        woke(store)

        store.note(Kind.DEPLOYMENT, "MODIFIED", a_deployment_body(resourceVersion="8"))

        assert not woke(store)

    def test_a_changed_spec_wakes(self, store):
        store.note(Kind.MODEL, None, a_manifest())
        woke(store)

        store.note(Kind.MODEL, "MODIFIED", a_manifest(contextLength=4096 * 4, generation=2))

        assert woke(store)

    def test_a_pod_that_becomes_ready_wakes(self, store):
        store.note(Kind.POD, None, a_pod_body("a", ready_for_s=None))
        woke(store)

        store.note(Kind.POD, "MODIFIED", a_pod_body("a"))

        assert woke(store)

    def test_a_deletion_wakes_and_an_unknown_one_does_not(self, store):
        store.note(Kind.POD, None, a_pod_body("a"))
        woke(store)

        store.note(Kind.POD, "DELETED", a_pod_body("a"))
        assert woke(store)

        store.note(Kind.POD, "DELETED", a_pod_body("a"))
        assert not woke(store)


def a_foreign(body, kind):
    """Somebody else's of the same label: under another name, owned by what is theirs."""
    body["metadata"] |= {"name": "theirs", "uid": "uid-of-theirs"}
    if kind is not Kind.DEPLOYMENT:
        body["metadata"]["ownerReferences"][0]["uid"] = "uid-of-an-owner-of-theirs"
    return body


class TestWakingByWhatIsServed:
    @pytest.fixture
    def serving(self, store):
        """A store of one served Deployment with its ReplicaSet, and of one pod of each side."""
        store.note(Kind.DEPLOYMENT, None, a_deployment_body())
        store.note(Kind.REPLICA_SET, None, a_replica_set_body())
        store.note(Kind.POD, None, a_pod_body("a"))
        owners = {("serving", "uid-of-deployment-llama")}
        store.serve({("serving", "llama")}, owners)
        woke(store)
        return store

    def test_a_pod_of_a_served_deployment_wakes(self, serving):
        serving.note(Kind.POD, "MODIFIED", a_pod_body("a", ready_for_s=None))

        assert woke(serving)

    @pytest.mark.parametrize(
        ("kind", "body"),
        [
            (Kind.POD, a_pod_body),
            (Kind.REPLICA_SET, a_replica_set_body),
            (Kind.DEPLOYMENT, a_deployment_body),
        ],
    )
    def test_what_is_somebody_elses_does_not_and_is_known_all_the_same(self, serving, kind, body):
        serving.note(kind, "ADDED", a_foreign(body(), kind))

        assert not woke(serving)
        assert "theirs" in names(serving, kind)

    def test_a_pod_elsewhere_that_names_our_replica_set_does_not(self, serving):
        body = a_pod_body("b")
        body["metadata"]["namespace"] = "elsewhere"
        serving.note(Kind.POD, "ADDED", body)

        assert not woke(serving)

    def test_a_served_deployment_that_is_not_there_yet_wakes_when_it_comes(self, store):
        store.serve({("serving", "llama")}, frozenset())

        store.note(Kind.DEPLOYMENT, "ADDED", a_deployment_body())

        assert woke(store)

    def test_a_list_tells_whose_pods_are_served(self, serving):
        serving.reconcile(Kind.REPLICA_SET, [a_replica_set_body()])
        serving.note(Kind.POD, "MODIFIED", a_pod_body("a", ready_for_s=None))

        assert woke(serving)


class TestIdentity:
    def test_deleted_and_made_anew_is_the_new_one(self, store):
        store.note(Kind.MODEL, None, a_manifest(uid="old"))
        store.note(Kind.MODEL, "DELETED", a_manifest(uid="old"))
        store.note(Kind.MODEL, "ADDED", a_manifest(uid="new"))

        assert store.snapshot().models["serving", "llama"].uid == "new"

    def test_a_late_word_of_the_old_ones_end_leaves_the_new_one(self, store):
        store.note(Kind.MODEL, None, a_manifest(uid="old"))
        store.note(Kind.MODEL, "ADDED", a_manifest(uid="new"))
        store.note(Kind.MODEL, "DELETED", a_manifest(uid="old"))

        assert store.snapshot().models["serving", "llama"].uid == "new"

    def test_the_same_name_in_two_namespaces_is_two_objects(self, store):
        for namespace in ("blue", "green"):
            store.note(Kind.MODEL, None, a_manifest(namespace=namespace))

        assert set(store.snapshot().models) == {("blue", "llama"), ("green", "llama")}

    def test_what_is_seen_again_as_it_was_is_the_same_view(self, store):
        bodies = {Kind.MODEL: a_manifest(), Kind.POD: a_pod_body("a")}
        for kind, body in bodies.items():
            store.note(kind, None, body)
        [[model], [pod]] = (getattr(store.snapshot(), str(kind)).values() for kind in bodies)

        store.note(Kind.MODEL, None, copy.deepcopy(bodies[Kind.MODEL]))
        store.reconcile(Kind.POD, [copy.deepcopy(bodies[Kind.POD])])

        [[model_now], [pod_now]] = (
            getattr(store.snapshot(), str(kind)).values() for kind in bodies
        )
        assert model_now is model
        assert pod_now is pod


class TestReconciling:
    def test_ghosts_are_removed_and_counted(self, store):
        for name in ("a", "b", "c"):
            store.note(Kind.POD, None, a_pod_body(name))

        ghosts = store.reconcile(Kind.POD, [a_pod_body("b")])

        assert ghosts == 2
        assert names(store, Kind.POD) == ["b"]

    def test_what_was_missed_is_added(self, store):
        ghosts = store.reconcile(Kind.POD, [a_pod_body("a")])

        assert ghosts == 0
        assert names(store, Kind.POD) == ["a"]

    def test_the_namesake_of_a_ghost_takes_its_place(self, store):
        store.note(Kind.MODEL, None, a_manifest(uid="old"))

        ghosts = store.reconcile(Kind.MODEL, [a_manifest(uid="new")])

        assert ghosts == 1
        assert store.snapshot().models["serving", "llama"].uid == "new"

    def test_other_kinds_stay(self, store):
        store.note(Kind.MODEL, None, a_manifest())

        store.reconcile(Kind.POD, [])

        assert names(store, Kind.MODEL) == ["llama"]

    def test_what_the_watch_says_while_the_list_is_read_is_newer_than_the_list(self, store):
        store.note(Kind.DEPLOYMENT, None, a_deployment_body(replicas=2))
        store.note(Kind.DEPLOYMENT, None, a_deployment_body(a_model("gone")))

        def listing():
            yield a_deployment_body(replicas=2)
            yield a_deployment_body(a_model("gone"))
            # A watch event between the first chunk and the end of the list.
            store.note(Kind.DEPLOYMENT, "MODIFIED", a_deployment_body(replicas=5))
            store.note(Kind.DEPLOYMENT, "ADDED", a_deployment_body(a_model("new")))
            store.note(Kind.DEPLOYMENT, "DELETED", a_deployment_body(a_model("gone")))

        ghosts = store.reconcile(Kind.DEPLOYMENT, listing())

        assert ghosts == 0
        assert names(store, Kind.DEPLOYMENT) == ["llama", "new"]
        assert store.snapshot().deployments["serving", "llama"].replicas == 5

    def test_the_next_list_is_believed_again(self, store):
        def listing():
            store.note(Kind.POD, "ADDED", a_pod_body("a"))
            yield from ()

        store.reconcile(Kind.POD, listing())

        assert store.reconcile(Kind.POD, []) == 1
        assert names(store, Kind.POD) == []


class TestABugInReading:
    """Of one object must not stop the others, nor make it vanish."""

    def test_leaves_what_was_known_of_it(self, store, caplog):
        store.note(Kind.POD, None, a_pod_body("a"))
        without_uid = {"metadata": {"namespace": "serving", "name": "a"}}

        store.note(Kind.POD, "MODIFIED", without_uid)
        ghosts = store.reconcile(Kind.POD, [without_uid, a_pod_body("b")])

        assert ghosts == 0
        assert names(store, Kind.POD) == ["a", "b"]
        assert '"cannot be read" kind=pods object=serving/a' in caplog.text


class TestPods:
    def test_of_a_deployment_are_those_of_its_replica_sets(self, store):
        store.note(Kind.DEPLOYMENT, None, a_deployment_body())
        store.note(Kind.REPLICA_SET, None, a_replica_set_body())
        for name in ("b", "a"):
            store.note(Kind.POD, None, a_pod_body(name))
        store.note(Kind.POD, None, a_pod_body("other", model=a_model("mixtral")))
        snapshot = store.snapshot()

        pods = snapshot.replicas_of(snapshot.deployments["serving", "llama"], 0.0)

        assert [pod.name for pod in pods] == ["a", "b"]

    def test_with_a_borrowed_label_but_another_owner_do_not_count(self, store):
        borrowed = a_pod_body("a")
        borrowed["metadata"]["ownerReferences"] = []
        store.note(Kind.DEPLOYMENT, None, a_deployment_body())
        store.note(Kind.REPLICA_SET, None, a_replica_set_body())
        store.note(Kind.POD, None, borrowed)
        snapshot = store.snapshot()

        assert snapshot.replicas_of(snapshot.deployments["serving", "llama"], 0.0) == ()

    @pytest.mark.parametrize("set_uid", ["uid-of-forged", "uid-of-llama-abc"])
    def test_in_another_namespace_that_name_its_uids_do_not_count(self, store, set_uid):
        # The API server checks no owner's uid; a finalizer keeps the ReplicaSet from the collector.
        forged_set, forged = a_replica_set_body(uid="uid-of-forged"), a_pod_body("forged")
        forged["metadata"]["ownerReferences"][0]["uid"] = set_uid
        for each in (forged_set, forged):
            each["metadata"]["namespace"] = "attacker"
        store.note(Kind.DEPLOYMENT, None, a_deployment_body())
        for replica_set in (a_replica_set_body(), forged_set):
            store.note(Kind.REPLICA_SET, None, replica_set)
        for pod in (a_pod_body("own"), forged):
            store.note(Kind.POD, None, pod)
        snapshot = store.snapshot()

        pods = snapshot.replicas_of(snapshot.deployments["serving", "llama"], 0.0)

        assert [(pod.namespace, pod.name) for pod in pods] == [("serving", "own")]


def test_a_snapshot_does_not_change_afterwards(store):
    store.note(Kind.POD, None, a_pod_body("a"))
    before = store.snapshot()

    store.note(Kind.POD, "DELETED", a_pod_body("a"))

    assert list(before.pods) == [("serving", "a")]


def test_what_is_noted_is_not_shared_with_who_noted_it(store):
    body = a_manifest()
    store.note(Kind.MODEL, None, body)
    kept = copy.deepcopy(store.snapshot())

    body["spec"]["scaling"]["maxReplicas"] = 999

    assert store.snapshot() == kept


def an_oversized(name="llama", num_bytes=300_000):
    metadata = {"namespace": "serving", "name": name, "uid": "u-1"}
    return {"metadata": metadata, "oversizedBytes": num_bytes}


class TestWhatIsTooLarge:
    def test_is_known_by_name_and_size_and_told_once(self, store, caplog):
        store.note(Kind.DEPLOYMENT, "ADDED", a_deployment_body())
        woke(store)
        for num_bytes in (300_000, 300_001):
            store.note(Kind.DEPLOYMENT, "MODIFIED", an_oversized(num_bytes=num_bytes))

        assert store.snapshot().deployments == {}
        assert store.snapshot().oversized == {("serving", "llama"): 300_001}
        assert woke(store)
        [line] = [str(each.msg) for each in caplog.records]
        assert "object=serving/llama" in line
        assert "300000 bytes: beyond 262144 nothing but its name is read" in line

    def test_wakes_nobody_where_nobody_names_it(self, store):
        store.serve(set(), set())
        store.note(Kind.DEPLOYMENT, "ADDED", an_oversized())

        assert not woke(store)

    @pytest.mark.parametrize(
        ("event", "body"), [("DELETED", an_oversized()), ("MODIFIED", a_deployment_body())]
    )
    def test_ends_when_it_goes_or_becomes_small(self, store, event, body):
        store.note(Kind.DEPLOYMENT, "ADDED", an_oversized())
        store.note(Kind.DEPLOYMENT, event, body)

        assert store.snapshot().oversized == {}

    def test_is_found_by_lists_and_ends_by_them(self, store):
        store.note(Kind.DEPLOYMENT, "ADDED", a_deployment_body())

        store.reconcile(Kind.DEPLOYMENT, [an_oversized()])
        assert store.snapshot().deployments == {}
        assert store.snapshot().oversized == {("serving", "llama"): 300_000}

        store.reconcile(Kind.DEPLOYMENT, [a_deployment_body()])
        assert store.snapshot().oversized == {}

    def test_is_not_by_a_list_what_the_watch_said_meanwhile_is_not(self, store):
        def listed():
            store.note(Kind.DEPLOYMENT, "MODIFIED", a_deployment_body())
            yield an_oversized()

        store.reconcile(Kind.DEPLOYMENT, listed())

        assert store.snapshot().oversized == {}
        assert names(store, Kind.DEPLOYMENT) == ["llama"]

    @pytest.mark.parametrize("by", ["watch", "list"])
    def test_stays_in_the_fleet_where_it_is_a_modeldeployment(self, store, by):
        store.note(Kind.MODEL, "ADDED", a_manifest())
        woke(store)
        large = an_oversized() | {"spec": {"operatorClass": "blue"}, "status": {"a": 1}}
        if by == "watch":
            store.note(Kind.MODEL, "MODIFIED", large)
            assert woke(store)
        else:
            store.reconcile(Kind.MODEL, [large])

        [view] = store.snapshot().models.values()
        assert (view.key, view.uid, view.is_oversized) == (("serving", "llama"), "u-1", True)
        assert (view.operator_class, view.status) == ("blue", '{"a": 1}')
