"""``python -m tonnage_lab.kind build``: make a node image where none can be pulled.

``up`` starts a cluster with Prometheus, engines and the operator, which runs until Ctrl-C.
``undo`` restores what a lane that was killed has left changed on this machine.
"""

import argparse
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from rich.console import Console

from tonnage.termination import termination_raises
from tonnage_lab import assets, site
from tonnage_lab.kind import docker, images, lane, machine, node_image, programs
from tonnage_lab.kind import site as kind_site
from tonnage_lab.processes import LabError
from tonnage_lab.progress import on_console

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


def up(_: Path) -> None:
    """Run a cluster until somebody ends this process; then nothing of it is left."""
    step = on_console(Console(stderr=True))
    crds = assets.of_checkout("crds")
    with (
        termination_raises(),
        kind_site.running_site(site.STANDARD, crds, step=step) as (made, url),
    ):
        sys.stdout.write(f"export KUBECONFIG={made.plane.kubeconfig}\nprometheus   {url}\n")
        sys.stdout.flush()
        sys.stderr.write("Ctrl-C takes the cluster down\n")
        with suppress(KeyboardInterrupt):
            signal.pause()


def undo(folder: Path) -> None:
    """Open a lane once more, and let it end as it should have."""
    if machine.load(folder) is None:
        raise LabError(f"{folder} holds no record of a lane that was not undone")
    with lane.engine(folder):
        pass


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tonnage_lab.kind", description=__doc__)
    parser.add_argument("what", choices=["build", "up", "undo"])
    arguments = parser.parse_args(argv)
    folder = programs.lane_folder()
    try:
        {"build": build, "up": up, "undo": undo}[arguments.what](folder)
    except LabError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
