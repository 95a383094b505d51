"""A controller that follows a schedule: a constant fleet, or what somebody knew beforehand."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from tonnage.replay.prometheus import SimulatedPrometheus
from tonnage.replay.query import Query
from tonnage.replay.record import Record, moment
from tonnage.sizing.request import Flags

INTERVAL_S: Final = 15.0

Stages = Sequence[tuple[float, int]]
"""From when on so many replicas are asked for; the first from the start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduled:
    """Runs engines with these flags, as many as the schedule says for each time."""

    flags: Flags
    stages: Stages
    interval_s: float = INTERVAL_S
    table: Mapping[str, Query] = field(default_factory=dict)
    reads_scrapes: bool = False

    def replicas_at(self, at_s: float) -> int:
        starts = [start_s for start_s, _ in self.stages]
        return self.stages[max(0, bisect_right(starts, at_s) - 1)][1]

    def act(self, record: Record, prometheus: SimulatedPrometheus, at_s: float) -> None:  # noqa: ARG002
        cluster, wanted = record.cluster, self.replicas_at(at_s)
        if cluster.template is None:
            cluster.deploy(self.flags, wanted, at_s)
        elif cluster.replicas != wanted:
            cluster.scale(wanted, at_s)
        record.moments.append(moment(record, at_s))


def ready_for(wanted: Sequence[int], *, window_s: float, lead_s: float) -> Stages:
    """Return when to ask for replicas that are to be Ready as windows begin.

    At each time as many as any window between now and the lead needs.

    >>> ready_for([1, 3, 1], window_s=300.0, lead_s=60.0)
    [(0.0, 1), (240.0, 3), (600.0, 1)]
    """
    edges = {0.0}
    for number in range(1, len(wanted)):
        edges |= {max(0.0, number * window_s - lead_s), number * window_s}
    stages: list[tuple[float, int]] = []
    for at_s in sorted(edges):
        first = int(at_s // window_s)
        last = min(len(wanted) - 1, int((at_s + lead_s) // window_s))
        stages.append((at_s, max(wanted[first : last + 1])))
    return stages[:1] + [late for early, late in pairwise(stages) if late[1] != early[1]]
