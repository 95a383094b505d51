"""What the lane may change on a machine: recorded before, restored after, and compared.

A kubelet writes kernel settings that have no namespace, and Docker leaves bridges, mounts and
control groups when it ends. The record is also a file, for the case that the lane itself was
killed: ``python -m tonnage_lab.kind undo``.
"""

import os
import shutil
import stat
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter

from tonnage_lab.kind.docker import CGROUP
from tonnage_lab.processes import LabError, run

SYSCTLS: Final = Path("/proc/sys")
"""All of it is compared, since a kubelet, kube-proxy, Docker and the systemd of a node each write
some of it, and every container of the machine then shares what they wrote."""
MOVING: Final = frozenset({"kernel/ns_last_pid"})
"""Settings that the kernel itself moves."""
READ_AND_WRITE: Final = stat.S_IRUSR | stat.S_IWUSR
PROGRAMS: Final = frozenset(
    {"dockerd", "containerd", "containerd-shim-runc-v2", "docker-proxy", "kubelet", "kube-proxy",
     "coredns", "kind"}
)  # fmt: skip
RUNNER: Final = "tonnage"
"""How links of the pod runner begin: another lab may make and remove them meanwhile."""
FOREIGN: Final = ("/run/netns/", "/pytest-of-", f"dev {RUNNER}")
BRIDGES: Final = ("br-", "docker", "veth")
RECORD: Final = "machine.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineState:
    """One moment of a machine."""

    sysctls: Mapping[str, str]
    rules: tuple[str, ...]
    """Of the packet filter, its policies included."""
    links: tuple[str, ...]
    routes: tuple[str, ...]
    mounts: tuple[str, ...]
    cgroups: tuple[str, ...]
    processes: tuple[str, ...]
    """Of the programs that the lane starts."""


_FORMAT: Final = TypeAdapter(MachineState)


def look() -> MachineState:
    return MachineState(
        sysctls=dict(_sysctls()),
        rules=tuple(_rules()),
        links=tuple(sorted(_links())),
        routes=_own(_lines(["ip", "route", "show", "table", "main"])),
        mounts=_own(_mounts()),
        cgroups=_own(_cgroups()),
        processes=tuple(sorted(_processes())),
    )


def _own(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({name for name in names if not any(part in name for part in FOREIGN)}))


def _sysctls(root: Path = SYSCTLS) -> Iterator[tuple[str, str]]:
    """Yield what can be read and written, without the settings of links that come and go."""
    for path in root.rglob("*"):
        name = path.relative_to(root)
        if name.as_posix() not in MOVING and not _is_of_a_passing_link(name):
            with suppress(OSError):
                found = path.stat().st_mode
                if stat.S_ISREG(found) and found & READ_AND_WRITE == READ_AND_WRITE:
                    yield name.as_posix(), path.read_text(errors="replace").strip()


def _is_of_a_passing_link(name: Path) -> bool:
    return name.parts[0] == "net" and any(
        part.startswith((RUNNER, *BRIDGES)) for part in name.parts
    )


def _links() -> Iterator[str]:
    for path in Path("/sys/class/net").iterdir():
        if not path.name.startswith(RUNNER):
            yield path.name


def _rules() -> Iterator[str]:
    if shutil.which("nft"):
        yield from _lines(["nft", "--stateless", "list", "ruleset"])
    elif shutil.which("iptables-save"):
        yield from (
            line for line in _lines(["iptables-save"]) if not line.startswith(("#", "COMMIT"))
        )


def _lines(command: list[str | Path]) -> list[str]:
    try:
        return run(command).splitlines()
    except LabError:
        return []  # without root one sees less, and changes less


def _mounts() -> Iterator[str]:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        yield line.split()[4]


def _cgroups() -> Iterator[str]:
    """Yield the groups at the top: of one hierarchy, or of each."""
    root = Path("/sys/fs/cgroup")
    yield from (str(each) for each in (*root.glob("*/"), *root.glob("*/*/")))


def _processes() -> Iterator[str]:
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            name = (folder / "exe").readlink().name
            if name in PROGRAMS:
                yield f"{name} {folder.name}"


def differences(before: MachineState, after: MachineState) -> list[str]:
    """Say what is there now and was not, and what was there and is not.

    Settings that came with a kernel module, which stays loaded, do not count: nobody set them.

    >>> from dataclasses import replace
    >>> nothing = MachineState(sysctls={"kernel/panic": "1"}, rules=(), links=(), routes=(),
    ...                        mounts=(), cgroups=(), processes=())
    >>> differences(nothing, replace(nothing, sysctls={"kernel/panic": "10"}, links=("br-1",)))
    ['sysctls: kernel/panic = 1 is gone', 'sysctls: kernel/panic = 10 is new', 'links: br-1 is new']
    """
    found: list[str] = []
    for each in fields(MachineState):
        known = getattr(before, each.name)
        was, now = (_as_lines(getattr(machine, each.name), known) for machine in (before, after))
        found += [f"{each.name}: {line} is gone" for line in was if line not in now]
        found += [f"{each.name}: {line} is new" for line in now if line not in was]
    return found


def _as_lines(part: Mapping[str, str] | tuple[str, ...], known: Container[str]) -> list[str]:
    if isinstance(part, Mapping):
        return [f"{name} = {value}" for name, value in part.items() if name in known]
    return list(part)


def undo(before: MachineState, lane: Path) -> None:
    """Restore what the lane changed, and nothing else."""
    now = look()
    for name, value in before.sysctls.items() - now.sysctls.items():
        _write(SYSCTLS / name, value)
    for link in _new(now.links, before.links):
        if link.startswith(BRIDGES):
            _lines(["ip", "link", "delete", link])
    for mount in _new(now.mounts, before.mounts):
        if mount.startswith(str(lane)):
            _lines(["umount", "--lazy", mount])
    for top in _new(now.cgroups, before.cgroups):
        if Path(top).name == CGROUP:
            _remove_group(Path(top))


def _write(path: Path, value: str) -> None:
    with suppress(OSError):  # gone with a module, or not ours to write
        path.write_text(value)


def _new(now: tuple[str, ...], before: tuple[str, ...]) -> list[str]:
    """Return what was not there before, what lies deeper first."""
    return sorted(set(now) - set(before), reverse=True)


def _remove_group(top: Path) -> None:
    for folder, _, _ in os.walk(top, topdown=False):
        with suppress(OSError):
            Path(folder).rmdir()


def save(machine: MachineState, lane: Path) -> None:
    (lane / RECORD).write_bytes(_FORMAT.dump_json(machine, indent=2))


def load(lane: Path) -> MachineState | None:
    """Return what was recorded and not yet undone; None if nothing was."""
    try:
        return _FORMAT.validate_json((lane / RECORD).read_bytes())
    except FileNotFoundError:
        return None


def forget(lane: Path) -> None:
    (lane / RECORD).unlink(missing_ok=True)
