"""Herds: what is written at once is bounded, in turn, and never in the way of replicas."""

from collections import Counter
from dataclasses import dataclass

import pytest

from fleet_builders import SITE, a_manifest, a_model, a_sizing, first_replicas
from http_double import a_kubeconfig, json_reply, serving
from loop_builders import a_loop, a_world, replicas_of, served, tick
from tonnage.api.status import ReplicasStatus, Status
from tonnage.cluster.calls import ConflictError, KubernetesError, WriteFencedError
from tonnage.cluster.kube import KubeApi, load_client
from tonnage.control.input.writers import Cause, WriteKind
from tonnage.control.write.writes import Scale, Writes
from tonnage.fleet.act import Writer
from tonnage.fleet.background import beside
from tonnage.fleet.write_queue import BURST_S, SLOWEST, WriteQueue

EACH = a_sizing().goodput_requests_per_s
FIRST_REPLICAS = first_replicas()


@dataclass
class Clock:
    now_s: float = 0.0

    def __call__(self):
        return self.now_s


def a_status(name, namespace="a", **more):
    return Writes(
        namespace=namespace, name=name, uid=f"{namespace}/{name}", status=Status(), **more
    )


def a_look(name, namespace="a"):
    return Writes(namespace=namespace, name=name, uid=f"{namespace}/{name}", check_children=True)


def a_queue(per_s=2.0):
    clock = Clock()
    return WriteQueue(per_s=per_s, clock=clock), clock


def admitted(queue, *wanted):
    return [each.label for each in queue.admit(wanted)]


class TestAdmission:
    def test_lets_through_what_five_seconds_allow_and_then_the_rate(self):
        queue, clock = a_queue(per_s=2)
        herd = [a_status(str(number)) for number in range(100)]

        assert len(admitted(queue, *herd)) == 2 * BURST_S
        assert admitted(queue, *herd) == []
        clock.now_s += 3
        assert len(admitted(queue, *herd)) == 2 * 3
        clock.now_s += 3600
        assert len(admitted(queue, *herd)) == 2 * BURST_S

    def test_an_object_is_admitted_with_all_its_writes(self):
        queue, clock = a_queue(per_s=1)
        model = a_model()
        created = [
            a_status(str(number), template={}, creates=True, model=model) for number in range(3)
        ]

        # 5 tokens: the first takes 7, the debt is paid before the next.
        assert admitted(queue, *created) == ["a/0"]
        clock.now_s += 2
        assert admitted(queue, *created[1:]) == []
        clock.now_s += 1
        assert admitted(queue, *created[1:]) == ["a/1"]

    def test_namespaces_take_turns_and_within_one_who_waited_longest(self):
        queue, clock = a_queue(per_s=1)
        crowd = [a_status(str(number), "crowd") for number in range(9)]
        alone = a_status("x", "alone")

        first = admitted(queue, *crowd, alone)
        clock.now_s += 4
        second = admitted(queue, *crowd, alone)

        assert first == ["crowd/0", "alone/x", "crowd/1", "crowd/2", "crowd/3"]
        assert second == ["crowd/4", "alone/x", "crowd/5", "crowd/6"]

    def test_checks_of_children_come_after_what_somebody_waits_for(self):
        queue, clock = a_queue(per_s=1)
        looks = [a_look(str(number)) for number in range(50)]
        changed = a_status("changed", template={})

        assert admitted(queue, *looks) == ["a/0", "a/1", "a/2", "a/3", "a/4"]
        for _ in range(30):
            admitted(queue, *looks[5:])
        clock.now_s += 3
        assert admitted(queue, *looks[5:], changed)[0] == "a/changed"

    def test_changes_of_one_namespace_come_before_looks_of_all_others(self):
        queue, _ = a_queue(per_s=1)
        looks = [a_look("look", namespace=f"team-{number}") for number in range(50)]
        changed = [a_status(str(number), template={}) for number in range(2)]

        assert admitted(queue, *looks, *changed)[:2] == ["a/0", "a/1"]

    def test_who_scales_comes_first(self):
        queue, _ = a_queue(per_s=0.2)
        scale = Scale(deployment="z", uid="z", seen=1, replicas=2)

        assert admitted(queue, a_status("a"), a_status("z", scale=scale)) == ["a/z"]
        assert queue.num_held == 1

    def test_slows_down_while_the_api_server_fails_and_picks_up_again(self):
        queue, _ = a_queue()
        shares = []
        for failure in [KubernetesError("busy", status=429)] * 8 + [None] * 7:
            queue.note([failure] if failure else [])
            shares.append(queue.share)

        assert shares[:3] == [1 / 2, 1 / 4, 1 / 8]
        assert min(shares) == SLOWEST
        assert shares[-1] == 1

    @pytest.mark.parametrize(
        ("failure", "share"),
        [
            (KubernetesError("no answer", status=0), 0.5),
            (KubernetesError("nobody there", status=503), 0.5),
            (KubernetesError("no answer", status=0, is_alone=True), 1),
            (KubernetesError("failed calling webhook", status=500), 1),
            (KubernetesError("etcdserver: request is too large", status=500), 1),
            (KubernetesError("denied", status=403), 1),
            (ConflictError("changed", status=409), 1),
            (WriteFencedError("the Lease was lost"), 1),
        ],
    )
    def test_a_refusal_of_one_object_slows_nobody_down(self, failure, share):
        queue, _ = a_queue()

        queue.note([failure])

        assert queue.share == share


