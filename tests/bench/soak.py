"""A day of simulated time: what grows in the operator that should not, and the page that says so.

    python tests/bench/soak.py [--hours 24] [--objects 10] [--seed 1] [--page]

The loop runs as the operator's thread runs it, and two releases want to lead, over a cluster in
memory that goes on whenever they wait: ``soak_world.py`` says what happens in it. Ticks come every
15 s, and at once when something changed. Memory is that of the whole process, with the objects of
the API server in it, of which there are ever as many.
"""

import contextlib
import gc
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import _lru_cache_wrapper
from pathlib import Path
from statistics import linear_regression

import click
from measured import rss_mib, table, write_page
from prometheus_client import generate_latest
from soak_world import DEEDS, HOUR_S, SoakWorld

from loop_builders import a_loop_asking
from tonnage.cluster.calls import WorldError
from tonnage.cluster.lease import RENEW_S, Leadership
from tonnage.fleet.heartbeat import Heartbeat
from tonnage.fleet.loop import Loop
from tonnage.main import keep_deciding

PAGE = Path(__file__).with_name("soak.md")
STEP_S = RENEW_S / 2
"""As often as the Lease is looked after."""
SCRAPED_S = 60.0
"""Between two looks at the operator's own metrics."""
FIRST_HOURS = 2
"""In which caches fill: a day before is not the same as an hour before."""
MOST_MIB_PER_HOUR = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Hour:
    """What stands at the end of a simulated hour, and what was done in it."""

    number: int
    rss_mib: float
    num_python_objects: int
    num_threads: int
    num_lease_writes: int
    num_status_writes: int
    num_other_writes: int
    num_ticks: int
    cpu_s: float
    kept: dict[str, int]
    """Entries, by what remembers them."""

    @property
    def row(self) -> list[str]:
        leases, cpu_s = f"{self.num_lease_writes / 60:g}", f"{self.cpu_s:.0f}"
        of_process = (self.number, f"{self.rss_mib:.1f}", self.num_python_objects, self.num_threads)
        writes = (leases, self.num_status_writes, self.num_other_writes)
        return [*map(str, (*of_process, *writes, self.num_ticks, cpu_s, *self.kept.values()))]


class Waited(threading.Event):
    """An event for which one waits in simulated time; it is set when a time has come, too."""

    def __init__(
        self, go_on: Callable[[], None], now: Callable[[], float], end_s: float = math.inf
    ) -> None:
        super().__init__()
        self._go_on, self._now, self._end_s = go_on, now, end_s

    def is_set(self) -> bool:
        return super().is_set() or self._now() >= self._end_s

    def wait(self, timeout: float | None = None) -> bool:
        until_s = self._now() + (timeout or 0)
        while not self.is_set() and self._now() < until_s:
            self._go_on()
        return self.is_set()


@dataclass(kw_only=True)
class Soak:
    """An operator in a cluster that goes on, and what is counted of both."""

    hours: float
    num_objects: int
    seed: int = 1
    found: list[Hour] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.world = world = SoakWorld(num_objects=self.num_objects, seed=self.seed)
        self.leaderships = [
            Leadership(world.kube, namespace=each, identity=each, cluster_class="", clock=self._now)
            for each in ("first-release", "second-release")
        ]
        world.leads = self.leaderships[0].is_leader
        self.heartbeat = Heartbeat(clock=self._now)
        self.loop = a_loop_asking(world.ask, world)
        fenced = world.kube.with_fence(self.leaderships[0].check)
        self.loop.writer = replace(self.loop.writer, kube=fenced)
        self.loop.observer.tell = self.heartbeat.note_answers
        self.loop.tell, self.loop.step = self.heartbeat.exporter.note, self._step
        self.loop.store.changed = Waited(self._go_on, self._now)
        self._num_ticks, self._cpu_s, self._scraped_at_s = 0, time.process_time(), 0.0
        self._written = Counter[str]()

    def _now(self) -> float:
        return self.world.now_s

    @contextlib.contextmanager
    def _step(self, name: str) -> Iterator[None]:
        self._num_ticks += name == "act"
        with self.heartbeat.step(name):
            yield

    def run(self) -> Sequence[Hour]:
        end_s = self.world.now_s + self.hours * HOUR_S
        self._lead()
        stop = Waited(self._go_on, self._now, end_s)
        keep_deciding(self.loop, self.leaderships[0], self.heartbeat, stop)
        return self.found

    def _go_on(self) -> None:
        """Let a step of time pass for everybody but the loop."""
        hour = int(self.world.hours)
        self.world.go_on(STEP_S, self.loop.store)
        self._lead()
        self._written.update(kind_of(call.path) for call in self.world.kube.writes)
        self.world.kube.writes.clear()
        if self.world.now_s - self._scraped_at_s >= SCRAPED_S:
            generate_latest(self.heartbeat.registry)
            self._scraped_at_s = self.world.now_s
        if int(self.world.hours) > hour:
            self.count(hour + 1)

    def _lead(self) -> None:
        """Let both want to lead: the second, which does nothing, a minute later."""
        began = self.leaderships if self.world.hours * 60 >= 1 else self.leaderships[:1]
        for each in began:
            with contextlib.suppress(WorldError):
                each.maintain()

    def count(self, number: int) -> None:
        cpu_s, self._cpu_s = time.process_time() - self._cpu_s, time.process_time()
        done = Hour(
            number=number,
            rss_mib=rss_mib(),
            num_python_objects=len(gc.get_objects()),
            num_threads=len(list(Path("/proc/self/task").iterdir())),
            num_lease_writes=self._written["leases"],
            num_status_writes=self._written["status"],
            num_other_writes=self._written["others"],
            num_ticks=self._num_ticks,
            cpu_s=cpu_s,
            kept=kept(self.loop, self.heartbeat),
        )
        self.found.append(done)
        self._num_ticks = 0
        self._written.clear()
        click.echo(" ".join(done.row), err=True)


