"""Leading by a Lease: one at a time, and not for longer than its renewals allow."""

import itertools

import pytest

from kube_double import KubeDouble
from tonnage.cluster.calls import KubernetesError, WriteFencedError
from tonnage.cluster.lease import (
    CLASS_LABEL,
    DURATION_S,
    NAME,
    RENEW_S,
    SETTLE_S,
    Leadership,
)

PATH = f"/apis/coordination.k8s.io/v1/namespaces/ops/leases/{NAME}"


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self):
        self.now_s = 1000.0

    def __call__(self):
        return self.now_s

    def pass_s(self, seconds):
        self.now_s += seconds


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def kube():
    return KubeDouble()


@pytest.fixture
def elector(kube, clock):
    def make(identity, *, clock=clock):
        return Leadership(kube, namespace="ops", identity=identity, clock=clock)

    return make


def broken(verb, path):
    raise KubernetesError("down", status=0)


def works(verb, path):
    return None


def holder(kube):
    return kube.objects[PATH]["spec"]["holderIdentity"]


class TestAcquiring:
    def test_nobody_leads_before_asking(self, elector):
        assert not elector("a").is_leader()

    def test_nobody_is_said_to_hold_a_lease_that_was_not_read(self, elector):
        elector("a").maintain()
        second = elector("b")

        assert (second.holder, second.problem) == (None, "the Lease has not been read yet")
        second.maintain()
        assert (second.holder, second.problem) == ("a", None)

    def test_the_first_one_leads_at_once(self, elector, kube):
        leadership = elector("a")

        assert leadership.maintain()
        assert leadership.is_leader()
        leadership.check()
        assert holder(kube) == "a"

    def test_only_one_of_two_leads(self, elector):
        first, second = elector("a"), elector("b")

        led = [first.maintain(), second.maintain()]

        assert led == [True, False]
        assert not second.is_leader()

    def test_two_that_create_it_at_the_same_time_do_not_both_lead(self, elector, kube):
        first, second = elector("a"), elector("b")

        def interrupted(verb, path):
            if verb == "create":
                kube.fail = works
                second.maintain()

        kube.fail = interrupted
        first.maintain()

        assert [first.is_leader(), second.is_leader()] == [False, True]

    def test_a_lease_that_changed_since_it_was_read_is_not_taken(self, elector, kube, clock):
        elector("dead").maintain()
        first, second = elector("a"), elector("b")
        for each in (first, second):
            each.maintain()
        clock.pass_s(DURATION_S + 1)

        def interrupted(verb, path):
            if verb == "replace":
                kube.fail = works
                second.maintain()

        kube.fail = interrupted
        first.maintain()

        assert [first.is_leader(), second.is_leader()] == [False, True]

    @pytest.mark.parametrize("spec", [None, {}, {"holderIdentity": ""}])
    def test_a_lease_that_nobody_holds_is_taken(self, elector, kube, spec):
        lease = {"metadata": {"name": NAME}} | ({} if spec is None else {"spec": spec})
        kube.put(PATH, lease)

        assert elector("a").maintain()
        assert holder(kube) == "a"

    def test_its_own_lease_from_before_is_taken_up_again(self, elector, kube):
        kube.put(PATH, {"metadata": {"name": NAME}, "spec": {"holderIdentity": "a"}})

        assert elector("a").maintain()


