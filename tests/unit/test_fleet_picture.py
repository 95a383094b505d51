"""What the watches said, corrected by lists, and when the loop is woken."""

import copy

import pytest

from fleet_builders import (
    a_deployment_body,
    a_manifest,
    a_model,
    a_pod_body,
    a_replica_set_body,
)
from tonnage.fleet.picture import Kind, Picture


@pytest.fixture
def picture():
    return Picture()


def woke(picture):
    """Was the loop woken since the last time?"""
    was_set = picture.changed.is_set()
    picture.changed.clear()
    return was_set


def names(picture, kind):
    return sorted(name for _, name in getattr(picture.snapshot(), str(kind)))


class TestWaking:
    def test_a_new_object_wakes(self, picture):
        picture.note(Kind.MODEL, "ADDED", a_manifest())

        assert woke(picture)

    def test_the_same_again_does_not(self, picture):
        picture.note(Kind.MODEL, None, a_manifest())
        woke(picture)

        picture.note(Kind.MODEL, "MODIFIED", a_manifest())

        assert not woke(picture)

    def test_the_echo_of_our_own_status_does_not(self, picture):
        picture.note(Kind.MODEL, None, a_manifest())
        woke(picture)

        picture.note(Kind.MODEL, "MODIFIED", a_manifest() | {"status": {"plan": {"replicas": 3}}})

        assert not woke(picture)
        assert '"replicas": 3' in picture.snapshot().models["serving", "llama"].status

    def test_a_new_version_with_nothing_of_interest_does_not(self, picture):
        picture.note(Kind.DEPLOYMENT, None, a_deployment_body())
        woke(picture)

        picture.note(Kind.DEPLOYMENT, "MODIFIED", a_deployment_body(resourceVersion="8"))

        assert not woke(picture)
        assert picture.snapshot().deployments["serving", "llama"].resource_version == "8"

    def test_a_changed_spec_wakes(self, picture):
        picture.note(Kind.MODEL, None, a_manifest())
        woke(picture)

        picture.note(Kind.MODEL, "MODIFIED", a_manifest(contextLength=4096 * 4, generation=2))

        assert woke(picture)

    def test_a_pod_that_becomes_ready_wakes(self, picture):
        picture.note(Kind.POD, None, a_pod_body("a", ready_for_s=None))
        woke(picture)

        picture.note(Kind.POD, "MODIFIED", a_pod_body("a"))

        assert woke(picture)

    def test_a_deletion_wakes_and_an_unknown_one_does_not(self, picture):
        picture.note(Kind.POD, None, a_pod_body("a"))
        woke(picture)

        picture.note(Kind.POD, "DELETED", a_pod_body("a"))
        assert woke(picture)

        picture.note(Kind.POD, "DELETED", a_pod_body("a"))
        assert not woke(picture)


class TestIdentity:
    def test_deleted_and_made_anew_is_the_new_one(self, picture):
        picture.note(Kind.MODEL, None, a_manifest(uid="old"))
        picture.note(Kind.MODEL, "DELETED", a_manifest(uid="old"))
        picture.note(Kind.MODEL, "ADDED", a_manifest(uid="new"))

        assert picture.snapshot().models["serving", "llama"].uid == "new"

    def test_a_late_word_of_the_old_ones_end_leaves_the_new_one(self, picture):
        picture.note(Kind.MODEL, None, a_manifest(uid="old"))
        picture.note(Kind.MODEL, "ADDED", a_manifest(uid="new"))
        picture.note(Kind.MODEL, "DELETED", a_manifest(uid="old"))

        assert picture.snapshot().models["serving", "llama"].uid == "new"

    def test_the_same_name_in_two_namespaces_is_two_objects(self, picture):
        for namespace in ("blue", "green"):
            picture.note(Kind.MODEL, None, a_manifest(namespace=namespace))

        assert set(picture.snapshot().models) == {("blue", "llama"), ("green", "llama")}


