"""The plan in words: the questions of capacity planning in order, with the numbers filled in."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

from tonnage.catalog.engine_limits import (
    dense_kernels,
    format_of_experts,
    kernel_table,
    kernels_of_experts,
    scaling_of,
)
from tonnage.catalog.speed_range import (
    first_token_spread,
    speed_spread,
    unmeasured_parts,
    unmeasured_prompts,
)
from tonnage.explain.demand_outcome import tokens_per_day
from tonnage.explain.report import (
    attention_name,
    bottleneck_of,
    goodput_written,
    intensity,
    logged_lines,
    memory_reasons,
    rate_written,
    ridge,
    start_reasons,
)
from tonnage.sizing.bill import inputs_with_price, tokens_per_s_asked
from tonnage.sizing.memory.ceiling import BudgetPart
from tonnage.sizing.plan import Sizing, requests_per_s_asked
from tonnage.sizing.request import SizingRequest, prior_of
from tonnage.sizing.serving.closed_loop import REQUESTS_PER_USER, closed_loop
from tonnage.sizing.serving.replica import own_prefill_s, typical_ttft_s
from tonnage.sizing.step_time.speeds import batch_at_ridge
from tonnage.sizing.step_time.step import StepTime, fullest_microbatch
from tonnage.units import count_of, format_bytes, format_s, format_si, significant


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One question, its answer in a line, and the formulas with their numbers."""

    question: str
    answer: str
    lines: tuple[str, ...]


def explain(sizing: Sizing) -> tuple[Answer, ...]:
    """Answer, in this order: fit, bottleneck, batch, latency, replicas."""
    steps = (_fit, _bottleneck, _batch, _latency, _replicas)
    return tuple(step(sizing) for step in steps)


def _fit(sizing: Sizing) -> Answer:
    request, budget = sizing.request, sizing.budget
    kv_bytes = sum(share.bytes_per_token for share in sizing.shard.kv)
    pool = "" if budget.given_pool else f" = {format_bytes(budget.kv_pool_bytes)}"
    return Answer(
        question="Does it fit?",
        answer=(
            f"yes, on {request.gpu.name} x {sizing.flags.parallelism.num_gpus} "
            f"({sizing.flags.parallelism}): {format_bytes(sizing.replica.kv_pool_bytes)} per GPU "
            f"for the KV cache, {_source(sizing)}"
        ),
        lines=(
            f"KV pool = {budget}{pool}",
            f"KV bytes per token and GPU = {kv_bytes:,.0f} ({request.kv_format}, "
            f"{attention_name(sizing)})",
            f"at the maximum length ({request.context_tokens} tokens): "
            f"{significant(sizing.memory_ceiling_longest)} requests; at "
            f"average length ({significant(request.workload.mean_context_tokens)} tokens): "
            f"{significant(sizing.memory_ceiling_typical)}",
            *_kv_range(sizing),
            *logged_lines(sizing),
            *(reason.message for reason in (*memory_reasons(sizing), *start_reasons(sizing))),
        ),
    )


def _source(sizing: Sizing) -> str:
    given = sizing.budget.given_pool
    if sizing.request.measured_kv_tokens is not None:
        return "measured on a running replica"
    return f"given: {given.flag}" if given else "estimated"


def _kv_range(sizing: Sizing) -> Iterator[str]:
    """Say how sure an estimated cache is; a measured or given one is what it is."""
    low, high = sizing.kv_tokens_range
    if low < high:
        yield (
            f"KV tokens of a replica at the maximum length = {sizing.kv_tokens:,.0f}, "
            f"90% interval {low:,.0f} to {high:,.0f}"
        )
        yield from _cause(sizing.budget.widest)


def _cause(part: BudgetPart | None) -> Iterator[str]:
    """Say what decides the range, where that is known."""
    if part is None or not part.cause:
        return
    sides = {"more": part.more_bytes, "less": part.less_bytes}
    amounts = " or ".join(f"{format_bytes(size)} {side}" for side, size in sides.items() if size)
    yield f"most of that range is {part.name}: up to {amounts}, by {part.cause}"


