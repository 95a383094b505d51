"""What a tick of a large fleet costs: the whole loop, on 2 cores, and the page that says so.

    python tests/bench/fleet_ticks.py [--objects 200 --objects 1000] [--changing 1 --changing 100]
        [--questions 100] [--replicas 3] [--ticks 4] [--page]

Everything of a tick is in it but the other side: the API server is objects in memory, and what
Prometheus answers is laid out as bytes before the clock starts, to be read as they come. Each
object has so many ``replicas``, and each pod some 20 series with four samples each.
All together ask so many distinct ``questions``.
``changing``: so many of a hundred objects have other traffic in each tick; of the others only the
times move. After the first tick the memory of answers is warm: what is cold is said in
``capacity.md``.
"""

import os
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean

import click
from measured import rss_mib, write_page

from fleet_builders import (
    NOW_S,
    a_deployment_body,
    a_manifest,
    a_model,
    a_pod_body,
    a_replica_set_body,
    a_sizing,
)
from kube_double import KubeDouble
from loop_builders import a_loop_asking, show
from query_api import QueryApi
from tonnage.cluster.kube import DEPLOYMENTS, MODEL_DEPLOYMENTS, PODS, REPLICA_SETS
from tonnage.cluster.queries import AnswerReader, Answers, QueryResult
from tonnage.estimate.metrics import HISTORY, QUERIES
from tonnage.fleet.loop import Loop
from tonnage.fleet.scrape import parts_of

PAGE = Path(__file__).with_name("fleet.md")
NUM_QUESTIONS = 100
NUM_NAMESPACES = 50
TICK_S = 15.0
PIECE = 65_536
WARM_TICKS = 64
"""Sixteen minutes: by then constants were learned from ten windows. As many objects change in each
of them as when it counts."""
MAX_SERIES = 200_000
RATE = 0.5
"""Requests/s of a replica, about half of what it sustains."""
FIGURES = {
    "finished": RATE,
    "finished_prompt_tokens": 4000 * RATE,
    "finished_output_tokens": 1000 * RATE,
    "started": RATE,
    "started_prompt_tokens": 4000 * RATE,
    "computed_prompt_tokens": 4000 * RATE,
    "kv_usage": 0.3,
    "token_gap_s": 20,
    "token_gaps": 500,
    "prefill_s": 0.2,
    "prefills": 0.5,
    "preemptions": 0,
    "ttft": dict.fromkeys(("1.0", "2.0", "+Inf"), RATE),
    "tpot": dict.fromkeys(("0.05", "+Inf"), RATE),
}


@dataclass(kw_only=True)
class FleetWorld:
    """A fleet that runs, and what Prometheus says of it."""

    kube: KubeDouble
    pods: Mapping[str, list[str]]
    """By namespace."""
    rates: dict[str, float]
    """Requests/s, by pod."""
    now_s: float = NOW_S
    leads: bool = True
    num_series: int = 0
    api: QueryApi = field(default_factory=lambda: QueryApi(completions_per_s={}, figures=FIGURES))
    _answers: dict[tuple[str, tuple[str, ...]], bytes] = field(default_factory=dict)

    def ask(self, sets, scrapes):
        answers = Answers()
        for queries in sets:
            for name in queries.expressions:
                body = self._answers.get((name, queries.namespaces))
                if body is None:
                    continue
                reader = AnswerReader(scrapes, max_series=MAX_SERIES)
                for start in range(0, len(body), PIECE):
                    reader.feed(body[start : start + PIECE])
                reader.end()
                answers.bytes_read += len(body)
                answers.add(name, queries, QueryResult(answered=reader.answered, clock_skew_s=0.0))
        return answers

    def lay_out(self, groups: Sequence[tuple[str, ...]]) -> None:
        """Lay out the answers to all queries, as they are read in the next tick."""
        is_first, self._answers = not self._answers, {}
        self.api.now_s = self.now_s
        self.api.completions_per_s = {
            (namespace, pod): self.rates[pod]
            for namespace, pods in self.pods.items()
            for pod in pods
        }
        self.api.windows_s = dict.fromkeys(QUERIES, 60.0) | {HISTORY: 915.0}
        self.num_series = 0
        for namespaces in groups:
            for name in (*QUERIES, *([HISTORY] if is_first else [])):
                body = self.api.reply(name, namespaces).body
                self.num_series += 0 if name == HISTORY else body.count(b'"metric"')
                self._answers[name, namespaces] = body


