"""Does the operator keep its promise where engines are not what it believes, and at what cost?

    python tests/bench/closed_loop.py [WORD]... [--processes 2] [--llmd]

The operator's own tick runs against simulated engines (``tonnage.replay``) that are so many times
as fast as it believes, under a constant load and one that rises and falls. It starts with the plan
for ``spec.demand``, which is Ready when the traffic begins, and knows nothing before. The oracle is
the smallest fleet that keeps the promise at the rate of each minute, for whoever knows the truth.
``WORD``: of the row of a case, as ``8b rag 0.85 constant``; only cases that have all of them run.

The columns under times are late requests over those allowed, of the target that is missed most:
above 1 the promise is broken. GPUs are means after 15 minutes; ``least`` is the least replicas
Ready over the oracle's. Searches have no time limit: none waits.

``--llmd`` runs the loops that llm-d has published instead (its issues 1412 and 1421): from one
replica, 20 requests/s at once for 600 s, starts of 98 to 130 s, ten replicas at most. A column each
for those that end within the 600 s, which its harness counts, and for all.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import product

import click
from measured import PROCESSES, table
from replay_cases import Lengths
from replay_cases import manifest as served_manifest

from oracle import Oracle
from slo_shares import slo_shares
from tonnage.api.objects import parse_model_deployment
from tonnage.catalog.gpu import built_in_gpus
from tonnage.replay.cluster import Record, ReplayedModel, StartupTime
from tonnage.replay.evaluation import LatencyLimits, fates, quantiles, run_figures
from tonnage.replay.ground_truth import GroundTruth, machine
from tonnage.replay.simulation import Simulation
from tonnage.replay.traffic import Rate, TrafficSource, diurnal, traffic
from tonnage.settings import Settings
from tonnage.sizing.expected import expected_workload, slo_of
from tonnage.sizing.request import ask, look_up
from tonnage.sizing.search import size
from tonnage.units import HOUR_S

MODELS = {
    "8b": {
        "model": {"id": "meta-llama/Llama-3.1-8B-Instruct"},
        "hardware": {"gpu": "H100", "gpusPerReplica": 1},
    },
    "70b": {
        "model": {"id": "meta-llama/Llama-3.3-70B-Instruct", "weights": "fp8"},
        "hardware": {"gpu": "H200", "gpusPerReplica": 2},
    },
}
SHAPES = {
    "rag": {"prompt": (6000, 12_000), "output": 300, "ttft": "2s", "tpot": "50ms"},
    "chat": {"prompt": (800, 2500), "output": 300, "ttft": "1s", "tpot": "40ms"},
    "code": {"prompt": (2500, 6000), "output": 80, "ttft": "1s", "tpot": "40ms"},
}
SPEEDS = (0.7, 0.85, 1.0, 1.2, 1.35, 1.5)
WANTED = 8
"""Replicas that the truth takes at the mean rate: the rates of all cases are chosen so."""
SHARE = 0.93
"""Of what these serve."""
SWING, PERIOD_S = 0.6, 14_400.0
DURATION_S = {"constant": 7200.0, "diurnal": PERIOD_S}
SETTLED_S = 900.0
QUANTILE = "p95"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    model: str
    shape: str
    speed: float
    load: str

    def __str__(self) -> str:
        return f"{self.model} {self.shape} {self.load} {self.speed:g}"

    @property
    def truth(self) -> GroundTruth:
        return GroundTruth(speed=self.speed)

    def rate(self, mean: float) -> Rate:
        if self.load == "constant":
            return lambda _: mean
        return diurnal(mean, swing=SWING, period_s=PERIOD_S)


def cases(words: Iterable[str]) -> list[Case]:
    """Return all cases, or those in whose row all the words are."""
    found = [
        Case(model=model, shape=shape, load=load, speed=speed)
        for model, shape, load, speed in product(MODELS, SHAPES, DURATION_S, SPEEDS)
    ]
    return [each for each in found if {*words} <= {*str(each).split()}]


def manifest(case: Case, requests_per_s: float) -> dict:
    shape = SHAPES[case.shape]
    mean, p99 = shape["prompt"]
    lengths = Lengths(prompt_mean=mean, prompt_p99=p99, output_mean=0, output_p99=0)
    given = served_manifest(lengths, requests_per_s)
    slo = {"timeToFirstToken": shape["ttft"], "timePerOutputToken": shape["tpot"]}
    given["spec"] |= MODELS[case.model]
    given["spec"]["contextLength"] = 16_384
    given["spec"]["slo"] = {name: {QUANTILE: limit} for name, limit in slo.items()}
    given["spec"]["demand"]["outputTokens"] = {"mean": shape["output"]}
    given["spec"]["scaling"]["maxReplicas"] = 64
    return given


def simulated(given: dict, rate: Rate, duration_s: float, **own: object) -> Record:
    """Return the run of a manifest under a rate; ``own``: fields of what is served."""
    model = parse_model_deployment(given)
    found = traffic(
        TrafficSource(rate=rate, shapes=[(0.0, expected_workload(model.spec))]),
        duration_s=duration_s,
        context_tokens=model.spec.context_length,
    )
    served = ReplayedModel(model=model, traffic=found, **own)
    settings = Settings(prometheus_url="http://prometheus.test:9090")
    return Simulation(served, settings=settings).run(duration_s)


COLUMNS = (
    "case", "requests/s", "first 10 min", "after 15 min", "worst hour", "GPUs", "the oracle's",
    "ratio", "least", "problems",
)  # fmt: skip


def row_of(case: Case) -> list[str]:
    """Run one case at a rate for which the truth takes about so many replicas."""
    mean = SHARE * WANTED * true_goodput(case)
    rate, duration_s = case.rate(mean), DURATION_S[case.load]
    record = simulated(manifest(case, mean), rate, duration_s, truth=case.truth)
    oracle = Oracle(request=record.cluster.request, machine=record.cluster.machine)
    settled = [each for each in record.moments if each.at_s >= SETTLED_S]
    shape = record.cluster.traffic.shapes[0][1]
    needed = [oracle.replicas_for(rate(each.at_s), shape) for each in settled]
    starts_s = range(int(SETTLED_S), int(duration_s) - 1800, 1800)
    late = [
        slo_shares(record, 0, 600).worst_ratio,
        slo_shares(record, SETTLED_S, duration_s).worst_ratio,
        max(slo_shares(record, at_s, at_s + HOUR_S).worst_ratio for at_s in starts_s),
    ]
    gpus = record.gpu_s(SETTLED_S, duration_s) / (duration_s - SETTLED_S)
    of_oracle = record.cluster.machine.num_gpus * sum(needed) / len(needed)
    least = min(each.ready / number for each, number in zip(settled, needed, strict=True))
    problems = {m.problem for m in record.moments if m.problem} | {*map(repr, record.faults)}
    figures = (mean, *late, gpus, of_oracle, gpus / of_oracle, least)
    return [str(case), *(f"{each:.2f}" for each in figures), "; ".join(sorted(problems))]


def true_goodput(case: Case) -> float:
    """Return what one true replica serves, with the flags of the operator's first plan."""
    spec = parse_model_deployment(manifest(case, 10.0)).spec
    request = ask(spec, look_up(spec, built_in_gpus()))
    planned = size(request)
    kind = machine(request, planned.flags, case.truth)
    oracle = Oracle(request=replace(request, flags=planned.flags), machine=kind)
    return oracle.staffing(request.workload).each(1)


