"""Which splits of a model over GPUs are worth a try."""

from collections.abc import Iterator

from tonnage.catalog.shape import ModelShape, WeightFormat
from tonnage.sizing.errors import InvalidParallelismError
from tonnage.sizing.parallelism.rules import broken_rules, check_parallelism
from tonnage.sizing.split import Parallelism, kv_is_replicated


def candidates(
    shape: ModelShape, weights: WeightFormat, *, num_gpus: int | None, gpus_per_node: int
) -> Iterator[Parallelism]:
    """Yield the valid splits to try, smallest first; within a node tensor parallel comes first.

    A model whose cache is replicated under tensor parallelism is also tried with data-parallel
    attention, and with decode context parallelism where the engine has it. Beyond one node, whole
    nodes are pipeline stages.
    """
    sizes = [num_gpus] if num_gpus else [1, 2, 4, 8, 16, 32]
    for size in sizes:
        for parallelism in _splits(shape, size, gpus_per_node):
            try:
                check_parallelism(shape, weights, parallelism)
            except InvalidParallelismError:
                continue
            yield parallelism


def _splits(shape: ModelShape, num_gpus: int, gpus_per_node: int) -> Iterator[Parallelism]:
    if num_gpus <= gpus_per_node:
        yield Parallelism(tensor=num_gpus)
        if kv_is_replicated(shape, num_gpus):
            yield Parallelism(data=num_gpus)
            yield Parallelism(tensor=num_gpus, context=num_gpus)
        yield from (
            Parallelism(tensor=num_gpus // stages, pipeline=stages)
            for stages in range(2, num_gpus + 1)
            if num_gpus % stages == 0
        )
    elif num_gpus % gpus_per_node == 0:
        yield Parallelism(tensor=gpus_per_node, pipeline=num_gpus // gpus_per_node)


def explain_no_candidate(
    shape: ModelShape, weights: WeightFormat, *, num_gpus: int, gpus_per_node: int
) -> str:
    """Say which rules refuse this many GPUs."""
    rules: list[str] = []
    if num_gpus > gpus_per_node and num_gpus % gpus_per_node:
        rules.append(f"no whole number of nodes of {gpus_per_node} GPUs")
    rules += [
        f"{broken} of {shape.name}"
        for broken in broken_rules(shape, weights, Parallelism(tensor=num_gpus))
    ]
    return f"hardware.gpusPerReplica {num_gpus}: {', and '.join(rules)}"
