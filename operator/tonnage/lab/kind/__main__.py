"""``python -m tonnage.lab.kind build``: make a node image where none can be pulled.

``undo`` puts back what a lane that was killed has left changed on this machine.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from tonnage.lab import site
from tonnage.lab.kind import docker, images, lane, machine, node_image, programs
from tonnage.lab.processes import LabError
from tonnage.lab.progress import on_console

PACKAGES = "docker.io containerd runc iptables nftables mmdebstrap"


def build(folder: Path) -> None:
    """Make programs, root file system and images; minutes to half an hour, once."""
    if missing := docker.missing_programs():
        raise LabError(f"{', '.join(missing)} is missing; on Debian: apt install {PACKAGES}")
    step = on_console(Console(stderr=True))
    programs.ensure(programs.paths(folder), step=step)
    with lane.engine(folder, step=step) as engine:
        images.debian_root(engine, step=step)
        node_image.build(engine, programs.paths(folder), step=step)
        images.build_all(engine, site.STANDARD.truth, step=step)
    lane.mark(folder)


def undo(folder: Path) -> None:
    """Open a lane once more, and let it end as it should have."""
    if machine.load(folder) is None:
        raise LabError(f"{folder} holds no record of a lane that was not undone")
    with lane.engine(folder):
        pass


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tonnage.lab.kind", description=__doc__)
    parser.add_argument("what", choices=["build", "undo"])
    arguments = parser.parse_args(argv)
    folder = programs.lane_folder()
    try:
        {"build": build, "undo": undo}[arguments.what](folder)
    except LabError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