class TestTakingOver:
    def test_waits_until_the_leader_has_not_renewed_for_the_whole_duration(self, elector, clock):
        elector("dead").maintain()
        second = elector("b")
        second.maintain()

        clock.pass_s(DURATION_S)
        assert not second.maintain()
        clock.pass_s(1)
        assert second.maintain()

    @pytest.mark.parametrize("claimed_s", [2_000_000_000, -5, None])
    def test_believes_no_claim_that_is_longer_than_its_own(self, elector, clock, kube, claimed_s):
        elector("dead").maintain()
        kube.objects[PATH]["spec"] |= {"leaseDurationSeconds": claimed_s}
        second = elector("b")
        second.maintain()

        clock.pass_s(DURATION_S)
        assert not second.maintain()
        clock.pass_s(1)
        assert second.maintain()

    def test_counts_no_further_than_the_api_server_does(self, elector, kube):
        spec = {"holderIdentity": "", "leaseTransitions": 2_147_483_647}
        kube.put(PATH, {"metadata": {"name": NAME}, "spec": spec})

        assert elector("a").maintain()
        assert kube.objects[PATH]["spec"]["leaseTransitions"] == 2_147_483_647

    def test_tells_who_leads_and_what_keeps_it_from_asking(self, elector, kube):
        elector("a").maintain()
        second = elector("b")
        second.maintain()
        assert (second.holder, second.problem) == ("a", None)

        kube.fail = broken
        second.maintain()
        assert second.problem == "down"

    def test_counts_from_the_last_renewal_that_it_saw(self, elector, clock, kube):
        first, second = elector("a"), elector("b")
        for _ in range(10):
            first.maintain()
            second.maintain()
            clock.pass_s(RENEW_S)

        assert first.is_leader()
        assert not second.is_leader()
        assert holder(kube) == "a"

    def test_does_not_trust_the_other_clock(self, elector, kube, clock):
        # The leader's clock is an hour behind: by its own time stamp the Lease is long over.
        elector("a").maintain()
        kube.objects[PATH]["spec"]["renewTime"] = "2000-01-01T00:00:00.000000Z"

        assert not elector("b").maintain()

    def test_counts_the_change_of_hands(self, elector, kube, clock):
        elector("dead").maintain()
        second = elector("b")
        second.maintain()
        clock.pass_s(DURATION_S + 1)
        second.maintain()

        assert kube.objects[PATH]["spec"]["leaseTransitions"] == 2

    def test_the_old_leader_gives_way_when_it_comes_back(self, elector, clock):
        first, second = elector("a"), elector("b")
        first.maintain()
        second.maintain()
        clock.pass_s(DURATION_S + 1)
        second.maintain()

        assert not first.maintain()
        assert not first.is_leader()
        assert second.is_leader()


class TestKeeping:
    def test_renews_only_when_that_is_due(self, elector, kube, clock):
        leadership = elector("a")
        leadership.maintain()
        for _ in range(5):
            leadership.maintain()
        assert len(kube.writes) == 1

        clock.pass_s(RENEW_S)
        leadership.maintain()
        assert len(kube.writes) == 2

    def test_leading_ends_when_renewals_fail(self, elector, kube, clock):
        leadership = elector("a")
        leadership.maintain()
        kube.fail = broken

        clock.pass_s(DURATION_S - 1)
        assert leadership.maintain()
        clock.pass_s(1)
        assert not leadership.maintain()
        assert not leadership.is_leader()

    def test_leading_ends_without_any_answer(self, elector, clock):
        # A renewal that hangs returns nothing; the clock alone ends it.
        leadership = elector("a")
        leadership.maintain()

        clock.pass_s(DURATION_S)

        assert not leadership.is_leader()
        with pytest.raises(WriteFencedError, match="the Lease was lost: nothing is written"):
            leadership.check()

    def test_whoever_takes_the_lease_by_force_is_seen_at_the_next_renewal(
        self, elector, kube, clock
    ):
        leadership = elector("a")
        leadership.maintain()
        kube.objects[PATH]["spec"] |= {"holderIdentity": "thief"}

        leadership.check()
        clock.pass_s(RENEW_S)
        leadership.maintain()
        with pytest.raises(WriteFencedError, match="the Lease was lost: nothing is written"):
            leadership.check()
        assert leadership.holder == "thief"

    def test_leading_counts_from_before_the_renewal_was_asked_for(self, elector, kube, clock):
        leadership = elector("a")

        def slow(verb, path):
            if verb == "create":
                clock.pass_s(DURATION_S - 1)

        kube.fail = slow
        leadership.maintain()
        assert leadership.is_leader()

        clock.pass_s(1)
        assert not leadership.is_leader()

    def test_it_ends_before_another_may_begin(self, elector, kube, clock):
        first, second = elector("a"), elector("b")
        first.maintain()
        second.maintain()
        kube.fail = lambda verb, path: None
        both = 0
        for _ in range(60):
            clock.pass_s(0.5)
            second.maintain()
            both += first.is_leader() and second.is_leader()

        assert both == 0
        assert second.is_leader()

    def test_it_comes_back_after_an_outage(self, elector, kube, clock):
        leadership = elector("a")
        leadership.maintain()
        kube.fail = broken
        clock.pass_s(60)
        leadership.maintain()
        kube.fail = works

        assert leadership.maintain()
        assert leadership.is_leader()

    def test_a_lease_that_is_deleted_is_made_anew(self, elector, kube, clock):
        leadership = elector("a")
        leadership.maintain()
        del kube.objects[PATH]
        clock.pass_s(RENEW_S)

        assert leadership.maintain()
        assert holder(kube) == "a"

    def test_a_lease_that_lost_its_times_is_renewed(self, elector, kube, clock):
        leadership = elector("a")
        leadership.maintain()
        kube.put(PATH, {"metadata": {"name": NAME}, "spec": {"holderIdentity": "a"}})
        clock.pass_s(RENEW_S)

        assert leadership.maintain()


