"""What a process holds of the first lists, on a real API server: no more than what it keeps."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from api_world import an_api_world
from tonnage.cluster.kube import PODS
from tonnage.units import KIB, MIB

pytestmark = pytest.mark.lab

NUM_PODS, NUM_HANDS = 1000, 4
NUM_VARIABLES = 60
"""Of each pod: as it is parsed it takes some 30 KiB, of which a view keeps half of one."""
QUIET_S = 3
MOST_BYTES = 40 * MIB


def a_pod(number):
    env = [
        {"name": f"VARIABLE_{each}", "value": f"{number}.{each}"} for each in range(NUM_VARIABLES)
    ]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"p{number:04}", "labels": {"tonnage.dev/managed": "true"}},
        "spec": {
            "schedulerName": "nobody",
            "containers": [{"name": "main", "image": "example.test/main:1", "env": env}],
        },
    }


def peak_bytes(world):
    """The most memory that an operator ever held, from its start until all was listed."""
    since_s = time.time()
    world.operator.start()
    world.until(lambda: has_listed(world, since_s), "its pods are listed")
    world.until(lambda: world.operator.probe("/readyz") == 200, "it is ready")
    told = Path(f"/proc/{world.operator.process.pid}/status").read_text().splitlines()
    world.operator.end(timeout_s=60)
    return next(int(each.split()[1]) * KIB for each in told if each.startswith("VmHWM"))


def has_listed(world, since_s):
    asked = [each.at_s for each in world.proxy.passed if each.path.endswith("/pods")]
    return bool(asked) and since_s <= max(asked) <= time.time() - QUIET_S


def test_is_what_is_kept_and_one_answer(fault_plane, administrator, tmp_path):
    with an_api_world(fault_plane, administrator, tmp_path) as world:
        world.add_operator().end(timeout_s=60)
        alone = peak_bytes(world)
        with ThreadPoolExecutor(NUM_HANDS) as hands:
            path = PODS.path(world.namespace)
            list(hands.map(lambda each: administrator.create(path, a_pod(each)), range(NUM_PODS)))

        peak = peak_bytes(world)
        assert peak - alone < MOST_BYTES
