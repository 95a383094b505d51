"""What is refused is tried again ever later, and told as what it is."""

import itertools

import pytest

from fleet_builders import NOW_S, a_manifest, a_state, failures
from kube_double import KubeDouble
from loop_builders import World, a_loop, condition, served, tick
from tonnage.cluster.calls import KubernetesError
from tonnage.cluster.kube import DEPLOYMENTS, MODEL_DEPLOYMENTS, SERVICES
from tonnage.control.input.times import SPREAD
from tonnage.control.input.writers import MOST_RETRY_S, Cause, Result, WriteKind
from tonnage.control.write.writes import failed_again

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
        state = a_state()
        before = failures(WriteKind.TEMPLATE, times=5000)[WriteKind.TEMPLATE]

        later = failed_again(before, Result(cause=Cause.REFUSED), state.view, now_s=NOW_S)

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


def a_world_that_answers(place, *, status, message):
    """A world in which writes to a path fail so, while ``fails``; with the times of all tries."""
    world = World(kube=KubeDouble([(OBJECT, a_manifest())]))
    tries_s = []

    def fail(verb, path):
        if verb == "apply" and path == place and world.fails:
            tries_s.append(world.now_s)
            raise KubernetesError(message, status=status)

    world.fails, world.kube.fail = True, fail
    return world, tries_s


class TestADeploymentThatIsTooLarge:
    def test_says_so_in_the_words_of_the_server_and_slows_nobody_down(self):
        said = "etcdserver: request is too large"
        world, _ = a_world_that_answers(PLACE, status=500, message=said)
        loop = a_loop(world)

        for _ in range(8):
            tick(loop, world)

        [stalled] = [
            each
            for each in world.kube.objects[OBJECT]["status"]["conditions"]
            if each["type"] == "Stalled"
        ]
        assert (stalled["reason"], stalled["message"]) == ("WriteRefused", said)
        assert loop.writer.queue.share == 1


class TestAWebhookThatIsDown:
    def test_calls_for_a_person_after_three_failures_until_it_is_there(self):
        world, tries_s = a_world_that_answers(PLACE, status=500, message="failed calling webhook")
        loop = a_loop(world)
        while len(tries_s) < 2:
            tick(loop, world)
        kinds = {each["type"] for each in world.kube.objects[OBJECT]["status"]["conditions"]}
        assert "Stalled" not in kinds
        while len(tries_s) < 3:
            tick(loop, world)
        tick(loop, world)

        assert condition(world, "Stalled") == ("True", "WriteRefused")

        world.fails = False
        for _ in range(24):
            tick(loop, world)
        kinds = {each["type"] for each in world.kube.objects[OBJECT]["status"]["conditions"]}
        assert "Stalled" not in kinds


class TestAStatusThatCannotBeWritten:
    @pytest.fixture(params=["request is too large", "failed calling webhook"])
    def world_and_tries(self, request):
        return a_world_that_answers(f"{OBJECT}/status", status=500, message=request.param)

    def test_is_tried_ever_later_and_slows_nobody_down(self, world_and_tries):
        world, tries_s = world_and_tries
        loop = a_loop(world)

        for _ in range(240):
            tick(loop, world)

        pauses_s = [after - before for before, after in itertools.pairwise(tries_s)]
        assert pauses_s[:4] == [15, 30, 60, 120]
        assert max(pauses_s) <= 300 + 15
        assert loop.writer.queue.share == 1
        assert PLACE in world.kube.objects

    def test_is_told_by_a_metric_of_its_object_until_it_can(self, world_and_tries):
        world, _ = world_and_tries
        loop, shown = a_loop(world), []
        loop.tell = lambda told: shown.append(
            [each.value for each in told.objects[0].gauges if each.family.endswith("_failures")]
        )
        for _ in range(4):
            tick(loop, world)
        assert shown[-1] == [2.0]

        world.fails = False
        for _ in range(6):
            tick(loop, world)
        assert shown[-1] == [0.0]

    def test_is_tried_at_once_for_another_spec(self, world_and_tries):
        world, tries_s = world_and_tries
        loop = a_loop(world)
        for _ in range(20):
            tick(loop, world)
        number = len(tries_s)
        world.kube.put(OBJECT, a_manifest(generation=2))

        tick(loop, world)

        assert len(tries_s) == number + 1

    def test_that_is_refused_is_told_by_one_event_with_the_words_of_the_server(self):
        said = "etcdserver: request is too large"
        world, tries_s = a_world_that_answers(f"{OBJECT}/status", status=500, message=said)
        loop = a_loop(world)
        for _ in range(240):
            tick(loop, world)

        assert len(tries_s) > 10
        assert events(world, "WriteRefused") == [f"the status cannot be written: {said}"]

        world.fails = False
        for _ in range(24):
            tick(loop, world)
        kinds = {each["type"] for each in world.kube.objects[OBJECT]["status"]["conditions"]}
        assert "Stalled" not in kinds

    def test_that_fails_for_a_webhook_is_told_by_none(self):
        said = "failed calling webhook"
        world, _ = a_world_that_answers(f"{OBJECT}/status", status=500, message=said)
        loop = a_loop(world)
        for _ in range(60):
            tick(loop, world)

        assert events(world, "WriteRefused") == []
