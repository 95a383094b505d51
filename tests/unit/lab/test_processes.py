"""Processes of the lab end when they should, and only those."""

import dataclasses
import os
import signal
import sys
from pathlib import Path

import pytest

from tonnage_lab import processes
from tonnage_lab.processes import LabError, ProcessGroup, is_alive, start, stop, wait_until

START_ONE_AND_WAIT = """
import sys, time
from pathlib import Path
from tonnage_lab.processes import start
record = start(["sleep", "600"], log=Path(sys.argv[1]), detached=sys.argv[2] == "detached")
print(record.pid, record.start_ticks, flush=True)
time.sleep(600)
"""


def eventually(condition) -> None:
    wait_until(condition, what="the condition", timeout_s=10, needs={})


def test_a_stopped_process_is_gone_and_reaped(tmp_path: Path):
    record = start(["sleep", "600"], log=tmp_path / "log")
    alive_before = is_alive(record)

    stop(record)

    assert alive_before
    assert not Path(f"/proc/{record.pid}").exists()


def test_a_process_that_ignores_sigterm_is_killed(tmp_path: Path):
    log = tmp_path / "log"
    record = start(["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done"], log=log)
    eventually(lambda: log.read_text() == "ready\n")

    stop(record, grace_s=0.1)

    assert not is_alive(record)


def test_a_stranger_with_the_same_id_is_left_alone(tmp_path: Path):
    record = start(["sleep", "600"], log=tmp_path / "log")
    earlier = dataclasses.replace(record, start_ticks=record.start_ticks - 1)

    stop(earlier)

    assert not is_alive(earlier)
    assert is_alive(record)
    stop(record)


def test_stopping_twice_is_harmless(tmp_path: Path):
    record = start(["true"], log=tmp_path / "log")

    stop(record)
    stop(record)

    assert not is_alive(record)


@pytest.mark.parametrize(("how", "survives"), [("attached", False), ("detached", True)])
def test_only_detached_processes_outlive_a_killed_parent(tmp_path: Path, how: str, survives: bool):
    package = {"PYTHONPATH": str(Path(processes.__file__).parents[2])}
    script = [sys.executable, "-c", START_ONE_AND_WAIT, tmp_path / "child.log", how]
    printed = tmp_path / "parent.log"
    parent = start(script, log=printed, environment=package)
    eventually(lambda: printed.read_text().endswith("\n"))
    pid, ticks = map(int, printed.read_text().split())
    record = processes.ProcessRecord(pid=pid, start_ticks=ticks, command=(), log="")
    eventually(lambda: Path(f"/proc/{pid}/comm").read_text() == "sleep\n")

    os.kill(parent.pid, signal.SIGKILL)
    stop(parent)

    if survives:
        assert is_alive(record)
        stop(record)
    eventually(lambda: not is_alive(record))


def test_a_wait_ends_with_the_log_of_the_process_that_died(tmp_path: Path):
    record = start(["sh", "-c", "echo cannot bind; exit 1"], log=tmp_path / "log")

    with pytest.raises(LabError, match=r"(?s)ready: server ended.*cannot bind"):
        wait_until(lambda: False, what="ready", timeout_s=10, needs={"server": record})

    stop(record)


def test_a_wait_that_takes_too_long_says_how_long(tmp_path: Path):
    record = start(["sleep", "600"], log=tmp_path / "log")

    with pytest.raises(LabError, match=r"ready: not within 0\.1 s"):
        wait_until(lambda: False, what="ready", timeout_s=0.1, needs={"server": record})

    stop(record)


def test_a_group_stops_in_the_reverse_order_of_its_start(tmp_path: Path):
    group = ProcessGroup(logs=tmp_path)
    for name in ("etcd", "server", "scheduler"):
        group.start(name, ["sleep", "600"])
    left: list[list[str]] = []
    group.on_change = lambda: left.append(list(group.records))

    group.stop_all()

    assert left == [["etcd", "server"], ["etcd"], []]


def test_a_group_refuses_a_second_member_of_one_name(tmp_path: Path):
    group = ProcessGroup(logs=tmp_path)
    group.start("etcd", ["sleep", "600"])

    with pytest.raises(LabError, match="etcd already runs"):
        group.start("etcd", ["sleep", "600"])

    group.stop_all()


def test_a_start_that_is_given_up_leaves_nothing(tmp_path: Path):
    group = ProcessGroup(logs=tmp_path)
    record = group.start("etcd", ["sleep", "600"])

    with pytest.raises(KeyboardInterrupt), group.stopped_on_failure():
        raise KeyboardInterrupt

    assert group.records == {}
    assert not is_alive(record)


def test_a_missing_program_is_named(tmp_path: Path):
    with pytest.raises(LabError, match="/nowhere/etcd"):
        start(["/nowhere/etcd"], log=tmp_path / "log")


def test_free_ports_are_different():
    ports = processes.free_ports(5)

    assert len(set(ports)) == 5
    assert all(port > 1023 for port in ports)


def test_a_failed_command_says_what_it_said():
    with pytest.raises(LabError, match=r"(?s)sh -c .* ended with 3:\n  no such thing"):
        processes.run(["sh", "-c", "echo no such thing >&2; exit 3"])
