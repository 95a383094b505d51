"""A lane leaves the machine as it found it, however it ends."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tonnage_lab.kind import docker, machine

PROGRAM = """
import signal, sys, tempfile, time
from pathlib import Path
from tonnage_lab.kind import cluster, lane

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background
with lane.cluster_tools() as found, tempfile.TemporaryDirectory() as folder:
    made = cluster.start(found, Path(folder))
    try:
        print("it runs", flush=True)
        if "stay" in sys.argv:
            time.sleep(600)
    finally:
        made.plane.stop()
"""
LAST_WORDS = "nothing is left behind"
LONGEST_END_S = 120


def start(*arguments: str) -> subprocess.Popen[str]:
    """Start a lane with a cluster in a process of its own; return it when the cluster runs."""
    made = subprocess.Popen(  # noqa: S603
        [sys.executable, "-c", PROGRAM, *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert made.stdout is not None
    if made.stdout.readline() != "it runs\n":
        pytest.fail(f"no cluster: {made.communicate()[1]}")
    return made


def test_it_leaves_nothing_when_it_ends():
    before = machine.look()
    made = start()
    _, said = made.communicate(timeout=LONGEST_END_S)

    assert made.returncode == 0
    assert machine.differences(before, machine.look()) == []
    assert LAST_WORDS in said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_it_leaves_nothing_when_it_is_interrupted(number: signal.Signals):
    before = machine.look()
    made = start("stay")
    during = machine.differences(before, machine.look())
    made.send_signal(number)
    _, said = made.communicate(timeout=LONGEST_END_S)

    assert any(each.startswith("processes: ") for each in during)
    assert any("kernel/panic = 10 is new" in each for each in during)
    assert machine.differences(before, machine.look()) == []
    assert LAST_WORDS in said


@pytest.mark.skipif(not docker.FREEZER.is_dir(), reason="cgroup v2 kills what is frozen too")
def test_it_leaves_nothing_where_a_container_was_frozen_when_its_node_ended():
    before = machine.look()
    made = start("stay")
    state = next((docker.FREEZER / docker.CGROUP).rglob("cri-containerd-*/freezer.state"))
    state.write_text("FROZEN")
    made.send_signal(signal.SIGTERM)
    _, said = made.communicate(timeout=LONGEST_END_S)

    assert machine.differences(before, machine.look()) == []
    assert LAST_WORDS in said


def test_what_a_killed_lane_left_is_undone_afterwards():
    before = machine.look()
    made = start("stay")
    made.kill()
    made.communicate(timeout=LONGEST_END_S)
    left = machine.differences(before, machine.look())
    undone = subprocess.run(
        [sys.executable, "-m", "tonnage_lab.kind", "undo"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip

    assert left != []
    assert machine.differences(before, machine.look()) == []
    assert LAST_WORDS in undone.stderr
    assert Path("/proc/sys/kernel/panic").read_text().strip() == before.sysctls["kernel/panic"]