class TestABusyServer:
    """It answers 429 to each write of a status, and says when to come back, as a real one does."""

    def test_is_an_overload_and_no_fault_of_the_objects(self, tmp_path):
        busy = json_reply({"message": "too many requests"}, status=429, **{"Retry-After": "1"})
        here = json_reply({"metadata": {"uid": "u"}})
        status = Status(replicas=ReplicasStatus(desired=1, current=1, ready=1, summary="1/1"))
        with serving(lambda asked: here if asked.method == "GET" else busy) as server:
            (tmp_path / "config").write_text(a_kubeconfig(server.url))
            kube = KubeApi(load_client(str(tmp_path / "config"))).with_fence(lambda: None)
            writer = Writer(kube=kube, site=SITE, queue=WriteQueue(start=beside))
            wanted = Writes(namespace="a", name="x", uid="u", status=status)
            carried = writer.act([wanted], now="2026-01-02T00:00:00Z")["u"]

        assert writer.queue.share == 1 / 2
        assert carried[WriteKind.STATUS].cause is Cause.LATER


def a_herd(number):
    return [a_manifest(f"m{index:03}", scaling={"maxReplicas": 8}) for index in range(number)]


class TestTheLoop:
    def test_a_herd_is_carried_out_at_the_pace_and_comes_to_rest(self):
        world = a_world(*a_herd(30))
        loop = a_loop(world, writes_per_s=4, max_scale_up_replicas=1)
        number, ticks = [], 0
        while not number or number[-1]:
            number.append(len(tick(loop, world, after_s=5)))
            ticks += 1
            assert ticks < 100

        made = Counter(call.short.split("/")[0] for call in world.kube.writes)
        assert made["apply deployments"] == 30
        assert made["apply services"] == 30
        # 4 a second for 5 s, the replicas of what was made, and the object that was begun last.
        assert max(number) <= 4 * 5 + 8 + 6
        assert loop.num_held == 0

    def test_the_next_tick_comes_sooner_while_something_waits(self):
        world = a_world(*a_herd(9))
        loop = a_loop(world, writes_per_s=1)

        tick(loop, world)
        held_s = loop.pause_s()
        for _ in range(30):
            tick(loop, world)

        assert (held_s, loop.pause_s()) == (BURST_S, loop.settings.tick_s)

    def test_what_was_held_is_none_once_nothing_is_to_be_written(self):
        world = a_world(*a_herd(9))
        loop = a_loop(world, writes_per_s=1)
        tick(loop, world)
        assert loop.num_held > 0

        loop.writer.act([], now="2026-01-02T00:00:00Z")

        assert loop.num_held == 0

    def test_replicas_never_wait_behind_status(self):
        loop, world = served()
        herd = a_status("herd", event_records=("an Event",) * 10_000)
        loop.writer.queue.admit([herd])
        for pod in world.completions_per_s:
            world.completions_per_s[pod] = 1.6 * EACH

        done = tick(loop, world)

        assert done == ["patch deployments/llama/scale"]
        assert replicas_of(world) > FIRST_REPLICAS
        world.serve()
        assert "apply modeldeployments/llama/status" in tick(loop, world, after_s=300)
