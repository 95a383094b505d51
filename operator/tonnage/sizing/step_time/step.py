"""The time of one engine step: bytes over bandwidth, work over peak, and what is neither."""

import math
from dataclasses import dataclass, replace

from tonnage.catalog.engine_speed import SpeedConstants
from tonnage.sizing.parallelism.shard import Shard
from tonnage.sizing.split import Parallelism
from tonnage.sizing.step_time.speeds import Speeds

ELEMENT_BYTES = 2
"""Of an activation on the wire."""
NODE_LATENCY_S = 25e-6
"""Of a collective between nodes, however little it moves."""
ABOVE_MEAN = 0.62
"""Of 2, 4, 8 and 16 normal values the largest is 0.56, 1.03, 1.42 and 1.77 above the mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one step of a whole replica works on: with a pipeline, one round of its microbatches."""

    num_sequences: float
    """Decoding sequences; evaluated at one at least."""
    context_tokens: float
    """Of all decoding sequences together."""
    tokens_per_sequence: float = 1.0
    """Worked on for each decoding sequence: with speculation the tokens verified."""
    prefill_tokens: float = 0.0
    prefill_context_tokens: float = 0.0
    """Earlier tokens that a prefill token attends to, in the mean."""
    prefill_chunk_tokens: float | None = None
    """For the mean of many steps: prefill tokens that come together. Most steps then have none.

    None: this is one step, and its prefill tokens are in it.
    """
    prefill_ranks: float | None = None
    """Data-parallel ranks that the prefill tokens are on: 1 has all. None: spread over all."""
    prefill_microbatches: float | None = None
    """The same of the pipeline's microbatches, of which there are as many as stages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTokens:
    """What a data-parallel rank works on in a step."""

    decode: float
    prefill: float = 0.0
    mean_prefill: float = 0.0
    """Of all ranks in the mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """The parts of a step's time, in seconds, over all pipeline stages."""

    overhead_s: float
    memory_s: float
    compute_s: float
    prefill_s: float
    communication_s: float
    dense_bytes: float
    """Read per rank and stage: weights that every token takes, and adapters."""
    decode_flop: float
    prefill_flop: float = 0.0
    """Of prompts, per rank and stage, whatever the rates of its parts."""
    experts_bytes: float = 0.0
    """Read per rank and stage: the routed experts that the step's tokens touch."""
    cache_bytes: float = 0.0
    """Read per rank and stage: KV of the running sequences."""
    draft_bytes: float = 0.0
    """Read in ``draft_s``."""
    serial_s: float = 0.0
    """Of the shorter of memory and compute, what the longer does not hide."""
    draft_s: float = 0.0
    """Passes of a draft layer after the first, which is part of the rest."""
    launch_s: float = 0.0
    """That the GPU waits for the host, which launches the kernels of prompts one by one."""

    @property
    def decode_bytes(self) -> float:
        """Read per rank and stage, in all."""
        return self.dense_bytes + self.experts_bytes + self.cache_bytes + self.draft_bytes

    @property
    def total_s(self) -> float:
        decode_s = max(self.memory_s, self.compute_s) + self.serial_s
        beside_s = self.overhead_s + self.prefill_s + self.communication_s
        return beside_s + decode_s + self.draft_s + self.launch_s

    @property
    def is_memory_bound(self) -> bool:
        return self.memory_s >= self.compute_s


def experts_touched(
    *, num_experts: int, experts_per_token: int, num_tokens: float, evenness: float | None = None
) -> float:
    """Return how many experts of a layer a batch reads.

    Tokens choose independently. Where all experts are chosen alike (``evenness`` None)::

        E * (1 - (1 - k/E) ** tokens)

    Where some are chosen more often, the chance of each is spread about ``k/E`` as a beta
    distribution of ``a = evenness`` and ``b = evenness * (E/k - 1)``, and a token misses an expert
    by its mean, ``B(a, b + tokens) / B(a, b)``.

    Sources:
        [serving-measurements] MiniMax-M2.5 on one GPU: from 4 to 32 tokens a step grows by fewer
        bytes than uniform choice would read at the full nominal bandwidth.

    >>> round(experts_touched(num_experts=384, experts_per_token=8, num_tokens=32), 1)
    188.2
    >>> round(
    ...     experts_touched(num_experts=384, experts_per_token=8, num_tokens=32, evenness=2.0), 1
    ... )
    169.7
    """
    if evenness is None or experts_per_token >= num_experts:
        missed: float = (1 - experts_per_token / num_experts) ** num_tokens
        return num_experts * (1 - missed)
    a, b = evenness, evenness * (num_experts / experts_per_token - 1)
    return num_experts * (1 - math.exp(_log_beta(a, b + num_tokens) - _log_beta(a, b)))