def kind_of(path: str) -> str:
    """Return as what a write is counted."""
    if "/leases" in path:
        return "leases"
    return "status" if path.endswith("/status") else "others"


def kept(loop: Loop, heartbeat: Heartbeat) -> dict[str, int]:
    """Return how many entries stand in what remembers something."""
    memory, learned = loop.memory, loop.memory.calibrations
    caches = (each for each in gc.get_objects() if isinstance(each, _lru_cache_wrapper))
    return {
        "views": sum(map(len, loop.store._views.values())),
        "objects": len(memory.objects),
        "answers": len(memory.answers),
        "learned": len(learned.speed) + len(learned.memory) + len(learned.objects),
        "counters": sum(map(len, heartbeat.exporter._counts.values())),
        "cached calls": sum(each.cache_info().currsize for each in caches),
    }


HEAD = """# A day of simulated time

Written by `python tests/bench/soak.py --page`, which says what runs; `soak_world.py`, what happens:
{objects} objects in five namespaces, under a wave of load over the day, and for each twenty objects
in an hour about {churn}.
For a minute after hours 5, 11, 17 and 23 the API server is away: the lead is lost, with the answers
that were remembered, and taken up again (rows 6, 12, 18 and 24: Lease writes lack that minute).
Bar: at most {most:g} MiB an hour after hour {first}, threads and Lease writes a minute the same at
hour {first} and in the end.

{verdict}

{table}
"""
COLUMNS = (
    "hour", "RSS, MiB", "Python objects", "threads", "Lease writes a minute", "status writes",
    "other writes", "ticks", "CPU, s",
)  # fmt: skip


def page(soak: Soak, wall_s: float) -> str:
    found = soak.found
    late = [each for each in found if each.number >= FIRST_HOURS] or found
    first, last = late[0], late[-1]
    growth = linear_regression([each.number for each in late], [each.rss_mib for each in late])
    churn = ", ".join(f"{number:g} of *{what}*" for what, (number, _) in DEEDS.items())
    happened = ", ".join(f"{n} of *{what}*" for what, n in sorted(soak.world.happened.items()))
    num_ticks = sum(each.num_ticks for each in found)
    cpu_s = sum(each.cpu_s for each in found)
    minutes = f"{first.num_lease_writes / 60:g} and {last.num_lease_writes / 60:g}"
    verdict = (
        f"Measured: {growth.slope:.2f} MiB an hour from hour {first.number} "
        f"({first.rss_mib:.0f} MiB) to hour {last.number} ({last.rss_mib:.0f} MiB); threads "
        f"{first.num_threads} and {last.num_threads}; Lease writes a minute {minutes}. "
        f"{num_ticks} ticks in {wall_s:.0f} s of wall time, "
        f"{soak.hours * HOUR_S / wall_s:.0f} times as fast as time passes, on a machine that "
        f"others used too; {cpu_s:.0f} s of CPU, {soak.hours * HOUR_S / cpu_s:.0f} times as fast. "
        "What still grows is bounded: learned entries of objects that are gone go at 768 KiB, "
        f"answers at 2,000, cached calls each by its own number. There were {happened}."
    )
    return HEAD.format(
        objects=soak.num_objects,
        churn=churn,
        most=MOST_MIB_PER_HOUR,
        first=FIRST_HOURS,
        verdict=verdict,
        table=table([*COLUMNS, *last.kept], [each.row for each in found], " ---: "),
    )


@click.command()
@click.option("--hours", type=float, default=24, show_default=True)
@click.option("--objects", type=int, default=10, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--page", "writes_page", is_flag=True, help="Write soak.md.")
def main(hours: float, objects: int, seed: int, writes_page: bool) -> None:
    logging.disable(logging.CRITICAL)
    began_s = time.perf_counter()
    soak = Soak(hours=hours, num_objects=objects, seed=seed)
    soak.run()
    text = page(soak, time.perf_counter() - began_s)
    click.echo(text)
    if writes_page:
        write_page(PAGE, text)


if __name__ == "__main__":
    main()
