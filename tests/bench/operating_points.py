"""What errors of latency do to a plan: replicas planned over replicas that a measurement implies.

    python tests/bench/operating_points.py --data serving_speed.csv --configs model_configs.yaml

A point is a public measurement of vLLM by a closed loop: so many users of one replica saw this TTFT
and TPOT, so it served ``users / (TTFT + later tokens x TPOT)`` requests/s (Little's law). Asked is
the demand of ten such replicas at the TPOT that was measured. Planned: the users of a replica up to
which the predicted TPOT is no longer, and the replicas that what these get takes. Points are drawn
by a seed, a few of each model, board and format. Predicted by the constants as they are, of
which the points are part; by the slow end of the range that holds eight of ten, which what nobody
has measured yet is planned by; and with all rows of the point's model left out of the fit.
"""

import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from statistics import median
from typing import Any

import click
import yaml
from fit_speed import fit, fit_with_client, predicted_s, read_samples
from speed import answer, eras, read_rows
from speed_cases import case_of, workload_of
from speed_eras import Row
from speed_formula import Sample

from tonnage.units import MS_PER_S

PAGE = Path(__file__).with_name("operating_points.md")
DRAW = 36
NUM_POINTS = 30
REPLICAS = 10
MOST_TIMES = 8
"""Of the users that were measured: nobody would plan with more."""
STATISTICS = (("tpot_mean_ms", "ttft_mean_ms"), ("tpot_p50_ms", "ttft_p50_ms"))

Predict = Callable[[Row], float | None]
"""Return the milliseconds of a row; None: it is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A measurement: the row of its TPOT, and that of its TTFT."""

    tpot: Row
    ttft: Row

    @property
    def kind(self) -> tuple[str, str, str]:
        return self.tpot["model"], self.tpot["gpu"].rstrip("?"), self.tpot["weight_quant"]

    @property
    def users(self) -> int:
        return int(self.tpot["concurrency_or_batch"])

    def requests_per_s(self, users: int, tpot_ms: float, ttft_ms: float) -> float:
        """Return what a replica serves of so many users, by Little's law."""
        later = workload_of(self.tpot).output_tokens - 1
        return users * MS_PER_S / (ttft_ms + later * tpot_ms)

    @property
    def measured_requests_per_s(self) -> float:
        tpot_ms, ttft_ms = (float(row["value"]) for row in (self.tpot, self.ttft))
        return self.requests_per_s(self.users, tpot_ms, ttft_ms)


def points(rows: Sequence[Row]) -> list[Point]:
    """Draw the points: one of each model, board and format in turn."""
    by_run: defaultdict[str, dict[str, Row]] = defaultdict(dict)
    for row in rows:
        if row["engine"] == "vllm" and row["isl"] and row["osl"]:
            by_run[row["id"].partition(":")[0]][row["metric"]] = row
    kinds: defaultdict[tuple[str, str, str], list[Point]] = defaultdict(list)
    for found in by_run.values():
        for tpot, ttft in STATISTICS:
            if tpot in found and ttft in found:
                point = Point(tpot=found[tpot], ttft=found[ttft])
                kinds[point.kind].append(point)
    draw = random.Random(DRAW)  # noqa: S311  (a draw of cases)
    shuffled = [draw.sample(kinds[kind], len(kinds[kind])) for kind in sorted(kinds)]
    in_turn = (each for turn in zip_longest(*shuffled) for each in turn if each)
    return list(islice(in_turn, NUM_POINTS))


def with_users(row: Row, users: int) -> Row:
    return {**row, "concurrency_or_batch": str(users)}


def planned_requests_per_s(point: Point, predict: Predict) -> float:
    """Return what a replica is believed to serve at the TPOT that was measured; 0: one user not.

    Between two numbers of users on the line, as between two rates.
    """
    limit_ms = float(point.tpot["value"])

    def at(users: int) -> tuple[float, float]:
        """Return the TPOT in ms, and the requests/s."""
        tpot_ms, ttft_ms = (
            found if (found := predict(with_users(row, users))) is not None else math.inf
            for row in (point.tpot, point.ttft)
        )
        return tpot_ms, point.requests_per_s(users, tpot_ms, ttft_ms)

    low, high = 0, MOST_TIMES * point.users
    while low < high:  # the most users that keep it
        middle = (low + high + 1) // 2
        low, high = (middle, high) if at(middle)[0] <= limit_ms else (low, middle - 1)
    if not low:
        return 0.0
    (few_ms, few), (many_ms, many) = at(low), at(low + 1)
    share = (limit_ms - few_ms) / (many_ms - few_ms) if few_ms < many_ms < math.inf else 0.0
    return few + min(1.0, share) * (many - few)  # at the most users that are tried both may keep it


