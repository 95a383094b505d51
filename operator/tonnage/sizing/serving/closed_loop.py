"""A client of a fixed number of users, who each wait for an answer before they ask again.

What it measures comes from the engine model, as what a plan says of an open loop does. All users
ask at once at first, as load generators do: where answers are few for each, that burst is much of
the mean TTFT. As many users as requests are a burst and nothing else.
"""

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from tonnage.engine.core import Engine
from tonnage.engine.routing import serve_users
from tonnage.engine.table import RequestTable
from tonnage.sizing.serving.replica import Replica, running_limit, serving_s
from tonnage.sizing.serving.trial import Trial, engine_costs, engine_limits, requests
from tonnage.sizing.workload import Slo, Workload

REQUESTS_PER_USER = 10
"""As in public benchmarks of closed loops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLoop:
    """What a client saw of one replica, request by request."""

    ttft_s: Sequence[float]
    """Server and network included."""
    tpot_s: Sequence[float]
    """Of an answer after its first token; 0 of an answer of one token."""
    later_tokens: Sequence[int]
    """Tokens of each answer after the first."""
    duration_s: float
    """From the first request to the last token."""

    @property
    def itl_s(self) -> float:
        """The mean over all tokens but the first of each answer."""
        tokens = sum(self.later_tokens)
        total_s = sum(map(math.prod, zip(self.tpot_s, self.later_tokens, strict=True)))
        return total_s / tokens if tokens else 0.0

    @property
    def mean_ttft_s(self) -> float:
        return fmean(self.ttft_s)

    @property
    def mean_tpot_s(self) -> float:
        return fmean(self.tpot_s)

    @property
    def requests_per_s(self) -> float:
        return len(self.ttft_s) / self.duration_s


def closed_loop(
    replica: Replica,
    workload: Workload,
    *,
    num_users: int,
    context_tokens: int,
    num_requests: int | None = None,
) -> ClosedLoop:
    """Return what so many users of a workload see, of ``REQUESTS_PER_USER`` requests each.

    ``num_requests``: of all users instead; as many as users make it a burst.
    """
    count = num_requests or REQUESTS_PER_USER * num_users
    drawn = requests(workload, arrival_scv=1.0, context_tokens=context_tokens, count=count)
    return run_client(replica, workload, drawn.table(1.0), num_users=num_users)


def run_client(
    replica: Replica, workload: Workload, table: RequestTable, *, num_users: int
) -> ClosedLoop:
    """Return what the users see who send these requests in order, whatever their arrivals were.

    ``workload``: of which the cache's blocks are counted.
    """
    num_ranks = replica.model.dp_size
    slots = replica.max_num_seqs or math.ceil(num_users / num_ranks)
    served = replace(replica, max_num_seqs=max(1, slots))
    longest = max(map(sum, zip(table.prompt_tokens, table.output_tokens, strict=True)))
    trial = Trial(replica=served, workload=workload, slo=Slo(), context_tokens=longest)
    limits = engine_limits(trial)
    engine = Engine(limits, engine_costs(served, limits.max_num_seqs), table)
    serve_users(engine, table, num_users)
    running = min(num_users, running_limit(served, workload))
    outside_s = serving_s(served, running, workload.prompt.mean_tokens)
    ttft_s, tpot_s = table.latencies_s(range(table.size))
    return ClosedLoop(
        ttft_s=array("d", (each_s + outside_s for each_s in ttft_s)),
        tpot_s=tpot_s,
        later_tokens=array("q", (tokens - 1 for tokens in table.output_tokens)),
        duration_s=engine.now_s,
    )
