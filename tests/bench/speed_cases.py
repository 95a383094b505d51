"""From a row of a table of serving measurements to what our arithmetic needs to know about it."""

import math
import re
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, repeat
from statistics import fmean, median, median_low

from configs import Configs, shape_in
from speed_row import (
    BEFORE_2025,
    NOW,
    Era,
    Row,
    arrival_of,
    batched_tokens_of,
    concurrency_of,
    experts_kernels_of,
    keeps_experts_whole,
    kv_pool_gib_of,
    limit_of,
    low_fraction_of,
    minor_of,
    number,
    number_in,
    requests_of,
    schedules_async,
    utilization_of,
)

from tonnage.catalog.cache_types import CACHE_TYPES, StoredCache
from tonnage.catalog.config.formats.quantization import WEIGHT_FORMATS
from tonnage.catalog.engine import KnownEngine, find_engine
from tonnage.catalog.engine_limits import products_in
from tonnage.catalog.engine_speed import RunMode, SpeedConstants, SpeedTable, prior_speed
from tonnage.catalog.gpu import CatalogError, Gpu, built_in_gpus, find_gpu
from tonnage.catalog.shape import ModelShape
from tonnage.engine.chance import Chance
from tonnage.engine.table import RequestTable
from tonnage.sizing.memory.budget import budget_parts
from tonnage.sizing.memory.ceiling import MemoryBudget, Server
from tonnage.sizing.memory.layout import default_block_tokens
from tonnage.sizing.parallelism.shard import shard_of
from tonnage.sizing.request import Flags
from tonnage.sizing.serving.closed_loop import ClosedLoop, run_client
from tonnage.sizing.serving.load_line import state_at
from tonnage.sizing.serving.replica import (
    Replica,
    mixed_step,
    prefill_context_tokens,
    running_limit,
    serving_s,
    steady_state,
    typical_ttft_s,
)
from tonnage.sizing.split import Parallelism
from tonnage.sizing.step_time.model import StepTimeModel
from tonnage.sizing.step_time.speeds import speeds
from tonnage.sizing.step_time.step import Step
from tonnage.sizing.workload import Lengths, Workload
from tonnage.units import GIB, MS_PER_S

ENGINE_SINCE = "0.19"
"""Whose memory stands in where a row's own version is none, or too old to be
planned for."""
MOST_SEQS = 1024
ROUNDS = 8
"""Until as many decode and prefill as run."""
UNSTATED_TOKENS = 220.0
"""Of prompt and of answer in the chat logs that benchmarks take when they do not say."""
STEPS = frozenset({"tpot_p50_ms", "tpot_mean_ms", "itl_p50_ms", "itl_mean_ms", "decode_step_ms"})
FIRST_TOKENS = frozenset({"ttft_p50_ms", "ttft_mean_ms"})


@dataclass(frozen=True, kw_only=True)
class Case:
    """One row, understood."""

    row: Row
    shape: ModelShape
    gpu: Gpu
    replica: Replica
    workload: Workload
    concurrency: float
    context_tokens: float
    arrival: str
    """closed, open, burst, or static: one batch that starts and ends together."""
    run: RunMode
    era: Era = NOW

    @property
    def metric(self) -> str:
        return self.row["metric"]

    @property
    def is_static(self) -> bool:
        return self.arrival == "static"

    @property
    def is_burst(self) -> bool:
        return self.arrival == "burst"

    @property
    def batch(self) -> float:
        """Return how many of a static batch run at once."""
        held = max(1.0, self.replica.sequences_held(self.workload.mean_context_tokens))
        return min(self.concurrency, held)


def shape_of(row: Row, configs: Configs) -> ModelShape:
    """Return the shape of the checkpoint with the row's weight label.

    The checkpoint's own format where the label means it: it says which parts have it. ``fp4``
    is either format of four bits.

    Raises:
        CatalogError: its configuration is refused, or the label is not understood.
        KeyError: there is no such model.
    """
    quant = row["weight_quant"].lower()
    shape = shape_in(configs, row["model"], row["weight_quant"])
    own = shape.weight_format.name
    if quant.startswith(own) or quant in {"bf16", "fp16", ""}:
        return shape
    if quant == "fp4" and own in {"mxfp4", "nvfp4"}:
        return shape
    name = next((name for name in WEIGHT_FORMATS if quant.startswith(name)), None)
    if name is None and quant != "fp4":
        raise CatalogError(f"weight_quant {quant!r} is not understood")
    return replace(shape, weight_format=WEIGHT_FORMATS[name or "nvfp4"])


