"""Does the operator keep its promise where engines are not what it believes, and at what cost?

    python tests/bench/closed_loop.py [--shape rag] [--speed 0.85] [--part prefill] [--json]

The operator's own tick runs against simulated engines (``tonnage.replay``) that are so many times
as fast as it believes, under a constant load and one that rises and falls. It starts with the plan
for ``spec.demand``, which is Ready when the traffic begins, and knows nothing before. The oracle is
the smallest fleet that keeps the promise at the rate of each minute, for whoever knows the truth.
``--part``: what of a step is so many times as fast, if not all of it.

The columns under times (the first ten minutes, the first hour, after 15 minutes, the worst hour of
these) are late requests over those allowed, of the target that is missed most: above 1 the promise
is broken. GPUs are means after 15 minutes; ``least`` is the least replicas Ready over the oracle's.
Searches have no time limit: none waits.

``--llmd`` runs the loops that llm-d has published instead (its issues 1412 and 1421): from one
replica, 20 requests/s at once for 600 s, starts of 98 to 130 s, ten replicas at most. A column each
for those that end within the 600 s, which its harness counts, and for all.
"""

import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import product

import click
from replay_cases import Lengths
from replay_cases import manifest as served_manifest

from oracle import Oracle
from slo_shares import slo_shares
from tonnage.api.objects import parse_model_deployment
from tonnage.catalog.gpu import built_in_gpus
from tonnage.replay.cluster import Record, ReplayedModel, StartupTime
from tonnage.replay.evaluation import LatencyLimits, fates, quantiles, run_figures
from tonnage.replay.ground_truth import GroundTruth, Kink, machine
from tonnage.replay.simulation import Simulation
from tonnage.replay.traffic import Rate, TrafficSource, constant_rate, diurnal, traffic
from tonnage.settings import Settings
from tonnage.sizing.expected import expected_workload, slo_of
from tonnage.sizing.request import ask, look_up
from tonnage.sizing.search import size

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
LOADS = ("constant", "diurnal")
PARTS = ("all", "bandwidth", "compute", "prefill", "overhead", "kink")
KINK_S = 1.5e-3
"""Of a sequence beyond the kink, times what engines are slower."""
WANTED = 8
"""Replicas that the truth takes at the mean rate: the rates of all cases are chosen so."""
SWING, PERIOD_S = 0.6, 14_400.0
DURATION_S = {"constant": 7200.0, "diurnal": PERIOD_S}
QUANTILE = "p95"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    model: str
    shape: str
    speed: float
    load: str
    part: str = "all"
    seed: int = 0

    @property
    def truth(self) -> GroundTruth:
        if self.part == "all":
            return GroundTruth(speed=self.speed)
        if self.part == "kink":  # a sequence beyond the 16th costs more than the formula can say
            return GroundTruth(
                kink=Kink(num_sequences=16, per_sequence_s=KINK_S * (1 / self.speed - 1))
            )
        if self.part == "overhead":
            return GroundTruth(overhead_factor=1 / self.speed)
        return GroundTruth(**{f"{self.part}_factor": self.speed})


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    case: Case
    requests_per_s: float
    """Mean."""
    truth_requests_per_s: float
    """Of one replica."""
    believed: tuple[float | None, float | None]
    """The same as the operator has it, at the start and at the end."""
    ten_minutes: float
    hour: float
    later: float
    """After the first 15 minutes."""
    worst_hour: float
    gpus: float
    """Mean, after the first 15 minutes."""
    oracle_gpus: float
    least_replicas: float
    """The least over those of the oracle, after the first 15 minutes."""
    constants: dict
    problems: list[str]
    wall_s: float
    times_real: float


def cases(*, seeds: int, **chosen: Sequence) -> Iterator[Case]:
    for model, shape, part, load, speed, seed in product(
        *(chosen[name] for name in ("models", "shapes", "parts", "loads", "speeds")), range(seeds)
    ):
        yield Case(model=model, shape=shape, speed=speed, load=load, part=part, seed=seed)


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


def rate_of(case: Case, mean: float) -> Rate:
    return (
        constant_rate(mean)
        if case.load == "constant"
        else diurnal(mean, swing=SWING, period_s=PERIOD_S)
    )


def simulated(
    given: dict, rate: Rate, duration_s: float, *, seed: int = 0, **own: object
) -> Record:
    """Return the run of a manifest under a rate; ``own``: fields of what is served."""
    model = parse_model_deployment(given)
    found = traffic(
        TrafficSource(rate=rate, shapes=[(0.0, expected_workload(model.spec))]),
        duration_s=duration_s,
        context_tokens=model.spec.context_length,
        seed=seed,
    )
    served = ReplayedModel(model=model, traffic=found, seed=seed, **own)
    settings = Settings(prometheus_url="http://prometheus.test:9090")
    return Simulation(served, settings=settings).run(duration_s)


