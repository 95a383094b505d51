"""What the lab tells a person while it works.

A step is a context: entered when the work begins, left when it is done. Who calls the lab
decides what a step looks like; the default says nothing.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from tonnage.units import MINUTE_S

Step = Callable[[str], AbstractContextManager[object]]

WORTH_TELLING_S: Final = 2.0
"""Shorter steps leave no line behind."""


def silent(_: str) -> AbstractContextManager[object]:
    return nullcontext()


def on_console(console: Console, *, reminder_s: float = MINUTE_S) -> Step:
    """Return a step that shows a running clock on a terminal, and a line a minute in a log."""

    @contextmanager
    def step(what: str) -> Iterator[None]:
        began_s = time.monotonic()
        with _clock(what, console) if console.is_terminal else _lines(what, console, reminder_s):
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


@contextmanager
def _lines(what: str, console: Console, reminder_s: float) -> Iterator[None]:
    console.print(f"{what} ...", highlight=False)
    ended = threading.Event()

    def remind() -> None:
        began_s = time.monotonic()
        while not ended.wait(reminder_s):
            console.print(f"{what}: {time.monotonic() - began_s:.0f} s so far", highlight=False)

    reminder = threading.Thread(target=remind, daemon=True)
    reminder.start()
    try:
        yield
    finally:
        ended.set()
        reminder.join()