def _bottleneck(sizing: Sizing) -> Answer:
    step, speeds = sizing.at_capacity.step, sizing.replica.model.speeds
    return Answer(
        question="What is the bottleneck?",
        answer=(
            f"{bottleneck_of(step)}: decode does {significant(intensity(sizing))} FLOP per byte, "
            f"the ridge of {sizing.request.gpu.name} is {significant(ridge(sizing))}"
        ),
        lines=(
            f"ridge = {format_si(speeds.peak_flop_per_s, 'FLOP/s')} / "
            f"{format_si(speeds.memory_bytes_per_s, 'B/s')}",
            _reads(sizing),
            *_experts(sizing),
            f"compute {format_s(step.compute_s)}",
            _step_sum(step),
            *_adapters(sizing),
            *_speculation(sizing),
        ),
    )


def _reads(sizing: Sizing) -> str:
    """Say what a step reads, part by part, each with the bandwidth at which it is read."""
    step, model = sizing.at_capacity.step, sizing.replica.model
    constants, stages = model.constants, model.shard.parallelism.pipeline
    dense = "weights outside experts" if step.experts_bytes else "weights"
    parts = (
        (dense, step.dense_bytes, constants.bandwidth_efficiency),
        ("experts", step.experts_bytes, constants.experts_bandwidth_efficiency),
        ("KV cache", step.cache_bytes, constants.cache_bandwidth_efficiency),
    )
    bandwidth = f" of {format_si(model.speeds.memory_bytes_per_s, 'B/s')}"
    terms = [f"{format_bytes(size)} {name} at {share:.0%}" for name, size, share in parts if size]
    turns = f", in each of {count_of(stages, 'stage')} in turn," if stages > 1 else ""
    each = f"per GPU{turns}"
    first, *others = terms
    total = " + ".join([first + bandwidth, *others])
    size, time = format_bytes(step.decode_bytes - step.draft_bytes), format_s(step.memory_s)
    return f"a step reads {each} {total}: {size} in {time}"


def _step_sum(step: StepTime) -> str:
    """Say what the parts of a step add up to: of reads and products what the longer does not hide.

    Reads and products stand in every sum, of the other parts those that take time.
    """
    longer, shorter = ("reads", "compute") if step.is_memory_bound else ("compute", "reads")
    decode = (
        (max(step.memory_s, step.compute_s), longer),
        (step.serial_s, f"{shorter} not overlapped"),
    )
    beside = (
        (step.prefill_s, "prefill"),
        (step.overhead_s, "overhead"),
        (step.communication_s, "communication between GPUs"),
        (step.launch_s, "waiting for kernel launches"),
        (step.draft_s, "further draft passes"),
    )
    terms = (*decode, *(each for each in beside if each[0]))
    parts = " + ".join(f"{format_s(time_s)} {name}" for time_s, name in terms)
    return f"a step = {parts} = {format_s(step.total_s)}"


def _experts(sizing: Sizing) -> Iterator[str]:
    """Say how many of the routed experts a mean step reads, and how large one is as loaded."""
    shares, step = sizing.shard.experts, sizing.at_capacity.step
    if not shares:
        return
    resident = sum(share.resident_bytes for share in shares)
    number = sum(share.num_experts * share.resident_bytes for share in shares) / resident
    layers = sizing.shard.num_moe_layers
    is_padded = any(share.is_padded for share in shares)
    yield (
        f"experts read in each of {count_of(layers, 'layer')}: "
        f"{significant(number * step.experts_bytes / resident)} of {number:.0f} "
        f"(a token takes {shares[0].experts_per_token}), "
        f"{format_bytes(resident / number / layers)} each on a GPU"
        f"{', padded for the kernels' if is_padded else ''}"
    )


def _adapters(sizing: Sizing) -> Iterator[str]:
    """Say what LoRA adapters add to a step, and that it is counted, not measured."""
    share, state = sizing.shard.adapters, sizing.at_capacity
    if share is None:
        return
    number = sizing.replica.model.num_microbatches
    each = fullest_microbatch(state.num_decoding / sizing.parallelism.data, number)
    touched = share.num_used(each)
    yield (
        f"adapters: a step reads {significant(touched)} of {share.number}, "
        f"{format_bytes(share.each_bytes)} each, if requests choose among them at random; reads "
        "and kernels are estimated, no measurement confirms them"
    )


