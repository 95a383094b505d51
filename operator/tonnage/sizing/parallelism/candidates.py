"""Which splits of a model over GPUs are worth a try."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from tonnage.api.hardware import MOST_GPUS, ParallelSizes
from tonnage.catalog.shape import ModelShape, MoeFfn, WeightFormat
from tonnage.sizing.parallelism.rules import broken_rules, has_whole_experts
from tonnage.sizing.request import ANY_SIZES
from tonnage.sizing.split import Nodes, Parallelism, kv_is_replicated
from tonnage.units import count_of

FACTORS = (1, 2, 4, 8, 16, 32)
"""GPUs of a replica that are tried beyond a node: times the sizes that are given."""


def candidates(
    shape: ModelShape,
    weights: WeightFormat,
    *,
    num_gpus: int | None,
    nodes: Nodes,
    sizes: ParallelSizes = ANY_SIZES,
) -> Iterator[Parallelism]:
    """Yield the valid splits to try, smallest first; within a node tensor parallel comes first.

    Within a node a replica may have any number of GPUs: three stages of two GPUs serve what takes
    more than four, and leave two to others. A model whose cache is replicated under tensor
    parallelism is also tried with data-parallel attention, and with decode context parallelism
    where the engine has it. Beyond one node, whole nodes are pipeline stages; where it is known
    what the link between nodes moves, data-parallel ranks too. Sizes that are given are those of
    every split.
    """
    for split in _splits(num_gpus, nodes.num_gpus, shape, sizes):
        if next(_refusals(shape, weights, split, sizes, nodes), None) is None:
            yield split


def _splits(
    num_gpus: int | None, gpus_per_node: int, shape: ModelShape, sizes: ParallelSizes
) -> Iterator[Parallelism]:
    numbers = [num_gpus] if num_gpus else _numbers_of_gpus(sizes, gpus_per_node)
    for number in numbers:
        for split in _splits_of(number, gpus_per_node, shape, sizes.data):
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


def _refusals(
    shape: ModelShape,
    weights: WeightFormat,
    split: Parallelism,
    sizes: ParallelSizes,
    nodes: Nodes,
) -> Iterator[str]:
    yield from broken_rules(shape, weights, split)
    if nodes.separate(split):
        needs_link = shape.has_experts and not nodes.has_link
        yield from _refusals_beyond_node(split, nodes, needs_link=needs_link)
    if sizes.expert is False and has_whole_experts(shape, weights, split):
        yield f"expert: false does not go with {split}, whose ranks hold whole experts"
    if split.data > 1 and not (shape.has_experts or kv_is_replicated(shape, split.num_gpus)):
        needs = "experts or a cache that TP copies"
        yield f"DP {split.data} needs {needs}: use replicas for the layers"


def _refusals_beyond_node(split: Parallelism, nodes: Nodes, *, needs_link: bool) -> Iterator[str]:
    of_rank = split.num_gpus // split.data
    node = f"a node of {count_of(nodes.num_gpus, 'GPU')}"
    if split.num_gpus % nodes.num_gpus or nodes.num_gpus % of_rank:
        gpus = count_of(of_rank, "GPU")
        yield f"DP {split.data} x {gpus} fills no whole number of nodes, each {node}"
    if needs_link:
        yield f"DP {split.data} exceeds {node}: set hardware.nodeLink, what a GPU moves beyond it"


def explain_no_candidate(
    shape: ModelShape,
    weights: WeightFormat,
    *,
    num_gpus: int | None,
    nodes: Nodes,
    sizes: ParallelSizes = ANY_SIZES,
) -> str:
    """Say which rules refuse the GPUs, or the sizes, that are asked for."""
    rules: list[str] = []
    asked = [f"hardware.gpusPerReplica {num_gpus}"] if num_gpus else []
    if sizes != ANY_SIZES:
        asked.append(f"hardware.parallelism {sizes}")
    gpus = count_of(nodes.num_gpus, "GPU")
    node = f"a node of {gpus}"
    if num_gpus and num_gpus > nodes.num_gpus and num_gpus % nodes.num_gpus:
        rules.append(f"no whole number of nodes of {gpus}")
    split = next(_splits(num_gpus, nodes.num_gpus, shape, sizes), None)
    if split is None and sizes != ANY_SIZES:
        rules.append(f"no split within {node}, or of tensor {nodes.num_gpus} beyond one, has these")
    split = split or Parallelism(tensor=num_gpus or sizes.tensor or 1)
    if broken := dict.fromkeys(_refusals(shape, weights, split, sizes, nodes)):
        rules.append(f"{', and '.join(broken)} of {shape.name}")
    return f"{' and '.join(asked)}: {', and '.join(rules)}"
