"""Is the cause of late requests named, and does the fleet stay where replicas do not help?

    python tests/bench/causes.py [--only LongPrompts] [--page PAGE]

Each world makes requests late for one cause, with each queue and each routing. Caches that are cold
or do not come are not simulated: tests of ``control/measure/causes.py`` have them.
"""

import math
import random
from array import array
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from pathlib import Path
from statistics import median

import click
from bench_options import PAGE, PROCESSES
from measured import write_page
from replay_cases import Lengths, manifest

from tonnage.api.objects import ModelDeployment, parse_model_deployment
from tonnage.control.measure.causes import LOAD, NOBODY
from tonnage.replay.cluster import ReplayedModel, StartupTime
from tonnage.replay.evaluation import LatencyLimits, RunFigures, fates, run_figures
from tonnage.replay.ground_truth import GroundTruth
from tonnage.replay.operator import Operator
from tonnage.replay.policies import ConstantFleet
from tonnage.replay.prometheus import SimulatedPrometheus
from tonnage.replay.record import Record
from tonnage.replay.scenario import SETTINGS, first_plan
from tonnage.replay.simulation import Controller, Simulation
from tonnage.replay.trace_sampling import drawn_from
from tonnage.replay.traces import Trace
from tonnage.sizing.expected import slo_of

DURATION_S, FROM_S = 3600.0, 900.0
WITHIN, ALLOWED = 0.005, 1.15
MOST_REPLICAS = 16
MOST_CONSTANT = 10
MEANING = """\
# Causes of late requests

Written by `tests/bench/causes.py`. Simulated: Llama 3.1 8B on H100, one hour, starts of 120 s.

Right, wrong and unknown are shares of the ticks after 15 minutes in which the SLO was missed. The
constant fleet is the smallest of up to 10 that keeps within half a point of what twice and four
times as many (up to 20) keep, or 10. `Queued` and `SlowSteps` are right too while fewer than that
are Ready.

**{:.1%} right, {:.1%} wrong, {:.1%} unknown. GPU-hours are at most {} of the constant fleet's in {}
of {} worlds; in the middle {:.2f}, at most {:.2f}.** Below 1 the fleet is smaller, and keeps less.
Where no fleet keeps half a percent, they are not compared.
"""
LENGTHS = Lengths(prompt_mean=1000, prompt_p99=2000, output_mean=200, output_p99=800)
QUEUES: tuple[dict[str, str], ...] = (
    {"queue": "fcfs"}, {"queue": "newestFirst"}, {"queue": "fcfs", "admission": "inTime"},
)  # fmt: skip
ROUTINGS = ("Service", "LeastOutstanding")


@dataclass(frozen=True, kw_only=True)
class World:
    """What makes requests late, and what is to be said of it."""

    causes: tuple[str, ...]
    rate: float = 40.0
    ttft: str = "500ms"
    tpot: str = "50ms"
    long_share: float = 0.0
    long_tokens: int = 16_000
    most: int = MOST_REPLICAS
    truth: GroundTruth = field(default_factory=GroundTruth)
    queue: dict[str, str] = field(default_factory=dict)
    routing: str = "Service"


WORLDS = (
    World(causes=("LongPrompts", "RequestsRefused"), rate=10, ttft="400ms", long_share=0.03),
    World(causes=("LongPrompts", "RequestsRefused"), rate=6, ttft="1s", long_share=0.03,
          long_tokens=40_000),
    World(causes=("ServerDelay",), truth=GroundTruth(server_s=0.49)),
    World(causes=("SlowPod",), truth=GroundTruth(first_pod_speed=0.5)),
    World(causes=("UnevenRouting",), truth=GroundTruth(sticky_share=0.4)),
    World(causes=("Queued", "RequestsRefused"), rate=60, most=2),
    World(causes=("SlowSteps",), tpot="15ms", most=3, truth=GroundTruth(speed=0.7)),
)  # fmt: skip


def worlds(only: str | None) -> Iterator[World]:
    for world, queue, routing in product(WORLDS, QUEUES, ROUTINGS):
        if only in {None, *world.causes}:
            yield replace(world, queue=queue, routing=routing)


def _model(world: World) -> ModelDeployment:
    given = manifest(LENGTHS, world.rate)
    spec = given["spec"]
    spec["contextLength"] = 65_536
    spec["slo"] = {
        "timeToFirstToken": {"p99": world.ttft}, "timePerOutputToken": {"p99": world.tpot}
    }  # fmt: skip
    spec["scaling"] |= {"routing": world.routing, "maxReplicas": world.most}
    spec["engine"] |= world.queue
    return parse_model_deployment(given)


