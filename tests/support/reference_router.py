"""Replicas of the reference engine under one stream of requests, and what spreads it."""

import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from reference_engine import Request, Served


class ServerLike(Protocol):
    """One replica, stepping or fast."""

    completed: list[Served]

    @property
    def num_outstanding(self) -> int: ...
    @property
    def next_event_s(self) -> float: ...
    def submit(self, request: Request) -> None: ...
    def advance(self, until_s: float) -> None: ...


Pick = Callable[[float], ServerLike]


def at_random(servers: Sequence[ServerLike], seed: object) -> Pick:
    """Return what a plain Service does: any replica, whatever it has to do."""
    if len(servers) == 1:
        return lambda _: servers[0]
    routes = random.Random(f"{seed} routes")  # noqa: S311
    return lambda _: routes.choice(servers)


def least_outstanding(servers: Sequence[ServerLike], seed: object) -> Pick:
    """Return a router that knows what each replica has to do: ties are broken by chance."""
    routes = random.Random(f"{seed} routes")  # noqa: S311

    def pick(now_s: float) -> ServerLike:
        for server in servers:
            if server.next_event_s < now_s:
                server.advance(now_s)
        fewest = min(server.num_outstanding for server in servers)
        return routes.choice([each for each in servers if each.num_outstanding == fewest])

    return pick


def serve(
    servers: Sequence[ServerLike], pick: Pick, arrivals: Iterable[Request]
) -> Iterator[Served]:
    """Yield requests as they end, roughly in that order."""
    for request in arrivals:
        server = pick(request.arrival_s)
        server.submit(request)
        if server.completed:
            yield from server.completed
            server.completed.clear()
    for server in servers:
        server.advance(math.inf)
        yield from server.completed
        server.completed.clear()