class TestReleasing:
    def test_lets_the_next_one_lead_at_once(self, elector):
        first, second = elector("a"), elector("b")
        first.maintain()
        second.maintain()

        first.release()

        assert not first.is_leader()
        assert second.maintain()

    def test_writes_nothing_when_it_does_not_lead(self, elector, kube):
        first, second = elector("a"), elector("b")
        first.maintain()
        written = len(kube.writes)

        second.release()

        assert len(kube.writes) == written
        assert holder(kube) == "a"

    def test_leaves_the_lease_of_another_alone(self, elector, kube):
        leadership = elector("a")
        leadership.maintain()
        taken = kube.objects[PATH] | {"spec": {"holderIdentity": "b"}}
        kube.put(PATH, taken)

        leadership.release()

        assert holder(kube) == "b"
        assert not leadership.is_leader()


class DatedDouble(KubeDouble):
    """Says of each new object when it was made, to the second."""

    def __init__(self, clock):
        self.clock = clock
        super().__init__()

    def create(self, path, body):
        created = f"{self.clock():012.0f}"
        return super().create(
            path, body | {"metadata": body["metadata"] | {"creationTimestamp": created}}
        )


@pytest.fixture
def cluster(clock):
    return DatedDouble(clock)


@pytest.fixture
def release(cluster, clock):
    """Make a process of a release that serves the whole cluster."""

    def make(namespace, *, cluster_class="", name=""):
        return Leadership(
            cluster,
            namespace=namespace,
            identity=f"pod{name}@{namespace}",
            cluster_class=cluster_class,
            clock=clock,
        )

    return make


def path_in(namespace):
    return f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{NAME}"


def passing(clock, *processes, seconds, step_s=0.5):
    """Let all of them keep at it for so long; return how many led at each moment."""
    led = []
    for _ in range(int(seconds / step_s)):
        clock.pass_s(step_s)
        for each in processes:
            each.maintain()
        led.append(sum(each.is_leader() for each in processes))
    return led


