"""A first look at step-time accuracy: a naive roofline and our formula on measured engines.

    python tests/bench/speed_first_look.py --data serving_speed.csv --configs model_configs.yaml

Nothing is fitted here and nothing is asserted. ``--set name=value`` tries another constant.
"""

import csv
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import click
import yaml

from tonnage.catalog.config.quantization import WEIGHT_FORMATS
from tonnage.catalog.engine import SpeedConstants, find_engine, prior_speed
from tonnage.catalog.gpu import CatalogError, built_in_gpus, find_gpu
from tonnage.catalog.models import read_model_config
from tonnage.catalog.shape import ModelShape
from tonnage.sizing.budget import memory_budget, speeds
from tonnage.sizing.errors import DoesNotFitError
from tonnage.sizing.parallelism import Parallelism
from tonnage.sizing.question import KV_ELEMENT_BYTES, Demand, Flags, Question
from tonnage.sizing.shard import shard_of
from tonnage.sizing.steady import Replica, steady_state
from tonnage.sizing.step import Step
from tonnage.sizing.workload import Lengths, Slo, Workload
from tonnage.units import MS_PER_S

METRICS = ("decode_step_ms", "tpot_p50_ms")
NAIVE = SpeedConstants(
    bandwidth_efficiency=0.8,
    compute_efficiency=0.5,
    prefill_efficiency=0.5,
    per_step_s=0,
    per_layer_s=0,
    per_moe_layer_s=0,
    per_sequence_s=0,
    per_all_reduce_s=0,
    prefill_exposed_fraction=0,
)
"""80 % of bandwidth, 50 % of peak, and nothing else takes time."""
UNIFORM_MEAN, UNIFORM_SECOND_MOMENT = 0.9, 0.9**2 + 0.2**2 / 12
"""InferenceX draws lengths uniformly in [0.8, 1.0] of the nominal ones."""
ENGINE_SINCE = "0.19"
BATCHED_TOKENS = 8192


@dataclass(frozen=True, kw_only=True)
class Point:
    """One measured operating point, ready to be predicted."""

    group: str
    measured_s: float
    replica: Replica
    step: Step

    def predicted_s(self, constants: SpeedConstants) -> float:
        return replace(self.replica, constants=constants).step(self.step).total_s


@dataclass(frozen=True, kw_only=True)
class Errors:
    """Relative errors of one predictor: positive is too slow."""

    signed: tuple[float, ...]

    def __str__(self) -> str:
        size = [abs(error) for error in self.signed]
        p90 = quantiles(size, n=10)[-1] if len(size) > 1 else size[0]
        return f"{median(size):7.1%} {p90:7.1%} {median(self.signed):+8.1%}"


def shape_of(model: str, quant: str, configs: dict[str, Any]) -> ModelShape:
    """Return the shape of a model's checkpoint with this weight label.

    Raises:
        CatalogError: its configuration is refused.
        KeyError: there is no such model.
    """
    entry = configs["models"][model]
    config = configs["shapes"][entry["shape"]]["config"] | entry.get("overrides", {})
    other = entry.get("other_checkpoints", {}).get(quant, entry)
    if "quantization_config" in other:
        config = config | {"quantization_config": other["quantization_config"]}
    shape = read_model_config(json.dumps(config), name=model)
    if shape.weight_format.name == quant or quant in {"bf16", "fp16"}:
        return shape
    return replace(shape, weight_format=WEIGHT_FORMATS[quant])


def replica_of(row: dict[str, str], shape: ModelShape) -> tuple[Replica, Workload]:
    """Return the engine and the traffic of a row."""
    gpu = find_gpu(row["gpu"].rstrip("?"), built_in_gpus())
    is_uniform = "uniform in [0.8,1.0]" in row["note"]
    scale = UNIFORM_MEAN if is_uniform else 1.0
    output = float(row["osl"])
    workload = Workload(
        prompt=Lengths(mean_tokens=scale * float(row["isl"])),
        output_tokens=scale * output,
        output_second_moment=output**2 * (UNIFORM_SECOND_MOMENT if is_uniform else 1.0),
    )
    kv_format = "fp8" if row["kv_dtype"] == "fp8" else "bf16"
    parallelism = Parallelism(tensor=int(row["tp"]), pipeline=int(row["pp"] or 1))
    question = Question(
        shape=shape,
        gpu=gpu,
        engine=find_engine(ENGINE_SINCE),
        speed=prior_speed(),
        weights=shape.weight_format,
        kv_format=kv_format,
        context_tokens=int(float(row["context_tokens"])),
        workload=workload,
        slo=Slo(),
        demand=Demand(),
    )
    shard = shard_of(
        shape,
        weights=shape.weight_format,
        kv_element_bytes=KV_ELEMENT_BYTES[kv_format],
        parallelism=parallelism,
    )
    flags = Flags(
        max_num_seqs=min(1024, round(float(row["concurrency_or_batch"]))),
        max_num_batched_tokens=BATCHED_TOKENS,
        gpu_memory_utilization=0.9,
        parallelism=parallelism,
    )
    replica = Replica(
        shard=shard,
        speeds=speeds(gpu, shape.weight_format.compute),
        constants=prior_speed(),
        kv_pool_bytes=memory_budget(question, shard, flags).kv_pool_bytes,
        max_batched_tokens=BATCHED_TOKENS,
    )
    return replica, workload