def workload_of(row: Row) -> Workload:
    """Return its lengths: drawn uniformly from a share of the nominal ones up to these."""
    low = low_fraction_of(row)
    mean, second_moment = (1 + low) / 2, (1 + low + low**2) / 3
    output = max(1.0, number(row["osl"]) or UNSTATED_TOKENS)
    prompt = number(row["isl"]) or max(1.0, number(row["context_tokens"]) or UNSTATED_TOKENS)
    return Workload(
        prompt=Lengths(mean_tokens=mean * prompt),
        cached_fraction=number_in(row, "cached_prompt_fraction") or 0.0,
        output_tokens=mean * output,
        output_second_moment=output**2 * second_moment,
    )


def split_of(row: Row) -> Parallelism:
    """Return the split; data-parallel attention where the GPUs are as many as both make.

    Some rows count a group of experts twice: ``moe_tp8;ep8`` on 64 GPUs is TP8 with experts over
    the same 8. With 64 their steps come out at half of what was measured, with 8 as those of TP8.
    """
    tensor, pipeline = int(number(row["tp"]) or 1), int(number(row["pp"]) or 1)
    data, slices, ranks = (_width(row, name) for name in ("dp", "moe_tp", "ep"))
    if slices == ranks and tensor == slices * ranks:
        return Parallelism(tensor=ranks, pipeline=pipeline)
    is_data = tensor * pipeline * data == number(row["n_gpus"])
    return Parallelism(tensor=tensor, pipeline=pipeline, data=data if is_data else 1)


def _width(row: Row, name: str) -> int:
    found = re.search(rf"(?:^|;){name}(\d+)", row["dp_or_ep"])
    return int(found[1]) if found else 1


def has_second_runner(row: Row, shape: ModelShape) -> bool:
    """Tell whether vLLM's second runner served a dense model: not where no version is told."""
    minor = minor_of(row) if row["engine"] == "vllm" else ""
    server = engine_of(RunMode(minor=minor))
    return bool(minor) and not shape.has_experts and server.runner_of(shape) is not None


def kv_dtype_of(row: Row, shape: ModelShape) -> str:
    """Return what a row's cache is stored in; where it does not say, what its checkpoint asks of
    vLLM, as in a plan."""
    is_asked = not row["kv_dtype"] and row["engine"] == "vllm"
    return shape.kv_cache_format if is_asked else row["kv_dtype"]


def case_of(row: Row, configs: Configs) -> Case:
    """Read a row.

    Raises:
        CatalogError, KeyError: something in it is not understood.
    """
    shape, gpu = shape_of(row, configs), find_gpu(row["gpu"].rstrip("?"), built_in_gpus())
    workload, split = workload_of(row), split_of(row)
    concurrency, arrival = concurrency_of(row), arrival_of(row)
    kv_format = "fp8" if kv_dtype_of(row, shape).startswith("fp8") else "bf16"
    run = RunMode(
        kv_format=kv_format,
        minor=minor_of(row),
        schedules_async=schedules_async(row),
        has_second_runner=has_second_runner(row, shape),
        experts=experts_kernels_of(row, gpu),
    )
    replica = replica_of(row, shape, gpu, split, run)
    pool_gib = kv_pool_gib_of(row)
    if pool_gib is not None:
        replica = replace(replica, kv_pool_bytes=pool_gib * GIB)
    return Case(
        row=row,
        shape=shape,
        gpu=gpu,
        replica=replica,
        workload=workload,
        concurrency=concurrency,
        context_tokens=number(row["context_tokens"]) or workload.mean_context_tokens,
        arrival=arrival,
        run=run,
    )


def engine_of(run: RunMode) -> KnownEngine:
    """Return what the version of a row takes of the memory, if it is one that is planned for."""
    try:
        return find_engine(run.minor or ENGINE_SINCE)
    except CatalogError:
        return find_engine(ENGINE_SINCE)


