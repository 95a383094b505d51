"""Is the cause of late requests named, and does the fleet stay where replicas do not help?

    python tests/bench/causes.py [--seed 1] [--long] [--page PAGE]

Each world makes requests late for one cause, with each admission and one routing. A seed draws
model, lengths, limits, rate and what is wrong. Caches that are cold or do not come are not
simulated: tests of ``control/measure/causes.py`` have them.
"""

import math
import random
import re
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from pathlib import Path
from statistics import mean

import click
from closed_loop import MODELS
from measured import PAGE, PROCESSES, table, write_page
from replay_cases import Lengths, manifest

from tonnage.api.objects import ModelDeployment, parse_model_deployment
from tonnage.catalog.gpu import built_in_gpus
from tonnage.control.measure.causes import LOAD, NOBODY, longest_in_time
from tonnage.replay.cluster import Record, ReplayedModel, StartupTime
from tonnage.replay.evaluation import LatencyLimits, RequestOutcomes, fates, run_figures
from tonnage.replay.ground_truth import GroundTruth
from tonnage.replay.policies import ConstantFleet
from tonnage.replay.prometheus import SimulatedPrometheus
from tonnage.replay.simulation import SETTINGS, Controller, Operator, Simulation, first_plan
from tonnage.replay.traces import Trace, drawn_from
from tonnage.sizing.errors import SizingError
from tonnage.sizing.expected import slo_of
from tonnage.sizing.plan import Sizing
from tonnage.sizing.request import ask, look_up
from tonnage.sizing.search import size
from tonnage.sizing.serving.replica import own_prefill_s
from tonnage.sizing.workload import PERCENT
from tonnage.units import HOUR_S, MINUTE_S, MS_PER_S, seconds

DURATION_S, FROM_S, WINDOW_S = 3600.0, 900.0, 120.0
WITHIN = 0.005
MOST_REPLICAS = 16
MOST_CONSTANT, MANY = 10, 12
CONSTANT_S = 900.0
"""For which constant fleets are run."""
NUM_LONG, MOST_LONG_LOAD, MAY_BE_LATE, SLOWER = 20, 4.0, 0.01, 0.7
SAID = re.compile(r"([\d.]+)%(?: to ([\d.]+)%)? of prompts have over")
MOST_TOKENS, MOST_RATE = 60_000, 60.0
LONG_LOAD = 0.3
"""Of one replica's time, that long prompts take at most: else they make most others wait."""
MEANING = """\
# Causes of late requests

Written by `tests/bench/causes.py`. Simulated, one hour, starts of 120 s.

Right, wrong and unknown are shares of the ticks after 15 minutes in which the SLO was missed.
`Queued` and `SlowSteps` are right too while fewer replicas are Ready than the smallest constant
fleet that keeps within half a point of what 12 keep in 15 minutes, or 10.
"""
DRAWN, LONG = "Drawn worlds, seed", "Long prompts"
SHARES = "**{:.1%} right, {:.1%} wrong, {:.1%} unknown.**\n"
LONG_MEANING = """\
Of prompts that are late alone: their share, when it is first said, and how often what is said has
it between its bounds (and three deviations by chance). The constant fleet is the smallest that
makes 1 % of the others late at most. `ready`: replicas in the last 15 minutes, and with engines at
0.7 of the speed.
"""
LENGTHS = Lengths(prompt_mean=1000, prompt_p99=2000, output_mean=200, output_p99=800)
ADMISSIONS = ("all", "inTime")
ROUTINGS = ("Service", "LeastOutstanding")


@dataclass(frozen=True, kw_only=True)
class World:
    """What makes requests late, and what is to be said of it."""

    causes: tuple[str, ...]
    rate: float = 40.0
    model: str = "8b"
    lengths: Lengths = LENGTHS
    ttft: str = "500ms"
    tpot: str = "50ms"
    long_share: float = 0.0
    long_tokens: int = 16_000
    most: int = MOST_REPLICAS
    truth: GroundTruth = field(default_factory=GroundTruth)
    admission: str = "all"
    routing: str = "Service"
    seed: int = 60


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


