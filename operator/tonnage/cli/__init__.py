"""The command line: commands each in a module of their own, and the plugin of kubectl."""

from tonnage.cli.commands.app import kubectl, main

__all__ = ["kubectl", "main"]
