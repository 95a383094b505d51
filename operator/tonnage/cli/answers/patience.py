"""Telling, once an answer takes long, how far it is."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from tonnage.catalog.gpu import Gpu
from tonnage.sizing.plan import Between

PATIENCE_S: Final = 2.0
BETWEEN_S: Final = 1.0


def watched(
    gpus: Sequence[Gpu], *, clock: Callable[[], float], tell: Callable[[str], None]
) -> Iterator[Gpu]:
    """Yield the classes; once that takes long, tell from time to time how far it is."""
    speaks_at = clock() + PATIENCE_S
    for number, gpu in enumerate(gpus):
        if (now := clock()) >= speaks_at:
            tell(f"Comparing: {number} of {len(gpus)} GPU classes done, {gpu.name} is next")
            speaks_at = now + BETWEEN_S
        yield gpu


def counting(*, clock: Callable[[], float], tell: Callable[[str], None]) -> Between:
    """Return what to call before each run of the engine model: it tells how many there were."""
    num_runs, speaks_at = 0, clock() + PATIENCE_S

    def between() -> None:
        nonlocal num_runs, speaks_at
        if (now := clock()) >= speaks_at:
            tell(f"Searching for goodput: {num_runs} runs of the engine model so far")
            speaks_at = now + BETWEEN_S
        num_runs += 1

    return between
