"""The time for searches in a tick of the loop."""

from contextlib import nullcontext
from itertools import count

import pytest

from fleet_builders import a_manifest, first_replicas
from loop_builders import a_loop, a_world, condition, replicas_of, served, status_of, tick
from tonnage.cluster.kube import DEPLOYMENTS
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
    on_search = within(5, lambda: next(times))

    on_search()
    on_search()
    with pytest.raises(SearchAbandonedError, match=r"5\.00 s of each tick are for searches"):
        on_search()


def test_a_tick_ends_with_the_run_in_which_its_time_is_spent():
    world = a_world(a_manifest(slo=never_asked(1)))
    before = runs()

    done = tick(a_slow_loop(world, search_budget_s=5), world)

    # Looked at after 2 and 4 s: once before the search, once before its first run.
    assert runs() - before == 1
    assert done == ["apply modeldeployments/llama/status"]
    assert condition(world, "Reconciling") == ("True", "PlanPending")
    assert "Stalled" not in {each["type"] for each in status_of(world)["conditions"]}
    assert DEPLOYMENTS.path("serving", "llama") not in world.kube.objects


@pytest.mark.parametrize(
    ("changed", "num_planned"),
    [(a_manifest("another", generation=2), 1), (None, 3)],
    ids=["a ModelDeployment changes", "nothing changes"],
)
def test_after_one_search_the_tick_ends_for_who_changed_something(changed, num_planned):
    names = ["a", "b", "c"]
    asked = [a_manifest(each, slo=never_asked(number)) for number, each in enumerate(names, 10)]
    world = a_world(*asked)
    loop = a_loop(world, search_budget_s=1000)
    loop.clock = count(step=0).__next__

    def change_before_it_decides(step):
        if changed and step == "decide":
            loop.store.note(Kind.MODEL, "MODIFIED", changed)
        return nullcontext()

    loop.step = change_before_it_decides
    tick(loop, world)

    planned = [each for each in names if condition(world, "PlanValid", each)[0] == "True"]
    assert len(planned) == num_planned


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
