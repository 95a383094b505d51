"""Answers that are too large or too slow, through a whole tick: memory and time stay bounded."""

import subprocess
import sys
from pathlib import Path

import pytest

from fault_world import PATIENT, SHORT, a_world, failing
from fleet_builders import NOW_S
from helm import memory_limit_bytes
from http_double import Reply, serving
from query_api import QueryApi
from tonnage.cluster.queries import query_of
from tonnage.estimate.metrics import LATENCIES
from tonnage.units import MIB

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
for number in range(2):
    now_s = NOW_S + 15 * number
    observer.begin_round(snapshot, now_s, threading.Event())
    fleet = observer.observe(snapshot, memory.calibrations, now_s)
    outcome = tick(fleet, memory)
    memory = outcome.memory
    before = before or rss_bytes("VmRSS")
print(before, rss_bytes("VmHWM"), len(outcome.faults), *sorted(fleet.problems))
print(*(each.decision.replicas for each in outcome.found))
"""
HEAD = b'{"status":"success","data":{"resultType":"vector","result":['
LARGE_BYTES = 31 * MIB


def large_pieces(pod):
    """Series of one pod's engines, as many as fill the bytes."""
    size, number = 0, 0
    yield HEAD
    while size < LARGE_BYTES:
        labels = f'"namespace":"blue","pod":"{pod}","engine":"{number}","le":"{number}.5"'
        labels += f',"model_name":"{"x" * 90}"'
        item = f'{"," if number else ""}{{"metric":{{{labels}}},"value":[{NOW_S},"{number}"]}}'
        size, number = size + len(item), number + 1
        yield item.encode()
    yield b"]}}"


class TestAnAnswerOf31MiB:
    @pytest.mark.parametrize("pod", ["llama-0", "nobody"])
    def test_leaves_the_whole_process_below_the_limit_of_the_chart(self, pod):
        api = QueryApi(completions_per_s={})
        body = b"".join(large_pieces(pod))
        assert LARGE_BYTES <= len(body) < LARGE_BYTES + MIB
        asked = []

        def large(name, _):
            """Be well at first: what the program itself takes is measured then."""
            if name == "ttft":
                asked.append(name)
            return Reply(body=body) if name == "ttft" and len(asked) > 1 else None

        api.fault = large
        with serving(api) as server:
            done = subprocess.run(  # noqa: S603 - our own program
                [sys.executable, "-c", PROGRAM, server.url],
                capture_output=True,
                text=True,
                check=True,
                env={"PYTHONPATH": f"{ROOT / 'operator'}:{SUPPORT}"},
                timeout=120,
            )

        first, *_ = done.stdout.splitlines()
        before, most, num_faults, *problems = first.split()
        assert int(most) < memory_limit_bytes()
        assert int(most) > int(before)
        assert (int(num_faults), problems) == (0, []), "it was read to its end"


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
