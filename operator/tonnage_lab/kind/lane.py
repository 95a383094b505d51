"""The lane: Docker that answers, a node image and kind; and a machine left as it was found."""

import fcntl
import itertools
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tonnage.termination import termination_raises
from tonnage_lab import assets
from tonnage_lab.kind import docker, machine, node_image, programs
from tonnage_lab.kind.docker import Docker
from tonnage_lab.processes import LabError
from tonnage_lab.progress import Step, silent

PUBLISHED_NODE: Final = (
    "kindest/node:v1.37.0@sha256:a1ed56cfb0e7b93589bdf97c8cd566405a265939e3620fc4f5de89adff580ae5"
)
"""As kind 0.33.0 has it: pkg/apis/config/defaults/image.go."""
IMAGE_VARIABLE: Final = "TONNAGE_KIND_IMAGE"
NETWORK: Final = "kind"
POD_RANGES: Final = range(100, 200)
"""Of 10.100.0.0/16 and those after it: clusters that run at once must not share one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterTools:
    """What clusters are made with."""

    folder: Path
    docker: Docker
    node_image: str
    kind: Path
    kubectl: Path
    pod_ranges: Iterator[int] = field(default_factory=lambda: itertools.cycle(POD_RANGES))

    @property
    def is_bare(self) -> bool:
        """Whether the node image was made here, and brings no network plugin's configuration."""
        return self.node_image == node_image.NAME

    def next_pod_range(self) -> int:
        return next(self.pod_ranges)


def obstacle(folder: Path | None = None) -> str | None:
    """Return why no cluster of kind can be had here without a pull or a build; None if it can."""
    folder = programs.lane_folder() if folder is None else folder
    if os.geteuid() != 0:
        return "routes to the pods of a kind cluster take root"
    if shutil.which("docker") is None:
        return "there is no docker on the PATH"
    if users_own().answers():
        return _obstacle_with_docker(folder)
    if missing := docker.missing_programs():
        return f"no Docker answers, and {', '.join(missing)} to start one is missing"
    if not _mark(folder).is_file():
        return (
            f"no Docker answers, and {folder} holds no node image: "
            "make one with 'python -m tonnage_lab.kind build'"
        )
    return None


def _obstacle_with_docker(folder: Path) -> str | None:
    if _kind(folder) is None:
        return "there is no kind on the PATH"
    if _image_at_hand(users_own()) is None:
        return f"Docker has no node image: docker pull {PUBLISHED_NODE}"
    return None


def users_own() -> Docker:
    """Return what this user's docker talks to, whether it answers or not."""
    return Docker(program=docker.client())


def _kind(folder: Path) -> Path | None:
    built = programs.paths(folder).programs / "kind"
    found = shutil.which("kind")
    return Path(found) if found else built if built.is_file() else None


def _image_at_hand(engine: Docker) -> str | None:
    candidates = (os.environ.get(IMAGE_VARIABLE), node_image.NAME, PUBLISHED_NODE)
    return next((each for each in candidates if each and engine.has(each)), None)


def _mark(folder: Path) -> Path:
    """Return the file that says that Docker's data under this folder holds a node image."""
    return folder / "node-image"


@contextmanager
def cluster_tools(folder: Path | None = None, *, step: Step = silent) -> Iterator[ClusterTools]:
    """Yield a lane; whatever it changes on this machine is undone at the end, and compared.

    Raises:
        LabError: there is no Docker, no kind or no node image here.
    """
    folder = programs.lane_folder() if folder is None else folder
    if problem := obstacle(folder):
        raise LabError(problem)
    with engine(folder, step=step) as found:
        kind = _kind(folder)
        if kind is None:
            raise LabError("there is no kind")
        yield ClusterTools(
            folder=folder,
            docker=found,
            node_image=_image_at_hand(found) or PUBLISHED_NODE,
            kind=kind,
            kubectl=assets.ensure(["kubectl"], step=step)["kubectl"],
        )


@contextmanager
def engine(folder: Path, *, step: Step = silent) -> Iterator[Docker]:
    """Yield the Docker that answers, else one of our own, after which the machine is as it was.

    Of a Docker of somebody else's only the lane's clusters are deleted, by those who made them:
    whose the bridges, networks and settings are that came meanwhile cannot be told.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder):
        if (running := users_own()).answers():
            yield running
            return
        with (
            _left_as_found(folder),
            docker.own(folder, step=step) as own,
            _without_network(own),
        ):
            yield own


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Refuse a second lane in the same folder: at its end it would undo what the first needs.

    Raises:
        LabError: there is another.
    """
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise LabError(f"another kind lane runs in {folder}") from error
        yield


@contextmanager
def _without_network(engine: Docker) -> Iterator[None]:
    """Take away kind's network: its bridge would outlive Docker."""
    try:
        yield
    finally:
        if _has_network(engine):
            _delete_clusters(engine)
            engine("network", "rm", NETWORK)


def _delete_clusters(engine: Docker) -> None:
    """Remove the nodes of clusters that nobody deleted: only a killed lane leaves some."""
    if nodes := engine("ps", "--all", "--quiet", "--filter", f"network={NETWORK}").split():
        docker.thawing(lambda: engine("rm", "--force", "--volumes", *nodes))


def _has_network(engine: Docker) -> bool:
    return bool(engine("network", "ls", "--quiet", "--filter", f"name=^{NETWORK}$").strip())


@contextmanager
def _left_as_found(folder: Path) -> Iterator[None]:
    before = machine.load(folder) or machine.look()
    machine.save(before, folder)
    with termination_raises():
        try:
            yield
        finally:
            put_back(folder, before)


def put_back(folder: Path, before: machine.MachineState) -> list[str]:
    """Undo what the lane did to this machine; print, and return, what differs all the same."""
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)  # once is enough
    try:
        machine.undo(before, folder)
    finally:
        signal.signal(signal.SIGINT, previous)
    left = machine.differences(before, machine.look())
    machine.forget(folder)
    print_comparison(left)
    return left


def print_comparison(left: list[str]) -> None:
    parts = "processes, links, routes, rules, mounts, cgroups and sysctls"
    lines = left or [f"nothing is left behind: {parts} are as before"]
    sys.stderr.write("".join(f"kind lane: {line}\n" for line in lines))


def mark(folder: Path) -> None:
    _mark(folder).write_text(f"{node_image.NAME}\n")
