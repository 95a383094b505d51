"""An object that etcd takes, and whose status it does not: nobody else is slowed down by it."""

import itertools
import json
import time

import pytest

from site_lab import a_model, show
from tonnage.cluster.kube import EVENTS, MODEL_DEPLOYMENTS
from tonnage.units import MIB

pytestmark = pytest.mark.lab

NAME = "large"
MOST_STORED_BYTES = 3 * MIB // 2
"""What etcd takes in one request, unless it is told otherwise."""
ROOM_BYTES = 3_000
"""Left beside the labels: enough for the object, too little for its status."""
LABEL_BYTES = len('"k00000":"",') + 63 + len('"f:k00000":{},')
"""Of one label in the object, and in the record of who wrote it."""
SAID = "etcdserver: request is too large"
LEAST_TRIES = 3
PATIENCE_S = 240.0


def a_large_object(namespace):
    number = (MOST_STORED_BYTES - ROOM_BYTES) // LABEL_BYTES
    labels = {f"k{each:05}": "x" * 63 for each in range(number)}
    metadata = {"name": NAME, "namespace": namespace, "labels": labels}
    scaling = {"maxReplicas": 4, "mode": "Recommend"}
    return a_model(scaling=scaling) | {"metadata": metadata}


def tries(world):
    """Return when its status was written, and with what that was answered."""
    ours = f"/{NAME}/status"
    return [(p.at_s, p.status) for p in world.proxy.writes() if p.path.endswith(ours)]


def pauses(world):
    """Return the time from each write of its status to the next."""
    return [later[0] - at for (at, _), later in itertools.pairwise(tries(world))]


def is_later(pauses_s):
    return any(later > 1.5 * earlier for earlier, later in itertools.pairwise(pauses_s))


def failures(world):
    """Return what the operator's own page says of the writes of its status."""
    lines = world.operator.page("/metrics").text.splitlines()
    wanted = [each for each in lines if each.startswith("tonnage_status_failures{")]
    return next((float(each.split()[-1]) for each in wanted if f'name="{NAME}"' in each), 0)


def notes(world):
    """Return what Events tell of its status."""
    told = world.api.get(EVENTS.path(world.namespace))["items"]
    ours = [each for each in told if each["regarding"]["name"] == NAME]
    return [each["note"] for each in ours if each["reason"] == "WriteRefused"]


def test_its_status_is_tried_ever_later_and_another_object_is_written_at_once(
    world, request, tmp_path
):
    world.begin()
    made = world.api.create(
        MODEL_DEPLOYMENTS.path(world.namespace), a_large_object(world.namespace)
    )
    stored_bytes = len(json.dumps(made, separators=(",", ":")))
    world.until(lambda: len(tries(world)) >= LEAST_TRIES, "its status is tried again")

    took_s = []
    for number in (2, 3, 4):
        asked_at_s = time.monotonic()
        world.ask_for(number)
        world.until_replicas(number)
        took_s.append(round(time.monotonic() - asked_at_s, 1))
    # Where an answer comes too late, on a busy machine, a pause grows one attempt later.
    world.until(lambda: is_later(pauses(world)), "it is tried later", timeout_s=PATIENCE_S)
    found, pauses_s = tries(world), pauses(world)
    figures = {
        "stored_bytes": stored_bytes,
        "replicas_written_after_s": took_s,
        "pauses_s": [round(each, 1) for each in pauses_s],
    }
    show(request.config, "A status that is too large", figures, tmp_path)

    assert {status for _, status in found} == {500}
    assert failures(world) >= LEAST_TRIES
    assert SAID in world.operator.log()
    world.until(lambda: notes(world), "an Event tells it")
    [note] = notes(world)
    assert SAID in note
    assert world.operator.num_starts == 1