def fullest_rank_load(
    *, num_experts: int, experts_per_token: int, num_ranks: int, evenness: float | None
) -> float:
    """Return the work of the rank with the most chosen experts, over the mean rank's.

    Chances as in ``experts_touched`` differ by a share of ``sqrt((1 - k/E) / (a + k/E))`` from
    expert to expert, and by ``sqrt(ranks / E)`` of that from rank to rank; the largest of r normal
    values lies about ``sqrt(2 ln r) - 0.62`` deviations above their mean.

    >>> round(
    ...     fullest_rank_load(num_experts=256, experts_per_token=8, num_ranks=8, evenness=2.0), 2
    ... )
    1.17
    """
    if evenness is None or num_ranks == 1 or experts_per_token >= num_experts:
        return 1.0
    chance = experts_per_token / num_experts
    each = math.sqrt((1 - chance) / (evenness + chance))
    return 1.0 + highest_normal(num_ranks) * each * math.sqrt(num_ranks / num_experts)


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def weights_read_bytes(shard: Shard, num_tokens: float, *, evenness: float | None = None) -> float:
    """Return the weight bytes that one stage reads on one rank for a batch of so many tokens."""
    routed = sum(
        share.resident_bytes
        / share.num_experts
        * experts_touched(
            num_experts=share.num_experts,
            experts_per_token=share.experts_per_token,
            num_tokens=num_tokens,
            evenness=evenness,
        )
        for share in shard.experts
    )
    return shard.dense_read_bytes + routed


def mean_weights_read_bytes(
    shard: Shard,
    *,
    decode_tokens: float,
    prefill_tokens: float,
    chunk_tokens: float | None,
    evenness: float | None = None,
) -> float:
    """Return the weight bytes that a mean step reads when prefill comes in chunks.

    A share ``f = prefill / chunk`` of the steps holds a whole chunk, the others none::

        (1 - f) * weights_read(decode) + f * weights_read(decode + chunk)

    Spread evenly over all steps the same prefill tokens would touch nearly all experts in each.

    Sources:
        [serving-measurements] MiniMax-M2.5, prompts of 8192: a tenth instead of up to three times
        too slow.
    """
    chunk = max(chunk_tokens or 0.0, prefill_tokens)
    share = prefill_tokens / chunk if chunk else 0.0
    without = weights_read_bytes(shard, decode_tokens, evenness=evenness)
    within = weights_read_bytes(shard, decode_tokens + chunk, evenness=evenness)
    return (1 - share) * without + share * within


def all_reduce_bytes(*, num_tokens: float, hidden_size: int) -> float:
    """Return the activation bytes that one all-reduce sums: two per element.

    >>> all_reduce_bytes(num_tokens=32, hidden_size=8192)
    524288
    """
    return ELEMENT_BYTES * num_tokens * hidden_size


def all_reduce_s(
    *, num_bytes: float, num_ranks: int, link_bytes_per_s: float, constants: SpeedConstants
) -> float:
    """Return what an all-reduce takes beyond its latency: the faster of two ways.

    A ring moves ``2 * (ranks - 1) / ranks`` of the bytes over every link, after some more latency.
    In one shot every rank reads the bytes of all others, which is at once, and less of the link::

        min((ranks - 1) * bytes / (link * one_shot_efficiency),
            bulk_extra + 2 * (ranks - 1) / ranks * bytes / (link * link_efficiency))

    Sources:
        [kernel-tables] all-reduces of 256 B to 2 GB among 2, 4 and 8 GPUs.
    """
    ring_bytes = 2 * (num_ranks - 1) / num_ranks * num_bytes
    ring_s = ring_bytes / (link_bytes_per_s * constants.link_efficiency)
    if constants.one_shot_efficiency is None:
        return ring_s
    shot_bytes = (num_ranks - 1) * num_bytes
    shot_s = shot_bytes / (link_bytes_per_s * constants.one_shot_efficiency)
    return min(shot_s, constants.bulk_extra_s + ring_s)


