"""The mount namespace of a container, as a shell script. Pure: it only writes the script.

The container sees this machine's files through an overlay whose upper layer is in memory, so
that a mount path which does not exist here can be made, and nothing it writes stays behind.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_KERNEL_TREES: Final = ("/proc", "/sys", "/dev", "/run")
"""Not laid over: proc is mounted afresh, sys and dev are bound, run starts empty."""
_UNFIT: Final = frozenset(":,\\ \t\n")
"""Characters that mean something in the options of an overlay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bind:
    """A file or folder of this machine at a path in the container."""

    source: str
    target: str
    """Without symbolic links on the way."""
    is_file: bool = False
    read_only: bool = False


def shown_again(binds: Sequence[Bind], folders: Sequence[str]) -> list[Bind]:
    """Return binds for folders of this machine that a volume at or above them would hide.

    An image brings its own program; here it is this machine's, which may be installed under a
    folder such as /tmp that a pod mounts a volume on.

    >>> binds = [Bind(source="/volumes/tmp", target="/tmp")]
    >>> [each.target for each in shown_again(binds, ["/tmp/venv", "/usr/lib"])]
    ['/tmp/venv']
    """

    def is_hidden(folder: str) -> bool:
        return any(folder == b.target or folder.startswith(f"{b.target}/") for b in binds)

    return [Bind(source=folder, target=folder) for folder in folders if is_hidden(folder)]


def submounts(mountinfo: str) -> list[str]:
    r"""Return the folders that an overlay of ``/`` alone would show empty, parents first.

    >>> line = "36 35 98:0 / {} rw - ext4 /dev/x rw"
    >>> submounts("\n".join(line.format(path) for path in ("/", "/proc", "/home", "/dev/shm")))
    ['/home']
    """
    points = {line.split(" ")[4] for line in mountinfo.splitlines() if line}
    fit = {point for point in points if point != "/" and not _UNFIT & set(point)}
    return sorted(
        point
        for point in fit
        if not any(point == tree or point.startswith(f"{tree}/") for tree in _KERNEL_TREES)
    )


def script(*, scratch: str, binds: Sequence[Bind], lower: Sequence[str], mount: str) -> str:
    """Return a script that builds the container's root at ``scratch`` and enters it.

    Run it in a new mount and PID namespace as ``sh SCRIPT FOLDER PROGRAM ARGS...``.
    ``scratch`` must be an empty folder, ``lower`` what ``submounts`` says, ``mount`` the program.
    """
    root = f"{scratch}/root"
    lines = [
        "set -e",
        "trap 'exit 143' TERM",  # the first process of a PID namespace ignores it otherwise
        f"{mount} -t tmpfs -o mode=0755 tmpfs {shlex.quote(scratch)}",
        *_overlay(mount, scratch, 0, "/"),
    ]
    for index, point in enumerate(lower, start=1):
        lines += _optional(point, _overlay(mount, scratch, index, point))
    lines += [
        f"{mount} -t proc proc {shlex.quote(root)}/proc",
        f"{mount} --rbind /sys {shlex.quote(root)}/sys",
        f"{mount} --rbind /dev {shlex.quote(root)}/dev",
    ]
    for bind in sorted(binds, key=lambda each: each.target):
        lines += _bind(mount, root, bind)
    lines.append(
        f"""exec chroot {shlex.quote(root)} /bin/sh -c 'cd "$1" && shift && exec "$@"' sh "$@" """
    )
    return "\n".join(lines)


def _overlay(mount: str, scratch: str, index: int, lower: str) -> list[str]:
    upper, work = f"{scratch}/upper{index}", f"{scratch}/work{index}"
    options = f"lowerdir={lower},upperdir={upper},workdir={work}"
    target = f"{scratch}/root{lower}".rstrip("/")
    return [
        f"mkdir -p {shlex.quote(upper)} {shlex.quote(work)} {shlex.quote(target)}",
        f"{mount} -t overlay -o {shlex.quote(options)} overlay {shlex.quote(target)}",
    ]


def _optional(point: str, lines: list[str]) -> list[str]:
    """Some file systems cannot be laid over; a container can do without them."""
    return [f"if [ -d {shlex.quote(point)} ]; then ({'; '.join(lines)}) 2>/dev/null || true; fi"]


def _bind(mount: str, root: str, bind: Bind) -> list[str]:
    target = shlex.quote(root + bind.target)
    if bind.is_file:
        made = f"mkdir -p $(dirname {target}) && touch {target}"
    else:
        made = f"mkdir -p {target}"
    lines = [made, f"{mount} --bind {shlex.quote(bind.source)} {target}"]
    if bind.read_only:
        lines.append(f"{mount} -o remount,bind,ro {target}")
    return lines
