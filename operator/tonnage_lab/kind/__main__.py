"""``python -m tonnage_lab.kind``: a cluster with Prometheus and the operator, until Ctrl-C."""

import signal
import sys
from contextlib import suppress

from rich.console import Console

from tonnage_lab import assets, site
from tonnage_lab.kind import site as kind_site
from tonnage_lab.processes import LabError
from tonnage_lab.progress import on_console


def main() -> int:
    step = on_console(Console(stderr=True))
    crds = assets.of_checkout("crds")
    try:
        with kind_site.running_site(site.STANDARD, crds, step=step) as (made, url):
            sys.stdout.write(f"export KUBECONFIG={made.plane.kubeconfig}\nprometheus   {url}\n")
            sys.stdout.flush()
            sys.stderr.write("Ctrl-C takes the cluster down\n")
            with suppress(KeyboardInterrupt):
                signal.pause()
    except LabError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
