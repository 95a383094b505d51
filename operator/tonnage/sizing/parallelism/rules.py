"""The rules by which the engine refuses a split of a model over GPUs, each in words and numbers.

Sources:
    [vllm-source] config/model.py (heads), model_executor/models/llama.py (KV heads),
    model_executor/layers/vocab_parallel_embedding.py (vocabulary),
    model_executor/layers/quantization/fp8.py and gptq.py (quantized blocks),
    model_executor/layers/mamba (states), docs/serving/context_parallel_deployment.md,
    config/parallel.py and v1/worker/cp_utils.py (decode context parallel),
    v1/attention/backends/mla/flashmla_sparse.py (the same on sparse attention).
"""

from collections.abc import Iterator

from tonnage.catalog.shape import (
    Attention,
    CompressedAttention,
    DenseFfn,
    GroupedAttention,
    LatentAttention,
    LayerGroup,
    ModelShape,
    MoeFfn,
    StateAttention,
    WeightFormat,
)
from tonnage.sizing.errors import InvalidParallelismError
from tonnage.sizing.split import Parallelism
from tonnage.units import count_of, round_up

VOCAB_ALIGNMENT = 64
"""The engine pads the vocabulary to its multiples."""


def check_parallelism(shape: ModelShape, weights: WeightFormat, split: Parallelism) -> None:
    """Refuse what vLLM refuses at start.

    Raises:
        InvalidParallelismError: with the first rule that is broken, and its numbers.
    """
    for broken in broken_rules(shape, weights, split):
        raise InvalidParallelismError(f"{broken} of {shape.name}")


def broken_rules(shape: ModelShape, weights: WeightFormat, split: Parallelism) -> Iterator[str]:
    """Yield every rule that this split breaks."""
    tensor = split.tensor
    if split.pipeline > shape.num_layers:
        yield f"PP {split.pipeline} exceeds the {count_of(shape.num_layers, 'layer')}"
    if tensor % split.context:
        yield f"DCP {split.context} does not divide TP {tensor}"
    for _, attention in shape.attentions():
        yield from _attention_rules(attention, split)
    rows = round_up(shape.vocab_size, VOCAB_ALIGNMENT)
    if rows % tensor:
        yield f"TP {tensor} does not divide the vocabulary of {rows} tokens (padded)"
    for group in shape.groups:
        yield from _ffn_rules(group, weights, split)


def _attention_rules(attention: Attention, split: Parallelism) -> Iterator[str]:
    tensor = split.tensor
    if attention.num_heads % tensor:
        yield f"TP {tensor} does not divide the {count_of(attention.num_heads, 'attention head')}"
    if split.context > 1:
        yield from _context_rules(attention, split)
    match attention:
        case GroupedAttention():
            yield from _kv_head_rules(attention.num_kv_heads, split.tensor)
        case StateAttention(kind="mamba2") if attention.num_key_heads > 1:
            if attention.num_key_heads % tensor:
                groups = count_of(attention.num_key_heads, "state group")
                yield f"TP {tensor} does not divide the {groups}"
        case StateAttention() if attention.num_key_heads % tensor and attention.num_key_heads > 1:
            heads = count_of(attention.num_key_heads, "key head")
            yield f"TP {tensor} does not divide the {heads}"


def _kv_head_rules(num_kv_heads: int, tensor: int) -> Iterator[str]:
    larger, smaller = max(num_kv_heads, tensor), min(num_kv_heads, tensor)
    if larger % smaller:
        heads = count_of(num_kv_heads, "KV head")
        yield f"TP {tensor} neither divides nor is a multiple of the {heads}"


def _context_rules(attention: Attention, split: Parallelism) -> Iterator[str]:
    """Yield why the cache of these layers cannot be shared out among tensor-parallel ranks.

    On sparse attention it depends on version, GPU and format of the cache: before 0.33 no backend
    does it, and there only some do. It is refused throughout, as it is beside states.
    """
    dcp = f"DCP {split.context}"
    match attention:
        case GroupedAttention(window_tokens=None):
            yield from _shared_heads_rules(attention, split)
        case GroupedAttention() | CompressedAttention():
            yield f"{dcp} does not work on the window layers ({attention.window_tokens} tokens)"
        case LatentAttention(is_sparse=True):
            yield f"{dcp} does not work on the sparse latent attention"
        case StateAttention():
            yield f"{dcp} does not work beside the layers with a state ({attention.kind})"


def _shared_heads_rules(attention: GroupedAttention, split: Parallelism) -> Iterator[str]:
    heads = attention.num_kv_heads
    copies = max(1, split.tensor // heads)
    if split.context > copies:
        yield (
            f"DCP {split.context} exceeds the "
            f"{count_of(copies, 'copy', 'copies')} that TP {split.tensor} makes of "
            f"{count_of(heads, 'KV head')}"
        )
    queries = attention.num_heads // heads
    if queries % split.context:
        each = f"{count_of(queries, 'query head')} per KV head"
        yield f"DCP {split.context} does not divide the {each}"


def _ffn_rules(group: LayerGroup, weights: WeightFormat, split: Parallelism) -> Iterator[str]:
    match group.ffn:
        case DenseFfn():
            yield from _width_rules(
                "feed-forward width", group.ffn.intermediate_size, "dense_ffn", weights, split
            )
        case MoeFfn():
            width = group.ffn.shared_intermediate_size
            yield from _width_rules("shared expert width", width, "shared_experts", weights, split)


def _width_rules(
    name: str, width: int, part: str, weights: WeightFormat, split: Parallelism
) -> Iterator[str]:
    if width % split.tensor:
        yield f"TP {split.tensor} does not divide the {name} {width}"
    elif width // split.tensor % (block_size := _block_size(part, weights)):
        yield (
            f"TP {split.tensor} leaves {width // split.tensor} of the {name} {width} to each rank, "
            f"no multiple of the {block_size} weights that share a scale"
        )


def _block_size(part: str, weights: WeightFormat) -> int:
    """Return how many weights of a part have to stay together; 1: any number."""
    return weights.of(part).block_size or 1


def has_whole_experts(
    shape: ModelShape, weights: WeightFormat, split: Parallelism, *, is_asked: bool = False
) -> bool:
    """Tell whether ranks hold whole experts (expert parallel) rather than a slice of each.

    So it is where somebody asks for it, with data-parallel attention, and where a slice would cut
    through a block of weights.
    """
    widths = {g.ffn.expert_intermediate_size for g in shape.groups if isinstance(g.ffn, MoeFfn)}
    return bool(widths) and (
        is_asked
        or split.data > 1
        or any(_cuts_experts(width, weights, split.tensor) for width in widths)
    )


def _cuts_experts(width: int, weights: WeightFormat, tensor: int) -> bool:
    """Tell whether so many slices of an expert would cut through a block of weights."""
    return width % tensor > 0 or width // tensor % _block_size("experts", weights) > 0
