"""The time of one engine step: bytes over bandwidth, work over peak, and what is neither."""

import math
from dataclasses import dataclass

from tonnage.catalog.engine_speed import SpeedConstants
from tonnage.sizing.shard import Shard

ELEMENT_BYTES = 2
"""Of an activation on the wire."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """What one GPU can do at most, and the links between them."""

    memory_bytes_per_s: float
    peak_flop_per_s: float
    interconnect_bytes_per_s: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one step of a whole replica works on."""

    num_sequences: float
    """Decoding sequences; evaluated at one at least."""
    context_tokens: float
    """Of all decoding sequences together."""
    tokens_per_sequence: float = 1.0
    """Worked on for each decoding sequence: with speculation those that are judged."""
    prefill_tokens: float = 0.0
    prefill_context_tokens: float = 0.0
    """Earlier tokens that a prefill token attends to, in the mean."""
    prefill_chunk_tokens: float | None = None
    """For the mean of many steps: prefill tokens that come together. Most steps then have none.

    None: this is one step, and its prefill tokens are in it.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """The parts of a step's time, in seconds, over all pipeline stages."""

    overhead_s: float
    memory_s: float
    compute_s: float
    prefill_s: float
    communication_s: float
    decode_bytes: float
    """Per rank and stage: weights touched and KV of the running sequences."""
    decode_flop: float
    draft_s: float = 0.0
    """Passes of a draft layer after the first, which is part of the rest."""

    @property
    def total_s(self) -> float:
        decode_s = max(self.memory_s, self.compute_s)
        beside_s = self.overhead_s + self.prefill_s + self.communication_s
        return beside_s + decode_s + self.draft_s

    @property
    def is_memory_bound(self) -> bool:
        return self.memory_s >= self.compute_s


def experts_touched(*, num_experts: int, experts_per_token: int, num_tokens: float) -> float:
    """Return how many experts of a layer a batch reads: ``E * (1 - (1 - k/E) ** tokens)``.

    Assumes that tokens choose independently and uniformly; measured engines fit that.

    >>> round(experts_touched(num_experts=384, experts_per_token=8, num_tokens=32), 1)
    188.2
    """
    missed: float = (1 - experts_per_token / num_experts) ** num_tokens
    return num_experts * (1 - missed)


def weights_read_bytes(shard: Shard, num_tokens: float) -> float:
    """Return the weight bytes that one stage reads on one rank for a batch of so many tokens."""
    routed = sum(
        share.resident_bytes
        / share.num_experts
        * experts_touched(
            num_experts=share.num_experts,
            experts_per_token=share.experts_per_token,
            num_tokens=num_tokens,
        )
        for share in shard.experts
    )
    return shard.dense_read_bytes + routed


