"""Programs of the lab: started with a log file, watched until they answer, stopped for certain.

A process is named by its id *and* the moment it started, so that a record read back
from a file can never name a stranger who was given the same id later.
"""

import os
import select
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

import requests

POLL_INTERVAL_S: Final = 0.05
LONGEST_POLL_INTERVAL_S: Final = 0.5
"""After a while: many conditions start a kubectl, which takes a tenth of a second of CPU."""
GRACE_S: Final = 3.0
"""From SIGTERM to SIGKILL. An API server without its etcd ignores SIGTERM for over 30 s."""
GRACES_S: Final[Mapping[str, float]] = {"runner": 15.0}
"""Of members of a group that have much to clean up."""
NUM_LOG_LINES: Final = 15


class LabError(Exception):
    """A part of the lab cannot be built, started or reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRecord:
    """What it takes to find a process again, and to know that it is the same one."""

    pid: int
    start_ticks: int
    """Clock ticks from boot to the start of the process, field 22 of /proc/PID/stat."""
    command: tuple[str, ...]
    log: str


def run(
    command: Sequence[str | Path],
    *,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    text: str | None = None,
) -> str:
    """Run a program to its end, with this text to read, and return what it printed.

    Raises:
        LabError: it failed, with the last lines of what it said about that.
    """
    words = _words(command)
    done = subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, **(environment or {})},
        input=text or "",
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        tail = _last_lines(done.stderr or done.stdout)
        raise LabError(f"{' '.join(words[:4])} ended with {done.returncode}:\n{tail}")
    return done.stdout


def _words(command: Sequence[str | Path]) -> list[str]:
    words = [str(word) for word in command]
    if shutil.which(words[0]) is None:
        raise LabError(f"{words[0]} is not a program on this machine")
    return words


def _last_lines(text: str) -> str:
    lines = text.splitlines()[-NUM_LOG_LINES:]
    return "\n".join(f"  {line}" for line in lines) or "  (it said nothing)"


def start_ticks(pid: int) -> int | None:
    """Return when the process started; None if there is none, or only its remains."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, *fields = stat.rpartition(")")[2].split()  # the name before it may hold spaces
    return None if state in "ZX" else int(fields[18])


def is_alive(record: ProcessRecord) -> bool:
    return start_ticks(record.pid) == record.start_ticks


def log_tail(record: ProcessRecord) -> str:
    try:
        return _last_lines(Path(record.log).read_text(errors="replace"))
    except FileNotFoundError:
        return _last_lines("")


def start(
    command: Sequence[str | Path],
    *,
    log: Path,
    detached: bool = False,
    environment: Mapping[str, str] | None = None,
) -> ProcessRecord:
    """Start a program with both its outputs in a log file.

    It gets a session of its own either way: Ctrl-C in a terminal would otherwise reach all
    programs at once, and they have to stop in order. Unless it is detached it dies with us,
    even if we are killed; the kernel counts the *thread* that started it as the parent, so
    start from one that lives as long as the program should.
    """
    words = _words(command)
    log.parent.mkdir(parents=True, exist_ok=True)
    argv = [*_dying_with_parent(detached=detached), *words]
    pid = os.posix_spawnp(
        argv[0],
        argv,
        {**os.environ, **(environment or {})},
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
        setsigdef=(signal.SIGPIPE,),  # Python ignores it, and others count on it
    )
    return ProcessRecord(
        pid=pid, start_ticks=start_ticks(pid) or 0, command=tuple(words), log=str(log)
    )


def _dying_with_parent(*, detached: bool) -> list[str]:
    setpriv = shutil.which("setpriv")
    return [] if detached or setpriv is None else [setpriv, "--pdeathsig", "KILL", "--"]


def stop(record: ProcessRecord, *, grace_s: float = GRACE_S) -> None:
    """End a process and wait until it is gone; do nothing if it already is."""
    try:
        handle = os.pidfd_open(record.pid)
    except ProcessLookupError:
        return
    try:
        if is_alive(record):  # asked after opening: from here on the handle cannot change hands
            _signal_until_gone(handle, grace_s)
    finally:
        os.close(handle)
    _reap(record.pid)


