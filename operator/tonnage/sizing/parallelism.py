"""How a model is split over GPUs, and which splits the engine accepts."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tonnage.catalog.shape import Attention, GroupedAttention, LatentAttention, ModelShape
from tonnage.sizing.errors import InvalidParallelismError


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    """Tensor x pipeline x data parallel sizes of one replica.

    ``data`` is data-parallel attention: each rank owns its own requests and cache, and the
    experts are spread over all ranks.
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1

    @property
    def num_gpus(self) -> int:
        return self.tensor * self.pipeline * self.data

    def __str__(self) -> str:
        parts = {"TP": self.tensor, "PP": self.pipeline, "DP": self.data}
        used = [f"{name}{size}" for name, size in parts.items() if size > 1]
        return " x ".join(used) or "TP1"


def check_parallelism(shape: ModelShape, parallelism: Parallelism) -> None:
    """Refuse what vLLM refuses at start.

    Raises:
        InvalidParallelismError: with the rule and the numbers.

    Sources:
        [vllm-source] config/model.py (heads) and model_executor/models/llama.py (KV heads).
    """
    tensor = parallelism.tensor
    if parallelism.pipeline > shape.num_layers:
        raise InvalidParallelismError(
            f"PP {parallelism.pipeline} exceeds the {shape.num_layers} layers of {shape.name}"
        )
    for _, attention in shape.attentions():
        if attention.num_heads % tensor:
            raise InvalidParallelismError(
                f"TP {tensor} does not divide the {attention.num_heads} attention heads of "
                f"{shape.name}"
            )
        if isinstance(attention, GroupedAttention):
            _check_kv_heads(shape.name, attention.num_kv_heads, tensor)


def _check_kv_heads(name: str, num_kv_heads: int, tensor: int) -> None:
    larger, smaller = max(num_kv_heads, tensor), min(num_kv_heads, tensor)
    if larger % smaller:
        raise InvalidParallelismError(
            f"TP {tensor} and the {num_kv_heads} KV heads of {name} do not divide one another"
        )


def on_rank(attention: Attention, tensor: int) -> Attention:
    """Return the attention that one tensor-parallel rank computes.

    Query heads are split; KV heads too, but never below one, so that beyond their number they
    are replicated. What latent attention compresses is on every rank whole.

    >>> on_rank(GroupedAttention(num_heads=64, num_kv_heads=4, head_dim=128), 8).num_kv_heads
    1
    """
    num_heads = attention.num_heads // tensor
    match attention:
        case GroupedAttention():
            num_kv_heads = max(1, attention.num_kv_heads // tensor)
            return replace(attention, num_heads=num_heads, num_kv_heads=num_kv_heads)
        case LatentAttention():
            return replace(attention, num_heads=num_heads)


def kv_is_replicated(shape: ModelShape, tensor: int) -> bool:
    """Tell whether every tensor-parallel rank stores the whole cache, as it does under MLA."""
    return tensor > 1 and all(isinstance(a, LatentAttention) for _, a in shape.attentions())


def candidates(
    shape: ModelShape, *, num_gpus: int | None, gpus_per_node: int
) -> Iterator[Parallelism]:
    """Yield the valid splits to try, smallest first; within a node tensor parallel comes first.

    A model whose cache is replicated under tensor parallelism is also tried with data-parallel
    attention. Beyond one node, whole nodes are pipeline stages.
    """
    sizes = [num_gpus] if num_gpus else [1, 2, 4, 8, 16, 32]
    for size in sizes:
        for parallelism in _splits(shape, size, gpus_per_node):
            try:
                check_parallelism(shape, parallelism)
            except InvalidParallelismError:
                continue
            yield parallelism


def _splits(shape: ModelShape, num_gpus: int, gpus_per_node: int) -> Iterator[Parallelism]:
    if num_gpus <= gpus_per_node:
        yield Parallelism(tensor=num_gpus)
        if kv_is_replicated(shape, num_gpus):
            yield Parallelism(data=num_gpus)
        yield from (
            Parallelism(tensor=num_gpus // stages, pipeline=stages)
            for stages in range(2, num_gpus + 1)
            if num_gpus % stages == 0
        )
    elif num_gpus % gpus_per_node == 0:
        yield Parallelism(tensor=gpus_per_node, pipeline=num_gpus // gpus_per_node)


def explain_no_candidate(shape: ModelShape, *, num_gpus: int, gpus_per_node: int) -> str:
    """Say which rules refuse this many GPUs."""
    rules = []
    if num_gpus > gpus_per_node and num_gpus % gpus_per_node:
        rules.append(f"no whole number of nodes of {gpus_per_node} GPUs")
    try:
        check_parallelism(shape, Parallelism(tensor=num_gpus))
    except InvalidParallelismError as error:
        rules.append(str(error))
    return f"hardware.gpusPerReplica {num_gpus}: {', and '.join(rules)}"
