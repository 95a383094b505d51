"""Pods that say what is not: what they can do to their own object, to neighbours and to others.

Two objects of one namespace and one of another, all under the same key of what is learned.
"""

from contextlib import contextmanager

import pytest

from fault_world import a_world, pods_of
from fleet_builders import a_deployment_body, a_model, a_pod_body, a_replica_set_body, at
from tonnage.fleet.store import Kind

OWN, NEIGHBOUR, OTHER = ("blue", "llama"), ("blue", "qwen"), ("green", "mixtral")
OBJECTS = (OWN, NEIGHBOUR, OTHER)
LIAR = ("blue", "llama-0")
RATE = 0.6
"""Requests/s of each pod, each with 4,000 prompt and 1,000 output tokens."""
GAP_S = 0.022
"""Between tokens, as it is."""
KV_TOKENS = 590_000
NUM_TICKS = 5


def telling(gap_s=GAP_S, **more):
    """What a pod says with so much between two tokens of a sequence."""
    running = RATE * 1000 * gap_s
    return {
        "running": running,
        "token_gap_s": running,
        "token_gaps": RATE * 1000,
        "finished": RATE,
        "finished_prompt_tokens": 4000 * RATE,
        "finished_output_tokens": 1000 * RATE,
        "started": RATE,
        "started_prompt_tokens": 4000 * RATE,
        "computed_prompt_tokens": 4000 * RATE,
    } | more


@contextmanager
def a_busy_world(*, replicas=2, kv=None, said=None, **more):
    """All pods tell the truth; ``kv`` and ``said``: what some say instead, by pod."""
    reported = dict.fromkeys(pods_of(*OBJECTS, replicas=replicas), KV_TOKENS) | (kv or {})
    figures, told = telling(), said or {}
    of_pod = {
        pod: told.get(pod, {}) | {"cache": {"kv_cache_size_tokens": str(tokens)}}
        for pod, tokens in reported.items()
    }
    with a_world(
        objects=OBJECTS,
        replicas=replicas,
        load=RATE,
        figures=figures,
        of_pod=of_pod,
        **more,
    ) as world:
        yield world


def outcome(world):
    """(need, capacity believed) of the neighbour and of the other namespace."""
    world.tick(NUM_TICKS)
    needs, goodput = world.needs(), world.goodput()
    return {name: (needs[name], goodput[name]) for name in ("qwen", "mixtral")}


@pytest.fixture(
    scope="module",
    params=[pytest.param(1, marks=pytest.mark.thorough), 2],
    ids=["one-replica", "two-replicas"],
)
def honest(request):
    with a_busy_world(replicas=request.param) as world:
        return request.param, outcome(world), world.memory.calibrations


class TestAPodWithTwentyEnginesThatLie:
    @pytest.mark.parametrize("slower", [3, 1 / 1.5])
    def test_moves_no_neighbour_much_and_no_other_at_all(self, slower, honest):
        replicas, truth, _ = honest
        engines = {LIAR: [str(number) for number in range(20)]}
        said = {LIAR: telling(slower * GAP_S)}
        with a_busy_world(replicas=replicas, said=said, engines=engines) as world:
            found = outcome(world)

        assert found["mixtral"] == truth["mixtral"]
        assert found["qwen"][0] == truth["qwen"][0]
        assert found["qwen"][1] == pytest.approx(truth["qwen"][1], rel=0.05)

    def test_may_grow_its_own_object_by_what_it_says_comes(self, honest):
        engines = {LIAR: [str(number) for number in range(20)]}
        with a_busy_world(engines=engines) as world:
            decided = world.tick(NUM_TICKS)
            own = next(each for each in world.outcome.found if each.state.view.name == "llama")

        assert own.decision.replicas == 8, "maxReplicas"
        assert decided["green"] == 2

    def test_is_heard_where_it_is_alone(self):
        with a_busy_world(replicas=1, said={pod: telling(1.5 * GAP_S) for pod in BLUE}) as world:
            slower = outcome(world)
        with a_busy_world(replicas=1) as world:
            truth = outcome(world)

        assert slower["qwen"][1] < 0.8 * truth["qwen"][1]
        assert slower["mixtral"] == truth["mixtral"]


