"""The rules by which the engine refuses a split over GPUs, in words and numbers; which are tried.

Sources:
    [vllm-source] config/model.py (heads), model_executor/models/llama.py (KV heads),
    model_executor/layers/vocab_parallel_embedding.py (vocabulary),
    model_executor/layers/quantization/fp8.py and gptq.py (quantized blocks),
    model_executor/layers/mamba (states), docs/serving/context_parallel_deployment.md,
    config/parallel.py and v1/worker/cp_utils.py (decode context parallel),
    v1/attention/backends/mla/flashmla_sparse.py (the same on sparse attention).
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from tonnage.api.hardware import MOST_GPUS, ParallelSizes
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
from tonnage.sizing.request import ANY_SIZES, SizingRequest
from tonnage.sizing.split import Parallelism, kv_is_replicated
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
        case GroupedAttention(num_kv_heads=heads) if max(heads, tensor) % min(heads, tensor):
            kv_heads = count_of(heads, "KV head")
            yield f"TP {tensor} neither divides nor is a multiple of the {kv_heads}"
        case StateAttention(kind="mamba2") if attention.num_key_heads > 1:
            if attention.num_key_heads % tensor:
                groups = count_of(attention.num_key_heads, "state group")
                yield f"TP {tensor} does not divide the {groups}"
        case StateAttention() if attention.num_key_heads % tensor and attention.num_key_heads > 1:
            key_heads = count_of(attention.num_key_heads, "key head")
            yield f"TP {tensor} does not divide the {key_heads}"


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
    elif width // split.tensor % (block_size := weights.of(part).block_size or 1):
        yield (
            f"TP {split.tensor} leaves {width // split.tensor} of the {name} {width} to each rank, "
            f"no multiple of the {block_size} weights that share a scale"
        )


def has_whole_experts(
    shape: ModelShape, weights: WeightFormat, split: Parallelism, *, is_asked: bool = False
) -> bool:
    """Tell whether ranks hold whole experts (expert parallel) rather than a slice of each.

    So it is where somebody asks for it, with data-parallel attention, and where a slice would cut
    through a block of weights.
    """
    widths = {g.ffn.expert_intermediate_size for g in shape.groups if isinstance(g.ffn, MoeFfn)}
    tensor, block = split.tensor, weights.of("experts").block_size or 1
    cuts = (width % tensor or width // tensor % block for width in widths)
    return bool(widths) and (is_asked or split.data > 1 or any(cuts))


FACTORS = (1, 2, 4, 8, 16, 32)
"""GPUs of a replica that are tried beyond a node: times the sizes that are given."""


def candidates(request: SizingRequest) -> Iterator[Parallelism]:
    """Yield the valid splits to try, smallest first; within a node tensor parallel comes first.

    Within a node a replica may have any number of GPUs: three stages of two GPUs serve what takes
    more than four, and leave two to others. A model whose cache is replicated under tensor
    parallelism is also tried with data-parallel attention, and with decode context parallelism
    where the engine has it. Beyond one node, whole nodes are pipeline stages; where it is known
    what the link between nodes moves, data-parallel ranks too. Sizes that are given are those of
    every split.
    """
    for split in _splits(request):
        if next(_refusals(request, split), None) is None:
            yield split


def _splits(request: SizingRequest) -> Iterator[Parallelism]:
    sizes, per_node = request.sizes, request.gpu.gpus_per_node
    numbers = [request.num_gpus] if request.num_gpus else _numbers_of_gpus(sizes, per_node)
    for number in numbers:
        for split in _splits_of(number, per_node, request.shape, sizes.data):
            if has_sizes(split, sizes):
                yield split


def _numbers_of_gpus(sizes: ParallelSizes, gpus_per_node: int) -> Iterable[int]:
    given = sizes.num_given
    if sizes.are_all_given:
        return [given]
    beyond = (given * factor for factor in FACTORS)
    within = range(given, gpus_per_node + 1, given)
    return [*within, *(each for each in beyond if gpus_per_node < each <= MOST_GPUS)]


def has_sizes(split: Parallelism, sizes: ParallelSizes) -> bool:
    """Tell whether a split has the sizes that are given."""
    of_split = (split.tensor, split.pipeline, split.data)
    given = (sizes.tensor, sizes.pipeline, sizes.data)
    return all(asked in {None, size} for asked, size in zip(given, of_split, strict=True))


def _splits_of(
    num_gpus: int, gpus_per_node: int, shape: ModelShape, data: int | None
) -> Iterator[Parallelism]:
    """Yield the splits of as many GPUs; ``data``: the data-parallel ranks that are asked for."""
    if data and data > 1:
        if num_gpus % data == 0:
            of_rank = _splits_of(num_gpus // data, gpus_per_node, shape, 1)
            yield from (replace(split, data=data) for split in of_rank)
    elif num_gpus <= gpus_per_node:
        yield Parallelism(tensor=num_gpus)
        if kv_is_replicated(shape, num_gpus):
            if data is None and _divides_experts(shape, num_gpus):
                yield Parallelism(data=num_gpus)
            yield Parallelism(tensor=num_gpus, context=num_gpus)
        yield from (
            Parallelism(tensor=num_gpus // stages, pipeline=stages)
            for stages in range(2, num_gpus + 1)
            if num_gpus % stages == 0
        )
    elif num_gpus % gpus_per_node == 0:
        yield Parallelism(tensor=gpus_per_node, pipeline=num_gpus // gpus_per_node)
        if data is None and kv_is_replicated(shape, num_gpus) and _divides_experts(shape, num_gpus):
            yield Parallelism(data=num_gpus)


def _divides_experts(shape: ModelShape, num_ranks: int) -> bool:
    """Tell whether as many ranks hold the same number of whole experts, as memory counts them."""
    numbers = {group.ffn.num_experts for group in shape.groups if isinstance(group.ffn, MoeFfn)}
    return all(number % num_ranks == 0 for number in numbers)


def _refusals(request: SizingRequest, split: Parallelism) -> Iterator[str]:
    shape = request.shape
    yield from broken_rules(shape, request.weights, split)
    if request.spreads(split):
        per_node, of_rank = request.gpu.gpus_per_node, split.num_gpus // split.data
        node = f"a node of {count_of(per_node, 'GPU')}"
        if split.num_gpus % per_node or per_node % of_rank:
            gpus = count_of(of_rank, "GPU")
            yield f"DP {split.data} x {gpus} fills no whole number of nodes, each {node}"
        if shape.has_experts and request.node_link_bytes_per_s is None:
            yield (
                f"DP {split.data} exceeds {node}: set hardware.nodeLink, what a GPU moves beyond it"
            )
    if request.sizes.expert is False and has_whole_experts(shape, request.weights, split):
        yield f"expert: false does not go with {split}, whose ranks hold whole experts"
    if split.data > 1 and not (shape.has_experts or kv_is_replicated(shape, split.num_gpus)):
        needs = "experts or a cache that TP copies"
        yield f"DP {split.data} needs {needs}: use replicas for the layers"


def explain_no_candidate(request: SizingRequest) -> str:
    """Say which rules refuse the GPUs, or the sizes, that are asked for."""
    num_gpus, sizes, per_node = request.num_gpus, request.sizes, request.gpu.gpus_per_node
    rules: list[str] = []
    asked = [f"hardware.gpusPerReplica {num_gpus}"] if num_gpus else []
    if sizes != ANY_SIZES:
        asked.append(f"hardware.parallelism {sizes}")
    gpus, beyond = count_of(per_node, "GPU"), f"or of tensor {per_node} beyond one"
    if num_gpus and num_gpus > per_node and num_gpus % per_node:
        rules.append(f"no whole number of nodes of {gpus}")
    split = next(_splits(request), None)
    if split is None and sizes != ANY_SIZES:
        rules.append(f"no split within a node of {gpus}, {beyond}, has these")
    split = split or Parallelism(tensor=num_gpus or sizes.tensor or 1)
    if broken := dict.fromkeys(_refusals(request, split)):
        rules.append(f"{', and '.join(broken)} of {request.shape.name}")
    return f"{' and '.join(asked)}: {', and '.join(rules)}"