def mean_weights_read_bytes(
    shard: Shard, *, decode_tokens: float, prefill_tokens: float, chunk_tokens: float | None
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
    without = weights_read_bytes(shard, decode_tokens)
    return (1 - share) * without + share * weights_read_bytes(shard, decode_tokens + chunk)


def all_reduce_bytes(*, num_tokens: float, hidden_size: int) -> float:
    """Return the activation bytes that one all-reduce sums: two per element.

    >>> all_reduce_bytes(num_tokens=32, hidden_size=8192)
    524288
    """
    return ELEMENT_BYTES * num_tokens * hidden_size


def communication_s(
    shard: Shard, speeds: Speeds, constants: SpeedConstants, num_tokens: float
) -> float:
    """Return the time that one stage spends between GPUs.

    Tensor parallelism: two ring all-reduces per layer, each moving ``2 * (tp - 1) / tp`` of its
    bytes over every link, and a latency per doubling of the group. Data-parallel attention: the
    tokens of a layer go to their experts and come back. Decode context parallelism: queries are
    gathered and outputs scattered, two more exchanges per layer.
    """
    tensor, data = shard.parallelism.tensor, shard.parallelism.data
    link = speeds.interconnect_bytes_per_s * constants.link_efficiency
    total_s = 0.0
    if tensor > 1:
        moved = all_reduce_bytes(num_tokens=num_tokens, hidden_size=shard.hidden_size)
        ring_s = 2 * 2 * (tensor - 1) / tensor * moved / link
        total_s += shard.num_layers * (constants.per_all_reduce_s * math.log2(tensor) + ring_s)
    if shard.parallelism.context > 1:
        latency_s = 2 * constants.per_all_reduce_s * math.log2(shard.parallelism.context)
        total_s += shard.num_layers * latency_s
        total_s += num_tokens * shard.context_exchange_bytes / link
    if data > 1 and shard.experts:
        sent = all_reduce_bytes(num_tokens=num_tokens, hidden_size=shard.hidden_size)
        copies = max(share.experts_per_token for share in shard.experts)
        there_and_back_s = 2 * copies * sent * (data - 1) / data / link
        latency_s = constants.per_all_reduce_s * math.log2(data)
        total_s += shard.num_moe_layers * (latency_s + there_and_back_s)
    return total_s


def step_time(shard: Shard, speeds: Speeds, constants: SpeedConstants, step: Step) -> StepTime:
    """Return the time of one step, by its parts.

    Per rank of one pipeline stage, with n sequences, C context tokens and p prefill tokens::

        decode_bytes = mean_weights_read(n, p) + sum over kinds of
            kv_bytes_per_token * tokens attended to + 2 * state_bytes, for each of n
        t = per_step + per_kernel * kernels + per_scaled_product * products + per_sequence * n
          + max(decode_bytes / (BW * bandwidth_efficiency), decode_flop / (PEAK * compute_eff))
          + exposed * prefill_flop / (PEAK * prefill_efficiency) + communication(n + p)

    Pipeline stages cut the batch into as many microbatches, and one round passes them all, so
    the stage's time counts once per stage. With speculation each sequence has several tokens in
    the step: they share the reads of its cache, not the work. Data-parallel ranks each hold their
    share of the sequences; experts see the tokens of all ranks. The slowest rank is taken to be
    the mean one.

    Sources:
        [pope2022] section 2 (the two bounds); [serving-measurements] (the additive terms).
    """
    parallelism = shard.parallelism
    num_sequences = max(1.0, step.num_sequences)
    share = 1 / (parallelism.pipeline * parallelism.data)
    sequences, prefill = num_sequences * share, step.prefill_tokens * share
    # At light load a rank may have none of the sequences; the slowest has one.
    sequences = max(1.0, sequences)
    tokens = sequences * step.tokens_per_sequence
    context = max(step.context_tokens, 0.0) / num_sequences

    kv_bytes = sum(kind.read_bytes(context) for kind in shard.kv)
    weights_bytes = mean_weights_read_bytes(
        shard,
        decode_tokens=tokens * parallelism.data,
        prefill_tokens=prefill * parallelism.data,
        chunk_tokens=step.prefill_chunk_tokens,
    )
    decode_bytes = weights_bytes + kv_bytes * sequences
    pair_flop = sum(kind.decode_flop(context) for kind in shard.kv)
    decode_flop = (shard.flop_per_token + pair_flop) * tokens
    prefill_flop = prefill * _prefill_flop_per_token(shard, step.prefill_context_tokens)

    stages = parallelism.pipeline
    prefill_peak = speeds.peak_flop_per_s * constants.prefill_efficiency
    return StepTime(
        overhead_s=constants.per_step_s
        + stages * _kernels_s(shard, constants)
        + constants.per_sequence_s * num_sequences / parallelism.data,
        memory_s=stages
        * decode_bytes
        / (speeds.memory_bytes_per_s * constants.bandwidth_efficiency),
        compute_s=stages * decode_flop / (speeds.peak_flop_per_s * constants.compute_efficiency),
        prefill_s=stages * constants.prefill_exposed_fraction * prefill_flop / prefill_peak,
        communication_s=stages * communication_s(shard, speeds, constants, tokens + prefill),
        decode_bytes=decode_bytes,
        decode_flop=decode_flop,
    )


def _kernels_s(shard: Shard, constants: SpeedConstants) -> float:
    scales_s = constants.per_scaled_product_s * shard.num_products
    return constants.per_kernel_s * shard.num_kernels + scales_s


def _prefill_flop_per_token(shard: Shard, prefill_context_tokens: float) -> float:
    pairs = sum(kind.prefill_flop(prefill_context_tokens) for kind in shard.kv)
    return shard.flop_per_token + pairs
