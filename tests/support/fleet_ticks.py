"""A fleet over doubles that goes on as it was, tick by tick: to see what a tick enters.

What Prometheus answers is laid out as bytes before a tick begins, and read in it.
"""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

import tonnage
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
from tonnage.cluster.queries import AnswerReader, Answers
from tonnage.estimate.metrics import HISTORY, QUERIES

PACKAGE = f"{tonnage.__path__[0]}/"
WARM_TICKS = 12
TICK_S = 15.0
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
    rates: dict[str, float]
    """Requests/s, by pod."""
    namespaces: dict[str, str]
    """By pod."""
    now_s: float = NOW_S
    leads: bool = True
    api: QueryApi = field(default_factory=lambda: QueryApi(completions_per_s={}, figures=FIGURES))
    _answers: dict[str, bytes] = field(default_factory=dict)

    def ask(self, sets, scrapes):
        answers = Answers()
        for name, body in self._answers.items():
            reader = AnswerReader(scrapes, max_series=MAX_SERIES)
            reader.feed(body)
            reader.end(most_kept_bytes=math.inf)
            answers.add(name, sets[0], (reader.answered, False, 0.0))
        return answers

    def lay_out(self) -> None:
        """Lay out the answers to all queries, as they are read in the next tick."""
        names = QUERIES if self._answers else (*QUERIES, HISTORY)
        self.api.now_s = self.now_s
        self.api.completions_per_s = {
            (self.namespaces[pod], pod): rate for pod, rate in self.rates.items()
        }
        self.api.windows_s = dict.fromkeys(QUERIES, 60.0) | {HISTORY: 915.0}
        self._answers = {name: self.api.reply(name, ()).body for name in names}


def a_spec(question: int) -> dict:
    """One of a hundred questions: traffic, and so what is asked of sizing, differs."""
    prompt, output = 2000 + 200 * (question % 10), 500 + 50 * (question // 10)
    return {
        "demand": {
            "requestsPerSecond": 1,
            "promptTokens": {"mean": prompt, "p99": 2 * prompt},
            "outputTokens": {"mean": output},
        },
        "scaling": {"minReplicas": 1, "maxReplicas": 8},
    }


def a_fleet_world(number: int, num_questions: int) -> FleetWorld:
    objects, rates, namespaces = {}, {}, {}
    for index in range(number):
        name, namespace = f"m{index:05}", f"team-{index:02}"
        spec = a_spec(index % num_questions)
        model = a_model(name, namespace=namespace, **spec)
        live = a_deployment_body(model, replicas=1, sizing=a_sizing(model))
        owner, pod = a_replica_set_body(model), a_pod_body(f"{name}-0", model=model)
        for each in (live, owner, pod):
            each["metadata"].setdefault("labels", {})["tonnage.dev/managed"] = "true"
            each["metadata"]["namespace"] = namespace
        manifest = a_manifest(name, namespace=namespace, **spec)
        objects[MODEL_DEPLOYMENTS.path(namespace, name)] = manifest
        objects[DEPLOYMENTS.path(namespace, name)] = live
        objects[REPLICA_SETS.path(namespace, owner["metadata"]["name"])] = owner
        objects[PODS.path(namespace, f"{name}-0")] = pod
        rates[f"{name}-0"], namespaces[f"{name}-0"] = RATE, namespace
    return FleetWorld(kube=KubeDouble(objects.items()), rates=rates, namespaces=namespaces)


class Clocked:
    """A fleet of so many objects that ask so many distinct questions, tick by tick."""

    def __init__(self, number: int, num_questions: int) -> None:
        self.world = a_fleet_world(number, num_questions)
        self.world.lay_out()
        self.loop = a_loop_asking(
            self.world.ask, self.world, writes_per_s=1000, search_budget_s=600
        )
        show(self.loop, self.world)
        self.loop.lists.checked_at_s = self.world.now_s + 1e9  # lists are the double's, not ours

    def tick(self, _: float = 0) -> None:
        """Let 15 s pass, show what the watches would, and tick."""
        self.world.now_s += TICK_S
        if self.world.kube.writes:
            show(self.loop, self.world)
            self.world.kube.writes.clear()
        self.world.lay_out()
        self.loop.tick()


def walk(act: Callable[[], None]) -> tuple[int, int]:
    """Return how many functions of the package a call enters, and how often the room changes."""
    seen, rooms = set(), [""]

    def note(frame, event, _):
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(PACKAGE):
            path = path.removeprefix(PACKAGE)
            seen.add((path, frame.f_code.co_qualname))
            if (room := path.split("/")[0]) != rooms[-1]:
                rooms.append(room)

    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(None)
    return len(seen), len(rooms) - 1


if __name__ == "__main__":  # in a process of its own: nothing is remembered by other tests
    clocked = Clocked(2, 2)
    for _ in range(WARM_TICKS):
        clocked.tick()
    print(*walk(clocked.tick))  # noqa: T201
