"""Is the cause of late requests named, and does the fleet stay where replicas do not help?

    python tests/bench/causes.py [--only LongPrompts] [--page PAGE]

Each world makes requests late for one cause, with each queue and each routing. After 15 minutes the
reason of ``SLOMet`` is read at every tick in which the SLO is missed. GPU-hours are compared with
the smallest constant fleet that keeps within half a point of what twice as many keep. Caches that
are cold or do not come are not simulated: tests of ``control/measure/causes.py`` have them.
"""

import math
import random
from array import array
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

import click
from bench_options import PAGE, PROCESSES
from measured import write_page
from replay_cases import Lengths, manifest

from tonnage.api.objects import ModelDeployment, parse_model_deployment
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
WITHIN = 0.005
MOST_REPLICAS = 16
MOST_CONSTANT = 10
MEANING = """\
# Causes of late requests

Written by `tests/bench/causes.py`. Simulated: Llama 3.1 8B on H100, one hour, starts of 120 s.

The shares right, wrong and unknown are of the ticks after 15 minutes in which the SLO was missed.
The constant fleet is the smallest of up to 10 that keeps within half a point of what twice as many
keep.
"""
LENGTHS = Lengths(prompt_mean=1000, prompt_p99=2000, output_mean=200, output_p99=800)
QUEUES: tuple[dict[str, str], ...] = (
    {}, {"queue": "newestFirst"}, {"admission": "inTime"},
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
    World(
        causes=("LongPrompts", "RequestsRefused"),
        rate=6,
        ttft="1s",
        long_share=0.03,
        long_tokens=40_000,
    ),
    World(causes=("ServerDelay",), truth=GroundTruth(server_s=0.49)),
    World(causes=("SlowPod",), truth=GroundTruth(first_pod_speed=0.5)),
    World(causes=("UnevenRouting",), truth=GroundTruth(sticky_share=0.4)),
    World(causes=("Queued", "RequestsRefused"), rate=60, most=2),
    World(causes=("SlowSteps",), tpot="15ms", most=3, truth=GroundTruth(speed=0.7)),
)


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
    """Notes the reason of ``SLOMet`` at each tick in which the SLO is missed."""

    def __init__(self) -> None:
        super().__init__(SETTINGS, is_brought_up=True)
        self.reasons = Counter[str]()

    def act(self, record: Record, prometheus: SimulatedPrometheus, at_s: float) -> None:
        super().act(record, prometheus, at_s)
        for memory in self.memory.objects.values():
            met = memory.reported.conditions.get("SLOMet")
            if met and met.status == "False" and at_s >= FROM_S:
                self.reasons[met.reason] += 1


@dataclass(frozen=True, kw_only=True)
class Result:
    world: World
    right: int
    wrong: int
    unknown: int
    """Ticks from 15 minutes on."""
    attainment: float
    gpu_hours: float
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

    flags, shares = first_plan(model).flags, dict[int, float]()

    def share(replicas: int) -> float:
        if replicas not in shares:
            shares[replicas] = run(ConstantFleet(flags=flags, replicas=replicas)).attainment
        return shares[replicas]

    watching = Watching()
    found = run(watching)
    numbers = range(1, MOST_CONSTANT)
    enough = next((n for n in numbers if share(n) >= share(2 * n) - WITHIN), MOST_CONSTANT)
    said = watching.reasons
    right, unknown = sum(said[each] for each in world.causes), said["TargetMissed"]
    return Result(
        world=world,
        right=right,
        wrong=said.total() - right - unknown,
        unknown=unknown,
        attainment=found.attainment,
        gpu_hours=found.gpu_hours,
        constant=(enough, share(enough)),
    )


def line(found: Result) -> str:
    world, (replicas, share) = found.world, found.constant
    number = max(1, found.right + found.wrong + found.unknown)
    queue = next(iter(world.queue.values()), "fcfs")
    ticks = " | ".join(f"{n / number:.0%}" for n in (found.right, found.wrong, found.unknown))
    return (
        f"| {' or '.join(world.causes)} | {queue} | {world.routing} | {ticks} | "
        f"{found.attainment:.1%} | {found.gpu_hours:.2f} | {replicas} | {share:.1%} |"
    )


HEAD = """\
| cause | queue | routing | right | wrong | unknown | in time | GPU-hours | constant | in time |
| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"""


@click.command()
@click.option("--only", help="One cause.")
@PAGE
@PROCESSES
def main(only: str | None, page: Path | None, processes: int) -> None:
    """Run worlds of one cause each."""
    lines = [HEAD]
    click.echo(HEAD)
    with ProcessPoolExecutor(processes) as pool:
        for found in pool.map(result_of, worlds(only)):
            lines.append(line(found))
            click.echo(lines[-1])
    if page:
        write_page(page, "\n".join([MEANING, *lines, ""]))


if __name__ == "__main__":
    main()