def a_spec(question: int, replicas: int) -> dict:
    """One of a hundred questions: traffic, and so what is asked of sizing, differs."""
    prompt, output = 2000 + 200 * (question % 10), 500 + 50 * (question // 10)
    return {
        "demand": {
            "requestsPerSecond": 1,
            "promptTokens": {"mean": prompt, "p99": 2 * prompt},
            "outputTokens": {"mean": output},
        },
        "scaling": {"minReplicas": replicas, "maxReplicas": 8},
    }


def a_fleet_world(number: int, num_questions: int = NUM_QUESTIONS, replicas: int = 1) -> FleetWorld:
    objects, pods, rates = {}, {}, {}
    sizings = {}
    for index in range(number):
        question = index % num_questions
        name, namespace = f"m{index:05}", f"team-{index % NUM_NAMESPACES:02}"
        spec = a_spec(question, replicas)
        model = a_model(name, namespace=namespace, **spec)
        if question not in sizings:
            sizings[question] = a_sizing(model)
        live = a_deployment_body(model, replicas=replicas, sizing=sizings[question])
        owner = a_replica_set_body(model)
        its_pods = [a_pod_body(f"{name}-{each}", model=model) for each in range(replicas)]
        for each in (live, owner, *its_pods):
            each["metadata"].setdefault("labels", {})["tonnage.dev/managed"] = "true"
            each["metadata"]["namespace"] = namespace
        manifest = a_manifest(name, namespace=namespace, **spec)
        objects[MODEL_DEPLOYMENTS.path(namespace, name)] = manifest
        objects[DEPLOYMENTS.path(namespace, name)] = live
        objects[REPLICA_SETS.path(namespace, owner["metadata"]["name"])] = owner
        for pod in its_pods:
            pod_name = pod["metadata"]["name"]
            objects[PODS.path(namespace, pod_name)] = pod
            pods.setdefault(namespace, []).append(pod_name)
            rates[pod_name] = RATE
    return FleetWorld(kube=KubeDouble(objects.items()), pods=pods, rates=rates)


def a_fleet_loop(world: FleetWorld, **settings) -> Loop:
    return a_loop_asking(
        world.ask, world, **({"writes_per_s": 1000, "search_budget_s": 600} | settings)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticked:
    """What a tick took."""

    cpu_s: float
    wall_s: float
    writes: int
    steps_s: Mapping[str, float]


class Clocked:
    """A fleet that ticks, and what that takes."""

    def __init__(self, number: int, num_questions: int = NUM_QUESTIONS, replicas: int = 1) -> None:
        self.chance, self.number = random.Random(number), number  # noqa: S311
        before_mib = rss_mib()
        self.world = a_fleet_world(number, num_questions, replicas)
        self._groups = groups_of(self.world.pods)
        self.world.lay_out(self._groups)
        self.double_mib = rss_mib() - before_mib
        """What the other side takes before the first tick; statuses come to it."""
        self.loop = a_fleet_loop(self.world)
        self.loop.step = self._step
        self._steps_s: dict[str, float] = {}
        show(self.loop, self.world)
        self.loop.lists.checked_at_s = self.world.now_s + 1e9  # lists are the double's, not ours

    @contextmanager
    def _step(self, name: str) -> Iterator[None]:
        began_s = time.process_time()
        yield
        self._steps_s[name] = time.process_time() - began_s

    def tick(self, changing_percent: float = 0) -> Ticked:
        """Let 15 s pass, show what the watches would, and tick."""
        world = self.world
        world.now_s += TICK_S
        names = sorted(world.rates)
        for pod in self.chance.sample(names, round(len(names) * changing_percent / 100)):
            world.rates[pod] = RATE * self.chance.uniform(0.9, 1.1)
        if world.kube.writes:  # play the watches
            show(self.loop, world)
            world.kube.writes.clear()
        world.lay_out(self._groups)
        before, self._steps_s = len(world.kube.writes), {}
        began_s, began_wall_s = time.process_time(), time.perf_counter()
        self.loop.tick()
        return Ticked(
            cpu_s=time.process_time() - began_s,
            wall_s=time.perf_counter() - began_wall_s,
            writes=len(world.kube.writes) - before,
            steps_s=self._steps_s,
        )


def groups_of(pods: Mapping[str, Sequence[str]]) -> list[tuple[str, ...]]:
    """Return the namespaces that are asked for together, as the loop groups them."""
    named = [(namespace, pod) for namespace, names in pods.items() for pod in names]
    return [each.namespaces for each in parts_of(lambda _: {}, named, {}, 0.0)]


STEPS = ("observe", "decide", "act", "tell")
HEAD = """# What a tick of a large fleet costs

Written by `python tests/bench/fleet_ticks.py --page`, which says what is in it. CPU of one core in
seconds, mean of {ticks} ticks; {questions} distinct questions, {replicas} pods an object, the
memory of answers warm.
RSS with the objects of the API server and the answers of Prometheus, both of which the process
holds here, and its own, without what these took before the first tick. In the first tick of a
process nothing is remembered: every question is sized, and every Deployment is compared with what
its record makes. Each tick has answers of its own, so that all objects are decided in it.
Promised: 1,000 objects with 3,000 pods on one core.
An object counts as changing where its traffic is up to a tenth other than before; figures of the
others are to the digit what they were. As many as in the first row of a fleet changed in each of
the {warm} ticks before.
In the mean of the last quarter of an hour {load:.1f} processes wanted one of {cores} cores. Where
that is more than there are, they were shared with other work, and CPU comes out higher.

| objects | changing | series | CPU | {steps} | writes | RSS, MiB | its own |
| ---: | ---: | ---: | ---: | {rule} | ---: | ---: | ---: |
"""


def rows_of(
    number: int, changing: Sequence[float], questions: int, replicas: int, ticks: int
) -> list[str]:
    """Return the rows of one fleet, as they are written."""
    clocked = Clocked(number, questions, replicas)

    def row(changing: str, ticked: Sequence[Ticked]) -> str:
        means = (fmean(each.steps_s.get(step, 0.0) for each in ticked) for step in STEPS)
        cpu_s = fmean(each.cpu_s for each in ticked)
        writes, rss = fmean(each.writes for each in ticked), rss_mib()
        return (
            f"| {number} | {changing} | {clocked.world.num_series} | {cpu_s:.2f} "
            f"| {' | '.join(f'{each:.2f}' for each in means)} | {writes:.0f} "
            f"| {rss:.0f} | {rss - clocked.double_mib:.0f} |"
        )

    found = [row("first tick", [clocked.tick()])]
    for _ in range(WARM_TICKS):
        clocked.tick(changing[0])
    for percent in changing:
        found.append(row(f"{percent:g} %", [clocked.tick(percent) for _ in range(ticks)]))
    return found


@click.command()
@click.option("--objects", multiple=True, type=int, default=(200, 1000), show_default=True)
@click.option("--changing", multiple=True, type=float, default=(1.0, 100.0), show_default=True)
@click.option("--questions", type=int, default=NUM_QUESTIONS, show_default=True)
@click.option("--replicas", type=int, default=3, show_default=True, help="Of each object.")
@click.option("--ticks", type=int, default=4, show_default=True)
@click.option("--page", is_flag=True, help="Write fleet.md.")
def main(  # noqa: PLR0913, PLR0917  (options)
    objects: tuple[int, ...],
    changing: tuple[float, ...],
    questions: int,
    replicas: int,
    ticks: int,
    page: bool,
) -> None:
    asked = [(number, changing, questions, replicas, ticks) for number in objects]
    # Each fleet in a process of its own: what another left free would count as nobody's memory.
    with get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        found = [row for fleet in pool.starmap(rows_of, asked, chunksize=1) for row in fleet]
    head = HEAD.format(
        questions=questions,
        replicas=replicas,
        ticks=ticks,
        warm=WARM_TICKS,
        cores=os.cpu_count(),
        load=os.getloadavg()[2],
        steps=" | ".join(STEPS),
        rule=" | ".join("---:" for _ in STEPS),
    )
    text = head + "\n".join(found) + "\n"
    click.echo(text)
    if page:
        write_page(PAGE, text)


if __name__ == "__main__":
    main()
