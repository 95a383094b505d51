"""A lab that outlives the command that started it: ``up``, ``status`` and ``down``.

One JSON file per lab says which processes belong to it and where its servers answer. It is
written whenever a process joins, so that a start that was killed half-way can be taken down.
"""

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter

from tonnage_lab import assets, controlplane, prometheus
from tonnage_lab.controlplane import ControlPlane
from tonnage_lab.processes import LabError, ProcessGroup, ProcessRecord, is_alive
from tonnage_lab.progress import Step, silent

STATE_FILE: Final = "lab.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class LabState:
    """What the state file holds."""

    folder: Path
    kubeconfig: Path | None = None
    addresses: Mapping[str, str] = field(default_factory=dict)
    """By name, such as ``kubernetes`` and ``prometheus``."""
    members: Mapping[str, ProcessRecord] = field(default_factory=dict)
    """Processes by name, in the order of their start."""


_FORMAT: Final = TypeAdapter(LabState)

Part = Callable[[ControlPlane, Step], Mapping[str, str]]
"""Starts something beside the control plane, in its group; returns the addresses it adds."""


def default_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return ``$TONNAGE_LAB``, else the place for state of this user."""
    if chosen := environment.get("TONNAGE_LAB"):
        return Path(chosen)
    home = Path(environment.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return home / "tonnage" / "lab"


def load(folder: Path) -> LabState | None:
    """Return what the state file of a folder holds; None if there is none."""
    try:
        return _FORMAT.validate_json((folder / STATE_FILE).read_bytes())
    except FileNotFoundError:
        return None


def save(state: LabState) -> None:
    """Write the state file, whole or not at all."""
    partial = state.folder / f".{STATE_FILE}.partial"
    partial.write_bytes(_FORMAT.dump_json(state, indent=2))
    partial.rename(state.folder / STATE_FILE)


def start_prometheus(plane: ControlPlane, step: Step) -> Mapping[str, str]:
    return {"prometheus": prometheus.start(plane, step=step)}


def up(
    step: Step = silent,
    *,
    folder: Path | None = None,
    parts: tuple[Part, ...] = (start_prometheus,),
) -> LabState:
    """Start a lab that stays when this process ends.

    Raises:
        LabError: one runs in this folder already, or a part of it does not start.
    """
    folder = default_folder() if folder is None else folder
    _make_room(folder)
    group = ProcessGroup(logs=folder / "logs", detached=True)
    group.on_change = lambda: save(LabState(folder=folder, members=group.records))
    crds = assets.of_checkout("crds")
    with group.stopped_on_failure():
        plane = controlplane.start(folder, crds=crds, group=group, step=step)
        addresses = {"kubernetes": plane.server}
        for part in parts:
            addresses |= part(plane, step)
    state = LabState(
        folder=folder,
        kubeconfig=plane.kubeconfig,
        addresses=addresses,
        members=group.records,
    )
    save(state)
    return state


def _make_room(folder: Path) -> None:
    previous = load(folder)
    alive = [] if previous is None else [n for n, lives in status(previous).items() if lives]
    if alive:
        raise LabError(f"a lab runs in {folder} ({', '.join(alive)}); take it down first")
    if previous is None and folder.is_dir() and any(folder.iterdir()):
        raise LabError(f"{folder} is not empty, and no lab was there")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, mode=0o700)


def status(state: LabState) -> dict[str, bool]:
    """Return which members live."""
    return {name: is_alive(record) for name, record in state.members.items()}


def down(state: LabState) -> LabState:
    """Stop what still runs of a lab, and nothing else; logs and data stay for a look."""
    group = ProcessGroup(logs=state.folder / "logs", records=dict(state.members))
    group.stop_all()
    ended = replace(state, members={}, addresses={})
    save(ended)
    return ended
