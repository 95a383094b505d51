"""The lists that the store is checked against: when they are waited for."""

import pytest

from fleet_builders import NOW_S, a_manifest
from kube_double import KubeDouble
from tonnage.cluster.calls import KubernetesError
from tonnage.cluster.kube import MODEL_DEPLOYMENTS
from tonnage.fleet.background import BackgroundTask
from tonnage.fleet.lists import LONGEST_UNLISTED_S, RELIST_S, WAIT_S, Lists
from tonnage.fleet.store import Store
from tonnage.units import DAY_S


class DoneWhenWaitedFor(BackgroundTask):
    """Work that gets nowhere until somebody waits for it."""

    def __init__(self):
        self.begun = []
        super().__init__(self.begun.append)

    def wait(self, timeout_s=None):
        while self.begun:
            self.begun.pop()()


def some_lists():
    kube = KubeDouble([(MODEL_DEPLOYMENTS.path("serving", "llama"), a_manifest())])
    return Lists(store=Store(), kube=kube, namespaces=(), work=DoneWhenWaitedFor())


def names(lists):
    return [name for _, name in lists.store.snapshot().models]


class TestWaiting:
    def test_nothing_is_decided_before_the_first_lists_are_read(self):
        lists = some_lists()

        lists.check(NOW_S)

        assert names(lists) == ["llama"]
        assert lists.checked_at_s == NOW_S

    def test_later_ones_are_read_beside_the_loop_until_the_last_are_long_ago(self):
        lists = some_lists()
        lists.check(NOW_S)

        lists.check(NOW_S + RELIST_S)
        assert lists.checked_at_s == NOW_S

        lists.check(NOW_S + LONGEST_UNLISTED_S)
        assert lists.checked_at_s == NOW_S + LONGEST_UNLISTED_S

    def test_those_of_an_earlier_lead_are_not_enough(self):
        lists = some_lists()
        lists.check(NOW_S)
        lists.forget()
        lists.kube.put(MODEL_DEPLOYMENTS.path("serving", "mixtral"), a_manifest("mixtral"))

        lists.check(NOW_S + 1)

        assert names(lists) == ["llama", "mixtral"]

    def test_that_take_minutes_fail_a_tick_and_are_waited_for_by_the_next(self):
        begun, lists = [], some_lists()
        lists.work = StillUnderWay(begun.append)

        for _ in range(2):
            with pytest.raises(KubernetesError, match="no lists within 60") as caught:
                lists.check(NOW_S)
            assert caught.value.is_overload

        assert lists.work.waited_s == [WAIT_S, WAIT_S]
        begun.pop()()
        lists.check(NOW_S + 120)
        assert names(lists) == ["llama"]
        assert begun == [], "read once"


def test_a_clock_that_was_set_back_makes_them_due():
    lists = some_lists()
    lists.check(NOW_S)
    lists.kube.put(MODEL_DEPLOYMENTS.path("serving", "mixtral"), a_manifest("mixtral"))

    lists.check(NOW_S - DAY_S)

    assert names(lists) == ["llama", "mixtral"]
    assert lists.checked_at_s == NOW_S - DAY_S


class StillUnderWay(BackgroundTask):
    """Work that is not done after any wait."""

    def __init__(self, start):
        self.waited_s = []
        super().__init__(start)

    def wait(self, timeout_s=None):
        self.waited_s.append(timeout_s)