def communication_s(
    shard: Shard, speeds: Speeds, constants: SpeedConstants, tokens: RankTokens
) -> float:
    """Return the time that one stage spends between GPUs.

    Tensor parallelism: all-reduces, two per layer and more where norms are split, each with a
    latency that grows with the group where all share one bus and hardly where each pair has its own
    link. Those of prompts are rings, those of decoding tokens what ``all_reduce_s`` says.
    Data-parallel attention: each layer with experts gathers the tokens of all ranks and scatters
    what comes of them; steps with prompts, which no CUDA graph covers, are not padded to the
    fullest rank. Decode context parallelism: queries are gathered and outputs scattered, two more
    exchanges per layer.

    Sources:
        [vllm-source] config/parallel.py all2all_backend: allgather_reducescatter since 0.12;
        v1/worker/dp_utils.py should_dp_pad.
    """
    data, link = shard.parallelism.data, speeds.interconnect_bytes_per_s * constants.link_efficiency
    total_s = _all_reduces_s(shard, speeds, constants, tokens)
    if shard.parallelism.context > 1:
        total_s += shard.num_layers * 2 * _latency_s(constants, shard.parallelism.context)
        total_s += (tokens.decode + tokens.prefill) * shard.context_exchange_bytes / link
    if data > 1 and shard.experts:
        sent = all_reduce_bytes(
            num_tokens=tokens.decode + tokens.mean_prefill, hidden_size=shard.hidden_size
        )
        link, latency_s = _ring_of_ranks(shard.parallelism, speeds, constants)
        there_and_back_s = 2 * (data - 1) * sent / link
        total_s += shard.num_moe_layers * (latency_s + there_and_back_s)
    return total_s