def result_of(case: Case) -> Result:
    """Run one case at a rate for which the truth takes about so many replicas."""
    began_s = time.perf_counter()
    each = true_goodput(case)
    mean = 0.93 * WANTED * each
    before_s = time.perf_counter()
    rate, duration_s = rate_of(case, mean), DURATION_S[case.load]
    record = simulated(manifest(case, mean), rate, duration_s, seed=case.seed, truth=case.truth)
    loop_s = time.perf_counter() - before_s
    oracle = Oracle(request=record.cluster.request, machine=record.cluster.machine)
    settled_s = 900.0
    shares, needed = [], []
    for moment in record.moments:
        if moment.at_s >= settled_s:
            number = oracle.replicas_for(rate(moment.at_s), record.served.traffic.shapes[0][1])
            needed.append(number)
            shares.append(moment.ready / number)
    gpus = record.cluster.machine.num_gpus
    hours = [
        slo_shares(record, at_s, at_s + 3600).worst_ratio
        for at_s in range(int(settled_s), int(duration_s) - 1800, 1800)
    ]
    last = record.moments[-1]
    planned = [m.goodput_requests_per_s for m in record.moments]
    return Result(
        case=case,
        requests_per_s=mean,
        truth_requests_per_s=oracle.staffing(record.served.traffic.shapes[0][1]).each(1),
        believed=(planned[0], planned[-1]),
        ten_minutes=slo_shares(record, 0, 600).worst_ratio,
        hour=slo_shares(record, 0, 3600).worst_ratio,
        later=slo_shares(record, settled_s, duration_s).worst_ratio,
        worst_hour=max(hours),
        gpus=record.gpu_s(settled_s, duration_s) / (duration_s - settled_s),
        oracle_gpus=gpus * sum(needed) / len(needed),
        least_replicas=min(shares),
        constants={str(key): asdict(value) for key, value in last.calibrations.speed.items()},
        problems=sorted(
            {m.problem for m in record.moments if m.problem}
            | {repr(error) for error in record.faults}
        ),
        wall_s=time.perf_counter() - began_s,
        times_real=duration_s / loop_s,
    )


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


def llmd_row(tokens: tuple[int, int], gpus: int, queue: str, requests_per_s: float | None) -> str:
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
        "engine": {"version": "0.33", "queue": queue},
        "scaling": {"minReplicas": 1, "maxReplicas": 10},
        "demand": demand,
    }
    start = StartupTime(mean_s=114)
    record = simulated(given, constant_rate(20.0), LLMD_S, start=start)
    found, limits = record.served.traffic, LatencyLimits.of(slo_of(record.served.model.spec))
    outcomes = fates(record, found, limits)
    figures = run_figures(record, found, outcomes)
    ended = zip(outcomes.ttft_s, memoryview(record.cluster.table.ended_s), strict=True)
    counted = [ttft_s for ttft_s, ended_s in ended if 0 < ended_s <= LLMD_S]
    ttft_s, replicas = LLMD[tokens]
    told = f"{requests_per_s:g} requests/s" if requests_per_s else "nothing"
    return (
        f"| {tokens[0]} / {tokens[1]} | {ttft_s} s, {replicas} | {gpus} | {queue} | {told} | "
        f"{figures.attainment:.1%} | {len(counted)} of {len(outcomes.ttft_s)} | "
        f"{quantiles(counted)[2]:.1f} s | {figures.ttft_s[0]:.1f} s | {figures.ttft_s[2]:.1f} s | "
        f"{figures.mean_replicas:.2f} |"
    )


COLUMNS = (
    "model shape part      load      speed | rate/s  truth  believed       | 10 min   hour  later"
    "  worst h |  GPUs oracle  ratio  least |  x real"
)


def line(found: Result) -> str:
    case = found.case
    believed = " -> ".join("none" if each is None else f"{each:.2f}" for each in found.believed)
    ratio = found.gpus / found.oracle_gpus
    return (
        f"{case.model:5} {case.shape:5} {case.part:9} {case.load:9} {case.speed:5.2f} | "
        f"{found.requests_per_s:6.2f} {found.truth_requests_per_s:6.2f}  {believed:14} | "
        f"{found.ten_minutes:6.2f} {found.hour:6.2f} {found.later:6.2f} {found.worst_hour:8.2f} | "
        f"{found.gpus:5.1f} {found.oracle_gpus:6.1f} {ratio:6.2f} {found.least_replicas:6.2f} | "
        f"{found.times_real:6.0f}"
    )


@click.command()
@click.option(
    "--model", "models", multiple=True, type=click.Choice(list(MODELS)), default=list(MODELS)
)
@click.option(
    "--shape", "shapes", multiple=True, type=click.Choice(list(SHAPES)), default=list(SHAPES)
)
@click.option("--speed", "speeds", multiple=True, type=float, default=SPEEDS, show_default=True)
@click.option("--load", "loads", multiple=True, type=click.Choice(LOADS), default=LOADS)
@click.option("--part", "parts", multiple=True, type=click.Choice(PARTS), default=("all",))
@click.option("--seeds", type=int, default=1, show_default=True)
@click.option("--jobs", type=int, default=2, show_default=True)
@click.option("--llmd", "is_llmd", is_flag=True, help="The loops that llm-d has published.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def main(*, jobs: int, is_llmd: bool, as_json: bool, **chosen) -> None:
    began_s = time.perf_counter()
    if is_llmd:
        with ProcessPoolExecutor(max_workers=jobs) as pool:
            asked = product(LLMD, (2, 4), ("fcfs", "auto"), (None, 20.0))
            for row in pool.map(llmd_row, *zip(*asked, strict=True)):
                click.echo(row)
        return
    todo = list(cases(**chosen))
    if not as_json:
        click.echo(COLUMNS)
    with ProcessPoolExecutor(max_workers=jobs) as pool:
        for found in pool.map(result_of, todo):
            click.echo(json.dumps(asdict(found)) if as_json else line(found))
            for problem in [] if as_json else found.problems:
                click.echo(f"      {problem[:150]}")
    if not as_json:
        click.echo(f"{len(todo)} cases in {time.perf_counter() - began_s:.0f} s")


if __name__ == "__main__":
    main()