def worlds(seed: int) -> Iterator[World]:
    """Yield worlds of each cause, of each admission with one of both routings, by turns."""
    for number, each in enumerate(product(WORLDS, ADMISSIONS, ROUTINGS)):
        world, admission, routing = each
        if (number + number // 2 + number // 4 + seed) % 2 == 0:
            yield drawn(replace(world, admission=admission, routing=routing), 100 * seed + number)


def drawn(world: World, seed: int) -> World:
    """Return a world of the same kind with other figures."""
    chance = random.Random(seed)  # noqa: S311 -- drawn alike in each run
    while True:
        prompt, output = (_between(chance, *each) for each in ((400, 3000), (80, 400)))
        found = replace(
            world,
            seed=seed,
            model=chance.choice(list(MODELS)),
            lengths=Lengths(
                prompt_mean=prompt, prompt_p99=2 * prompt, output_mean=output, output_p99=4 * output
            ),
            ttft=_milliseconds(_between(chance, 0.3, 1.5)),
            tpot=_milliseconds(_between(chance, 0.03, 0.06)),
        )
        planned = _sizing(found)
        if planned and world.truth.speed < 1:
            found = replace(
                found, tpot=_milliseconds(planned.idle.tpot_s * _between(chance, 1.5, 3))
            )
            planned = _sizing(found)
        if planned and (found := _with_fault(found, planned, chance)).long_tokens <= MOST_TOKENS:
            return found


def _with_fault(world: World, planned: Sizing, chance: random.Random) -> World:
    """Return a world in which as much is late as chance says."""
    ttft_s, truth, each = seconds(world.ttft), world.truth, planned.goodput_requests_per_s
    truth = replace(
        truth,
        server_s=ttft_s * _between(chance, 0.8, 1.5) if truth.server_s else 0.0,
        first_pod_speed=_between(chance, 0.4, 0.7) if truth.first_pod_speed < 1 else 1.0,
        sticky_share=_between(chance, 0.35, 0.6) if truth.sticky_share else 0.0,
        speed=_between(chance, 0.5, 0.75) if truth.speed < 1 else 1.0,
    )
    rate = min(MOST_RATE, each * _between(chance, 2.0, 5.0))
    overload = 1.0 if truth.speed < 1 else _between(chance, 1.4, 2.5)
    is_limited = world.most < MOST_REPLICAS
    if world.long_share:
        times, share = _between(chance, 1.2, 3.0), _between(chance, 0.02, 0.1)
        rate = min(rate, LONG_LOAD / (share * times * ttft_s))
        tokens = round(times * longest_in_time(planned, ttft_s))
        world = replace(world, long_share=share, long_tokens=tokens)
    most = max(1, math.ceil(rate / each / overload)) if is_limited else world.most
    return replace(world, rate=rate, truth=truth, most=most)


def _between(chance: random.Random, low: float, high: float) -> float:
    return low * (high / low) ** chance.random()


def _milliseconds(duration_s: float) -> str:
    return f"{round(duration_s * MS_PER_S)}ms"


def _sizing(world: World) -> Sizing | None:
    """Return the plan of a world; None: its targets cannot be met."""
    spec = _model(replace(world, rate=1.0)).spec
    try:
        return size(ask(spec, look_up(spec, built_in_gpus())))
    except SizingError:
        return None


def _model(world: World) -> ModelDeployment:
    given = manifest(world.lengths, world.rate)
    spec = given["spec"]
    spec |= MODELS[world.model]
    spec["contextLength"] = 65_536
    spec["slo"] = {
        "timeToFirstToken": {"p99": world.ttft}, "timePerOutputToken": {"p99": world.tpot}
    }  # fmt: skip
    spec["scaling"] |= {"routing": world.routing, "maxReplicas": world.most}
    spec["engine"]["admission"] = world.admission
    return parse_model_deployment(given)


def _trace(world: World) -> Trace:
    chance, at_s = random.Random(world.seed), 0.0  # noqa: S311 -- drawn alike in each run
    prompt_log, output_log = (
        math.log(mean) - sigma**2 / 2
        for mean, sigma in ((world.lengths.prompt_mean, 0.3), (world.lengths.output_mean, 0.6))
    )
    arrivals, prompts, outputs = array("d"), array("q"), array("q")
    while (at_s := at_s + chance.expovariate(world.rate)) < DURATION_S:
        is_long = chance.random() < world.long_share
        prompt = world.long_tokens if is_long else chance.lognormvariate(prompt_log, 0.3)
        arrivals.append(at_s)
        prompts.append(max(1, round(prompt)))
        outputs.append(max(1, round(chance.lognormvariate(output_log, 0.6))))
    return Trace(arrival_s=arrivals, prompt_tokens=prompts, output_tokens=outputs)


class Watching(Operator):
    """Notes the reason of ``SLOMet``, and who was Ready, at each tick that misses the SLO."""

    def __init__(self) -> None:
        super().__init__(SETTINGS, is_brought_up=True)
        self.reasons = Counter[tuple[str, int]]()
        self.said: list[tuple[float, float, float]] = []
        """(time, least, most) of the prompts that are late alone, whenever that is said."""

    def act(self, record: Record, prometheus: SimulatedPrometheus, at_s: float) -> None:
        super().act(record, prometheus, at_s)
        for memory in self.memory.objects.values():
            met = memory.reported.conditions.get("SLOMet")
            if met and met.status == "False":
                self.reasons[met.reason, record.moments[-1].ready] += at_s >= FROM_S
                if share := SAID.search(met.message):
                    least, most = float(share[1]), float(share[2] or share[1])
                    self.said.append((at_s, least / PERCENT, most / PERCENT))


class Hour:
    """A world with its requests."""

    def __init__(self, world: World) -> None:
        self.world, self.model = world, _model(world)
        self.flags = first_plan(self.model).flags
        self.limits = LatencyLimits.of(slo_of(self.model.spec))
        self.traffic = drawn_from(
            _trace(world), duration_s=DURATION_S, context_tokens=65_536, cached_fraction=0.0
        )
        self.late_by_replicas = cache(self._late)

    def run(
        self, controller: Controller, until_s: float = DURATION_S
    ) -> tuple[Record, RequestOutcomes]:
        served = ReplayedModel(
            model=self.model,
            traffic=self.traffic,
            truth=self.world.truth,
            start=StartupTime(mean_s=120),
        )
        record = Simulation(served, settings=SETTINGS, controller=controller).run(until_s)
        if record.faults:
            raise record.faults[0]
        return record, fates(record, self.traffic, self.limits)

    def late(
        self, found: RequestOutcomes, from_s: float, until_s: float, most_tokens: float
    ) -> float:
        """Return the share of requests that are late, and whose prompts have no more tokens."""
        first, last = (bisect_left(found.arrival_s, each) for each in (from_s, until_s))
        tokens = self.traffic.prompt_tokens
        late = sum(not found.is_kept[at] and tokens[at] <= most_tokens for at in range(first, last))
        return late / (last - first)

    def _late(self, replicas: int, most_tokens: float = math.inf) -> float:
        _, found = self.run(ConstantFleet(flags=self.flags, replicas=replicas), CONSTANT_S)
        return self.late(found, 0.0, CONSTANT_S, most_tokens)


Judged = tuple[list[str], Counter[str]]
"""The row of a world, and how many ticks from 15 minutes on are right, wrong and unknown."""


def row_of(world: World) -> Judged:
    """Run a world; where load may be the cause, constant fleets beside it."""
    hour, watching = Hour(world), Watching()
    record, found = hour.run(watching)

    def keeps(replicas: int) -> bool:
        return hour.late_by_replicas(replicas) <= hour.late_by_replicas(MANY) + WITHIN

    @cache
    def enough() -> int:
        return 1 + bisect_left(range(1, MOST_CONSTANT), x=True, key=keeps)

    ticks, reasons = Counter[str](), Counter[str]()
    for (reason, ready), number in watching.reasons.items():
        is_right = reason in world.causes or (reason in LOAD and ready < enough())
        ticks["right" if is_right else "unknown" if reason == NOBODY.code else "wrong"] += number
        reasons[reason] += number
    figures = run_figures(record, hour.traffic, found)
    asked = (world.ttft, world.tpot)
    said = ", ".join(f"{reason} {number}" for reason, number in reasons.most_common() if number)
    in_time = (f"{figures.attainment:.1%}", f"{figures.gpu_hours:.2f}")
    shares = (f"{share:.0%}" for share in of_all(ticks))
    who = (
        " or ".join(world.causes),
        world.admission,
        world.routing,
        world.model,
        f"{world.rate:.1f}",
    )
    return [*who, *asked, *shares, *in_time, said], ticks


def long_worlds(seed: int) -> Iterator[World]:
    """Yield worlds in which a part of the prompts is long; of some, too long for any replica."""
    for number in range(NUM_LONG):
        chance = random.Random(1000 * seed + number)  # noqa: S311 -- drawn alike in each run
        while True:
            world = World(
                causes=("LongPrompts",),
                rate=_between(chance, 6, 60),
                ttft=_milliseconds(_between(chance, 0.2, 2)),
                long_share=_between(chance, 0.01, 0.1),
                long_tokens=round(_between(chance, 8_000, 62_000)),
                routing=ROUTINGS[number // 2 % 2],
                seed=1000 * seed + number,
            )
            planned = _sizing(world)
            own_s = planned and own_prefill_s(
                planned.replica, planned.request.workload, planned.idle, world.long_tokens
            )
            if own_s and world.rate * world.long_share * own_s <= MOST_LONG_LOAD:
                yield world
                break


def long_row(world: World) -> Judged:
    """Return how Tonnage fares beside the smallest constant fleet that keeps what can be kept."""
    hour, watching = Hour(world), Watching()
    record, found = hour.run(watching)
    planned = _sizing(world)
    longest = longest_in_time(planned, seconds(world.ttft)) if planned else math.inf
    alone = world.long_share if world.long_tokens > longest else 0.0
    by_chance = 3 * math.sqrt(alone / (world.rate * WINDOW_S))
    said = [each for each in watching.said if alone]
    right = [least - by_chance <= alone <= most + by_chance for _, least, most in said]

    def keeps(replicas: int) -> bool:
        return hour.late_by_replicas(replicas, longest) <= MAY_BE_LATE

    n = 1 + bisect_left(range(1, MOST_REPLICAS + 1), x=True, key=keeps)
    slower = Hour(replace(world, truth=GroundTruth(speed=SLOWER)))
    short, _ = slower.run(Watching())
    ends = [
        mean(e.ready for e in each.moments if e.at_s > DURATION_S - FROM_S)
        for each in (record, short)
    ]
    gpu_hours = record.gpu_s(0, DURATION_S) / HOUR_S
    asked = (f"{world.long_tokens:,}", f"{world.long_share:.1%}", world.ttft, f"{world.rate:.0f}")
    first, share = ("", "")
    if said:
        first, share = f"{said[0][0] / MINUTE_S:.0f} min", f"{sum(right) / len(right):.0%}"
    constant, ratio = ("none", "")
    if n <= MOST_REPLICAS:
        constant, ratio = f"{n}", f"{gpu_hours / n:.2f}"
    shown = (world.routing, f"{alone:.1%}", first, share)
    late = f"{hour.late(found, FROM_S, DURATION_S, longest):.1%}"
    fleets = (f"{gpu_hours:.1f}", constant, ratio, late, *(f"{each:.1f}" for each in ends))
    return [*asked, *shown, *fleets], Counter()


def of_all(ticks: Counter[str]) -> tuple[float, ...]:
    return tuple(ticks[each] / max(1, ticks.total()) for each in ("right", "wrong", "unknown"))


COLUMNS = (
    "cause", "admission", "routing", "model", "req/s", "TTFT", "TPOT", "right", "wrong", "unknown",
    "in time", "GPU-hours", "ticks",
)  # fmt: skip
LONG_COLUMNS = (
    "long", "share", "TTFT p99", "req/s", "routing", "late alone", "said", "right", "GPU-hours",
    "constant", "ratio", "else late", "ready", "slower",
)  # fmt: skip


def part_of(page: Path, title: str, text: str) -> None:
    """Write a part of the page anew, and leave the others."""
    parts = page.read_text().partition("-->\n")[2].split("\n## ") if page.exists() else [MEANING]
    others = [each for each in parts[1:] if not each.startswith(title)]
    write_page(page, "\n## ".join([MEANING, *sorted([*others, f"{title}\n\n{text}\n"])]))


@click.command()
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--long", "is_long", is_flag=True, help="Worlds with long prompts instead.")
@PAGE
@PROCESSES
def main(seed: int, *, is_long: bool, page: Path | None, processes: int) -> None:
    """Run worlds of one cause each."""
    asked = long_worlds(seed) if is_long else worlds(seed)
    with ProcessPoolExecutor(processes) as pool:
        found = list(pool.map(long_row if is_long else row_of, asked))
    shares = of_all(sum((ticks for _, ticks in found), Counter()))
    meaning = LONG_MEANING if is_long else SHARES.format(*shares)
    text = f"{meaning}\n{table(LONG_COLUMNS if is_long else COLUMNS, [row for row, _ in found])}"
    click.echo(text)
    if page:
        part_of(page, LONG if is_long else f"{DRAWN} {seed}", text)


if __name__ == "__main__":
    main()