class TestReconciling:
    def test_ghosts_are_removed_and_counted(self, picture):
        for name in ("a", "b", "c"):
            picture.note(Kind.POD, None, a_pod_body(name))

        ghosts = picture.reconcile(Kind.POD, [a_pod_body("b")])

        assert ghosts == 2
        assert names(picture, Kind.POD) == ["b"]

    def test_what_was_missed_is_added(self, picture):
        ghosts = picture.reconcile(Kind.POD, [a_pod_body("a")])

        assert ghosts == 0
        assert names(picture, Kind.POD) == ["a"]

    def test_the_namesake_of_a_ghost_takes_its_place(self, picture):
        picture.note(Kind.MODEL, None, a_manifest(uid="old"))

        ghosts = picture.reconcile(Kind.MODEL, [a_manifest(uid="new")])

        assert ghosts == 1
        assert picture.snapshot().models["serving", "llama"].uid == "new"

    def test_other_kinds_stay(self, picture):
        picture.note(Kind.MODEL, None, a_manifest())

        picture.reconcile(Kind.POD, [])

        assert names(picture, Kind.MODEL) == ["llama"]

    def test_what_the_watch_says_while_the_list_is_read_is_newer_than_the_list(self, picture):
        picture.note(Kind.DEPLOYMENT, None, a_deployment_body(replicas=2))
        picture.note(Kind.DEPLOYMENT, None, a_deployment_body(a_model("gone")))

        def listing():
            yield a_deployment_body(replicas=2)
            yield a_deployment_body(a_model("gone"))
            # A watch event between the first chunk and the end of the list.
            picture.note(Kind.DEPLOYMENT, "MODIFIED", a_deployment_body(replicas=5))
            picture.note(Kind.DEPLOYMENT, "ADDED", a_deployment_body(a_model("new")))
            picture.note(Kind.DEPLOYMENT, "DELETED", a_deployment_body(a_model("gone")))

        ghosts = picture.reconcile(Kind.DEPLOYMENT, listing())

        assert ghosts == 0
        assert names(picture, Kind.DEPLOYMENT) == ["llama", "new"]
        assert picture.snapshot().deployments["serving", "llama"].replicas == 5

    def test_the_next_list_is_believed_again(self, picture):
        def listing():
            picture.note(Kind.POD, "ADDED", a_pod_body("a"))
            yield from ()

        picture.reconcile(Kind.POD, listing())

        assert picture.reconcile(Kind.POD, []) == 1
        assert names(picture, Kind.POD) == []


class TestPods:
    def test_of_a_deployment_are_those_of_its_replica_sets(self, picture):
        picture.note(Kind.DEPLOYMENT, None, a_deployment_body())
        picture.note(Kind.REPLICA_SET, None, a_replica_set_body())
        for name in ("b", "a"):
            picture.note(Kind.POD, None, a_pod_body(name))
        picture.note(Kind.POD, None, a_pod_body("other", model=a_model("mixtral")))
        snapshot = picture.snapshot()

        pods = snapshot.pods_of(snapshot.deployments["serving", "llama"])

        assert [pod.name for pod in pods] == ["a", "b"]

    def test_with_a_borrowed_label_but_another_owner_do_not_count(self, picture):
        borrowed = a_pod_body("a")
        borrowed["metadata"]["ownerReferences"] = []
        picture.note(Kind.DEPLOYMENT, None, a_deployment_body())
        picture.note(Kind.REPLICA_SET, None, a_replica_set_body())
        picture.note(Kind.POD, None, borrowed)
        snapshot = picture.snapshot()

        assert snapshot.pods_of(snapshot.deployments["serving", "llama"]) == ()


def test_a_snapshot_does_not_change_afterwards(picture):
    picture.note(Kind.POD, None, a_pod_body("a"))
    before = picture.snapshot()

    picture.note(Kind.POD, "DELETED", a_pod_body("a"))

    assert list(before.pods) == [("serving", "a")]


def test_what_is_noted_is_not_shared_with_who_noted_it(picture):
    body = a_manifest()
    picture.note(Kind.MODEL, None, body)
    kept = copy.deepcopy(picture.snapshot())

    body["spec"]["scaling"]["maxReplicas"] = 999

    assert picture.snapshot() == kept
