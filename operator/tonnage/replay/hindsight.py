"""The fleets of whoever knows the traffic beforehand: the smallest constant one, and a staircase.

Neither is a policy: they say what there was to win. The staircase asks for replicas as long ahead
as the longest cold start takes, so that they are Ready in time, and pays for that.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tonnage.replay.fluid import Work
from tonnage.replay.scheduled import INTERVAL_S, ready_for
from tonnage.units import round_up

MOST_REPLICAS: Final = 1 << 9
WINDOW_S: Final = 300.0
FULL: Final = (0.2, 1.4)
"""Between which the load of a replica is searched, as a share of its fluid bound."""
CLOSE: Final = 0.02
TRIES: Final = 24
"""Runs that the descent takes at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What a schedule came to."""

    attainment: float
    gpu_hours: float


Try = Callable[[Sequence[int]], Tried]
"""Runs a fleet: replicas by window, in hindsight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticPeak:
    """The smallest constant fleet that keeps the target; without ``replicas`` none was found."""

    replicas: int | None
    best_attainment: float
    num_runs: int


def static_peak(
    run: Callable[[int], float], *, target: float, first: int, least: float = 1.0
) -> StaticPeak:
    """Search the smallest constant number; ``run`` returns the attainment of one.

    ``first``: a guess. Doubled until it suffices, or twice as many do not better ``least``
    replicas, the work there is in the mean: with fewer all are as bad as each other.
    """
    known: dict[int, float] = {}

    def suffices(number: int) -> bool:
        if number not in known:
            known[number] = run(number)
        return known[number] >= target

    high = max(1, first)
    while not suffices(high):
        is_better = high // 2 < least or known.get(high // 2, -1.0) < known[high]
        if 2 * high > MOST_REPLICAS or not is_better:
            return StaticPeak(
                replicas=None, best_attainment=max(known.values()), num_runs=len(known)
            )
        high *= 2
    low = max((number for number in known if known[number] < target), default=0)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if suffices(middle) else (middle, high)
    return StaticPeak(replicas=high, best_attainment=max(known.values()), num_runs=len(known))


@dataclass(frozen=True, slots=True, kw_only=True)
class Staircase:
    """Replicas by window of five minutes, and how they were found."""

    wanted: tuple[int, ...]
    full: float | None
    """The load of a replica that it began from, as a share of its bound; None: the peak."""
    num_runs: int


def staircase(run: Try, work: Work, *, target: float, peak: int) -> Staircase:
    """Search a cheap schedule: the fullest replicas that keep the target, then fewer by window.

    Never dearer than the constant fleet ``peak``, which is known to keep the target.
    """
    highest = work.highest(WINDOW_S)
    constant = tuple(peak for _ in highest)
    best, found, full, num_runs = constant, run(constant), None, 1
    low, high = FULL
    while high - low > CLOSE:
        middle = (low + high) / 2
        wanted = tuple(max(1, -int(-each // middle)) for each in highest)
        tried = run(wanted)
        num_runs += 1
        if tried.attainment < target:
            high = middle
            continue
        low = middle
        if tried.gpu_hours < found.gpu_hours:
            best, found, full = wanted, tried, middle
    lower, runs = _descend(run, best, found, highest, target=target)
    return Staircase(wanted=lower, full=full, num_runs=num_runs + runs)


def _descend(
    run: Try, wanted: tuple[int, ...], found: Tried, highest: Sequence[float], *, target: float
) -> tuple[tuple[int, ...], int]:
    """Take one replica from many windows at once, the least loaded first; from fewer if it fails.

    Windows are lowered where the schedule then keeps the target and is cheaper; one that alone
    could not be is left as it is.
    """
    share, num_runs = 1.0, 0
    stuck: set[int] = set()
    while num_runs < TRIES:
        able = [n for n, number in enumerate(wanted) if number > 1 and n not in stuck]
        able.sort(key=lambda n: highest[n] / (wanted[n] - 1))
        chosen = set(able[: max(1, int(share * len(able)))])
        if not chosen:
            break
        tried = tuple(number - (n in chosen) for n, number in enumerate(wanted))
        outcome = run(tried)
        num_runs += 1
        if outcome.attainment >= target and outcome.gpu_hours < found.gpu_hours:
            wanted, found = tried, outcome
        elif len(chosen) > 1:
            share /= 2
        else:
            stuck |= chosen
    return wanted, num_runs


def stages_of(wanted: Sequence[int], *, longest_start_s: float) -> Sequence[tuple[float, int]]:
    """Return when to ask for the replicas of a staircase."""
    lead_s = round_up(int(longest_start_s) + 1, int(INTERVAL_S))
    return ready_for(wanted, window_s=WINDOW_S, lead_s=lead_s)
