"""The command line: plan, compare, replay, calibrate, explain, top, catalog, crd, lab, run."""

from tonnage.cli.commands.app import main

__all__ = ["main"]
