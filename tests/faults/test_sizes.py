"""Answers that are too large or too slow, through a whole tick: memory and time stay bounded."""

import subprocess
import sys
from pathlib import Path

import pytest

from fault_world import PATIENT, SHORT, a_world, failing
from helm import memory_limit_bytes
from hostile_answers import HEAD, LARGE_BYTES, bodies
from http_double import Reply, serving
from query_api import QueryApi
from tonnage.cluster.queries import query_of
from tonnage.estimate.metrics import LATENCIES, QUERIES, SCRAPES

ROOT = Path(__file__).parents[2]
SUPPORT = ROOT / "tests" / "support"
PROGRAM = """
import sys
import threading
from dataclasses import replace
from fault_world import OBJECTS, a_store
from fleet_builders import NOW_S
from helm import memory_limit_bytes
from kube_double import KubeDouble
from tonnage.catalog.gpu import built_in_gpus
from tonnage.cluster.prometheus import Prometheus, QueryLimits
from tonnage.control.input.memory import Memory
from tonnage.control.tick import tick
from tonnage.fleet.observe import Observer
from tonnage.manifests.children import site_of
from tonnage.settings import Settings

def rss_bytes(name):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))

settings = Settings(prometheus_url=sys.argv[1])
prometheus = Prometheus(settings, limits=QueryLimits(request_s=60, all_s=120))
observer = Observer(
    kube=KubeDouble(), ask=prometheus.ask, settings=settings, gpus=built_in_gpus(),
    site=site_of(settings, has_pod_monitors=True),
)
snapshot, memory = a_store().snapshot(), Memory()
before = 0
for number in range(4):
    now_s = NOW_S + 15 * number
    observer.begin_round(snapshot, now_s, threading.Event())
    fleet = observer.observe(snapshot, memory.calibrations, now_s)
    outcome = tick(fleet, memory)
    memory = outcome.memory
    before = before or rss_bytes("VmRSS")
print(before, rss_bytes("VmHWM"), len(outcome.faults), *sorted(fleet.problems))
print(*(each.decision.replicas for each in outcome.found))
"""
NAMES = [
    "a million samples",
    *(
        pytest.param(name, marks=pytest.mark.thorough)
        for name in ("copies at other times", "engines", "reasons")
    ),
]


class TestAnswersOf31MiB:
    @pytest.mark.parametrize("pod", ["llama-0", "nobody"])
    @pytest.mark.parametrize("name", NAMES)
    def test_leave_the_whole_process_below_the_limit_of_the_chart(self, name, pod):
        api = QueryApi(completions_per_s={})
        body, asked = bodies(LARGE_BYTES, pod=pod)[name](), []

        def large(query, namespaces):
            """Be well at first: what the program itself takes is measured then."""
            asked.append(query)
            is_attacked = len(asked) > len(QUERIES) and query in {SCRAPES, LATENCIES}
            return Reply(body=body) if is_attacked and namespaces in {(), ("blue",)} else None

        api.fault = large
        with serving(api) as server:
            done = subprocess.run(  # noqa: S603 - our own program
                [sys.executable, "-c", PROGRAM, server.url],
                capture_output=True,
                text=True,
                check=True,
                env={"PYTHONPATH": f"{ROOT / 'operator'}:{SUPPORT}"},
                timeout=240,
            )

        first, second = done.stdout.splitlines()
        before, most, num_faults, *problems = first.split()
        assert int(most) < memory_limit_bytes()
        assert int(most) > int(before) + len(body), "the body was read"
        assert int(num_faults) == 0
        assert {query_of(key) for key in problems} <= {SCRAPES, LATENCIES}
        assert "green" not in {key.partition("@")[2] for key in problems}
        assert min(map(int, second.split())) >= 2, "nobody is lowered by what is missing"


class TestAServerThatDrips:
    def dripping(self, world):
        """A whole answer, byte by byte, each long before any time-out between two reads."""
        body = HEAD + b" " * 10_000 + b"]}}"

        def pieces():
            for byte in body:
                world.server.stopping.wait(0.05)
                yield bytes([byte])

        return lambda name, limited: Reply(pieces=pieces())

    def test_holds_no_tick_beyond_its_deadline(self):
        with a_world(limits=SHORT) as world:
            world.api.fault = failing(self.dripping(world))

            assert world.tick(2) == {"blue": 2, "green": 2}

            assert world.fleet.metrics_problem[0] == "QueryTimeout"

    def test_in_one_query_that_shows_takes_nothing_else_away(self):
        with a_world(limits=PATIENT) as world:
            assert world.tick(4) == {"blue": 2, "green": 2}
            world.api.fault = failing(self.dripping(world), LATENCIES)

            assert world.tick(2) == {"blue": 1, "green": 1}
            assert {query_of(key) for key in world.fleet.problems} == {LATENCIES}
