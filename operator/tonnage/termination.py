"""SIGTERM, which would otherwise end us at once, past everything that cleans up."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
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
