"""The console of the commands: a reader that goes away ends the command, not the console."""

from typing import NoReturn

from rich.console import Console


class Terminal(Console):
    """Leaves a closed pipe to whoever runs the command, which knows the exit code for it."""

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError
