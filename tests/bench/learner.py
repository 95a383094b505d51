"""How near the learner comes to engines whose constants it does not know.

    python tests/bench/learner.py [--truths 200] [--changes | --corrupted 0.3] [--jobs 2]

Each truth is a model on a GPU class under a shape of traffic. Overheads, bandwidth and prefill of
its engines are drawn around the prior, each replica a little apart, and so is the load: a fifth of
what they could serve to a tenth more. The operator's own tick runs on a fixed number of replicas,
from scrapes of 15 s. Errors, without sign, as median and 90th percentile over truths, after so many
minutes of traffic: of the step at the load that runs and of the goodput of one replica, believed
over true; and of how many truths the step lies outside of twice its stated deviation.
``--changes``: the bandwidth falls by a fifth after half an hour, and minutes count from then.
"""

import json
import math
import random
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import click

from tonnage.api.objects import parse_model_deployment
from tonnage.catalog.gpu import built_in_gpus
from tonnage.estimate.calibration import Calibrations
from tonnage.estimate.learner import constants_of, deviation_of_step, prior_posterior
from tonnage.estimate.posterior import SpeedPosterior
from tonnage.replay.cluster import ReplayedModel
from tonnage.replay.ground_truth import GroundTruth
from tonnage.replay.traffic import TrafficSource, constant_rate, traffic
from tonnage.settings import Settings
from tonnage.sizing.expected import expected_workload
from tonnage.sizing.plan import Sizing
from tonnage.sizing.request import ask, look_up, spread_of
from tonnage.sizing.search import size
from tonnage.sizing.serving.flags import trial_of
from tonnage.sizing.serving.goodput import Length, goodput
from tonnage.sizing.serving.load_line import state_at
from tonnage.sizing.serving.replica import Replica
from tonnage.sizing.serving.steady import mean_step

sys.path.append(str(Path(__file__).parents[1] / "support"))  # so that it is one command
from changing_engines import ChangingSimulation
from scrape_faults import multiplied, without_numbers, zeroed

MINUTES = (0, 5, 15, 60)
CHANGE_S, AFTER_CHANGE = 1800.0, (-1, 5, 15, 30)
CHANGED = 0.8
SHAPES = {
    "chat": {"prompt": (800, 4000), "output": 300, "ttft": "1s"},
    "rag": {"prompt": (6000, 12_000), "output": 300, "ttft": "4s"},
    "code": {"prompt": (2500, 8000), "output": 80, "ttft": "2s"},
    "write": {"prompt": (500, 2000), "output": 1500, "ttft": "1s"},
}
PLACES = (
    ("meta-llama/Llama-3.1-8B-Instruct", "H100", "40ms"),
    ("meta-llama/Llama-3.1-8B-Instruct", "L40S", "80ms"),
    ("Qwen/Qwen3-32B", "H200", "50ms"),
    ("Qwen/Qwen3-30B-A3B", "H100", "40ms"),
)
HIGHEST_EFFICIENCY = 0.97


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """What the engines are really like, and how much is asked of them."""

    shape: str
    place: tuple[str, str, str]
    truth: GroundTruth
    replicas: int
    load: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """What befalls engines and scrapes on the way."""

    later: GroundTruth | None = None
    """What the engines become half an hour after the start."""
    corrupted: float = 0.0
    """Share of scrapes."""


def drawn(seed: int) -> Drawn:
    chance = random.Random(seed)  # noqa: S311
    return Drawn(
        shape=chance.choice(sorted(SHAPES)),
        place=chance.choice(PLACES),
        truth=GroundTruth(
            overhead_factor=math.exp(chance.gauss(0, 0.35)),
            bandwidth_factor=math.exp(chance.gauss(-0.05, 0.18)),
            prefill_factor=math.exp(chance.gauss(0, 0.25)),
        ),
        replicas=chance.choice((1, 2, 4)),
        load=chance.uniform(0.2, 1.1),
    )


def manifest(case: Drawn, requests_per_s: float) -> dict[str, Any]:
    model, gpu, tpot = case.place
    shape = SHAPES[case.shape]
    mean, p99 = shape["prompt"]
    return {
        "apiVersion": "tonnage.dev/v1alpha1",
        "kind": "ModelDeployment",
        "metadata": {"name": "m", "namespace": "serving", "uid": "uid-of-m", "generation": 1},
        "spec": {
            "model": {"id": model},
            "hardware": {"gpu": gpu, "gpusPerReplica": 1},
            "contextLength": 16_384,
            "slo": {"timeToFirstToken": {"p95": shape["ttft"]},
                    "timePerOutputToken": {"p95": tpot}},
            "demand": {
                "requestsPerSecond": f"{requests_per_s:.4f}",
                "promptTokens": {"mean": mean, "p99": p99},
                "outputTokens": {"mean": shape["output"]},
            },
            "scaling": {"minReplicas": case.replicas, "maxReplicas": case.replicas},
            "engine": {"version": "0.33"},
        },
    }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A plan with the flags that run, and the truth about its engines."""

    sizing: Sizing
    truth: Replica
    goodput_requests_per_s: float
    load_requests_per_s: float

    def errors(self, found: SpeedPosterior) -> dict[str, float]:
        """Return logarithms of believed over true."""
        believed = with_speed(self.sizing.replica, constants_of(found, self.prior))
        workload = self.sizing.request.workload
        state = state_at(self.truth, workload, self.load_requests_per_s)
        met = mean_step(self.truth, workload, state.num_decoding)
        step = believed.model.step(met).total_s / self.truth.model.step(met).total_s
        served = goodput(
            trial_of(self.sizing.request, believed),
            self.goodput_requests_per_s,
            length=Length.MEDIUM,
        )
        ratio = max(1e-6, served.requests_per_s) / self.goodput_requests_per_s
        return {
            "step": math.log(step),
            "goodput": math.log(ratio),
            "deviation": deviation_of_step(found),
        }

    @property
    def prior(self):
        return self.sizing.replica.model.constants


def with_speed(replica: Replica, constants: Any) -> Replica:
    return replace(replica, model=replace(replica.model, constants=constants))


def known(case: Drawn, truth: GroundTruth, load_requests_per_s: float | None = None) -> Known:
    spec = parse_model_deployment(manifest(case, 1.0)).spec
    request = ask(spec, look_up(spec, built_in_gpus()))
    sizing = size(replace(request, flags=size(request).flags))
    replica = with_speed(sizing.replica, truth.constants(sizing.replica.model.constants))
    trial = trial_of(sizing.request, replica)
    found = goodput(trial, sizing.goodput_requests_per_s, length=Length.MEDIUM)
    each = found.requests_per_s
    return Known(
        sizing=sizing,
        truth=replica,
        goodput_requests_per_s=each,
        load_requests_per_s=load_requests_per_s or max(1e-6, case.load * each),
    )


def judged(seed: int, *, changes: bool, corrupted: float) -> dict[str, Any]:
    case = bounded(drawn(seed))
    first = known(case, case.truth)
    row = {"seed": seed, "shape": case.shape, "place": case.place[:2], "load": case.load}
    later = replace(case.truth, bandwidth_factor=CHANGED * case.truth.bandwidth_factor)
    after = known(case, later, first.load_requests_per_s) if changes else first
    if min(first.goodput_requests_per_s, after.goodput_requests_per_s) <= 0:
        return row | {"skipped": "no rate keeps the SLO"}
    trouble = Trouble(later=later if changes else None, corrupted=corrupted)
    found = learned(case, first, trouble)
    return row | {
        "truth": [case.truth.overhead_factor, case.truth.bandwidth_factor,
                  case.truth.prefill_factor],
        "errors": {
            minute: (after if minute > 0 else first).errors(posterior)
            for minute, posterior in found.items()
        },
    }  # fmt: skip


def bounded(case: Drawn) -> Drawn:
    """Return the case with a bandwidth that is none of the nominal one's."""
    spec = parse_model_deployment(manifest(case, 1.0)).spec
    prior = ask(spec, look_up(spec, built_in_gpus())).speed.bandwidth_efficiency
    factor = min(case.truth.bandwidth_factor, HIGHEST_EFFICIENCY / prior)
    return replace(case, truth=replace(case.truth, bandwidth_factor=factor))


def learned(case: Drawn, first: Known, trouble: Trouble) -> dict[int, SpeedPosterior]:
    """Return what is believed so many minutes after the start, or after the change."""
    origin_s, moments = (CHANGE_S, AFTER_CHANGE) if trouble.later else (0.0, MINUTES)
    rate = case.replicas * first.load_requests_per_s
    model = parse_model_deployment(manifest(case, rate))
    until_s = origin_s + 60.0 * max(moments) + 30
    found = traffic(
        TrafficSource(rate=constant_rate(rate), shapes=[(0.0, expected_workload(model.spec))]),
        duration_s=until_s,
        context_tokens=model.spec.context_length,
        seed=len(case.shape),
    )
    served = ReplayedModel(
        model=model,
        traffic=found,
        truth=case.truth,
        speed_spread=0.03,
    )
    share = trouble.corrupted / 3
    bad = (
        zeroed(share, seed=1),
        multiplied(share, by=100, seed=2),
        without_numbers(share, seed=3),
    )
    settings = Settings(prometheus_url="http://prometheus.test:9090")
    changes = ((origin_s, trouble.later),) if trouble.later else ()
    simulation = ChangingSimulation(served, changes=changes, settings=settings, faults=bad)
    record = simulation.run(until_s)
    prior = prior_posterior(first.prior, spread_fraction=spread_of(first.sizing.request))
    return {minute: at(record.moments, origin_s + 60.0 * minute) or prior for minute in moments}


def at(moments: Sequence[Any], at_s: float) -> SpeedPosterior | None:
    last = [moment for moment in moments if moment.at_s <= at_s]
    calibrations: Calibrations | None = last[-1].calibrations if last else None
    return next(iter(calibrations.speed.values()), None) if calibrations else None


def summary(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    kept = [row for row in rows if "errors" in row]
    for minute in kept[0]["errors"]:
        parts = []
        for what in ("step", "goodput"):
            values = [math.expm1(row["errors"][minute][what]) for row in kept]
            sizes = [abs(value) for value in values]
            tail = quantiles(sizes, n=10)[-1] if len(sizes) > 1 else sizes[0]
            parts.append(
                f"{what} {100 * median(sizes):.1f} / {100 * tail:.1f} % "
                f"(bias {100 * median(values):+.1f})"
            )
        outside = [
            row for row in kept
            if abs(row["errors"][minute]["step"]) > 2 * row["errors"][minute]["deviation"]
        ]  # fmt: skip
        parts.append(f"outside of its range {len(outside)} of {len(kept)}")
        yield f"minute {minute}: " + ", ".join(parts)


@click.command()
@click.option("--truths", default=200, show_default=True)
@click.option("--first", default=0, show_default=True, help="Seed of the first truth.")
@click.option("--jobs", default=2, show_default=True)
@click.option("--changes", is_flag=True, help="Let the bandwidth fall on the way.")
@click.option("--corrupted", default=0.0, show_default=True, help="Share of scrapes.")
@click.option("--json", "as_json", is_flag=True)
def main(*, truths, first, jobs, changes, corrupted, as_json) -> None:  # noqa: PLR0913
    work = partial(judged, changes=changes, corrupted=corrupted)
    with ProcessPoolExecutor(jobs) as pool:
        rows = list(pool.map(work, range(first, first + truths)))
    if as_json:
        click.echo(json.dumps(rows, indent=1))
        return
    for line in summary(rows):
        click.echo(line)
    skipped = sum("skipped" in row for row in rows)
    click.echo(f"{len(rows) - skipped} truths; of {skipped} more no rate keeps the SLO")


if __name__ == "__main__":
    main()
