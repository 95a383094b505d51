"""Our values: the audited tables of "typical" figures, as bounds and as predictions.

A bound takes nominal bandwidth, peak arithmetic and all of the memory. A prediction takes the
same formulas with the speed constants that hold before any is learned; of memory it is the bound.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from builders import a_prior, a_workload
from golden.documents import ROWS, gpu, model, napkin_shard, nominal_speeds, row
from golden.rows_memory import pool, request_bytes, requests_held
from tonnage.catalog.engine_speed import TEXTBOOK_SPEED
from tonnage.sizing.serving.replica import Replica, own_prefill_s, steady_state
from tonnage.sizing.step_time.model import StepTimeModel
from tonnage.sizing.step_time.step import Step
from tonnage.sizing.workload import Lengths
from tonnage.units import GIB, MS_PER_S


@dataclass(frozen=True, kw_only=True)
class Audit:
    """Our columns of an audited table."""

    bound: dict[str, list[float]]
    predicted: dict[str, list[float]]
    exact: dict[str, list[float]] = field(default_factory=dict)


def table_rows(row_id):
    table = ROWS[row_id]
    return [dict(zip(table["columns"], cells, strict=True)) for cells in table["rows"]]


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """One line of a table: a model on so many GPUs, at a bound or as predicted."""

    name: str
    line: dict
    at_bound: bool

    @property
    def replica(self) -> Replica:
        tensor, pipeline = self.line.get("tp", 1), self.line.get("pp", 1)
        precision = self.line.get("precision", "fp16")
        shard = napkin_shard(
            model(self.name), precision=precision, tensor=tensor, pipeline=pipeline
        )
        speeds = nominal_speeds(self.line["gpu"], precision)
        link = gpu(self.line["gpu"]).interconnect_bytes_per_s
        return Replica(
            model=StepTimeModel(
                shard=shard,
                speeds=speeds if self.at_bound else replace(speeds, interconnect_bytes_per_s=link),
                constants=TEXTBOOK_SPEED if self.at_bound else a_prior("H100"),
            ),
            kv_pool_bytes=math.inf,
            max_batched_tokens=8192,
        )

    def step_s(self, batch: int, context_tokens: int) -> float:
        step = Step(num_sequences=batch, context_tokens=batch * context_tokens)
        return self.replica.model.step(step).total_s

    def itl_ms(self, *, batch: int, context_tokens: int) -> float:
        return self.step_s(batch, context_tokens) * MS_PER_S

    def tok_s(self, *, batch: int, context_tokens: int) -> float:
        return batch / self.step_s(batch, context_tokens)

    def ttft_ms(self, *, prompt_tokens: int) -> float:
        """Bound: the arithmetic of the weights alone. Prediction: chunks on an idle replica."""
        if self.at_bound:
            prefill = Step(num_sequences=0, context_tokens=0, prefill_tokens=prompt_tokens)
            return self.replica.model.step(prefill).prefill_s * MS_PER_S
        workload = a_workload(prompt=Lengths(mean_tokens=prompt_tokens))
        idle = steady_state(self.replica, workload, 0)
        return own_prefill_s(self.replica, workload, idle, prompt_tokens) * MS_PER_S

    def max_batch(self, *, context_tokens: int) -> int:
        num_gpus = self.line.get("n", 1)
        shard = self.replica.model.shard
        pool_bytes = pool(
            memory_bytes=num_gpus * gpu(self.line["gpu"]).nominal_memory_bytes,
            weights_bytes=num_gpus * shard.weights_bytes,
        )
        return requests_held(pool_bytes, request_bytes(model(self.name), context_tokens))


def audit(row_id: str, name: str, columns: dict[str, Callable[[Deployment], float]]) -> Audit:
    """Evaluate every column for every line, at the bound and as predicted."""

    def evaluated(*, at_bound: bool) -> dict[str, list[float]]:
        lines = [Deployment(name=name, line=line, at_bound=at_bound) for line in table_rows(row_id)]
        return {column: [figure(line) for line in lines] for column, figure in columns.items()}

    return Audit(bound=evaluated(at_bound=True), predicted=evaluated(at_bound=False))


@row("table-8b-a100-batch")
def table_8b_a100_batch():
    lines = table_rows("table-8b-a100-batch")
    bound, predicted = (
        Deployment(name="llama-3-8b", line={"gpu": "A100-SXM4-80GB"}, at_bound=at_bound)
        for at_bound in (True, False)
    )

    def columns(deployment):
        return {
            "ms_per_token": [
                deployment.itl_ms(batch=line["batch"], context_tokens=2048) for line in lines
            ],
            "tok_s": [deployment.tok_s(batch=line["batch"], context_tokens=2048) for line in lines],
        }

    each_bytes = request_bytes(model("llama-3-8b"), 2048)
    kv_gib = [line["batch"] * each_bytes / GIB for line in lines]
    return Audit(bound=columns(bound), predicted=columns(predicted), exact={"kv_gib": kv_gib})


@row("table-8b-single-gpu")
def table_8b_single_gpu():
    context = 2048 + 512 // 2
    return audit(
        "table-8b-single-gpu",
        "llama-3-8b",
        {
            "ttft_ms_b1": partial(Deployment.ttft_ms, prompt_tokens=2048),
            "itl_ms_b1": partial(Deployment.itl_ms, batch=1, context_tokens=context),
            "tok_s_b32": partial(Deployment.tok_s, batch=32, context_tokens=context),
            "tok_s_b64": partial(Deployment.tok_s, batch=64, context_tokens=context),
            "max_batch_4k": partial(Deployment.max_batch, context_tokens=4096),
        },
    )


@row("table-70b-multi-gpu")
def table_70b_multi_gpu():
    context = 4096 + 1024 // 2
    return audit(
        "table-70b-multi-gpu",
        "llama-3-70b",
        {
            "ttft_ms_b1": partial(Deployment.ttft_ms, prompt_tokens=4096),
            "itl_ms_b1": partial(Deployment.itl_ms, batch=1, context_tokens=context),
            "tok_s_b32": partial(Deployment.tok_s, batch=32, context_tokens=context),
            "max_batch": partial(Deployment.max_batch, context_tokens=4096),
        },
    )


@row("table-405b")
def table_405b():
    context = 2048 + 512 // 2
    return audit(
        "table-405b",
        "llama-3-405b",
        {
            "ttft_ms_b1": partial(Deployment.ttft_ms, prompt_tokens=2048),
            "itl_ms_b1": partial(Deployment.itl_ms, batch=1, context_tokens=context),
            "tok_s_b16": partial(Deployment.tok_s, batch=16, context_tokens=context),
        },
    )