def _speculation(sizing: Sizing) -> Iterator[str]:
    """Say what draft tokens bring, and what the further passes of a draft layer take."""
    speculation, state = sizing.request.speculation, sizing.at_capacity
    if speculation is None:
        return
    further = speculation.num_draft_tokens - 1
    drafts = f" ({format_s(state.step.draft_s)} in further draft passes: {further})"
    yield (
        f"speculation: {speculation}. TPOT = step {format_s(state.step_s)}"
        f"{drafts if state.step.draft_s else ''} / {speculation.tokens_per_step:.2f} "
        f"= {format_s(state.tpot_s)}"
    )


def _batch(sizing: Sizing) -> Answer:
    state, request = sizing.at_capacity, sizing.request
    at_ridge = batch_at_ridge(
        ridge=ridge(sizing), weight_element_bytes=request.weights.bytes_per_parameter
    )
    ceiling = sizing.slo_ceiling
    unlimited = "enough outputs of one token keep TPOT" if request.slo.tpot else "no TPOT target"
    slo = unlimited if ceiling is None else f"TPOT allows {significant(ceiling)}"
    side = "below" if intensity(sizing) < ridge(sizing) else "above"
    num_ranks = sizing.replica.model.dp_size
    return Answer(
        question="What limits the batch?",
        answer=(
            f"{sizing.limited_by}, at {significant(state.num_decoding)} decoding requests, "
            f"{side} the ridge (where weights alone would put it: "
            f"{significant(at_ridge * num_ranks)} requests); max-num-seqs "
            f"{sizing.flags.max_num_seqs}"
        ),
        lines=(
            f"memory ceiling {significant(sizing.memory_ceiling_typical)}; {slo}; token budget "
            f"{sizing.flags.max_num_batched_tokens} per step",
            f"running at capacity: {significant(state.num_decoding)} decoding + "
            f"{significant(state.num_prefilling)} prefilling on average; smallest "
            "max-num-seqs near peak goodput",
        ),
    )


def _latency(sizing: Sizing) -> Answer:
    """Say how long one request takes alone, and several at once; the rest is at the demand."""
    workload, replica, idle = sizing.request.workload, sizing.replica, sizing.idle
    common = (*_unpacked(sizing.request), *_stages(sizing), *_sureness(sizing))
    answer = f"one request alone: TPOT {format_s(idle.tpot_s)}"
    if sizing.request.slo.is_offline:
        answer += "; no target (offline), so requests wait their turn"
        per_s = sizing.output_tokens_per_s
        made = f"a replica makes {significant(per_s)} output tokens/s = {tokens_per_day(per_s)}"
        lines: tuple[str, ...] = (*common, made)
    else:
        own_s = own_prefill_s(replica, workload, idle, workload.prompt.mean_tokens)
        answer += (
            f", TTFT {format_s(typical_ttft_s(replica, workload, idle))}, of which its own prefill "
            f"of {significant(workload.new_prompt_tokens)} new tokens takes {format_s(own_s)}"
        )
        lines = (*common, *_together(sizing))
    return Answer(question="How long do requests take?", answer=answer, lines=lines)


def _unpacked(request: SizingRequest) -> Iterator[str]:
    """Say which kernels multiply in 16 bits what is stored in fewer, in this version."""
    gpu, weights, minor = request.gpu, request.weights, request.engine.minor
    names, parts = kernel_table().names, []
    if dense := dense_kernels(gpu, weights, request.shape, minor):
        parts.append(f"{scaling_of(weights)} by {names[dense]}")
    experts = kernels_of_experts(gpu, weights, minor)
    if experts and request.shape.has_experts:
        parts.append(f"experts in {format_of_experts(weights)} by {names[experts]}")
    if parts:
        yield (
            f"kernels: vLLM {minor} unpacks weights on {gpu.name} and "
            f"multiplies in 16 bits: {', '.join(parts)}"
        )


def _stages(sizing: Sizing) -> Iterator[str]:
    """Say what of a pipeline overlaps, in this version."""
    number, minor = sizing.parallelism.pipeline, sizing.request.engine.minor
    stages = count_of(number, "stage")
    if number == 1:
        return
    if sizing.request.speed.overlaps_stages:
        yield (
            f"pipeline: a chunk of a prompt passes {stages} in turn, while other chunks and "
            "batches of decoding sequences are in others"
        )
    else:
        yield (
            f"pipeline: with asynchronous scheduling vLLM {minor} passes one batch at a time "
            f"through {stages}; with --no-async-scheduling they overlap"
        )