def _trace(world: World) -> Trace:
    chance, at_s = random.Random(60), 0.0  # noqa: S311 -- drawn alike in each run
    arrivals, prompts, outputs = array("d"), array("q"), array("q")
    while (at_s := at_s + chance.expovariate(world.rate)) < DURATION_S:
        is_long = chance.random() < world.long_share
        prompt = world.long_tokens if is_long else chance.lognormvariate(math.log(956), 0.3)
        arrivals.append(at_s)
        prompts.append(max(1, round(prompt)))
        outputs.append(max(1, round(chance.lognormvariate(math.log(167), 0.6))))
    return Trace(arrival_s=arrivals, prompt_tokens=prompts, output_tokens=outputs)


class Watching(Operator):
    """Notes the reason of ``SLOMet``, and who was Ready, at each tick that misses the SLO."""

    def __init__(self) -> None:
        super().__init__(SETTINGS, is_brought_up=True)
        self.reasons = Counter[tuple[str, int]]()

    def act(self, record: Record, prometheus: SimulatedPrometheus, at_s: float) -> None:
        super().act(record, prometheus, at_s)
        for memory in self.memory.objects.values():
            met = memory.reported.conditions.get("SLOMet")
            if met and met.status == "False" and at_s >= FROM_S:
                self.reasons[met.reason, record.moments[-1].ready] += 1


@dataclass(frozen=True, kw_only=True)
class Result:
    world: World
    ticks: Counter[str]
    """From 15 minutes on: right, wrong and unknown."""
    figures: RunFigures
    constant: tuple[int, float]
    """Replicas of the constant fleet, and its share in time."""


def result_of(world: World) -> Result:
    """Run a world, and the constant fleets beside it."""
    model = _model(world)
    traffic = drawn_from(
        _trace(world), duration_s=DURATION_S, context_tokens=65_536, cached_fraction=0.0
    )
    served = ReplayedModel(
        model=model, traffic=traffic, truth=world.truth, start=StartupTime(mean_s=120)
    )
    limits = LatencyLimits.of(slo_of(model.spec))

    def run(controller: Controller) -> RunFigures:
        record = Simulation(served, settings=SETTINGS, controller=controller).run(DURATION_S)
        if record.faults:
            raise record.faults[0]
        return run_figures(record, traffic, fates(record, traffic, limits))

    flags, watching = first_plan(model).flags, Watching()

    @cache
    def share(replicas: int) -> float:
        return run(ConstantFleet(flags=flags, replicas=min(replicas, 20))).attainment

    found, n = run(watching), 1
    while n < MOST_CONSTANT and share(n) + WITHIN < max(share(2 * n), share(4 * n)):
        n += 1
    ticks = Counter[str]()
    for (reason, ready), number in watching.reasons.items():
        is_right = reason in world.causes or (reason in LOAD and ready < n)
        ticks["right" if is_right else "unknown" if reason == NOBODY.code else "wrong"] += number
    return Result(world=world, ticks=ticks, figures=found, constant=(n, share(n)))


def of_all(ticks: Counter[str]) -> tuple[float, ...]:
    return tuple(ticks[each] / max(1, ticks.total()) for each in ("right", "wrong", "unknown"))


def line(found: Result) -> str:
    world, figures, (replicas, kept) = found.world, found.figures, found.constant
    queue = world.queue.get("admission", world.queue["queue"])
    ticks = " | ".join(f"{share:.0%}" for share in of_all(found.ticks))
    return (
        f"| {' or '.join(world.causes)} | {queue} | {world.routing} | {ticks} | "
        f"{figures.attainment:.1%} | {figures.gpu_hours:.2f} | {replicas} | {kept:.1%} |"
    )


HEAD = """\
| cause | queue | routing | right | wrong | unknown | in time | GPU-hours | constant | in time |
| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"""


def meaning(found: list[Result]) -> str:
    ratios = [e.figures.gpu_hours / e.constant[0] for e in found if e.constant[1] > WITHIN]
    shares = of_all(sum((each.ticks for each in found), Counter[str]()))
    cheap = sum(each <= ALLOWED for each in ratios)
    return MEANING.format(*shares, ALLOWED, cheap, len(ratios), median(ratios), max(ratios))


@click.command()
@click.option("--only", help="One cause.")
@PAGE
@PROCESSES
def main(only: str | None, page: Path | None, processes: int) -> None:
    """Run worlds of one cause each."""
    found: list[Result] = []
    click.echo(HEAD)
    with ProcessPoolExecutor(processes) as pool:
        for each in pool.map(result_of, worlds(only)):
            found.append(each)
            click.echo(line(each))
    if page:
        write_page(page, "\n".join([meaning(found), HEAD, *map(line, found), ""]))


if __name__ == "__main__":
    main()
