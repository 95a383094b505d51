"""Docker: the one that answers on this machine, else one of the lane's own while it is needed.

The lane's own touches as little of the machine as it can: data, socket and cgroups of its own,
no default bridge, and neither packet filter nor forwarding, which kind does not need between
nodes of one bridge.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tonnage_lab.kind import capped_runc
from tonnage_lab.processes import LabError, ProcessGroup, run, wait_until
from tonnage_lab.progress import Step, silent

START_TIMEOUT_S: Final = 60.0
GRACE_S: Final = 30.0
CGROUP: Final = "tonnage-kind"
FREEZER: Final = Path("/sys/fs/cgroup/freezer")
"""Of cgroup v1: what is frozen there cannot be killed."""
FIRST_WITHOUT_BUILDKIT: Final = 23


@dataclass(frozen=True, slots=True, kw_only=True)
class Docker:
    """Call it with arguments; it returns what docker prints, or raises with its complaint."""

    program: Path
    socket: Path | None = None
    """Of the lane's own; None: what this user's docker talks to."""

    @property
    def environment(self) -> Mapping[str, str]:
        return {} if self.socket is None else {"DOCKER_HOST": f"unix://{self.socket}"}

    def __call__(self, *arguments: str | Path, text: str | None = None) -> str:
        return run([self.program, *arguments], text=text, environment=self.environment)

    def answers(self) -> bool:
        try:
            self("version", "--format", "{{.Server.Version}}")
        except LabError:
            return False
        return True

    def has(self, image: str) -> bool:
        return bool(self("images", "--quiet", image).strip())

    def build(self, context: Path, tag: str, *options: str | Path) -> None:
        """Build an image; steps reach the network as this machine does."""
        run(
            [
                self.program,
                "build",
                "--quiet",
                "--network",
                "host",
                "--tag",
                tag,
                *options,
                context,
            ],
            environment={**self.environment, "DOCKER_BUILDKIT": "1"},
        )

    def copy_images(self, images: Sequence[str], node: str, *options: str) -> None:
        """Copy images into the containerd of a node.

        Raises:
            LabError: it did not take them.
        """
        environment = {**os.environ, **self.environment}
        importing = ["ctr", "--namespace=k8s.io", "images", "import", "--all-platforms",
                     "--digests", *options, "-"]  # fmt: skip
        with subprocess.Popen(
            [self.program, "save", *images], stdout=subprocess.PIPE, env=environment
        ) as saving:
            done = subprocess.run(
                [self.program, "exec", "--interactive", node, *importing],
                stdin=saving.stdout,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
        if saving.returncode or done.returncode:
            raise LabError(f"{node} did not take {', '.join(images)}: {done.stderr.strip()}")


def client() -> Path:
    """Return a docker that can build: an older one has BuildKit in it, a newer one needs buildx.

    Raises:
        LabError: there is none on the PATH.
    """
    folders = os.get_exec_path()
    found = [Path(each) / "docker" for each in folders if (Path(each) / "docker").is_file()]
    if not found:
        raise LabError("docker is not on the PATH")
    return next(filter(_can_build, found), found[0])


def _can_build(program: Path) -> bool:
    released = re.search(r"version (\d+)", run([program, "--version"]))
    if released and int(released[1]) < FIRST_WITHOUT_BUILDKIT:
        return True
    try:
        run([program, "buildx", "version"])
    except LabError:
        return False
    return True


def own_socket(lane: Path) -> Path:
    return lane / "run" / "docker.sock"


@contextmanager
def own(lane: Path, *, step: Step = silent) -> Iterator[Docker]:
    """Start a Docker of the lane's own, and end it with everything that it runs.

    Raises:
        LabError: it does not start, with the last lines of its log.
    """
    (lane / "run").mkdir(parents=True, exist_ok=True)
    docker = Docker(program=client(), socket=own_socket(lane))
    _outlive(lane / "run" / "docker.pid")
    group = ProcessGroup(logs=lane / "logs", grace_s={"dockerd": GRACE_S})
    with group.stopped_on_failure(), step("starting Docker"):
        group.start("dockerd", ["dockerd", *_flags(lane)])
        group.wait_until(
            docker.answers,
            what="Docker answers",
            timeout_s=START_TIMEOUT_S,
            needs=("dockerd",),
        )
    try:
        yield docker
    finally:
        try:
            _remove_containers(docker)
        finally:
            group.stop_all()


def _outlive(pid_file: Path) -> None:
    """Wait for the end of a Docker that was killed a moment ago: the next one would refuse."""
    if pid_file.is_file():
        name = Path("/proc") / pid_file.read_text().strip() / "comm"
        wait_until(
            lambda: not (name.is_file() and name.read_text().startswith("dockerd")),
            what="an earlier Docker ends",
            timeout_s=GRACE_S,
            needs={},
        )
        pid_file.unlink()


def _remove_containers(docker: Docker) -> None:
    """Remove all. One whose removal an interrupt cut off is refused until that has ended."""

    def are_gone() -> bool:
        if left := docker("ps", "--all", "--quiet").split():
            with suppress(LabError):
                thawing(lambda: docker("rm", "--force", "--volumes", *left))
        return not docker("ps", "--all", "--quiet").strip()

    wait_until(are_gone, what="all containers are removed", timeout_s=GRACE_S, needs={})


def thawing(remove: Callable[[], object]) -> None:
    """Remove containers, and where Docker cannot kill one, thaw what is in them and try again.

    runc freezes a container for a moment. One that a node runs stays frozen if the node ends then.
    """
    try:
        remove()
    except LabError:
        thaw()
        remove()


def thaw(groups: Path = FREEZER / CGROUP) -> None:
    """Let the frozen processes of the lane's containers go on, or end."""
    for state in groups.rglob("freezer.state"):
        with suppress(OSError):  # gone meanwhile
            state.write_text("THAWED")


def _flags(lane: Path) -> list[str]:
    return [
        f"--data-root={lane / 'docker'}",
        f"--exec-root={lane / 'run' / 'docker'}",
        f"--pidfile={lane / 'run' / 'docker.pid'}",
        f"--host=unix://{own_socket(lane)}",
        "--storage-driver=overlay2",
        f"--cgroup-parent=/{CGROUP}",
        "--bridge=none",
        "--iptables=false",
        "--ip-forward=false",
        "--ip-masq=false",
        *_runtime_flags(lane),
    ]


def _runtime_flags(lane: Path) -> list[str]:
    """Return what makes Docker ask only for capabilities that this machine has."""
    if not capped_runc.lacking(Path("/proc/self/status").read_text()):
        return []
    program = lane / "run" / "runc"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {capped_runc.__file__} "$@"\n')
    program.chmod(0o755)
    return [f"--add-runtime=capped={program}", "--default-runtime=capped"]


def missing_programs() -> list[str]:
    """Return what a Docker of the lane's own needs and this machine lacks."""
    needed = ("docker", "dockerd", "containerd", "runc", "ip")
    return [name for name in needed if shutil.which(name) is None]