def replicas_planned(point: Point, predict: Predict) -> float:
    """Return the replicas for what ten served, not rounded; infinity where a plan says no."""
    each = planned_requests_per_s(point, predict)
    return REPLICAS * point.measured_requests_per_s / each if each else math.inf


def by_constants(configs: Mapping[str, Any], figure: str = "predicted") -> Predict:
    """Return what the constants of the catalogue predict, or an end of the range around it."""
    known = eras()

    def predict(row: Row) -> float | None:
        found = answer(row, configs, known_eras=known)
        return None if found["refused"] else float(str(found[figure]))

    return predict


def by_fit(configs: Mapping[str, Any], samples: Sequence[Sample], model: str) -> Predict:
    """Return what a fit predicts that has seen no row of a model."""
    values = fit([each for each in samples if each.case.row["model"] != model])
    return lambda row: predicted_s(case_of(row, configs), values) * MS_PER_S


def summary(name: str, found: Sequence[float]) -> str:
    served = [each / REPLICAS for each in found if math.isfinite(each)]
    off = sorted(abs(each - 1) for each in served)
    within = sum(each <= 0.1 + 1e-9 for each in off)
    return (
        f"| {name} | {median(served):.2f} | {median(off):.0%} | {off[int(0.9 * len(off))]:.0%} "
        f"| {within} | {sum(each < 1 for each in served)} | {len(found) - len(served)} |\n"
    )


def table(drawn: Sequence[Point], columns: Mapping[str, Sequence[float]]) -> Iterator[str]:
    names = " | ".join(columns)
    yield f"| model | board | GPUs | format | users | in + out | TPOT, ms | TTFT, ms | {names} |\n"
    yield "|---|---|--:|---|--:|--:|--:|--:|" + "--:|" * len(columns) + "\n"
    for number, point in enumerate(drawn):
        (model, gpu, weights), row = point.kind, point.tpot
        planned = " | ".join(f"{found[number]:.1f}" for found in columns.values())
        yield (
            f"| {model.rpartition('/')[2]} | {gpu} | {row['n_gpus'] or row['tp']} | {weights} "
            f"| {point.users} | {row['isl']} + {row['osl']} | {float(row['value']):.1f} "
            f"| {float(point.ttft['value']):.0f} | {planned} |\n"
        )


@click.command()
@click.option("--data", type=click.Path(exists=True, path_type=Path), required=True)
@click.option("--configs", type=click.Path(exists=True, path_type=Path), required=True)
@click.option("--page", type=click.Path(path_type=Path), default=PAGE, show_default=True)
def main(*, data: Path, configs: Path, page: Path) -> None:
    """Write the page."""
    models = yaml.safe_load(configs.read_text())
    drawn = points(read_rows(data))
    as_it_is, slow_end = by_constants(models), by_constants(models, "high")
    click.echo("fitting without each model ...", err=True)
    _, samples = fit_with_client(read_samples(data, configs))
    fits = {name: by_fit(models, samples, name) for name in {each.kind[0] for each in drawn}}
    columns = {
        "as it is": [replicas_planned(each, as_it_is) for each in drawn],
        "slow end": [replicas_planned(each, slow_end) for each in drawn],
        "model left out": [replicas_planned(each, fits[each.kind[0]]) for each in drawn],
    }
    page.write_text(
        "# What errors of latency do to a plan\n\n"
        "Written by `python tests/bench/operating_points.py`, which says how. Replicas that are\n"
        f"planned where a measurement implies {REPLICAS}, not rounded: fewer miss the TPOT that\n"
        "was measured, more are paid for nothing.\n\n"
        "| constants | median over implied | median error | 9 in 10 | within 1 of 10 | too few "
        "| refused |\n|---|--:|--:|--:|--:|--:|--:|\n"
        + "".join(summary(name, found) for name, found in columns.items())
        + "\n"
        + "".join(table(drawn, columns))
    )
    click.echo(page.read_text())


if __name__ == "__main__":
    main()
