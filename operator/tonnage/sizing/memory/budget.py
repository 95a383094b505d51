"""The memory budget and the speeds of a request's GPU, from the catalogue's figures."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from tonnage.catalog.engine_memory import Fitted, MemoryConstants
from tonnage.catalog.gpu import Gpu
from tonnage.catalog.shape import DenseFfn, Ffn, ModelShape, MoeFfn, WeightFormat
from tonnage.sizing.memory.ceiling import (
    BudgetPart,
    GivenPool,
    MemoryBudget,
    expert_workspace_bytes,
    forward_peak_bytes,
    hidden_bytes,
    logits_bytes,
)
from tonnage.sizing.memory.layout import cache_layout, default_block_tokens
from tonnage.sizing.parallelism.shard import Shard
from tonnage.sizing.request import Flags, SizingRequest
from tonnage.sizing.split import Parallelism
from tonnage.units import GB, GIB

COUNTED_SPREAD = 0.01
"""Of weights counted from a configuration: nine of ten logs are nearer."""
MXFP4_PADDING = 0.025
"""Of weights with experts in mxfp4."""
STORED_SPREAD = 0.002
"""Of weights summed up from the headers of their files."""
GRAPHS = "CUDA graphs"
UNCOUNTED_ENCODER_BYTES = 2.5 * GIB
"""Of an encoder whose size is not known: in the catalogue only that of Step-3 is larger."""
TOTAL_SPREAD = 0.005
"""Of the memory that drivers report for boards of one class: 23.53 to 23.65 GiB of an RTX 4090."""
HOST_SPREAD = 0.02
"""Of memory that is shared with the processor: 1.7 of 121.6 GiB were missing in a log."""
HIDDEN_COPIES = 2
"""Hidden states that the sampler's dummy run finds in memory."""
WIDE_BYTES = 2
PAIR = 2


def memory_budget(request: SizingRequest, shard: Shard, flags: Flags) -> MemoryBudget:
    """Return where the memory of the fullest GPU goes; textbook: nominal, weights only."""
    gpu = request.gpu
    if request.is_textbook:
        return MemoryBudget(
            total_bytes=gpu.nominal_memory_bytes,
            utilization_fraction=flags.gpu_memory_utilization,
            parts=(
                BudgetPart(name="weights", num_bytes=shard.weights_bytes),
                *_adapters(shard),
            ),
            given_pool=given_pool(request, shard, flags),
        )
    parts = budget_parts(
        as_loaded(request.shape, request.weights),
        shard,
        flags,
        request.engine.memory,
        has_nvlink=gpu.interconnect == "nvlink",
    )
    parts = (*parts, *board_parts(gpu, shard.weights_bytes))
    if request.switches.is_eager:
        parts = tuple(part for part in parts if part.name != GRAPHS)
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