LLMD = {(4000, 1000): (526, 7.29), (1000, 4000): (327, 10.0), (1000, 1000): (254, 8.95)}
"""Tokens of prompts and answers, P99 of TTFT in seconds and mean replicas, as published."""
LLMD_S = 600.0


def llmd_row(tokens: tuple[int, int], gpus: int, requests_per_s: float | None) -> list[str]:
    """Return one of llm-d's loops; ``requests_per_s``: that the spec tells."""
    given = manifest(Case(model="8b", shape="chat", speed=1.0, load="constant"), 1.0)
    prompt, output = ({"mean": each, "p99": each} for each in tokens)
    demand = {"promptTokens": prompt, "outputTokens": output}
    if requests_per_s:
        demand["requestsPerSecond"] = str(requests_per_s)
    given["spec"] |= {
        "model": {"id": "Qwen/Qwen3-32B"},
        "hardware": {"gpu": "H100", "gpusPerReplica": gpus},
        "slo": {"timeToFirstToken": {"p99": "2s"}},
        "engine": {"version": "0.33"},
        "scaling": {"minReplicas": 1, "maxReplicas": 10},
        "demand": demand,
    }
    start = StartupTime(mean_s=114)
    record = simulated(given, lambda _: 20.0, LLMD_S, start=start)
    found, limits = record.cluster.traffic, LatencyLimits.of(slo_of(record.cluster.model.spec))
    outcomes = fates(record, found, limits)
    figures = run_figures(record, found, outcomes)
    ended = zip(outcomes.ttft_s, memoryview(record.cluster.table.ended_s), strict=True)
    counted = [ttft_s for ttft_s, ended_s in ended if 0 < ended_s <= LLMD_S]
    ttft_s, replicas = LLMD[tokens]
    capacity = f"{requests_per_s:g} requests/s" if requests_per_s else "nothing"
    asked = (f"{tokens[0]} / {tokens[1]}", f"{ttft_s} s, {replicas}", f"{gpus}", capacity)
    ended_s = (f"{len(counted)} of {len(outcomes.ttft_s)}", f"{quantiles(counted)[2]:.1f} s")
    of_all = (f"{figures.ttft_s[0]:.1f} s", f"{figures.ttft_s[2]:.1f} s")
    return [*asked, f"{figures.attainment:.1%}", *ended_s, *of_all, f"{figures.mean_replicas:.2f}"]


LLMD_COLUMNS = (
    "tokens", "llm-d: P99 TTFT, replicas", "GPUs each", "rate in the spec", "within 2 s",
    "ended", "P99 of these", "median", "P99 of all", "replicas",
)  # fmt: skip


@click.command()
@click.argument("words", nargs=-1)
@click.option("--llmd", "is_llmd", is_flag=True, help="The loops that llm-d has published.")
@PROCESSES
def main(words: tuple[str, ...], *, is_llmd: bool, processes: int) -> None:
    """Run the cases, and print a row of each."""
    llmd = list(product(LLMD, (2, 4), (None, 20.0)))
    row: Callable[..., list[str]] = llmd_row if is_llmd else row_of
    asked = llmd if is_llmd else [(each,) for each in cases(words)]
    with ProcessPoolExecutor(processes) as pool:
        click.echo(table(LLMD_COLUMNS if is_llmd else COLUMNS, ()))
        for each in pool.map(row, *zip(*asked, strict=True)):
            click.echo(f"| {' | '.join(each)} |")


if __name__ == "__main__":
    main()