def replica_of(row: Row, shape: ModelShape, gpu: Gpu, split: Parallelism, run: RunMode) -> Replica:
    engine, cache = engine_of(run), CACHE_TYPES[run.kv_format]
    shard = shard_of(
        shape,
        weights=shape.weight_format,
        cache=StoredCache(type=cache),
        parallelism=split,
        keeps_experts_whole=keeps_experts_whole(row),
    )
    batched_tokens, utilization = batched_tokens_of(row, gpu), utilization_of(row)
    asked = round(concurrency_of(row))
    flags = Flags(
        max_num_seqs=int(number_in(row, "max_num_seqs") or max(1, min(MOST_SEQS, asked))),
        max_num_batched_tokens=batched_tokens,
        gpu_memory_utilization=utilization,
        parallelism=split,
    )
    server = Server(engine=engine, gpu=gpu, cache=cache)
    budget = MemoryBudget(
        total_bytes=gpu.memory_bytes,
        utilization_fraction=utilization,
        parts=budget_parts(shape, shard, flags, server),
    )
    return Replica(
        model=StepTimeModel(
            shard=shard,
            speeds=speeds(gpu, products_in(gpu, shape.weight_format, run.minor)),
            constants=prior_speed(gpu, shape.weight_format, run),
        ),
        kv_pool_bytes=max(1.0, budget.kv_pool_bytes),
        max_batched_tokens=batched_tokens,
        max_num_seqs=limit_of(row),
        block_tokens=default_block_tokens(shape),
        cache_rules=engine.constants.cache,
    )


def with_constants(case: Case, table: SpeedTable, era: Era) -> Case:
    """Return the case as an engine of that era would run it by these constants."""
    constants = prior_speed(case.gpu, case.shape.weight_format, case.run, table=table)
    streaming_s = 0.0 if case.is_static else era.streaming_s
    step_s = constants.per_step_s * era.overhead_factor if era.step_s is None else era.step_s
    constants = replace(
        constants,
        per_step_s=step_s,
        prefill_launch_s=0.0 if era.name in BEFORE_2025 else constants.prefill_launch_s,
        per_kernel_s=constants.per_kernel_s * era.overhead_factor,
        per_experts_block_s=constants.per_experts_block_s * era.overhead_factor,
        cutlass_block_s=constants.cutlass_block_s * era.overhead_factor,
        cutlass_expert_s=constants.cutlass_expert_s * era.overhead_factor,
        per_all_reduce_s=constants.per_all_reduce_s * era.exchange_factor,
        all_reduce_growth=constants.all_reduce_growth + era.exchange_growth,
        per_sequence_s=constants.per_sequence_s * era.sequence_factor + streaming_s,
    )
    return replace(case, replica=with_speed(case.replica, constants), era=era)


def with_speed(replica: Replica, constants: SpeedConstants) -> Replica:
    """Return the replica with other constants of its step time."""
    return replace(replica, model=replace(replica.model, constants=constants))


def predicted(case: Case) -> float:
    """Return the row's own metric: milliseconds, or tokens per second."""
    metric = case.metric
    if case.is_static:
        return _static_s(case) * MS_PER_S
    if metric not in STATISTICS:
        raise CatalogError(f"metric {metric!r} is not understood")
    rate = number_in(case.row, "requests_per_s")
    if case.arrival == "open" and rate is not None:
        return _of_open_loop(case, rate)
    return STATISTICS[metric](_seen_by_client(case), case)


def _seen_by_client(case: Case) -> ClosedLoop:
    """Return what the client of a row saw: so many users, and as many requests as it sent."""
    num_users = max(1, round(case.concurrency))
    num_requests = requests_of(case.row, num_users)
    users = num_requests if case.is_burst else num_users
    low = low_fraction_of(case.row) if number(case.row["osl"]) else None
    return _seen(case.replica, case.workload, low, num_requests, users)


@lru_cache(maxsize=64)
def _seen(
    replica: Replica, workload: Workload, low: float | None, num_requests: int, num_users: int
) -> ClosedLoop:
    """Run the client; the metrics of one measurement share a run."""
    means = (workload.prompt.mean_tokens, workload.output_tokens)
    prompts, outputs = (
        array("q", (max(1, round(mean * _relative(share, low))) for share in shares))
        for seed, mean in enumerate(means, start=1)
        for shares in [Chance(seed).even_shares(num_requests)]
    )
    cached = array("q", (int(workload.cached_fraction * tokens) for tokens in prompts))
    table = RequestTable(prompts, outputs, cached, array("d", bytes(8 * num_requests)))
    return run_client(replica, workload, table, num_users=num_users)