class TestReleasesThatServeTheWholeCluster:
    @pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
    def test_of_one_class_have_one_leader_however_they_start(self, release, clock, order):
        started = []
        led = []
        for number in order:
            started.append(release(f"ns-{number}"))
            led += passing(clock, *started, seconds=0.5)
        led += passing(clock, *started, seconds=60)

        assert max(led) == 1
        assert set(led[int((SETTLE_S + 2) / 0.5) :]) == {1}

    def test_that_make_their_leases_at_the_same_time_agree_on_one(self, cluster, release, clock):
        first, second = release("z"), release("a")

        def interrupted(verb, path):
            """The first is quick: the second has read that there is none, and makes its own."""
            if verb == "create":
                cluster.fail = works
                passing(clock, first, seconds=0.9, step_s=0.3)

        cluster.fail = interrupted
        second.maintain()
        led = passing(clock, first, second, seconds=60)

        held = {path: each["spec"].get("holderIdentity") for path, each in cluster.objects.items()}
        assert (led[-1], max(led)) == (1, 1)
        assert held[path_in("a")], "of two Leases of one second the first namespace's is taken"
        assert not held[path_in("z")]

    def test_of_other_classes_lead_beside_each_other(self, release, clock):
        processes = release("a"), release("b", cluster_class="blue")
        led = passing(clock, *processes, seconds=30)

        assert led[-1] == 2

    def test_are_nothing_to_those_that_serve_some_namespaces(self, cluster, release, clock):
        wide, own = release("a"), Leadership(cluster, namespace="b", identity="b", clock=clock)
        led = passing(clock, wide, own, seconds=30)

        assert led[-1] == 2
        assert not cluster.objects[path_in("b")]["metadata"].get("labels")

    def test_wait_and_say_who_leads_and_in_which_namespace(self, release, clock):
        first, second = release("b"), release("a")
        passing(clock, first, seconds=30)
        passing(clock, first, second, seconds=30)

        assert (first.is_leader(), second.is_leader()) == (True, False)
        assert second.holder == "pod@b"

    def test_take_over_from_one_that_does_not_renew_and_keep_the_lead(self, release, clock):
        first, second = release("a"), release("b")
        passing(clock, first, second, seconds=30)
        led = passing(clock, second, seconds=DURATION_S + RENEW_S + 1)
        back = passing(clock, first, second, seconds=60)

        assert led[-1] == 1
        assert set(back) == {1}
        assert second.is_leader()

    def test_go_on_where_the_namespace_of_the_lease_is_deleted(self, cluster, release, clock):
        first, second, third = release("a"), release("b"), release("c")
        passing(clock, first, second, third, seconds=30)
        [lease] = cluster.objects
        del cluster.objects[lease]
        led = passing(clock, first, second, third, seconds=60)

        assert max(led) == 1
        assert led[-1] == 1

    def test_take_no_notice_of_a_lease_that_somebody_labels_later(self, cluster, release, clock):
        first = release("z")
        passing(clock, first, seconds=30)
        forged = {"name": NAME, "namespace": "a", "labels": {CLASS_LABEL: ""}}
        held = {"holderIdentity": "forger", "leaseDurationSeconds": 2_000_000_000}
        cluster.create(path_in("a").rsplit("/", 1)[0], {"metadata": forged, "spec": held})
        led = passing(clock, first, seconds=60)

        assert set(led) == {1}

    def test_are_kept_from_leading_by_a_labelled_lease_that_was_there_first(
        self, cluster, release, clock
    ):
        forged = {"name": NAME, "namespace": "a", "labels": {CLASS_LABEL: ""}}
        cluster.create(path_in("a").rsplit("/", 1)[0], {"metadata": forged, "spec": {}})
        clock.pass_s(60)
        first, led = release("z"), []
        for number in range(30):
            held = {"holderIdentity": "forger", "renewTime": f"{number}", "leaseDurationSeconds": 9}
            cluster.put(path_in("a"), cluster.objects[path_in("a")] | {"spec": held})
            led += passing(clock, first, seconds=2)

        assert set(led) == {0}

    def test_take_up_a_lease_from_before_there_were_classes(self, cluster, release, clock):
        Leadership(cluster, namespace="a", identity="old", clock=clock).maintain()
        first = release("a")
        led = passing(clock, first, seconds=DURATION_S + SETTLE_S + 1)

        assert led[-1] == 1
        assert cluster.objects[path_in("a")]["metadata"]["labels"] == {CLASS_LABEL: ""}

    def test_ask_no_more_than_once_for_each_time_that_they_try(self, cluster, release, clock):
        first = release("a")
        passing(clock, first, seconds=30)
        asked = []
        cluster.fail = lambda verb, path: asked.append(verb)
        passing(clock, first, seconds=60, step_s=RENEW_S / 2)

        assert asked.count("list") <= 60 / RENEW_S
        assert asked.count("get") == 0

    def test_let_go_of_the_lease_wherever_it_is(self, cluster, release, clock):
        first, second = release("a"), release("b")
        passing(clock, first, seconds=30)
        first.release()
        passing(clock, second, seconds=RENEW_S)
        assert second.is_leader()

        second.release()
        assert cluster.objects[path_in("a")]["spec"]["holderIdentity"] == ""
        assert path_in("b") not in cluster.objects
