"""Leading by a Lease: one at a time, and not for longer than its renewals allow."""

import pytest

from kube_double import KubeDouble
from tonnage.cluster.errors import KubernetesError
from tonnage.cluster.lease import DURATION_S, NAME, RENEW_S, Leadership

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

    def test_the_first_one_leads_at_once(self, elector, kube):
        leadership = elector("a")

        assert leadership.maintain()
        assert leadership.is_leader()
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
