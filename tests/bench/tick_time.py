"""How long a tick of a fleet takes: CPU of one core, from a cold start to drifting traffic.

    python tests/bench/tick_time.py [--objects 100 --objects 1000] [--ticks 20] [--alike]

Every object runs and is measured, with lengths of its own unless they are ``--alike``: that is the
most that a fleet can ask. ``cold``: after a start, with 5 s of CPU for searches in a tick, until
none waits.
``warm``: the same traffic again. ``drifting``: every length takes a step of 0.44 % in each tick,
which is what a mean over 15 minutes does at 2 requests/s of exponential lengths. The rest of a
tick, Kubernetes and Prometheus, is not in it.
"""

import math
import random
import resource
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import click

from fleet_builders import (
    a_deployment_body,
    a_fleet,
    a_manifest,
    a_model,
    a_sizing,
    a_state,
    with_lengths,
)
from tonnage.control.input.memory import Memory
from tonnage.control.input.state import Fleet, ModelState
from tonnage.control.tick import tick
from tonnage.estimate.lengths import measure_lengths
from tonnage.fleet.loop import within
from tonnage.sizing.serving import goodput
from tonnage.sizing.serving.arrivals import requests

BUDGET_S = 5.0
SPREAD = 0.5
"""Of the logarithm of the lengths of objects, to either side."""
STEP = 0.0044
SCRAPE_S = 15
KINDS = (
    {},
    {
        "model": {"id": "meta-llama/Llama-3.1-8B-Instruct"},
        "hardware": {"gpu": "H100", "gpusPerReplica": 1},
    },
    {
        "model": {"id": "Qwen/Qwen2.5-32B-Instruct", "weights": "fp8"},
        "hardware": {"gpu": "H100", "gpusPerReplica": 1},
    },
)
"""What a third of the objects each changes of the spec that tests use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """Ticks of one kind."""

    name: str
    cpu_s: Sequence[float]
    num_runs: int
    most_waiting: int

    def __str__(self) -> str:
        total, ticks = sum(self.cpu_s), len(self.cpu_s)
        return (
            f"{self.name:10} {ticks:5} ticks  {total / ticks:7.3f} s of CPU each, "
            f"{max(self.cpu_s):7.3f} s at most  {self.num_runs:7} runs  "
            f"{self.most_waiting:5} waited"
        )


def fleet_of(number: int, chance: random.Random, *, are_alike: bool) -> Fleet:
    kinds = [a_running(spec) for spec in KINDS]
    states = []
    for index in range(number):
        state = kinds[index % len(kinds)]
        view = replace(state.view, name=f"m{index:04}", uid=f"uid-{index}")
        own = replace(state, view=view)
        states.append(own if are_alike else stretched(own, chance, SPREAD))
    return a_fleet(*states)


def a_running(spec: dict) -> ModelState:
    model = a_model(**spec)
    live = a_deployment_body(model, sizing=a_sizing(model))
    return a_state(a_manifest(**spec), live=live, load=0.5)


def stretched(state: ModelState, chance: random.Random, most: float) -> ModelState:
    prompt, output = (math.exp(chance.uniform(-most, most)) for _ in range(2))
    known = measure_lengths(state.engines, scrape_interval_s=SCRAPE_S)
    assert known
    return with_lengths(state, prompt * known.prompt_tokens, output * known.output_tokens)


def drifting(fleet: Fleet, chance: random.Random) -> Fleet:
    step = STEP * math.sqrt(3)  # of a uniform distribution with this deviation
    return replace(fleet, models=tuple(stretched(each, chance, step) for each in fleet.models))


def runs() -> int:
    """Runs of the engine model so far: each draws its requests, or finds them drawn."""
    found = requests.cache_info()
    return found.hits + found.misses


class Clocked:
    """A fleet that ticks, and what that takes."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet, self.memory = fleet, Memory()
        self._cpu_s: list[float] = []
        self._runs, self._waited = runs(), 0

    def tick(self) -> int:
        """Tick once; return how many wait."""
        began_s = time.process_time()
        outcome = tick(self.fleet, self.memory, between=within(BUDGET_S, time.process_time))
        self._cpu_s.append(time.process_time() - began_s)
        self.memory = outcome.memory
        self.fleet = replace(self.fleet, now_s=self.fleet.now_s + 15)
        waiting = sum(each.pending is not None for each in outcome.found)
        self._waited = max(self._waited, waiting)
        return waiting

    def timed(self, name: str) -> Timed:
        """Return what happened since this was last asked."""
        found = Timed(
            name=name,
            cpu_s=tuple(self._cpu_s),
            num_runs=runs() - self._runs,
            most_waiting=self._waited,
        )
        self._cpu_s.clear()
        self._runs, self._waited = runs(), 0
        return found


def timings(number: int, *, ticks: int, are_alike: bool) -> Iterator[Timed]:
    chance = random.Random(number)  # noqa: S311
    clocked = Clocked(fleet_of(number, chance, are_alike=are_alike))
    goodput._remembered.clear()
    while clocked.tick():
        pass
    yield clocked.timed("cold")
    for _ in range(ticks):
        clocked.tick()
    yield clocked.timed("warm")
    for _ in range(ticks):
        clocked.fleet = drifting(clocked.fleet, chance)
        clocked.tick()
    yield clocked.timed("drifting")


@click.command()
@click.option("--objects", multiple=True, type=int, default=(100, 1000), show_default=True)
@click.option("--ticks", type=int, default=20, show_default=True)
@click.option("--alike", is_flag=True, help="All objects of a kind have the same lengths.")
def main(objects: tuple[int, ...], ticks: int, alike: bool) -> None:
    for number in objects:
        click.echo(f"{number} objects")
        for timed in timings(number, ticks=ticks, are_alike=alike):
            click.echo(f"  {timed}")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        click.echo(f"  {peak / 1024:.0f} MiB at most")


if __name__ == "__main__":
    main()