def _sureness(sizing: Sizing) -> Iterator[str]:
    """Say how far speeds that nobody measured here may be off, and what widens that."""
    request = sizing.request
    if request.crosses_nodes(sizing.parallelism) and request.node_link_bytes_per_s is None:
        link = format_si(request.gpu.interconnect_bytes_per_s, "B/s")
        yield f"link between nodes: {link} a GPU guessed, as within one; set hardware.nodeLink"
    if request.speed != prior_of(request):
        return
    subject = (request.gpu, request.weights, request.shape, sizing.parallelism.pipeline)
    first = first_token_spread(*subject, minor=request.engine.minor)
    words = (
        f"80% prediction interval: a step +-{speed_spread(*subject):.0%}, a first token "
        f"+-{first:.0%}"
    )
    prompts = unmeasured_prompts(request.gpu, request.weights, request.shape, request.engine.minor)
    new = [each.words for each in (*unmeasured_parts(*subject), *prompts)]
    if sizing.parallelism.data > 1:
        new.append("data-parallel ranks, which the interval leaves out")
    yield f"{words}; never measured: {', '.join(new)}" if new else words


def _together(sizing: Sizing) -> Iterator[str]:
    """Say what happens when requests do not come one by one, at random."""
    slots, request = sizing.flags.max_num_seqs, sizing.request
    replica = replace(sizing.replica, max_num_seqs=slots)
    client = partial(closed_loop, replica, request.workload, context_tokens=request.context_tokens)
    at_once = slots * replica.model.dp_size
    half_s = median(client(num_users=at_once, num_requests=at_once).ttft_s)
    yield (
        f"{at_once} prompts at once on an idle replica: half have their first token within "
        f"{format_s(half_s)}, server and network included"
    )
    concurrency = request.demand.concurrency
    if concurrency:
        each = max(1, round(concurrency / sizing.replicas))
        loop = client(num_users=each)
        yield (
            f"a load test of {count_of(each, 'request')} in flight on each replica, "
            f"{REQUESTS_PER_USER} times as many prompts: mean TTFT {format_s(loop.mean_ttft_s)}, "
            f"mean TPOT {format_s(loop.mean_tpot_s)}, {significant(loop.requests_per_s)} requests/s"
        )


def _replicas(sizing: Sizing) -> Answer:
    if sizing.request.slo.is_offline:
        return _replicas_offline(sizing)
    rate = requests_per_s_asked(sizing)
    if rate is None:
        answer = "1, since no demand is given; scaling follows what is measured"
    else:
        answer = f"{sizing.replicas} for {rate_written(sizing, rate)}"
    number, request = sizing.replicas, sizing.request
    return Answer(
        question="How many replicas?",
        answer=answer,
        lines=(
            f"goodput of a replica alone: {goodput_written(sizing)} = "
            f"{significant(sizing.output_tokens_per_s)} output tokens/s; of one of {number}, with "
            f"routing {request.routing}: {significant(sizing.staffing.each(number))} requests/s "
            f"(arrivals' squared variation {significant(request.arrival_scv)})",
        ),
    )


def _replicas_offline(sizing: Sizing) -> Answer:
    """Say how many replicas make the tokens asked for, each working all the time."""
    asked, each = tokens_per_s_asked(sizing), sizing.output_tokens_per_s
    if asked is None:
        answer, lines = "1, since no demand is given", tuple[str]()
    else:
        answer = f"{sizing.replicas} for {tokens_per_day(asked)}"
        lines = (
            f"{significant(asked)} / {significant(each)} output tokens/s = "
            f"{significant(asked / each)} replicas, each at work all day",
        )
    return Answer(question="How many replicas?", answer=answer, lines=lines)


def inputs(sizing: Sizing) -> Iterator[tuple[str, str, str]]:
    """Yield (name, value, origin) of everything that the plan stands on."""
    return ((each.name, each.value, each.origin.value) for each in inputs_with_price(sizing))