def check_one_fits(replica: Replica, workload: Workload) -> None:
    """Refuse a row whose engine ran although our budget leaves no cache.

    Raises:
        DoesNotFitError: it holds less than one sequence.
    """
    if replica.sequences_held(workload.mean_context_tokens) < 1:
        raise DoesNotFitError("our memory budget holds no sequence")


def step_of(row: dict[str, str], replica: Replica, workload: Workload) -> Step:
    """Return the mean step: a closed loop decodes and prefills side by side."""
    batch = float(row["concurrency_or_batch"])
    if row["metric"] == "decode_step_ms":
        context = float(row["context_tokens"])
        return Step(num_sequences=batch, context_tokens=batch * context)
    running = min(batch, replica.sequences_held(workload.mean_context_tokens))
    state = steady_state(replica, workload, running)
    num_decoding = running * running / state.num_running
    return Step(
        num_sequences=num_decoding,
        context_tokens=max(1.0, num_decoding) * workload.mean_context_tokens,
        prefill_tokens=num_decoding * workload.new_prompt_tokens / workload.output_tokens,
        prefill_context_tokens=workload.new_prompt_tokens / 2,
        prefill_chunk_tokens=min(workload.new_prompt_tokens, BATCHED_TOKENS),
    )


def read_points(data: Path, configs: dict[str, Any], refused: Counter[str]) -> Iterator[Point]:
    """Yield every vLLM row that our catalogue can size; count the others by reason."""
    with data.open(newline="") as lines:
        for row in csv.DictReader(lines):
            if row["engine"] != "vllm" or row["metric"] not in METRICS:
                continue
            try:
                shape = shape_of(row["model"], row["weight_quant"], configs)
                replica, workload = replica_of(row, shape)
                check_one_fits(replica, workload)
            except (CatalogError, KeyError, DoesNotFitError) as error:
                refused[f"{row['model']} on {row['gpu']}: {error}"] += 1
                continue
            model = row["model"].rpartition("/")[2]
            yield Point(
                group=f"{model} {row['weight_quant']} {row['gpu']}",
                measured_s=float(row["value"]) / MS_PER_S,
                replica=replica,
                step=step_of(row, replica, workload),
            )


def errors_of(points: Iterable[Point], constants: SpeedConstants) -> Errors:
    return Errors(
        signed=tuple(point.predicted_s(constants) / point.measured_s - 1 for point in points)
    )


def parse_constants(settings: tuple[str, ...]) -> SpeedConstants:
    """Return the priors with the constants of the command line in their place."""
    changes = {name: float(value) for name, _, value in (each.partition("=") for each in settings)}
    return replace(prior_speed(), **changes)


@click.command()
@click.option("--data", type=click.Path(exists=True, path_type=Path), required=True)
@click.option("--configs", type=click.Path(exists=True, path_type=Path), required=True)
@click.option("--set", "settings", multiple=True, help="name=value of a speed constant")
def main(data: Path, configs: Path, settings: tuple[str, ...]) -> None:
    """Print median and p90 absolute error and median signed error, side by side."""
    refused: Counter[str] = Counter()
    points = list(read_points(data, yaml.safe_load(configs.read_text()), refused))
    groups: defaultdict[str, list[Point]] = defaultdict(list)
    for point in points:
        groups[point.group].append(point)
    ours = parse_constants(settings)
    title = f"{'median':>7} {'p90':>7} {'bias':>8}"
    click.echo(f"{'':42} {'n':>4}  naive:{title}   ours:{title}")
    for name, members in [*sorted(groups.items()), ("all", points)]:
        naive, own = errors_of(members, NAIVE), errors_of(members, ours)
        click.echo(f"{name:42} {len(members):4}        {naive}        {own}")
    for reason, count in refused.most_common():
        click.echo(f"left out {count:4}: {reason}")


if __name__ == "__main__":
    main()
