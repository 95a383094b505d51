"""The cluster fails as the fault table says, in a model of it: the whole loop, minute by minute."""

import os
import time
from itertools import pairwise

import pytest

from fleet_builders import CRASH_LOOPING, UNSCHEDULABLE, a_pod_body
from loop_builders import condition, replicas_of, show, status_of
from loop_story import EACH, PLACE, Story
from tonnage.cluster.kube import PODS

WELL_TICKS, LONG_TICKS = 20, 40


def a_fleet(load=2.6, **scaling):
    """Four replicas that are loaded as expected, at rest."""
    story = Story(load=load, scaling={"minReplicas": 1, "maxReplicas": 8} | scaling)
    story.tick(WELL_TICKS)
    return story


def with_pods(story, number, **status):
    """Let the last pods of those asked for be in this state, and decide; None: gone."""
    story.world.now_s += 60
    story.follow()
    running = replicas_of(story.world)
    for index in range(running - number, running):
        name = f"llama-{index}"
        body = a_pod_body(name, ready_for_s=None, **status)
        body["metadata"]["labels"] = {"tonnage.dev/managed": "true"}
        story.world.kube.put(PODS.path("serving", name), body)
        story.world.completions_per_s.pop(name, None)
    live = story.objects[PLACE]
    ready = {"readyReplicas": running - number}
    story.world.kube.put(PLACE, live | {"status": live["status"] | ready})
    left = story.world.completions_per_s
    story.world.completions_per_s = dict.fromkeys(left, story.load * EACH / max(1, len(left)))
    show(story.loop, story.world)
    story.loop.tick()
    return replicas_of(story.world)


class TestRow40PodsStartSlowly:
    def test_and_what_is_on_its_way_is_not_asked_for_again(self):
        story = a_fleet(load=3.6)
        before = replicas_of(story.world)
        story.load = 5.5
        story.tick()
        asked = replicas_of(story.world)
        found = {with_pods(story, asked - before) for _ in range(10)}

        assert before < asked <= 8
        assert max(found) <= asked + 1


class TestRow41PodsCrash:
    def test_and_no_replica_is_added_for_them_nor_taken_away(self):
        story = a_fleet(minReplicas=4)  # of which three serve what comes
        before = replicas_of(story.world)
        found = [with_pods(story, 1, **CRASH_LOOPING) for _ in range(LONG_TICKS)]

        assert set(found) == {before}

    def test_all_of_them_and_that_is_why_it_is_not_ready(self):
        story = a_fleet()
        before = replicas_of(story.world)
        found = [with_pods(story, before, **CRASH_LOOPING) for _ in range(LONG_TICKS)]
        told = condition(story.world, "Ready")

        assert set(found) == {before}
        assert told == ("False", "PodsFailing")


class TestRow46ANodeIsDrained:
    """One pod after the other goes and comes elsewhere, as a budget for disruptions allows."""

    def test_and_neither_replicas_nor_pods_are_written(self):
        story = a_fleet()
        first, before = len(story.world.kube.writes), replicas_of(story.world)
        for number in range(LONG_TICKS):
            assert with_pods(story, number % 2) == before

        assert {
            each for each in story.writes_since(first) if "scale" in each or "pods" in each
        } == set()


class TestRow37NoNodeTakesAPod:
    def test_and_it_grows_no_further_is_named_and_given_back(self):
        story = a_fleet(load=3.6)
        before = replicas_of(story.world)
        story.load = 5.5
        story.tick()
        asked = replicas_of(story.world)
        found = [with_pods(story, max(0, replicas_of(story.world) - before), **UNSCHEDULABLE)
                 for _ in range(30)]  # fmt: skip

        assert asked > before
        assert max(found) <= asked
        assert min(found[-10:]) == before
        assert "InsufficientGPU" in {
            each["code"] for each in status_of(story.world)["plan"]["reasons"]
        }

    def test_and_those_that_are_not_needed_go_all_the_same(self):
        story = a_fleet(load=5.5)
        before = replicas_of(story.world)
        story.load = 0.4
        found = [with_pods(story, 1, **UNSCHEDULABLE) for _ in range(LONG_TICKS)]

        assert found[-1] < before


class TestRow56AMetricRunsAway:
    def test_and_the_fleet_grows_by_steps_to_its_maximum_and_no_further(self):
        story = Story(load=2.6, scaling={"minReplicas": 1, "maxReplicas": 60})
        story.tick(WELL_TICKS)
        numbers = [replicas_of(story.world)]
        story.load *= 1000
        for _ in range(15):
            story.tick()
            numbers.append(replicas_of(story.world))

        steps = pairwise(numbers)
        assert all(after <= before + max(before, 8) for before, after in steps), numbers
        assert max(numbers) == 60

    def test_and_the_budget_of_gpus_holds(self):
        story = Story(load=2.6, scaling={"minReplicas": 1, "maxReplicas": 60})
        story.loop.settings = story.loop.observer.settings = story.loop.settings.model_copy(
            update={"max_gpus": 24}
        )
        story.tick(WELL_TICKS)
        story.load *= 1000
        story.tick(15)

        assert replicas_of(story.world) == 12, "of two GPUs each"
        assert condition(story.world, "CapacityAvailable") == ("False", "GPUBudget")


@pytest.fixture(params=["UTC", "Asia/Kathmandu", "America/St_Johns", "Pacific/Apia"])
def zone(request, monkeypatch):
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    os.environ.pop("TZ")
    time.tzset()


class TestRow63TheHostHasAnotherZone:
    def test_and_everything_is_decided_and_told_the_same(self, zone):
        here = a_fleet()
        os.environ["TZ"] = "UTC"
        time.tzset()
        there = a_fleet()

        assert status_of(here.world) == status_of(there.world)
        assert here.picture() == there.picture()
