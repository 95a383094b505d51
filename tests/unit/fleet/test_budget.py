"""The time for searches in a tick of the loop."""

from contextlib import nullcontext
from itertools import count

import pytest

from fleet_builders import a_manifest, first_replicas
from loop_builders import a_loop, a_world, condition, replicas_of, served, status_of, tick
from tonnage.cluster.kube import DEPLOYMENTS, MODEL_DEPLOYMENTS
from tonnage.fleet.loop import within
from tonnage.fleet.store import Kind
from tonnage.sizing.errors import SearchAbandonedError
from tonnage.sizing.serving.trial import requests

SLOW_S = 2.0
"""What a run takes by the clock of these tests."""


def a_slow_loop(world, **settings):
    """A loop whose clock goes on by so much each time that it is looked at."""
    loop = a_loop(world, **settings)
    looks = count()
    loop.clock = lambda: SLOW_S * next(looks)
    return loop


def never_asked(number):
    ttft = {"p95": f"{1500 + number}ms"}
    return {"timeToFirstToken": ttft, "timePerOutputToken": {"p95": "50ms"}}


def runs():
    found = requests.cache_info()
    return found.hits + found.misses


def test_searches_go_on_until_the_time_is_spent():
    times = iter([100.0, 102.0, 104.9, 105.0])
    end_after = within(5, lambda: next(times))

    end_after(1)
    end_after(0.5)
    with pytest.raises(SearchAbandonedError, match=r"2\.50 s of each tick are for searches"):
        end_after(0.5)
    with pytest.raises(SearchAbandonedError, match=r"5\.00 s of each tick are for searches"):
        end_after(1)


def test_a_tick_ends_with_the_run_in_which_its_time_is_spent():
    world = a_world(a_manifest(slo=never_asked(1)))
    before = runs()

    done = tick(a_slow_loop(world, search_budget_s=3), world)

    # Looked at after 0 and 2 s: once before the search, once before its first run.
    assert runs() - before == 1
    assert done == ["apply modeldeployments/llama/status"]
    assert condition(world, "Reconciling") == ("True", "PlanPending")
    assert "Stalled" not in {each["type"] for each in status_of(world)["conditions"]}
    assert DEPLOYMENTS.path("serving", "llama") not in world.kube.objects


PLANNED = {"observedGeneration": 1}


def edit(world, loop, name, number):
    """Play a user who asks for something that nobody asked before; the watch says so."""
    body = world.kube.objects[MODEL_DEPLOYMENTS.path("serving", name)]
    body["spec"]["slo"] = never_asked(number)
    body["metadata"]["generation"] += 1
    loop.store.note(Kind.MODEL, "MODIFIED", body)


def is_planned(world, name):
    """For the spec as it is now: one that waits for a search is not."""
    return condition(world, "Reconciling", name)[1] != "PlanPending"


def test_a_change_in_the_midst_of_a_tick_takes_no_search_from_others():
    names = ["a", "b", "c"]
    asked = [a_manifest(each, slo=never_asked(number)) for number, each in enumerate(names, 10)]
    world = a_world(*asked)
    loop = a_loop(world, search_budget_s=1000)
    loop.clock = count(step=0).__next__

    def change_before_it_decides(step):
        if step == "decide":
            edit(world, loop, "a", 13)
        return nullcontext()

    loop.step = change_before_it_decides
    tick(loop, world)

    assert [condition(world, "PlanValid", each)[0] for each in names[1:]] == ["True"] * 2
    assert loop.store.changed.is_set()  # the next tick follows at once


class TestAChangeWhileOthersWait:
    """Each search takes some 35 looks at the clock; a tick has time for 45.

    The others had a plan in an earlier process: nobody waits for news of these.
    """

    CROWD = ("a", "b", "c", "d")

    def crowded(self, first):
        objects = [
            a_manifest(each, slo=never_asked(first + number)) | {"status": PLANNED}
            for number, each in enumerate(self.CROWD)
        ]
        world = a_world(*objects)
        loop = a_slow_loop(world, search_budget_s=45 * SLOW_S)
        tick(loop, world)
        assert self.planned(world) == ["a"]
        return loop, world

    def planned(self, world):
        return [each for each in self.CROWD if is_planned(world, each)]

    def test_is_searched_for_first(self):
        loop, world = self.crowded(700)
        edit(world, loop, "d", 900)
        tick(loop, world)
        tick(loop, world)

        assert "d" in self.planned(world)
        assert "c" not in self.planned(world)

    def test_leaves_them_half_of_the_time_in_each_tick(self):
        loop, world = self.crowded(300)
        for number in range(6):
            edit(world, loop, "d", 400 + number)
            tick(loop, world)

        assert self.planned(world)[:3] == ["a", "b", "c"]


def test_who_edits_in_each_tick_a_spec_that_takes_all_the_time_holds_up_nobody_new():
    names = ["a", "b", "c"]
    world = a_world(*(a_manifest(each, slo=never_asked(600 + len(each))) for each in names))
    loop = a_slow_loop(world, search_budget_s=25 * SLOW_S)
    for number in range(12):
        edit(world, loop, "a", 601 + number)
        tick(loop, world)

    assert is_planned(world, "b")
    assert is_planned(world, "c")


class TestThePause:
    def test_is_none_while_a_search_goes_on(self):
        world = a_world(a_manifest(slo=never_asked(4)))
        loop = a_slow_loop(world, search_budget_s=7)
        tick(loop, world)

        assert condition(world, "Reconciling") == ("True", "PlanPending")
        assert loop.pause_s() == 0

    def test_is_whole_once_all_have_ended(self):
        world = a_world(a_manifest(slo=never_asked(5)))
        loop = a_slow_loop(world, search_budget_s=2000)
        tick(loop, world)

        assert is_planned(world, "llama")
        assert loop.pause_s() == loop.settings.tick_s


def test_a_new_object_is_deployed_when_its_search_has_ended():
    world = a_world(a_manifest(slo=never_asked(2)))
    loop, ticks = a_slow_loop(world, search_budget_s=20), 0
    while DEPLOYMENTS.path("serving", "llama") not in world.kube.objects:
        tick(loop, world)
        ticks += 1

    assert ticks > 2
    assert replicas_of(world) == first_replicas(slo=never_asked(2))
    assert condition(world, "PlanValid") == ("True", "Planned")


def test_an_operator_that_begins_anew_writes_nothing_while_it_searches_for_what_stands():
    loop, world = served()
    loop.end()
    told = status_of(world)
    anew = a_slow_loop(world, search_budget_s=SLOW_S / 2)
    anew.start_leading()

    assert tick(anew, world) == []
    assert {"PlanValid", "Drifted"} <= {each["type"] for each in told["conditions"]}
    assert status_of(world) == told


def test_who_waits_writes_its_status_once():
    manifest = a_manifest(slo=never_asked(3))
    world = a_world(manifest)
    loop = a_slow_loop(world, search_budget_s=3)
    tick(loop, world)

    assert [tick(loop, world) for _ in range(3)] == [[]] * 3
