"""The memory budget and the speeds of a request's GPU, from the catalogue's figures."""

import math
from dataclasses import dataclass, replace

from tonnage.catalog.cache_types import CACHE_TYPES
from tonnage.catalog.config.formats.quantization import BF16
from tonnage.catalog.engine import KnownEngine
from tonnage.catalog.gpu import Gpu
from tonnage.catalog.parameters import WIDE_BYTES, counted_bytes
from tonnage.catalog.shape import DenseFfn, ModelShape, MoeFfn, StateAttention, WeightFormat
from tonnage.sizing.memory.ceiling import (
    ACTIVATION_BYTES,
    BudgetPart,
    GivenPool,
    MemoryBudget,
    Server,
    expert_workspace_bytes,
    forward_peak_bytes,
    graphs_part,
    logits_bytes,
)
from tonnage.sizing.memory.layout import cache_layout, default_block_tokens
from tonnage.sizing.parallelism.shard import Shard, stage_fraction
from tonnage.sizing.request import Flags, SizingRequest
from tonnage.sizing.split import Parallelism
from tonnage.units import GB, GIB

COUNTS_PER_LOGIT = 1 + 1 / 32
"""A count of 32 bits per slot and token of the vocabulary, and a bit: v1/worker/gpu/sample."""
ENCODER_SPREAD = 0.25
"""Of the peak of an encoder: its input, positions and what its kernels hold are not counted."""
HIDDEN_COPIES = 2
"""Hidden states that the sampler's dummy run finds in memory, and that the first kernel makes."""
COUNTED_SPREAD = 0.01
"""Of weights counted from a configuration: nine of ten logs are nearer."""
MXFP4_PADDING = 0.025
"""Of weights with experts in mxfp4."""
STORED_SPREAD = 0.002
"""Of weights summed up from the headers of their files."""
UNCOUNTED_ENCODER_BYTES = 2.5 * GIB
"""Of an encoder whose size is not known: in the catalogue only that of Step-3 is larger."""
TOTAL_SPREAD = 0.005
"""Of the memory that drivers report for boards of one class: 23.53 to 23.65 GiB of an RTX 4090."""
HOST_SPREAD = 0.02
"""Of memory that is shared with the processor: 1.7 of 121.6 GiB were missing in a log."""
UNSAID_PARTS = ("attention", "state_attention", "shared_experts")
"""That recipes keep in 16 bits, beside quantized experts and feed-forward blocks."""
PAIR = 2


def activations_part(shape: ModelShape, flags: Flags, server: Server) -> BudgetPart:
    """Return the peak of the profile run: of the encoder, or of the sampler or the pass after it.

    Or of a kernel that is timed while the pass is compiled. Some samplers need few copies of the
    logits, and where images are not served their encoder is not run. The second runner counts the
    tokens of every slot, for penalties, from the start on.
    """
    memory, constants = server.engine.memory, server.engine.constants
    terms = activation_terms(shape, flags, memory.expert_workspace)
    copies, least_copies, counts = memory.sampler_factor, memory.least_sampler_copies, 0.0
    runner = server.runner_of(shape)
    if runner:
        copies = replace(copies, value=runner.sampler_copies)
        least_copies = runner.least_sampler_copies
        counts = terms.logits_bytes * COUNTS_PER_LOGIT
    are_counted = runner is None or runner.counts_buffers
    least = least_copies * terms.logits_bytes + terms.beside_sampler_bytes
    sampler = copies.value * terms.logits_bytes + terms.beside_sampler_bytes
    forward = memory.forward_factor.value * terms.forward_bytes
    is_timed = constants.benchmarks_kernels and not server.is_eager
    kernel = terms.kernel_bytes if is_timed else 0.0
    text = max(sampler, forward, kernel)
    spread = memory.forward_factor.spread * terms.forward_bytes
    if text == sampler:
        spread = copies.spread * terms.logits_bytes
    encoder = encoder_peak_bytes(shape, flags)
    # What the encoder makes stays until the pass of the text part is over.
    images = _encoder_tokens(shape, flags) * shape.hidden_size * WIDE_BYTES
    peak = max(encoder, text + images)
    less = peak - max(least, forward)
    cause = "a sampler that needs less" if text == sampler else "kernels compiled before"
    if images and peak - text > text - max(least, forward):
        cause = "the profile run of its encoder"
    return BudgetPart(
        name="activations",
        num_bytes=peak + (counts if are_counted else 0),
        uncounted_bytes=0 if are_counted else counts,
        spread_bytes=max(spread, ENCODER_SPREAD * encoder if encoder > text + images else 0.0),
        less_bytes=less,
        cause=cause if less > spread else "",
    )


