"""What is refused is tried again ever later, and told as what it is."""

import itertools
from dataclasses import replace

import pytest

from fleet_builders import NOW_S, a_manifest, a_memory, a_state
from kube_double import KubeDouble
from loop_builders import World, a_loop, condition, served, tick
from tonnage.cluster.errors import KubernetesError
from tonnage.cluster.kube import DEPLOYMENTS, MODEL_DEPLOYMENTS, SERVICES
from tonnage.control.retries import MOST_RETRY_S, SPREAD, next_retry
from tonnage.control.state import Retry

OBJECT = MODEL_DEPLOYMENTS.path("serving", "llama")
PLACE = DEPLOYMENTS.path("serving", "llama")
SERVICE = SERVICES.path("serving", "llama")
FOREIGN = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "llama", "namespace": "serving"},
}


def a_refusing_world(place, *, status=403):
    """A world that counts what is asked of a path, and refuses to write it while ``refuses``."""
    world = World(kube=KubeDouble([(OBJECT, a_manifest())]))
    asked = []

    def fail(verb, path):
        if path == place:
            asked.append((verb, world.now_s))
            if verb == "apply" and world.refuses:
                raise KubernetesError("exceeded quota: count/deployments.apps", status=status)

    world.refuses = True
    world.kube.fail = fail
    return world, asked


def events(world, reason):
    bodies = [call.body for call in world.kube.writes if "/events" in call.path]
    return [body["note"] for body in bodies if body["reason"] == reason]


class TestARefusedDeployment:
    def test_is_tried_again_ever_later_and_no_more_than_every_five_minutes(self):
        world, asked = a_refusing_world(PLACE)
        loop = a_loop(world)

        for _ in range(240):
            tick(loop, world)

        times_s = [at_s for verb, at_s in asked if verb == "apply"]
        pauses_s = [after - before for before, after in itertools.pairwise(times_s)]
        assert pauses_s[:4] == sorted(pauses_s[:4])
        assert max(pauses_s) <= 300 + 15
        assert len(times_s) <= 5 + 3600 / 240
        assert condition(world, "Stalled") == ("True", "WriteRefused")

    def test_is_no_scaled_event_until_it_is_made(self):
        world, _ = a_refusing_world(PLACE)
        loop = a_loop(world)
        for _ in range(8):
            tick(loop, world)
        before = events(world, "Scaled")
        world.refuses = False
        for _ in range(20):
            tick(loop, world)

        assert before == []
        assert len(events(world, "Scaled")) == 1

    def test_is_tried_at_once_for_another_spec(self):
        world, asked = a_refusing_world(PLACE)
        loop = a_loop(world)
        for _ in range(20):
            tick(loop, world)
        number = len(asked)
        body = a_manifest(generation=2)
        world.kube.put(OBJECT, body | {"status": world.kube.objects[OBJECT]["status"]})

        tick(loop, world)

        assert len(asked) > number

    def test_waits_as_long_after_weeks_of_refusals(self):
        memory = a_memory(a_state())
        memory = replace(
            memory, retry=Retry(generation=1, times=5000, at_s=NOW_S, is_of_template=True)
        )

        later = next_retry(memory.retry, 1, uid=memory.uid, now_s=NOW_S)

        assert later.times == 5001
        assert MOST_RETRY_S * (1 - SPREAD) <= later.at_s - NOW_S <= MOST_RETRY_S

    def test_comes_back_at_once_where_only_its_service_is_refused(self):
        world, _ = a_refusing_world(SERVICE)
        loop = a_loop(world)
        for _ in range(12):
            tick(loop, world)
        del world.kube.objects[PLACE]

        tick(loop, world, after_s=15)
        tick(loop, world, after_s=15)

        assert PLACE in world.kube.objects

    def test_of_a_server_that_fails_for_a_moment_is_tried_in_the_next_tick(self):
        world, _ = a_refusing_world(PLACE, status=503)
        loop = a_loop(world)
        tick(loop, world)
        world.refuses = False

        assert "apply deployments/llama" in tick(loop, world)


class TestAForeignService:
    @pytest.fixture
    def met(self):
        """(loop, world, gets of the Service) with another Service of that name from the start."""
        loop, world = served()
        gets = []
        world.kube.fail = lambda verb, path: gets.append(world.now_s) if path == SERVICE else None
        del world.kube.objects[SERVICE]
        world.kube.put(SERVICE, FOREIGN)
        for _ in range(60):
            tick(loop, world)
        assert condition(world, "Ready") == ("False", "NoTrafficPath")
        gets.clear()
        return loop, world, gets

    def test_is_looked_at_every_few_minutes_and_no_status_is_written(self, met):
        loop, world, gets = met

        done = [write for _ in range(80) for write in tick(loop, world)]

        assert done == []
        assert 4 <= len(gets) <= 6  # in 20 minutes

    def test_that_goes_is_followed_by_ours(self, met):
        loop, world, _ = met
        del world.kube.objects[SERVICE]

        done = [write for _ in range(21) for write in tick(loop, world)]

        assert "apply services/llama" in done
        assert condition(world, "Ready")[0] == "True"

    def test_is_remembered_by_the_next_process(self, met):
        # Else Ready would be True for one tick, and whoever waits for it would go on.
        _, world, _ = met
        said = []
        world.kube.fail = lambda verb, path: said.append(condition(world, "Ready"))
        restarted = a_loop(world)

        for _ in range(3):
            tick(restarted, world)

        assert set(said) == {("False", "NoTrafficPath")}