BLUE = (("blue", "llama-0"), ("blue", "qwen-0"))


class TestAPodThatLiesAboutItsCache:
    @pytest.mark.parametrize("tokens", [200_000, 10**18])
    def test_moves_no_object_but_its_own(self, tokens, honest):
        replicas, truth, _ = honest
        with a_busy_world(replicas=replicas, kv={LIAR: tokens}) as world:
            found = outcome(world)
            shared = world.memory.calibrations.memory

        assert found == truth
        assert {scope.namespace: each.kv_tokens for scope, each in shared.items()}[
            "green"
        ] == KV_TOKENS

    @pytest.mark.parametrize("tokens", [8000, 2_000_000])
    def test_as_one_of_three_moves_nothing(self, tokens):
        own = []
        for kv in ({}, {LIAR: tokens}):
            with a_busy_world(replicas=3, kv=kv) as world:
                world.tick(NUM_TICKS)
                own.append((world.needs(), world.goodput()))

        assert own[0] == own[1]

    def test_as_the_only_one_is_believed_of_its_own_object_where_it_is_less(self):
        with a_busy_world(replicas=1, kv={LIAR: 100_000}) as world:
            world.tick(NUM_TICKS)
            goodput, memory = world.goodput(), world.memory.objects

        assert goodput["llama"] < 0.7 * goodput["qwen"]
        assert memory["uid-of-llama"].posterior.kv_tokens == 100_000

    def test_as_the_only_one_is_not_believed_beyond_the_memory_of_its_gpus(self):
        with a_busy_world(replicas=1, kv={LIAR: 10**9}) as world:
            world.tick(NUM_TICKS)

            assert world.memory.objects["uid-of-llama"].posterior.kv_tokens is None


class TestPodsThatNameAnOwnerOfAnotherNamespace:
    """A ReplicaSet with a forged owner, which a finalizer keeps from the garbage collector."""

    FORGED = ("green", "forged")

    def forge(self, world):
        victim = a_model("llama", namespace="blue")
        replica_set, pod = a_replica_set_body(victim, uid="uid-of-f"), a_pod_body("forged")
        pod["metadata"]["ownerReferences"][0]["uid"] = "uid-of-f"
        for kind, body in ((Kind.REPLICA_SET, replica_set), (Kind.POD, pod)):
            body["metadata"] |= {"name": "forged", "namespace": "green"}
            world.store.note(kind, None, body)

    def outcome(self, world):
        decided, victim = world.tick(NUM_TICKS), world.memory.objects["uid-of-llama"]
        return decided, world.needs(), victim.reported.conditions["MetricsAvailable"].status

    @pytest.mark.parametrize("load", [None, 1000], ids=["silent", "lying"])
    def test_do_not_join_it(self, load):
        with a_busy_world() as world:
            truth = self.outcome(world)
        with a_busy_world() as world:
            self.forge(world)
            if load:
                world.api.completions_per_s[self.FORGED] = load
            found = self.outcome(world)

        assert found == truth


class TestPodsThatAreOnTheirWay:
    def taught(self, world):
        world.tick(NUM_TICKS)
        learned = world.memory.calibrations
        return {scope.namespace for scope in (*learned.speed, *learned.memory)}

    def test_teach_something_when_they_are_not(self):
        with a_busy_world() as world:
            assert self.taught(world) == {"blue", "green"}

    def test_out_teach_nothing(self):
        with a_busy_world() as world:
            model = a_model("mixtral", namespace="green")
            for number in range(2):
                body = a_pod_body(f"mixtral-{number}", model=model)
                body["metadata"]["deletionTimestamp"] = at(10)
                world.store.note(Kind.POD, None, body)
            world.memory = type(world.memory)()

            assert self.taught(world) == {"blue"}

    def test_to_another_template_teach_nothing(self):
        with a_busy_world() as world:
            body = a_deployment_body(a_model("mixtral", namespace="green"))
            body["status"]["updatedReplicas"] = 1
            world.store.note(Kind.DEPLOYMENT, None, body)
            world.memory = type(world.memory)()

            assert self.taught(world) == {"blue"}
