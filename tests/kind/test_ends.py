"""A cluster goes with the command that made it, however that ends."""

import signal
import subprocess
import sys

import pytest

from tonnage_lab.processes import run

PROGRAM = """
import signal, sys
from tonnage_lab.kind.__main__ import main

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background
sys.exit(main())
"""
LONGEST_END_S = 120


def what_is_there() -> list[str]:
    """Return the clusters of kind, and the routes of this machine."""
    return [*run(["kind", "get", "clusters"]).split(), *run(["ip", "route"]).splitlines()]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_an_interrupt_leaves_neither_a_cluster_nor_a_route(number: signal.Signals):
    before = what_is_there()
    made = subprocess.Popen(  # noqa: S603
        [sys.executable, "-c", PROGRAM],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert made.stdout is not None
    first = made.stdout.readline()
    during = what_is_there()
    made.send_signal(number)
    _, said = made.communicate(timeout=LONGEST_END_S)

    assert first.startswith("export KUBECONFIG="), said
    assert set(before) < set(during)
    assert what_is_there() == before
