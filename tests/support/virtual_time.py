"""Rounds of questions in simulated time: the clock of their event loop jumps to what is next."""

import asyncio
import selectors
from contextlib import asynccontextmanager
from types import SimpleNamespace

from query_api import compact
from tonnage.cluster.prometheus import QueryLimits, QueryRound
from tonnage.cluster.queries import Answers
from tonnage.estimate.fleet_scrapes import FleetScrapes
from tonnage.fleet.scrape import alone_after, first_kept_waiting, parts_of, still_alone
from tonnage.settings import Settings

EMPTY = compact({"status": "success", "data": {"resultType": "matrix", "result": []}}).encode()
ROUND_S = 15.0


class JumpingSelector(selectors.DefaultSelector):
    """Waits for nothing: what would be waited for is added to the clock."""

    def __init__(self):
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout=None):
        self.now_s += max(0.0, timeout or 0.0)
        return super().select(0)


class JumpingLoop(asyncio.SelectorEventLoop):
    def __init__(self):
        self.selector = JumpingSelector()
        super().__init__(self.selector)

    def time(self):
        return self.selector.now_s


def ask(sets, takes_s, *, status=lambda _name, _set: 200, limits=None):
    """Return the answers, and how long they took: ``takes_s`` and ``status`` by name and set."""
    by_text = {text: (name, each) for each in sets for name, text in each.expressions.items()}
    answers = Answers()

    @asynccontextmanager
    async def post(text):
        await asyncio.sleep(takes_s(*by_text[text]))

        async def pieces():
            yield EMPTY

        content = SimpleNamespace(iter_any=pieces)
        yield SimpleNamespace(status=status(*by_text[text]), headers={}, content=content)

    asking = QueryRound(
        post=post,
        scrapes=FleetScrapes(Settings(prometheus_url="http://prometheus.test:9090")),
        limits=limits or QueryLimits(),
        now=lambda: 0.0,
        answers=answers,
    )
    loop = JumpingLoop()
    try:
        loop.run_until_complete(asking.ask(sets))
        return answers, loop.time()
    finally:
        loop.close()


QUERIES = ("timestamp", "running", "waiting", *map(str, range(9)))


def expressions(namespaces):
    return {name: f"{name} of {'|'.join(namespaces) or 'all'}" for name in QUERIES}


class FleetInTime:
    """A fleet, by the pods of each namespace, that is asked for one round after the other."""

    def __init__(self, num_pods):
        self.num_pods, self.alone = num_pods, {}
        self.now_s, self.took_s, self.first = 0.0, 0.0, ""
        self.sets, self.answers = [], None

    def round(self, takes_s, **more):
        """Ask for everything; return the namespaces that lack an answer."""
        pods = [
            (name, f"{name}-{n}") for name, total in self.num_pods.items() for n in range(total)
        ]
        alone = still_alone(self.alone, self.now_s)
        self.sets = parts_of(expressions, pods, alone, first=self.first)
        self.answers, self.took_s = ask(self.sets, takes_s, **more)
        end_s = self.now_s + self.took_s
        self.alone = alone_after(self.alone, self.sets, pods, self.answers, end_s)
        self.first = first_kept_waiting(self.sets, self.answers) or self.first
        self.now_s = max(self.now_s + ROUND_S, end_s)
        lacking = {key.partition("@")[2] for key in self.answers.problems}
        return set(self.num_pods) if "" in lacking else lacking
