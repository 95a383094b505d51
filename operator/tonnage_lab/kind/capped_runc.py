"""Stands in for runc where this machine itself lacks a capability, and then becomes runc.

runc refuses a privileged container there ("unable to apply caps: operation not permitted"), so
what the machine's own bounding set lacks is taken out of the request. Run as a script of its
own, by the Docker that the lane starts: nothing of Tonnage is imported.
"""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RUNC = "/usr/sbin/runc"
BUNDLE_FLAGS = ("--bundle", "-b")
PROCESS_FLAGS = ("--process", "-p")
NAMES = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
]
"""In the order of their numbers, from 0."""


def lacking(status: str) -> set[str]:
    """Return what a bounding set lacks, from the text of ``/proc/self/status``."""
    (line,) = (line for line in status.splitlines() if line.startswith("CapBnd:"))
    bounds = int(line.split()[1], base=16)
    return {f"CAP_{name}" for number, name in enumerate(NAMES) if not bounds >> number & 1}


def without(process: dict[str, Any], absent: set[str]) -> dict[str, Any]:
    """Return the process of an OCI request without these capabilities."""
    sets = process.get("capabilities") or {}
    kept = {kind: [each for each in given if each not in absent] for kind, given in sets.items()}
    return process | {"capabilities": kept}


def requests(arguments: list[str]) -> Iterator[tuple[Path, bool]]:
    """Yield the files that a command names, and whether each is a whole container's."""
    for flag, value in zip(arguments, [*arguments[1:], ""], strict=True):
        name, _, glued = flag.partition("=")
        if name in BUNDLE_FLAGS:
            yield Path(glued or value) / "config.json", True
        elif name in PROCESS_FLAGS:
            yield Path(glued or value), False


def main() -> None:
    absent = lacking(Path("/proc/self/status").read_text())
    for path, is_container in requests(sys.argv[1:]):
        if path.is_file():
            asked = json.loads(path.read_text())
            if is_container:
                asked["process"] = without(asked["process"], absent)
            else:
                asked = without(asked, absent)
            path.write_text(json.dumps(asked))
    os.execv(RUNC, [RUNC, *sys.argv[1:]])  # noqa: S606  (that is what it is for)


if __name__ == "__main__":
    main()
