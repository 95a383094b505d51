"""The command line: plan, explain, top, catalog, crd, lab, run."""

from tonnage.cli.app import main

__all__ = ["main"]
