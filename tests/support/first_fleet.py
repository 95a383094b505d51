"""What the operator makes of a plan: the options of ``plan`` as a ModelDeployment that acts.

Its own tick runs it against simulated engines that are as fast as believed, under the rate that was
planned for (``tonnage.replay``). What it begins with is Ready when the traffic begins.
"""

import json
import shlex
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml
from click.testing import CliRunner

from slo_shares import slo_shares
from tonnage.api.objects import ModelDeployment, parse_model_deployment
from tonnage.cli.commands.init import init
from tonnage.cli.commands.plan import plan
from tonnage.replay.cluster import FirstPlan, Pod, Record, ReplayedModel
from tonnage.replay.simulation import Simulation, first_plan
from tonnage.replay.traffic import TrafficSource, traffic
from tonnage.settings import Settings
from tonnage.sizing.expected import expected_workload
from tonnage.units import HOUR_S

LINES = Path(__file__).parents[1] / "bench" / "first_answers.txt"
TIMES = 3
"""The plan's replicas, that the operator may have."""
MOST = 1000
"""That a spec allows."""
SETTLED_S = 900.0
SPLIT = ("parallelism", "gpusPerReplica")
NODE = 8


def plan_lines() -> list[str]:
    """Return the lines of options of ``plan``."""
    return [line for line in LINES.read_text().splitlines() if line.startswith("plan ")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A plan as data, and its ModelDeployment; no split is chosen for it."""

    model: ModelDeployment
    answer: dict[str, Any]

    @property
    def gpus(self) -> int:
        """Of the plan."""
        return self.answer["plan"]["replicas"] * self.answer["plan"]["gpusPerReplica"]

    @property
    def begun(self) -> FirstPlan:
        """What the operator deploys first."""
        return first_plan(self.model)


def question(line: str, mode: str = "Auto") -> Question | None:
    """Return the question of a line; None: no plan has it."""
    options = shlex.split(line)[1:]
    made = CliRunner().invoke(init, options)
    if made.exit_code:
        return None
    given = yaml.safe_load(made.stdout)
    given["metadata"] |= {"namespace": "default", "uid": "uid-of-it"}
    chosen = {option.split("=")[0].removeprefix("hardware.") for option in options}
    hardware = given["spec"]["hardware"]
    for name in SPLIT:
        # A plan over several nodes says that the manifest has to name its GPUs.
        if name not in chosen and hardware.get("gpusPerReplica", 1) <= NODE:
            hardware.pop(name, None)
    given["spec"]["scaling"] |= {"mode": mode, "maxReplicas": MOST}
    found = CliRunner().invoke(plan, ["-f", "-", "-o", "json"], input=yaml.safe_dump(given))
    if found.exit_code:
        return None
    [answer] = json.loads(found.stdout)
    given["spec"]["scaling"]["maxReplicas"] = min(MOST, TIMES * answer["plan"]["replicas"])
    return Question(model=parse_model_deployment(given), answer=answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstFleet:
    """What became of it."""

    question: Question
    record: Record
    duration_s: float

    @property
    def pods(self) -> list[Pod]:
        return self.record.cluster.pods

    @property
    def settled_gpus(self) -> float:
        """In the mean of the last third."""
        from_s = 2 * self.duration_s / 3
        return self.record.gpu_s(from_s, self.duration_s) / (self.duration_s - from_s)

    @property
    def settles_at_s(self) -> float:
        """When the last pod of the fleet came or went."""
        changes = [at_s for pod in self.pods for at_s in (pod.created_s, pod.deleted_s)]
        return max(0.0, *(at_s for at_s in changes if at_s <= self.duration_s))

    @property
    def gpu_hours(self) -> float:
        return self.record.gpu_s(0, self.duration_s) / HOUR_S

    @property
    def late_ratio(self) -> float:
        """Late requests over those allowed, of the target that is missed most."""
        return slo_shares(self.record, SETTLED_S, self.duration_s).worst_ratio

    @property
    def restarts(self) -> int:
        """How often the flags of new pods were others."""
        flags = [pod.flags for pod in self.pods]
        return sum(one != other for one, other in pairwise(flags))

    def is_as_planned(self) -> bool:
        """Tell whether it settled within one replica or 5 % of the plan."""
        each, off = (
            self.question.answer["plan"]["gpusPerReplica"],
            self.settled_gpus - self.question.gpus,
        )
        return abs(off) <= max(each, self.question.gpus / 20)


def run(asked: Question, hours: float = 1.0) -> FirstFleet:
    """Let the operator serve what was planned for."""
    model, duration_s = asked.model, HOUR_S * hours
    rate = float(model.spec.demand.requests_per_second)
    found = traffic(
        TrafficSource(rate=lambda _: rate, shapes=[(0.0, expected_workload(model.spec))]),
        duration_s=duration_s,
        context_tokens=model.spec.context_length,
    )
    settings = Settings(prometheus_url="http://prometheus.test:9090")
    simulation = Simulation(ReplayedModel(model=model, traffic=found), settings=settings)
    return FirstFleet(question=asked, record=simulation.run(duration_s), duration_s=duration_s)
