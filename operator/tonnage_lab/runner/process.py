"""One process for a container: its namespaces, its end, and signals to it.

``unshare`` stays as the parent of the container's first process, which is number 1 in a PID
namespace of its own: when it ends, everything it started ends too. The chain of death signals
ends it when the runner dies, by whatever means.
"""

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tonnage.units import KIB
from tonnage_lab.runner.environment import NotStartableError
from tonnage_lab.runner.network import PodNetwork

PROGRAMS = ("setpriv", "nsenter", "unshare", "mount", "chroot", "ip", "sh")
"""What a machine needs to run containers this way: util-linux, coreutils, iproute2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Everything that it takes to start one container."""

    argv: Sequence[str]
    folder: str
    environment: Mapping[str, str]
    script: Path
    """Of ``mounts.script``."""
    log: Path
    network: PodNetwork | None


def program(name: str) -> str:
    """Return the path of a program of this machine.

    Raises:
        NotStartableError: it is not installed.
    """
    path = shutil.which(name)
    if path is None:
        raise NotStartableError("RunContainerError", f"{name} is not installed on this machine")
    return path


def command(launch: Launch) -> list[str]:
    """Return the whole command line."""
    enter = [program("nsenter"), f"--net={launch.network.path}", "--"] if launch.network else []
    return [
        program("setpriv"), "--pdeathsig", "KILL", "--",
        *enter,
        program("unshare"), "--mount", "--pid", "--fork", "--kill-child=KILL", "--",
        program("sh"), str(launch.script), launch.folder, *launch.argv,
    ]  # fmt: skip


class ContainerProcess:
    """A container that was started. Make it in the thread that lives as long as the runner."""

    def __init__(self, launch: Launch) -> None:
        launch.log.parent.mkdir(parents=True, exist_ok=True)
        try:
            with launch.log.open("ab") as log:
                self._popen = subprocess.Popen(
                    command(launch),
                    env=dict(launch.environment),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        except OSError as error:
            raise NotStartableError("RunContainerError", str(error)) from error
        self.environment, self._log = launch.environment, launch.log
        self.exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._handle = os.pidfd_open(self._popen.pid)
        asyncio.get_running_loop().add_reader(self._handle, self._note_exit)

    @property
    def pid(self) -> int:
        """Return the id of the outer process, whose end is the container's."""
        return self._popen.pid

    def _note_exit(self) -> None:
        asyncio.get_running_loop().remove_reader(self._handle)
        os.close(self._handle)
        code = self._popen.wait()
        self.exited.set_result(code if code >= 0 else 128 - code)

    def last_words(self) -> str:
        """Return the end of its log, as a kubelet reads it.

        Sources:
            kubernetes pkg/kubelet/container/runtime.go MaxContainerTerminationMessageLogLength, of
            which the lines (80) are more than so many characters have here.
        """
        return self._log.read_bytes()[-2 * KIB :].decode(errors="replace")

    def first_pid(self) -> int | None:
        """Return the id, outside, of the container's first process; None when it is gone."""
        try:
            children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        except OSError:
            return None
        return int(children[0]) if children else None

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the container's first process."""
        pid = self.first_pid()
        if pid is None or self.exited.done():
            return
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return

    def kill(self) -> None:
        """End everything in the container now."""
        if not self.exited.done():
            self._popen.kill()

    async def stop(self, grace_s: float) -> None:
        """Send SIGTERM, and SIGKILL when that did not end it in time."""
        self.send(signal.SIGTERM)
        await asyncio.wait([self.exited], timeout=max(0.0, grace_s))
        self.kill()
        await self.exited

    async def run_inside(self, argv: Sequence[str], *, timeout_s: float | None) -> int | None:
        """Run a command in the container; its exit code, or None when it took too long."""
        pid = self.first_pid()
        if pid is None:
            return None
        inside = await asyncio.create_subprocess_exec(
            program("nsenter"), "--target", str(pid),
            "--mount", "--net", "--pid", "--root", "--wd", "--", *argv,
            env=dict(self.environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            async with asyncio.timeout(timeout_s):
                return await inside.wait()
        except TimeoutError:
            inside.kill()
            await inside.wait()
            return None