def encoder_peak_bytes(shape: ModelShape, flags: Flags) -> float:
    """Return what the encoder of images holds while it is profiled; 0: there is none.

    Sources:
        [vllm-source] multimodal/encoder_budget.py, v1/worker/gpu/model_runner.py profile_run.
    """
    split_bytes = shape.encoder_split_token_bytes / flags.parallelism.tensor
    return _encoder_tokens(shape, flags) * (shape.encoder_token_bytes + split_bytes)


def _encoder_tokens(shape: ModelShape, flags: Flags) -> int:
    """Return the tokens of the profile run: one largest image, or as many as the budget holds."""
    if not shape.encoder_token_bytes:
        return 0
    item = max(1, shape.encoder_item_tokens)
    return item * max(1, flags.max_num_batched_tokens // item)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationTerms:
    """What the profile run of an engine may peak with."""

    logits_bytes: float
    """One copy of the logits of every slot."""
    beside_sampler_bytes: float
    """Two hidden states, and the buffers of fused experts where the engine keeps them."""
    forward_bytes: float
    """Of a pass over the whole token budget."""
    kernel_bytes: float
    """Of timing the first kernel, which looks tokens up and norms them: a copy of the rank's part
    of the table, and both results. An engine that finds its kernels compiled does without."""


def activation_terms(shape: ModelShape, flags: Flags, expert_workspace: str) -> ActivationTerms:
    """Return the peaks of sampler, forward pass and timed kernel, before any constant.

    Experts in narrow formats have kernels with small buffers of their own.
    """
    tokens = flags.max_num_batched_tokens
    workspace = 0.0
    if expert_workspace != "none":
        workspace = expert_workspace_bytes(
            shape, batched_tokens=tokens, tensor=flags.parallelism.tensor
        )
    is_wide = shape.weight_format.part_bytes_per_parameter("experts") == WIDE_BYTES
    is_kept = expert_workspace == "kept" and is_wide
    hidden = tokens * shape.hidden_size * ACTIVATION_BYTES
    table = shape.vocab_size * shape.hidden_size * WIDE_BYTES
    ffns = [group.ffn for group in shape.groups]
    dense = [ffn.intermediate_size for ffn in ffns if isinstance(ffn, DenseFfn)]
    shared = [ffn.shared_intermediate_size for ffn in ffns if isinstance(ffn, MoeFfn)]
    dense_bytes, shared_bytes = (
        forward_peak_bytes(
            batched_tokens=tokens,
            intermediate_size=max(widths, default=0),
            hidden_size=shape.hidden_size,
            tensor=flags.parallelism.tensor,
        )
        for widths in (dense, shared)
    )
    return ActivationTerms(
        logits_bytes=logits_bytes(max_num_seqs=flags.max_num_seqs, vocab_size=shape.vocab_size),
        beside_sampler_bytes=HIDDEN_COPIES * hidden + (workspace if is_kept else 0),
        forward_bytes=max(workspace + shared_bytes, dense_bytes),
        kernel_bytes=table / flags.parallelism.tensor + HIDDEN_COPIES * hidden,
    )


def memory_budget(request: SizingRequest, shard: Shard, flags: Flags) -> MemoryBudget:
    """Return where the memory of the fullest GPU goes."""
    gpu = request.gpu
    parts = budget_parts(
        as_loaded(request.shape, request.weights),
        shard,
        flags,
        Server(
            engine=request.engine,
            gpu=gpu,
            cache=CACHE_TYPES[request.kv_format],
            is_eager=request.switches.is_eager,
            drafts_by_ngram=request.drafts_by_ngram,
        ),
    )
    parts = (*parts, *board_parts(gpu, shard.weights_bytes, request.engine))
    return MemoryBudget(
        total_bytes=gpu.memory_bytes,
        total_spread_bytes=gpu.memory_bytes * TOTAL_SPREAD,
        total_more_bytes=total_more_bytes(gpu),
        utilization_fraction=flags.gpu_memory_utilization,
        parts=parts,
        given_pool=given_pool(request, shard, flags),
    )


def total_more_bytes(gpu: Gpu) -> float:
    """Return how much more memory some drivers report for this board: under WSL all of it.

    Sources:
        [kv-logs] 12.0 GiB of an RTX 2060 12GB under WSL; 23.53 to 23.65 of an RTX 4090 without.
    """
    if not gpu.is_consumer:
        return 0.0
    return max(0.0, gpu.nominal_memory_bytes / GB * GIB - gpu.memory_bytes)


def board_parts(gpu: Gpu, weights_bytes: float, engine: KnownEngine) -> tuple[BudgetPart, ...]:
    """Return what else may be held on this kind of board.

    Where the processor shares the memory, what programs of the host use is gone. Files that were
    read stay in it until something needs the room: older engines took them for used, up to their
    weights.

    Sources:
        [kv-logs] GB10: free memory depends on the host; [vllm-source] utils/mem_utils.py
        MemorySnapshot: what the host has available, from 0.12 on.
    """
    if not gpu.is_unified:
        return ()
    files_bytes = weights_bytes if engine.constants.counts_host_files else 0.0
    return (
        BudgetPart(
            name="host",
            num_bytes=0.0,
            spread_bytes=gpu.memory_bytes * HOST_SPREAD,
            more_bytes=files_bytes,
            cause="files that the host keeps in the memory that it shares" if files_bytes else "",
        ),
    )


def given_pool(request: SizingRequest, shard: Shard, flags: Flags) -> GivenPool | None:
    """Return the cache of one rank that the flags say; None: it is what the rest leaves.

    Blocks count where both are given. The last part of a block is of no use.

    Sources:
        [vllm-source] v1/worker/gpu_worker.py determine_available_memory; v1/core/kv_cache_utils.py
        get_kv_cache_configs.
    """
    num_bytes, num_blocks = flags.kv_cache_bytes, flags.num_gpu_blocks
    each_bytes = cache_layout(
        shard.kv,
        block_tokens=default_block_tokens(request.shape, request.switches.block_tokens)
        * shard.parallelism.context,
        rules=request.cache_rules,
    ).bytes_per_block
    if num_blocks is not None:
        flag = f"--num-gpu-blocks-override {num_blocks}"
        return GivenPool(flag=flag, num_bytes=num_blocks * each_bytes)
    if num_bytes is not None:
        flag = f"--kv-cache-memory-bytes {num_bytes}"
        return GivenPool(flag=flag, num_bytes=num_bytes // each_bytes * each_bytes)
    return None


def as_loaded(shape: ModelShape, weights: WeightFormat) -> ModelShape:
    """Return the shape with the weights that the engine has: files of another format say nothing.

    The two formats of 16 bits are one.
    """
    if weights.bytes_per_parameter == shape.weight_format.bytes_per_parameter:
        return shape
    return replace(shape, weight_format=weights, stored=None)


def budget_parts(
    shape: ModelShape, shard: Shard, flags: Flags, server: Server
) -> tuple[BudgetPart, ...]:
    """Return what the engine holds beside the cache on the fullest GPU, weights first.

    From 0.27 on the engine counts the drop of free memory and what the profile run freed again,
    before that weights, what it did not allocate, and the peak: the same parts, but for memory
    that the allocator keeps and does not use.

    ``shape``: as the engine loads it.

    Sources:
        [vllm-source] utils/mem_utils.py memory_profiling.
    """
    memory, gpu = server.engine.memory, server.gpu
    ranks, runtime = flags.parallelism.tensor * flags.parallelism.data, memory.runtime_bytes
    if ranks > 1 and gpu is not None and gpu.interconnect == "nvlink":
        many = memory.runtime_nvlink_many_bytes
        runtime = memory.runtime_nvlink_bytes if ranks <= PAIR else many
    elif ranks > 1:
        runtime = memory.runtime_pcie_bytes
    return (
        _weights(shape, shard),
        *_adapters(shard),
        activations_part(shape, flags, server),
        BudgetPart(name="runtime", num_bytes=runtime.value, spread_bytes=runtime.spread),
        graphs_part(shape, flags, server),
    )


def _weights(shape: ModelShape, shard: Shard) -> BudgetPart:
    """Return the weights; experts in mxfp4 are padded for some kernels and not for others.

    What a checkpoint keeps in 16 bits is not always said.

    Sources:
        [kv-logs] 65.97 and 64.4 GiB of gpt-oss-120b.
    """
    padding = 0.0
    if any(share.is_padded for share in shard.experts) and not shape.stored:
        padding = shard.weights_bytes * MXFP4_PADDING
    more = unsaid_bytes(shape, shard.parallelism)
    cause = "experts that are not padded" if padding else ""
    return BudgetPart(
        name="weights",
        num_bytes=shard.weights_bytes,
        spread_bytes=_weights_spread_bytes(shape, shard),
        more_bytes=more,
        less_bytes=padding,
        cause="modules that the checkpoint may keep in 16 bits" if more > padding else cause,
    )


def unsaid_bytes(shape: ModelShape, split: Parallelism) -> float:
    """Return what weights take more if all but routed experts are stored in 16 bits; 0: it is said.

    Recipes for plain dense models quantize every layer; of models with experts, or with layers
    that keep a state, many quantize the experts or the feed-forward blocks alone.
    """
    weights = shape.weight_format
    is_plain = not shape.has_experts and not shape.has_kind(StateAttention)
    if weights.says_unquantized or shape.stored or is_plain:
        return 0.0
    narrow, wide = (counted_bytes(each) for each in (shape, replace(shape, weight_format=BF16)))
    more = sum(wide.get(part, 0) - narrow.get(part, 0) for part in UNSAID_PARTS)
    return more * float(stage_fraction(shape.num_layers, split.pipeline)) / split.tensor


def _adapters(shard: Shard) -> tuple[BudgetPart, ...]:
    """Return the slots for LoRA adapters; whether the vocabulary has some is not always known."""
    share = shard.adapters
    if share is None:
        return ()
    doubtful_bytes = share.number * share.doubtful_bytes
    return (
        BudgetPart(
            name="adapters",
            num_bytes=share.resident_bytes,
            more_bytes=doubtful_bytes,
            cause="adapters of the vocabulary, which some models have" if doubtful_bytes else "",
        ),
    )


def _weights_spread_bytes(shape: ModelShape, shard: Shard) -> float:
    """Return how far the weights may be off; encoders by what splitting them would spare a rank."""
    spared = 1 - 1 / shard.parallelism.tensor
    if shape.stored:
        return math.hypot(shard.weights_bytes * STORED_SPREAD, shape.stored.encoders * spared)
    return math.hypot(
        shard.weights_bytes * COUNTED_SPREAD,
        shape.encoder_parameters * WIDE_BYTES * spared,
        shape.num_uncounted_encoders * UNCOUNTED_ENCODER_BYTES,
    )
