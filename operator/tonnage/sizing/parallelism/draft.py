"""The layers of a checkpoint that draft for it: what they add to a rank, and to a step."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from tonnage.catalog.engine_limits import adapter_kinds
from tonnage.catalog.shape import DenseFfn, GroupedAttention, LayerGroup, ModelShape, StateAttention
from tonnage.sizing.errors import InvalidParallelismError
from tonnage.sizing.options import Adapters, check_adapters
from tonnage.sizing.parallelism.kernels import PRODUCT_FLOOR
from tonnage.sizing.parallelism.rules import candidates
from tonnage.sizing.parallelism.shard import (
    FLOP_PER_PARAMETER,
    AdapterShare,
    Shard,
    shard_of,
    stage_fraction,
)
from tonnage.sizing.request import SizingRequest
from tonnage.sizing.split import Parallelism

ELEMENT_BYTES: Final = 2
LINEARS: Final = 4
"""Of a layer: queries, keys and values; output; gate and up; down."""
KERNELS: Final = 2
"""For each of them: one multiplies by A, one by B."""
QKV: Final = 3
NORMS = 3
"""Of the hidden state, of the token that follows, and of what the layer makes of both."""


def with_adapters(target: Shard, shape: ModelShape, adapters: Adapters) -> Shard:
    """Return a rank that has adapters beside its linear layers."""
    check_adapters(shape)
    split = target.parallelism
    stage = float(stage_fraction(shape.num_layers, split.pipeline))
    is_fused = shape.model_type in adapter_kinds("fused")
    elements = stage * sum(
        group.num_layers * sum(_linears(group, shape.hidden_size, split.tensor, is_fused=is_fused))
        for group in shape.groups
    )
    # Every rank has those of the embedding and the logits whole.
    tables = 2 if split.pipeline == 1 else 1
    vocabulary_elements = tables * (shape.vocab_size + shape.hidden_size)
    vocabulary = ELEMENT_BYTES * adapters.rank * vocabulary_elements
    is_counted = shape.model_type in adapter_kinds("vocabulary")
    is_known = is_counted or shape.model_type in adapter_kinds("none")
    parameters = adapters.rank * elements
    share = AdapterShare(
        number=adapters.number,
        each_bytes=ELEMENT_BYTES * parameters,
        vocabulary_bytes=vocabulary if is_counted else 0.0,
        doubtful_bytes=0.0 if is_known else vocabulary,
    )
    launched = stage * shape.num_layers * LINEARS * KERNELS * PRODUCT_FLOOR
    return replace(
        target,
        adapters=share,
        flop_per_token=target.flop_per_token + FLOP_PER_PARAMETER * parameters,
        num_kernels=target.num_kernels + launched,
    )


def _linears(group: LayerGroup, hidden: int, tensor: int, *, is_fused: bool) -> Iterator[float]:
    """Yield A's inputs and B's outputs of each; matrices that are one in the model share one A."""
    attention, ffn = group.attention, group.ffn
    if not isinstance(attention, GroupedAttention) or not isinstance(ffn, DenseFfn):
        return  # no such layer passes check_adapters
    heads, kv_heads = attention.num_heads // tensor, max(1, attention.num_kv_heads // tensor)
    queries, keys = heads * attention.head_dim, kv_heads * attention.head_dim
    values = kv_heads * attention.num_value_dims
    inner, gates = ffn.intermediate_size / tensor, ffn.num_matrices - 1
    yield (1 if is_fused else QKV) * hidden + queries + keys + values
    yield heads * attention.num_value_dims + hidden
    yield (1 if is_fused else gates) * hidden + gates * inner
    yield inner + hidden


def draft_layers(shape: ModelShape) -> LayerGroup:
    """Return the draft layers: as the last layers that look at every token, and what joins.

    Beside the layer itself a matrix takes the hidden state and the next token's vector, both of
    hidden size, to one. It is whole on every rank, as vLLM loads it.

    Sources:
        [vllm-source] model_executor/models/deepseek_mtp.py, qwen3_5_mtp.py, glm4_moe_mtp.py.
    """
    hidden = shape.hidden_size
    attending = [
        group
        for group in shape.groups
        if group.attention and not isinstance(group.attention, StateAttention)
    ]
    return replace(
        attending[-1],
        num_layers=shape.num_draft_layers,
        ffn=[group.ffn for group in shape.groups if group.ffn][-1],
        vector_parameters=attending[-1].vector_parameters + NORMS * hidden,
        replicated_parameters=attending[-1].replicated_parameters + 2 * hidden * hidden,
    )


def splits_for(request: SizingRequest) -> list[Parallelism]:
    """Return the splits to try, smallest first; drafts go without a pipeline if they can."""
    splits = list(candidates(request))
    if request.is_within_node:
        splits = [split for split in splits if split.num_gpus <= request.gpu.gpus_per_node]
    if not request.shares_context:
        splits = [split for split in splits if split.context == 1]
    if request.speculation is None:
        return splits
    return [split for split in splits if split.pipeline == 1] or splits


def rank_of(request: SizingRequest, parallelism: Parallelism) -> Shard:
    """Return what one rank of a split holds and works on, draft layers and adapters included.

    Raises:
        InvalidParallelismError: drafts in a pipeline.
    """
    target = _shard(request, request.shape, parallelism)
    if request.adapters:
        target = with_adapters(target, request.shape, request.adapters)
    if request.speculation is None:
        return target
    if parallelism.pipeline > 1:
        raise InvalidParallelismError(
            f"engine.speculative: {parallelism} has a pipeline, in which drafts are not planned for"
        )
    return with_drafts(request, target) if request.speculation.method == "mtp" else target


def with_drafts(request: SizingRequest, target: Shard) -> Shard:
    """Return a rank that holds the draft layers too, and passes one of them in each step.

    The first draft of a step is made of all tokens that the step worked on, prompts among them:
    draft layers keep keys and values of every token. Embedding and head are shared.
    """
    shape, drafts = request.shape, draft_layers(request.shape)
    alone = replace(shape, groups=(replace(drafts, num_layers=1),), stored=None)
    draft = _shard(request, alone, target.parallelism)
    layer_bytes = draft.dense_read_bytes - draft.head_bytes
    layer_bytes += sum(share.resident_bytes for share in draft.experts)
    deeper = replace(shape, groups=(*shape.groups, drafts), stored=None)
    return replace(
        target,
        weights_bytes=target.weights_bytes + drafts.num_layers * layer_bytes,
        dense_read_bytes=target.dense_read_bytes + draft.dense_read_bytes,
        experts=(*target.experts, *draft.experts),
        kv=_shard(request, deeper, target.parallelism).kv,
        flop_per_token=target.flop_per_token + draft.flop_per_token,
        head_flop_per_token=target.head_flop_per_token + draft.head_flop_per_token,
        wide_flop_per_token=target.wide_flop_per_token + draft.wide_flop_per_token,
        num_kernels=target.num_kernels + draft.num_kernels,
        num_scaled_products=target.num_scaled_products + draft.num_scaled_products,
        num_cached_heads=target.num_cached_heads + draft.num_cached_heads,
        num_split_norms=target.num_split_norms + draft.num_split_norms,
        num_layers=target.num_layers + draft.num_layers,
        num_moe_layers=target.num_moe_layers + draft.num_moe_layers,
        draft=draft,
    )


def _shard(request: SizingRequest, shape: ModelShape, parallelism: Parallelism) -> Shard:
    return shard_of(
        shape,
        weights=request.weights,
        cache=request.cache,
        parallelism=parallelism,
        rules=request.cache_rules,
        keeps_experts_whole=bool(request.sizes.expert),
    )
