"""What the lab tells a person while it works.

A step is a context: entered when the work begins, left when it is done. Who calls the lab
decides what a step looks like; the default says nothing.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

Step = Callable[[str], AbstractContextManager[object]]

WORTH_TELLING_S: Final = 2.0
"""Shorter steps leave no line behind."""


def silent(_: str) -> AbstractContextManager[object]:
    return nullcontext()


def on_console(console: Console) -> Step:
    """Return a step that shows a running clock on a terminal, and lines in a log."""

    @contextmanager
    def step(what: str) -> Iterator[None]:
        began_s = time.monotonic()
        with _clock(what, console) if console.is_terminal else _line(what, console):
            yield
        elapsed_s = time.monotonic() - began_s
        if elapsed_s >= WORTH_TELLING_S:
            console.print(f"{what}: {elapsed_s:.0f} s", highlight=False)

    return step


@contextmanager
def _clock(what: str, console: Console) -> Iterator[None]:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        progress.add_task(what, total=None)
        yield


def _line(what: str, console: Console) -> AbstractContextManager[None]:
    console.print(f"{what} ...", highlight=False)
    return nullcontext()
