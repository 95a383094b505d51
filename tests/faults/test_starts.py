"""Pods that do not start, on a real API server: the test writes their status as a kubelet does."""

import time

import pytest

from tonnage.cluster.kube import EVENTS, PODS

pytestmark = pytest.mark.lab

LAST_LINE = "RuntimeError: Engine core initialization failed"
SECRET = {"reason": "CreateContainerConfigError", "message": 'secret "hugging-face" not found'}


def the_pod(world):
    """Return the name of the one pod that the Deployment's controllers made."""
    found = world.until(lambda: list(world.api.list(PODS.path(world.namespace))), "a pod is made")
    return found[0]["metadata"]["name"]


def kubelet_says(world, pod, **container):
    """Write the status of the pod's container."""
    status = {"name": "vllm", "image": "a", "imageID": "", "ready": False, "restartCount": 0}
    body = {"status": {"containerStatuses": [status | container]}}
    path = f"{PODS.path(world.namespace, pod)}/status"
    world.api.merge_patch(path, body, manager="kubelet")


def crashing(wait, number):
    said = f"back-off {wait} restarting failed container=vllm pod=llama"
    ended = {"exitCode": 1, "reason": "Error", "message": f"loading {number}\n{LAST_LINE}\n"}
    return {
        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": said}},
        "lastState": {"terminated": ended},
        "restartCount": number,
    }


def until_told(world, reason):
    """Wait for the condition, and for the Event that follows it."""
    events = EVENTS.path(world.namespace)
    world.until(
        lambda: world.condition("CapacityAvailable").get("reason") == reason, f"told: {reason}"
    )
    world.until(
        lambda: any(each["reason"] == reason for each in world.api.list(events)),
        f"an Event of {reason}",
    )
    return world.condition("CapacityAvailable")["message"]


class TestRow41PodsDoNotStart:
    """The kubelet's words, and the pod's name, are where people look first."""

    def test_a_secret_that_is_missing_is_the_reason_and_the_problem(self, world):
        world.begin()
        pod = the_pod(world)
        kubelet_says(world, pod, state={"waiting": SECRET})

        told = until_told(world, "CreateContainerConfigError")
        world.rest()
        [_, row] = world.plane.kubectl("get", "mdep", "-n", world.namespace).splitlines()

        said = f"pod {pod} does not start: CreateContainerConfigError: {SECRET['message']}"
        assert told == said
        assert world.condition("Ready")["reason"] == "PodsFailing"
        assert row.endswith(said)
        assert "   CreateContainerConfigError   " in row

    def test_a_back_off_that_grows_writes_no_status(self, world):
        world.begin()
        pod = the_pod(world)
        kubelet_says(world, pod, **crashing("10s", 1))
        told = until_told(world, "CrashLoopBackOff")
        world.rest()
        since_s = time.time()

        for number, wait in enumerate(["20s", "40s", "1m20s", "2m40s", "5m0s"], start=2):
            kubelet_says(world, pod, **crashing(wait, number))
            world.rest()
        written = world.proxy.writes(since_s=since_s)
        kubelet_says(world, pod, state={"waiting": SECRET}, lastState=None)

        assert told.endswith(f"does not start: CrashLoopBackOff: exit code 1: {LAST_LINE}")
        assert written == []
        assert "hugging-face" in until_told(world, "CreateContainerConfigError")