def _ring_of_ranks(
    split: Parallelism, speeds: Speeds, constants: SpeedConstants
) -> tuple[float, float]:
    """Return what a ring through the data-parallel ranks moves, and the latency of two passes.

    Between nodes there are as many rings side by side as a node has of these ranks, and each takes
    the link of another GPU.

    Sources:
        [nccl-issues] NVIDIA/nccl#1453: 26 us for 4 KiB over nodes of H100, by the library's own
        estimate; NVIDIA/nccl-tests#150: 19 us for 8 bytes between two GPUs over InfiniBand.
    """
    within = speeds.interconnect_bytes_per_s * constants.link_efficiency
    latency_s = _latency_s(constants, split.data)
    ranks_of_node = max(1, speeds.gpus_per_node * split.data // split.num_gpus)
    if split.data <= ranks_of_node:
        return within, latency_s
    beyond = ranks_of_node * (speeds.node_link_bytes_per_s or math.inf)
    return min(within, beyond), latency_s + 2 * NODE_LATENCY_S


def _all_reduces_s(
    shard: Shard, speeds: Speeds, constants: SpeedConstants, tokens: RankTokens
) -> float:
    tensor, link = shard.parallelism.tensor, speeds.interconnect_bytes_per_s
    if tensor == 1:
        return 0.0
    moved = all_reduce_bytes(num_tokens=tokens.decode, hidden_size=shard.hidden_size)
    each_s = all_reduce_s(
        num_bytes=moved, num_ranks=tensor, link_bytes_per_s=link, constants=constants
    )
    prompts = all_reduce_bytes(num_tokens=tokens.prefill, hidden_size=shard.hidden_size)
    each_s += 2 * (tensor - 1) / tensor * prompts / (link * constants.link_efficiency)
    num_latencies = shard.num_layers + shard.num_split_norms / 2
    return num_latencies * _latency_s(constants, tensor) + 2 * shard.num_layers * each_s


def _latency_s(constants: SpeedConstants, num_ranks: int) -> float:
    """Return that of the two all-reduces of a layer."""
    growth: float = (num_ranks / 2) ** constants.all_reduce_growth
    return constants.per_all_reduce_s * growth


def num_microbatches(split: Parallelism, constants: SpeedConstants) -> int:
    """Return the batches that a pipeline works on at once; 1: each passes all stages alone."""
    return split.pipeline if constants.overlaps_stages else 1


def fullest_microbatch(num_sequences: float, stages: int) -> float:
    """Return the decoding sequences of the fullest of as many microbatches as there are stages.

    A sequence stays in the one that its prompt came in, which is by chance, so that numbers spread
    like Poisson's; one at least, as the slowest of several ranks has at light load.

    >>> fullest_microbatch(20, 1), round(fullest_microbatch(32, 4), 1), fullest_microbatch(1, 8)
    (20.0, 10.6, 1.0)

    Sources:
        [vllm-source] v1/core/sched/scheduler.py schedule; vllm#57433 (7, 13, 2 and 10 of 32).
    """
    mean = num_sequences / stages
    if stages == 1:
        return max(1.0, mean)
    return max(1.0, mean + highest_normal(stages) * math.sqrt(mean * (1 - 1 / stages)))


def highest_normal(number: int) -> float:
    """Return the mean of the highest of ``number`` standard normal values; at least 2."""
    return math.sqrt(2 * math.log(number)) - ABOVE_MEAN


def overlapped_s(one_s: float, other_s: float, power: float) -> float:
    """Return the time of two things that overlap in part: at a power of 1 not at all.

    ``(one ** power + other ** power) ** (1 / power)``

    >>> round(overlapped_s(3.0, 4.0, 2), 6)
    5.0
    """
    together: float = (one_s**power + other_s**power) ** (1 / power)
    return together


def step_time(shard: Shard, speeds: Speeds, constants: SpeedConstants, step: Step) -> StepTime:
    """Return the time of one step, by its parts.

    Per rank of one pipeline stage, with n sequences, C context tokens and p prefill tokens::

        decode_bytes = mean_weights_read(n, p) + sum over kinds of
            kv_bytes_per_token * tokens attended to + 2 * state_bytes, for each of n
        t = per_step + per_kernel * kernels + per_scaled_product * scaled products
          + per_experts_block * layers with experts
          + per_sequence * min(n, most) + per_cached_head * n * KV heads of all layers
          + overlapped(weights / (BW * bandwidth_efficiency), products / (PEAK * compute_eff))
          + max(cache / (BW * bandwidth_efficiency * cache_bandwidth_factor),
                attention_flop / (PEAK * compute_eff))
          + exposed * prefill_work / (PEAK * prefill_efficiency) + communication(n + p)

    There are as many microbatches as pipeline stages, and one round passes them all, so a stage's
    time counts once per stage. Decoding sequences are spread over them by chance. A chunk of a
    prompt is in one of them, which the others follow through every stage, so that all of them take
    as long as the fullest. A step with prompts takes no less than the host needs to launch it. Of
    adapters a step reads those of its decoding sequences, each of which has one at random. Routed
    experts multiply the tokens of prompts at a rate that falls with the slice of an expert that a
    rank has, ``s / (s + half width)``. With speculation each sequence has several tokens in the
    step: they share the reads of its cache, not the work. Data-parallel ranks each hold their share
    of the sequences; experts see the tokens of all ranks. The slowest rank is taken to be the mean
    one, but for prefill that only some have: those compute all of it, and routed experts alone
    spread their work over all ranks.

    Sources:
        [pope2022] section 2 (the two bounds); [serving-measurements] (the additive terms);
        [kernel-tables] (a product overlaps its reads and its work by a power of 1 to 3; attention
        is a kernel of its own, which nothing overlaps); [vllm-source] v1/engine/core.py
        step_with_batch_queue, v1/core/sched/scheduler.py schedule (no chunk and no batch of
        decoding sequences is cut into microbatches, vllm#41682; a request's next chunk is scheduled
        while the one before is in the pipeline).
    """
    parallelism = shard.parallelism
    num_sequences = max(1.0, step.num_sequences)
    most = num_microbatches(parallelism, constants)
    sequences = fullest_microbatch(num_sequences / parallelism.data, most)
    microbatches = min(step.prefill_microbatches or most, most)
    prefill = step.prefill_tokens / (microbatches * parallelism.data)
    own = prefill * parallelism.data / (step.prefill_ranks or parallelism.data)
    tokens = sequences * step.tokens_per_sequence
    context = max(step.context_tokens, 0.0) / num_sequences

    kv_bytes = sequences * sum(kind.read_bytes(context) for kind in shard.kv)
    weights_bytes = mean_weights_read_bytes(
        shard,
        decode_tokens=tokens * parallelism.data,
        prefill_tokens=prefill * parallelism.data,
        chunk_tokens=step.prefill_chunk_tokens,
        evenness=constants.routing_evenness,
    )
    product_flop = tokens * shard.flop_per_token
    pair_flop = tokens * sum(kind.decode_flop(context) for kind in shard.kv)
    prefill_flop, prefill_work = _prefill_flop(
        shard, constants, step.prefill_context_tokens, own=own, mean=prefill
    )

    stages = parallelism.pipeline
    bytes_per_s = speeds.memory_bytes_per_s * constants.bandwidth_efficiency
    flop_per_s = speeds.peak_flop_per_s * constants.compute_efficiency
    dense_bytes = shard.dense_read_bytes
    experts_bytes, slower = 0.0, 1.0
    if shard.experts:
        experts_bytes = weights_bytes - dense_bytes
        slower = constants.bandwidth_efficiency / constants.experts_bandwidth_efficiency
    if shard.adapters:
        dense_bytes += shard.adapters.num_used(sequences) * shard.adapters.each_bytes
    weights_s = stages * (dense_bytes + slower * experts_bytes) / bytes_per_s
    cache_s = stages * kv_bytes / (bytes_per_s * constants.cache_bandwidth_factor)
    products_s, pairs_s = stages * product_flop / flop_per_s, stages * pair_flop / flop_per_s
    memory_s, compute_s = weights_s + cache_s, products_s + pairs_s
    decode_s = max(memory_s, compute_s)
    if constants.overlap_power is not None:
        decode_s = overlapped_s(weights_s, products_s, constants.overlap_power)
        decode_s += max(cache_s, pairs_s)
    prefill_peak = speeds.peak_flop_per_s * constants.prefill_efficiency
    limit = math.inf if constants.per_sequence_limit is None else constants.per_sequence_limit
    time = StepTime(
        overhead_s=constants.per_step_s
        + stages * _kernels_s(shard, constants, sequences)
        + constants.per_sequence_s * min(num_sequences / parallelism.data, limit),
        memory_s=memory_s,
        compute_s=compute_s,
        serial_s=max(0.0, decode_s - max(memory_s, compute_s)),
        prefill_s=stages * constants.prefill_exposed_fraction * prefill_work / prefill_peak,
        communication_s=stages
        * communication_s(
            shard, speeds, constants, RankTokens(decode=tokens, prefill=own, mean_prefill=prefill)
        ),
        dense_bytes=dense_bytes,
        decode_flop=product_flop + pair_flop,
        prefill_flop=prefill_flop,
        experts_bytes=experts_bytes,
        cache_bytes=kv_bytes,
    )
    floor_s = stages * shard.num_launches * constants.prefill_launch_s
    return replace(time, launch_s=_launch_s(time, step, floor_s)) if floor_s else time


def _kernels_s(shard: Shard, constants: SpeedConstants, num_sequences: float) -> float:
    scales_s = constants.per_scaled_product_s * shard.num_scaled_products
    experts_s = experts_block_s(shard, constants) * shard.num_moe_layers
    heads_s = constants.per_cached_head_s * shard.num_cached_heads * num_sequences
    return constants.per_kernel_s * shard.num_kernels + scales_s + experts_s + heads_s


def experts_block_s(shard: Shard, constants: SpeedConstants) -> float:
    """Return what the routed experts of a layer take however little they do.

    Sources:
        [vllm-source] model_executor/layers/fused_moe/oracle/fp8.py: experts in blocks of fp8 on
        Hopper ran in FlashInfer's CUTLASS kernels in 0.15 and 0.16, and from 0.17 on those that
        ranks hold whole do, while slices run in Triton's.
    """
    used_for = constants.cutlass_experts
    are_whole = any(share.num_ranks > 1 for share in shard.experts)
    if used_for == "none" or (used_for == "whole" and not are_whole):
        return constants.per_experts_block_s
    experts_per_rank = max(
        (share.num_experts / share.num_ranks for share in shard.experts), default=0.0
    )
    return constants.cutlass_block_s + constants.cutlass_expert_s * experts_per_rank


def _launch_s(time: StepTime, step: Step, floor_s: float) -> float:
    """Return what the host adds to steps with prompts that the GPU would be done with earlier.

    Of the mean of many steps a share holds prompts, and these hold all of the prefill.
    """
    chunk = max(step.prefill_chunk_tokens or 0.0, step.prefill_tokens)
    share = step.prefill_tokens / chunk if chunk else 0.0
    if not share:
        return 0.0
    busy_s = time.total_s - time.prefill_s + time.prefill_s / share
    return share * max(0.0, floor_s - busy_s)


def _prefill_flop(
    shard: Shard, constants: SpeedConstants, context_tokens: float, *, own: float, mean: float
) -> tuple[float, float]:
    """Return the work of a rank with so many prompt tokens: of its experts it has the mean's.

    And the same in products of the precision of the quantized matrices that take as long: those in
    16 bits, of attention too, and those of experts have rates of their own. Only the last token has
    logits.
    """
    wide = shard.wide_flop_per_token
    narrow = shard.flop_per_token - shard.head_flop_per_token - shard.expert_flop_per_token - wide
    wide += sum(kind.prefill_flop(context_tokens) for kind in shard.kv)
    experts = sum(
        share.flop_per_token
        * (1 + constants.experts_half_width / share.slice_width)
        * fullest_rank_load(
            num_experts=share.num_experts,
            experts_per_token=share.experts_per_token,
            num_ranks=share.num_ranks,
            evenness=constants.routing_evenness,
        )
        for share in shard.experts
    )
    flop = own * (narrow + wide) + mean * shard.expert_flop_per_token
    dense = narrow + wide / constants.wide_prefill_factor
    return flop, own * dense + mean * experts / constants.experts_prefill_factor
