"""A router in front of engines: what reaches which of them, and when."""

from array import array
from collections.abc import Sequence
from typing import Final

from tonnage.engine.core import Engine
from tonnage.engine.table import RequestTable

POOLED: Final = "LeastOutstanding"


def serve(
    engines: list[Engine], table: RequestTable, routing: str, draws: Sequence[float]
) -> "array[int]":
    """Send each request to an engine, run all to the end, and return the rank that served each.

    Ranks are numbered through all engines, which have as many each; -1: it was refused.

    ``routing``: to who has least (``POOLED``), else at random. ``draws``: a uniform share of 0 to 1
    for each request, by which a random router chooses, and one that counts breaks ties.
    """
    num_engines, is_pooled = len(engines), routing == POOLED
    ranks = array("q", bytes(8 * table.size))
    for number in range(table.size):
        arrival_s = table.arrival_s[number]
        chosen = 0
        if num_engines > 1 and is_pooled:
            chosen = _least_outstanding(engines, arrival_s, draws[number])
        elif num_engines > 1:
            chosen = int(draws[number] * num_engines)
        engine = engines[chosen]
        engine.advance(arrival_s)
        rank = engine.submit(number)
        ranks[number] = chosen * engine.num_ranks + rank if rank >= 0 else rank
    for engine in engines:
        engine.advance(float("inf"))
    return ranks


def send(engine: Engine, table: RequestTable, first: int, last: int) -> None:
    """Send the requests from ``first`` to before ``last`` to one engine, each when it arrives."""
    for number in range(first, last):
        engine.advance(table.arrival_s[number])
        engine.submit(number)


def serve_users(engine: Engine, table: RequestTable, num_users: int) -> None:
    """Send the requests of users who each wait for an answer before they ask again, to the end.

    All users ask at once at first; as many as there are requests make it a burst. When a request
    arrives is written into the table.
    """
    sent = min(num_users, table.size)
    for number in range(sent):
        table.arrival_s[number] = 0.0
        engine.submit(number)
    while engine.num_outstanding:
        outstanding = engine.num_outstanding
        engine.advance_alike()
        for number in range(sent, min(table.size, sent + outstanding - engine.num_outstanding)):
            table.arrival_s[number] = engine.now_s
            engine.submit(number)
            sent += 1


def _least_outstanding(engines: list[Engine], at_s: float, draw: float) -> int:
    fewest, ties = -1, 0
    for engine in engines:
        engine.advance(at_s)
        outstanding = engine.num_outstanding
        if fewest < 0 or outstanding < fewest:
            fewest, ties = outstanding, 1
        elif outstanding == fewest:
            ties += 1
    left = int(draw * ties)
    for index in range(len(engines)):
        engine = engines[index]
        if engine.num_outstanding == fewest:
            if left == 0:
                return index
            left -= 1
    return 0