def _signal_until_gone(handle: int, grace_s: float) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        signal.pidfd_send_signal(handle, number)
        ended, _, _ = select.select([handle], [], [], grace_s)
        if ended:
            return


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return  # started by another process, which will do it


def wait_until(
    condition: Callable[[], bool],
    *,
    what: str,
    timeout_s: float,
    needs: Mapping[str, ProcessRecord] = MappingProxyType({}),
) -> None:
    """Wait for a condition that these processes bring about.

    Raises:
        LabError: when one of them ends, or time is up; with the last lines of the logs.
    """
    began_s = time.monotonic()
    deadline_s = began_s + timeout_s
    while not condition():
        dead = {name: record for name, record in needs.items() if not is_alive(record)}
        if dead:
            raise LabError(f"{what}: {' and '.join(dead)} ended\n{_log_tails(dead)}")
        if time.monotonic() > deadline_s:
            raise LabError(f"{what}: not within {timeout_s:g} s\n{_log_tails(needs)}")
        waited_s = time.monotonic() - began_s
        time.sleep(min(max(POLL_INTERVAL_S, waited_s / 10), LONGEST_POLL_INTERVAL_S))


def _log_tails(records: Mapping[str, ProcessRecord]) -> str:
    return "\n".join(f"{record.log}:\n{log_tail(record)}" for record in records.values())


def answers(
    url: str, *, ca: Path | None = None, client: tuple[Path, Path] | None = None
) -> Callable[[], bool]:
    """Return a condition: a GET of this address is answered with success."""
    verify = True if ca is None else str(ca)
    pair = None if client is None else (str(client[0]), str(client[1]))

    def answered() -> bool:
        try:
            with requests.Session() as session:
                session.trust_env = False  # a proxy has no business on loopback
                return session.get(url, verify=verify, cert=pair, timeout=2).ok
        except requests.RequestException:
            return False

    return answered


def free_ports(num_ports: int) -> list[int]:
    """Return loopback ports that nobody listens on, all different."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(num_ports)]
    try:
        return [int(open_socket.getsockname()[1]) for open_socket in sockets]
    finally:
        for open_socket in sockets:
            open_socket.close()


@dataclass(slots=True, kw_only=True)
class ProcessGroup:
    """Programs that belong together: kept by name, stopped in the reverse order of their start.

    Whoever adds a part to a lab starts it here; nothing else has to know of it.
    """

    logs: Path
    detached: bool = False
    records: dict[str, ProcessRecord] = field(default_factory=dict)
    on_change: Callable[[], None] = lambda: None

    def start(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        environment: Mapping[str, str] | None = None,
    ) -> ProcessRecord:
        if name in self.records and is_alive(self.records[name]):
            raise LabError(f"{name} already runs as process {self.records[name].pid}")
        log = self.logs / f"{name}.log"
        record = start(command, log=log, detached=self.detached, environment=environment)
        self.records[name] = record
        self.on_change()
        return record

    def stop(self, name: str) -> None:
        stop(self.records[name], grace_s=GRACES_S.get(name, GRACE_S))
        del self.records[name]
        self.on_change()

    def stop_all(self) -> None:
        for name in reversed(list(self.records)):
            self.stop(name)

    def wait_until(
        self, condition: Callable[[], bool], *, what: str, timeout_s: float, needs: Sequence[str]
    ) -> None:
        records = {name: self.records[name] for name in needs}
        wait_until(condition, what=what, timeout_s=timeout_s, needs=records)

    @contextmanager
    def stopped_on_failure(self) -> Iterator[None]:
        """Leave nothing behind when a start is given up half-way, by Ctrl-C as well."""
        try:
            yield
        except BaseException:
            self.stop_all()
            raise
