"""PodMonitors that come after Tonnage, or go: made where they are served, and no pod rolls."""

from fleet_builders import a_manifest
from loop_builders import a_loop, a_world, condition, tick
from tonnage.cluster.kube import DEPLOYMENTS, MODEL_DEPLOYMENTS, POD_MONITORS
from tonnage.fleet.lists import LOOK_S

PLACE = POD_MONITORS.path("serving", "llama")
CHECK_S = 300


def rolled_out(*, has_pod_monitors):
    world = a_world(a_manifest())
    if not has_pod_monitors:
        world.kube.unserved.add(POD_MONITORS)
    loop = a_loop(world)
    tick(loop, world)
    for pod in world.serve():
        world.completions_per_s[pod] = 0.9
    for _ in range(6):
        tick(loop, world, after_s=60)
    return loop, world


def annotations(world):
    live = world.kube.objects[DEPLOYMENTS.path("serving", "llama")]
    return live["spec"]["template"]["metadata"].get("annotations") or {}


def wait_for_a_check(loop, world):
    """Let the cluster be looked at again, and children; return what is written."""
    return [
        write
        for _ in range(2 + CHECK_S // int(LOOK_S))
        for write in tick(loop, world, after_s=LOOK_S)
    ]


def change(world, **spec):
    body = world.kube.objects[MODEL_DEPLOYMENTS.path("serving", "llama")]
    body["spec"].update(spec)
    body["metadata"]["generation"] = body["metadata"].get("generation", 1) + 1


class TestThatComeLater:
    def test_are_made_and_no_pod_is_replaced(self):
        loop, world = rolled_out(has_pod_monitors=False)
        assert PLACE not in world.kube.objects
        assert annotations(world)["prometheus.io/scrape"] == "true"
        world.kube.unserved.discard(POD_MONITORS)

        done = wait_for_a_check(loop, world)

        assert "apply podmonitors/llama" in done
        assert "apply deployments/llama" not in done
        assert condition(world, "Drifted") == ("False", "AsWritten")

    def test_are_no_unknown_baseline_after_a_restart(self):
        _, world = rolled_out(has_pod_monitors=False)
        world.kube.unserved.discard(POD_MONITORS)
        anew = a_loop(world)
        anew.start_leading()

        done = wait_for_a_check(anew, world)

        assert "apply podmonitors/llama" in done
        assert "apply deployments/llama" not in done
        assert condition(world, "Drifted") == ("False", "AsWritten")

    def test_leave_pods_annotated_that_a_change_does_not_replace(self):
        loop, world = rolled_out(has_pod_monitors=False)
        world.kube.unserved.discard(POD_MONITORS)
        wait_for_a_check(loop, world)
        change(world, pods={"maxSurge": 0})

        assert "apply deployments/llama" in tick(loop, world)
        assert annotations(world)["prometheus.io/scrape"] == "true"

    def test_take_the_annotations_of_pods_that_are_replaced(self):
        loop, world = rolled_out(has_pod_monitors=False)
        world.kube.unserved.discard(POD_MONITORS)
        wait_for_a_check(loop, world)
        change(world, pods={"cpu": "3"})

        assert "apply deployments/llama" in tick(loop, world)
        assert annotations(world) == {}


def test_that_go_replace_no_pod():
    loop, world = rolled_out(has_pod_monitors=True)
    world.kube.unserved.add(POD_MONITORS)
    del world.kube.objects[PLACE]

    done = wait_for_a_check(loop, world)

    assert [each for each in done if "deployments/llama" in each and "status" not in each] == []
    assert PLACE not in world.kube.objects
    assert condition(world, "Drifted") == ("False", "AsWritten")
    assert not loop.lists.has_pod_monitors


def test_that_are_missed_once_after_groups_were_are_not_gone():
    loop, world = rolled_out(has_pod_monitors=True)
    loop.lists.missed = (True, False)
    world.kube.unserved.add(POD_MONITORS)
    tick(loop, world, after_s=LOOK_S)

    assert loop.lists.has_pod_monitors


def test_that_are_missed_once_are_not_gone():
    loop, world = rolled_out(has_pod_monitors=True)
    world.kube.unserved.add(POD_MONITORS)
    tick(loop, world, after_s=LOOK_S)
    world.kube.unserved.discard(POD_MONITORS)
    tick(loop, world)

    assert loop.lists.has_pod_monitors
