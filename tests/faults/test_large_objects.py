"""An object as large as etcd takes: an Event names it, and nobody else is slowed down by it."""

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
SAID = "more than 256 KiB"


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


def notes(world):
    """Return what Events say of it."""
    told = world.api.get(EVENTS.path(world.namespace))["items"]
    ours = [each for each in told if each["regarding"]["name"] == NAME]
    return [each["note"] for each in ours if each["reason"] == "InvalidSpec"]


def test_an_event_names_it_its_status_is_not_written_and_another_object_is_at_once(
    world, request, tmp_path
):
    world.begin()
    made = world.api.create(
        MODEL_DEPLOYMENTS.path(world.namespace), a_large_object(world.namespace)
    )
    stored_bytes = len(json.dumps(made, separators=(",", ":")))
    [note] = world.until(lambda: notes(world), "an Event names it")

    took_s = []
    for number in (2, 3, 4):
        asked_at_s = time.monotonic()
        world.ask_for(number)
        world.until_replicas(number)
        took_s.append(round(time.monotonic() - asked_at_s, 1))
    figures = {"stored_bytes": stored_bytes, "replicas_written_after_s": took_s}
    show(request.config, "An object that is too large", figures, tmp_path)

    assert SAID in note
    assert tries(world) == []
    assert NAME in world.operator.log()
    assert world.operator.num_starts == 1
