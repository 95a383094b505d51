"""``python -m tonnage_lab.runner --kubeconfig FILE --config runner.yaml``."""

import argparse
import asyncio
import logging
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from tonnage_lab.runner import runner
from tonnage_lab.runner.api import open_api
from tonnage_lab.runner.config import RunnerConfig, load
from tonnage_lab.runner.network import NetworkError
from tonnage_lab.runner.process import PROGRAMS

logger = logging.getLogger("tonnage_lab.runner")


def obstacle() -> str | None:
    """Return why containers cannot be run on this machine; None if they can."""
    if os.geteuid() != 0:
        return "the pod runner makes network and mount namespaces: it has to be started as root"
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"the pod runner needs {', '.join(missing)}, which this machine does not have"
    return None


async def serve(kubeconfig: Path, config: RunnerConfig) -> None:
    """Run until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with open_api(kubeconfig) as api:
        await runner.run(api, config, stop)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the pod runner; 1 when it cannot."""
    parser = argparse.ArgumentParser(prog="python -m tonnage_lab.runner", description=__doc__)
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--config", type=Path, required=True)
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    if problem := obstacle():
        logger.error("%s", problem)
        return 1
    try:
        config = load(arguments.config)
        asyncio.run(serve(arguments.kubeconfig, config))
    except (ValidationError, NetworkError) as error:
        logger.error("%s", error)  # noqa: TRY400 -- the message says it all
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