def board_parts(gpu: Gpu, weights_bytes: float) -> tuple[BudgetPart, ...]:
    """Return what else may be held on this kind of board.

    Where the processor shares the memory, files that are read stay in it until something needs the
    room: the engine sees less free memory by up to its weights.

    Sources:
        [kv-logs] GB10: free memory depends on the host.
    """
    if not gpu.is_unified:
        return ()
    return (
        BudgetPart(
            name="host",
            num_bytes=0.0,
            spread_bytes=gpu.memory_bytes * HOST_SPREAD,
            more_bytes=weights_bytes,
            cause="files that the host keeps in the memory that it shares",
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
        block_tokens=default_block_tokens(request.shape) * shard.parallelism.context,
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
    shape: ModelShape,
    shard: Shard,
    flags: Flags,
    memory: MemoryConstants,
    *,
    has_nvlink: bool,
) -> tuple[BudgetPart, ...]:
    """Return what the engine holds beside the cache on the fullest GPU, weights first.

    ``shape``: as the engine loads it.
    """
    return (
        _weights(shape, shard),
        *_adapters(shard),
        _activations(shape, flags, memory),
        _fitted("runtime", _runtime(flags.parallelism, memory, has_nvlink=has_nvlink)),
        _fitted(GRAPHS, memory.graphs_bytes),
    )


def _weights(shape: ModelShape, shard: Shard) -> BudgetPart:
    """Return the weights; experts in mxfp4 are padded for some kernels and not for others.

    Sources:
        [kv-logs] 65.97 and 64.4 GiB of gpt-oss-120b.
    """
    padding = 0.0
    if shape.weight_format.name == "mxfp4" and not shape.stored:
        padding = shard.weights_bytes * MXFP4_PADDING
    return BudgetPart(
        name="weights",
        num_bytes=shard.weights_bytes,
        spread_bytes=_weights_spread_bytes(shape, shard),
        less_bytes=padding,
        cause="experts that are not padded" if padding else "",
    )


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
        encoders_bytes = shape.stored.encoders.num_bytes
        return math.hypot(shard.weights_bytes * STORED_SPREAD, encoders_bytes * spared)
    return math.hypot(
        shard.weights_bytes * COUNTED_SPREAD,
        shape.encoder_parameters * WIDE_BYTES * spared,
        shape.num_uncounted_encoders * UNCOUNTED_ENCODER_BYTES,
    )


def _fitted(name: str, constant: Fitted) -> BudgetPart:
    return BudgetPart(name=name, num_bytes=constant.value, spread_bytes=constant.spread)


def _runtime(split: Parallelism, memory: MemoryConstants, *, has_nvlink: bool) -> Fitted:
    ranks = split.tensor * split.data
    if ranks == 1:
        return memory.runtime_bytes
    if not has_nvlink:
        return memory.runtime_pcie_bytes
    return memory.runtime_nvlink_bytes if ranks <= PAIR else memory.runtime_nvlink_many_bytes


def _activations(shape: ModelShape, flags: Flags, memory: MemoryConstants) -> BudgetPart:
    """Return the peak of the profile run: of the sampler or the pass, whichever is larger.

    Some samplers need few copies of the logits, and an encoder of images may need more than
    either.
    """
    terms = activation_terms(shape, flags, memory.expert_workspace)
    least = memory.least_sampler_copies * terms.logits_bytes + terms.beside_sampler_bytes
    sampler = memory.sampler_factor.value * terms.logits_bytes + terms.beside_sampler_bytes
    forward = memory.forward_factor.value * terms.forward_bytes
    peak = max(sampler, forward)
    spread = memory.forward_factor.spread * terms.forward_bytes
    if sampler >= forward:
        spread = memory.sampler_factor.spread * terms.logits_bytes
    encoder = encoder_peak_bytes(shape, flags)
    less = peak - max(least, forward)
    cause = "the profile run of its encoder" if encoder > peak else "a sampler that needs less"
    return BudgetPart(
        name="activations",
        num_bytes=peak,
        spread_bytes=spread,
        more_bytes=max(0.0, encoder - peak),
        less_bytes=less,
        cause=cause if encoder > peak or less > spread else "",
    )


def encoder_peak_bytes(shape: ModelShape, flags: Flags) -> float:
    """Return what the encoder of images holds while it is profiled; 0: there is none.

    It is given one image of the largest size, or as many as the token budget has room for, and
    what it makes of them stays until the pass of the text part is over.

    Sources:
        [vllm-source] multimodal/encoder_budget.py, v1/worker/gpu/model_runner.py profile_run.
    """
    if not shape.encoder_token_bytes:
        return 0.0
    tokens = max(flags.max_num_batched_tokens, shape.encoder_item_tokens)
    return tokens * (shape.encoder_token_bytes + shape.hidden_size * WIDE_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationTerms:
    """What the profile run of an engine may peak with."""

    logits_bytes: float
    """One copy of the logits of every slot."""
    beside_sampler_bytes: float
    """Two hidden states, and the buffers of fused experts where the engine keeps them."""
    forward_bytes: float
    """Of a pass over the whole token budget."""


def activation_terms(shape: ModelShape, flags: Flags, expert_workspace: str) -> ActivationTerms:
    """Return the peaks of the sampler's dummy run and of a forward pass, before any constant.

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
    hidden = hidden_bytes(batched_tokens=tokens, hidden_size=shape.hidden_size)
    return ActivationTerms(
        logits_bytes=logits_bytes(max_num_seqs=flags.max_num_seqs, vocab_size=shape.vocab_size),
        beside_sampler_bytes=HIDDEN_COPIES * hidden + (workspace if is_kept else 0),
        forward_bytes=max(
            workspace + _pass_bytes(shape, flags, _shared_width),
            _pass_bytes(shape, flags, _dense_width),
        ),
    )


def _pass_bytes(shape: ModelShape, flags: Flags, width: Callable[[Ffn | None], int]) -> float:
    return forward_peak_bytes(
        batched_tokens=flags.max_num_batched_tokens,
        intermediate_size=max(width(group.ffn) for group in shape.groups),
        hidden_size=shape.hidden_size,
        tensor=flags.parallelism.tensor,
    )


def _dense_width(ffn: Ffn | None) -> int:
    return ffn.intermediate_size if isinstance(ffn, DenseFfn) else 0


def _shared_width(ffn: Ffn | None) -> int:
    return ffn.shared_intermediate_size if isinstance(ffn, MoeFfn) else 0
