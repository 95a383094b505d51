"""The state file brings back what was saved, and decides whom `down` stops."""

from pathlib import Path

import pytest

from tonnage_lab import state
from tonnage_lab.processes import LabError, ProcessRecord, is_alive, start, stop
from tonnage_lab.state import LabState

GONE = ProcessRecord(pid=2**22 + 1, start_ticks=1, command=("etcd",), log="/logs/etcd.log")
"""Above the kernel's highest process id."""


def test_a_saved_state_comes_back_the_same(tmp_path: Path):
    saved = LabState(
        folder=tmp_path,
        kubeconfig=tmp_path / "kubeconfig",
        addresses={"kubernetes": "https://127.0.0.1:6443", "prometheus": "http://127.0.0.1:9090"},
        members={"etcd": GONE, "anything-else": GONE},
    )

    state.save(saved)

    assert state.load(tmp_path) == saved


def test_where_no_lab_was_there_is_no_state(tmp_path: Path):
    assert state.load(tmp_path) is None


def test_the_order_of_the_members_survives(tmp_path: Path):
    state.save(LabState(folder=tmp_path, members={"b": GONE, "a": GONE, "c": GONE}))

    assert list(state.load(tmp_path).members) == ["b", "a", "c"]


def test_down_stops_the_members_and_nobody_else(tmp_path: Path):
    member = start(["sleep", "600"], log=tmp_path / "member.log", detached=True)
    stranger = start(["sleep", "600"], log=tmp_path / "stranger.log")
    lab = LabState(folder=tmp_path, members={"gone": GONE, "member": member})
    before = state.status(lab)

    ended = state.down(lab)

    assert before == {"gone": False, "member": True}
    assert not is_alive(member)
    assert is_alive(stranger)
    assert state.load(tmp_path) == ended == LabState(folder=tmp_path)
    stop(stranger)


def test_a_second_lab_in_the_same_folder_is_refused(tmp_path: Path):
    member = start(["sleep", "600"], log=tmp_path / "member.log")
    state.save(LabState(folder=tmp_path, members={"etcd": member}))

    with pytest.raises(LabError, match=r"a lab runs in .* \(etcd\)"):
        state.up(folder=tmp_path)

    stop(member)


def test_a_folder_with_somebody_elses_files_is_not_emptied(tmp_path: Path):
    (tmp_path / "thesis.txt").write_text("all my work")

    with pytest.raises(LabError, match="not empty"):
        state.up(folder=tmp_path)

    assert (tmp_path / "thesis.txt").exists()


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"TONNAGE_LAB": "/labs/one", "XDG_STATE_HOME": "/state"}, "/labs/one"),
        ({"XDG_STATE_HOME": "/state"}, "/state/tonnage/lab"),
    ],
)
def test_the_folder_follows_the_environment(environment: dict[str, str], folder: str):
    assert state.default_folder(environment) == Path(folder)
