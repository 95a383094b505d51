"""SIGTERM, which would otherwise end us at once, past everything that cleans up."""

import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import active_children
from typing import Final

SIGNALLED: Final = 128
"""Exit code of what a signal ended, with the number of the signal."""


@contextmanager
def termination_raises() -> Iterator[None]:
    """Let SIGTERM end us as Ctrl-C does: through everything that cleans up."""
    previous = signal.signal(signal.SIGTERM, lambda *_: sys.exit(SIGNALLED + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


@contextmanager
def process_pool(num_processes: int) -> Iterator[ProcessPoolExecutor]:
    """Run work in processes; an error, Ctrl-C or SIGTERM leaves none of them behind."""
    pool = ProcessPoolExecutor(num_processes, initializer=_end_quietly)
    with termination_raises():
        try:
            yield pool
        except BaseException:
            for process in active_children():
                process.terminate()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        pool.shutdown()  # its thread would else meet the end of the interpreter


def _end_quietly() -> None:
    """Let a signal end a process of the pool at once; what is said of it is said once."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