def _relative(share: float, low: float | None) -> float:
    """Return a length over its mean: even from ``low`` of the longest on; None: as in chat logs."""
    return -math.log1p(-share) if low is None else 2 * (low + (1 - low) * share) / (1 + low)


def _first_token_ms(ttft_s: float, case: Case) -> float:
    running = case.era.first_token_running_s * running_at_once(case)
    return (ttft_s + case.era.first_token_s + running) * MS_PER_S


STATISTICS: Mapping[str, Callable[[ClosedLoop, Case], float]] = {
    "ttft_mean_ms": lambda loop, case: _first_token_ms(loop.mean_ttft_s, case),
    "ttft_p50_ms": lambda loop, case: _first_token_ms(median(loop.ttft_s), case),
    "tpot_mean_ms": lambda loop, _: loop.mean_tpot_s * MS_PER_S,
    "tpot_p50_ms": lambda loop, _: median(loop.tpot_s) * MS_PER_S,
    "itl_mean_ms": lambda loop, _: loop.itl_s * MS_PER_S,
    "itl_p50_ms": lambda loop, _: (
        MS_PER_S * median_low(chain.from_iterable(map(repeat, loop.tpot_s, loop.later_tokens)))
    ),
    "e2e_mean_ms": lambda loop, case: (
        _first_token_ms(loop.mean_ttft_s, case) + loop.itl_s * fmean(loop.later_tokens) * MS_PER_S
    ),
    "output_tok_s_total": lambda loop, _: (
        (sum(loop.later_tokens) + len(loop.later_tokens)) / loop.duration_s
    ),
}
"""What a client makes of the requests that it sent, by metric."""


def _of_open_loop(case: Case, requests_per_s: float) -> float:
    """Return the metric of an open loop as its rate makes it, without queues."""
    workload = case.workload
    state = state_at(case.replica, workload, requests_per_s)
    outside_s = serving_s(case.replica, state.num_running, workload.prompt.mean_tokens)
    first_s = typical_ttft_s(case.replica, workload, state) + outside_s
    if case.metric in STEPS:
        return state.tpot_s * MS_PER_S
    if case.metric in FIRST_TOKENS:
        return _first_token_ms(first_s, case)
    if case.metric == "e2e_mean_ms":
        return _first_token_ms(first_s + state.tpot_s * workload.output_tokens, case)
    return state.requests_per_s * workload.output_tokens


def running_at_once(case: Case) -> float:
    """Return how many run at once, in the mean; one does even where none fits."""
    return min(case.concurrency, running_limit(case.replica, case.workload))


def _static_s(case: Case) -> float:
    """Return the time of a batch that starts together: its prefill, its steps, or both."""
    batch = case.batch
    if case.metric == "decode_step_ms":
        return case.replica.model.step(decode_step(case)).total_s
    prefill_s = static_prefill_s(case)
    if case.metric == "prefill_ms":
        return prefill_s
    output, waves = case.workload.output_tokens, math.ceil(case.concurrency / batch)
    return waves * (prefill_s + output * case.replica.model.step(decode_step(case)).total_s)


def decode_step(case: Case) -> Step:
    batch = case.batch
    return Step(num_sequences=batch, context_tokens=batch * case.context_tokens)


def static_prefill_s(case: Case) -> float:
    """Return the time to prefill all prompts of the batch on an idle engine."""
    tokens = case.batch * case.workload.prompt.mean_tokens
    chunks = num_chunks(case)
    step = Step(
        num_sequences=1,
        context_tokens=0,
        prefill_tokens=tokens / chunks,
        prefill_context_tokens=prefill_context_tokens(case.workload),
    )
    return chunks * case.replica.model.step(step).total_s


def num_chunks(case: Case) -> int:
    tokens = case.batch * case.workload.prompt.mean_tokens
    return math.ceil(tokens / max(case.replica.max_batched_tokens, 16384))


def loop_step(case: Case) -> Step:
    """Return the mean step of a closed loop, by the lengths alone."""
    replica, workload = case.replica, case.workload
    running = num_decoding = running_at_once(case)
    for _ in range(ROUNDS):
        state = steady_state(replica, workload, num_decoding)
        num_decoding *= running / state.num_running
    state = steady_state(replica, workload, num_decoding)
    return mixed_step(
        workload,
        state.num_decoding,
        state.prefill_tokens_per_step,
        chunk_tokens=min(workload.new_prompt_tokens, replica.max_batched_tokens),
    )
