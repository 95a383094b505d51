"""How tests reach the operator past the API server: its log, its address, its process."""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tonnage_lab.site import NAMESPACE

Object = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hand:
    """Functions of the operator's pod, where it matters which one."""

    log: Callable[[], str]
    """What every pod of the operator said so far."""
    address: Callable[[Object], str]
    kill: Callable[[Object], None]
    """As a crash would."""


def process_hand(folder: Path) -> Hand:
    """Return the hand of an operator that the pod runner runs as a process of this machine."""

    def log() -> str:
        logs = folder / "runner" / "state" / "logs" / NAMESPACE
        return "".join(path.read_text() for path in sorted(logs.glob("*/*.log")))

    return Hand(log=log, address=lambda _: "127.0.0.1", kill=_kill)


def _kill(pod: Object) -> None:
    (state,) = pod["status"]["containerStatuses"]
    outer = int(state["containerID"].removeprefix("process://"))
    children = Path(f"/proc/{outer}/task/{outer}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGKILL)
