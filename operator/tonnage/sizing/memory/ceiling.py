"""The memory ceiling: what is left for the KV cache, and how many requests that holds.

Every figure is for one GPU (rank) unless its name says otherwise.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from tonnage.catalog.cache_types import WIDE_CACHE, CacheType
from tonnage.catalog.engine import EngineVersion, KnownEngine, SecondRunner
from tonnage.catalog.gpu import Gpu
from tonnage.catalog.parameters import WIDE_BYTES
from tonnage.catalog.shape import GroupedAttention, ModelShape, MoeFfn
from tonnage.sizing.request import Flags
from tonnage.units import MIB, format_bytes

LOGIT_BYTES = 4
ACTIVATION_BYTES = 2


def logits_bytes(*, max_num_seqs: int, vocab_size: int) -> float:
    """Return one copy of the logits of every slot, in 32 bits.

    The sampler's dummy run gathers them on every rank, so tensor parallelism does not help.

    Sources:
        [vllm-source] v1/worker/gpu/model_runner.py.

    >>> logits_bytes(max_num_seqs=1024, vocab_size=128_256)
    525336576
    """
    return max_num_seqs * vocab_size * LOGIT_BYTES


def forward_peak_bytes(
    *, batched_tokens: int, intermediate_size: float, hidden_size: int, tensor: int
) -> float:
    """Return the activation peak of a forward pass over a full token budget.

    Both inputs of the gate and their product, and three hidden states::

        batched_tokens * 2 B * (3 * intermediate / tensor + 3 * hidden)

    ``intermediate_size``: of what every token passes; experts have ``expert_workspace_bytes``.

    Sources:
        [kv-logs] 2.07 and 2.99 GiB for 20,000 and 29,000 tokens of Llama 3.1 8B; 2.53 GiB for
        40,000 tokens on two GPUs.
    """
    width = 3 * intermediate_size / tensor + 3 * hidden_size
    return batched_tokens * ACTIVATION_BYTES * width


def expert_workspace_bytes(shape: ModelShape, *, batched_tokens: int, tensor: int) -> float:
    """Return the two buffers that fused experts keep for every token and each of its experts.

    ``tokens * experts_per_token * 2 B * (max(I, H) + max(2 I, H))`` with a rank's width I.

    Sources:
        [vllm-source] model_executor/layers/fused_moe (workspace shapes).
    """
    num_bytes, hidden = 0.0, shape.hidden_size
    for ffn in (group.ffn for group in shape.groups if isinstance(group.ffn, MoeFfn)):
        width, in_and_out = ffn.expert_intermediate_size / tensor, ffn.latent_size or hidden
        elements = max(width, in_and_out) + max(2 * width, in_and_out)
        each = batched_tokens * ffn.experts_per_token * ACTIVATION_BYTES * elements
        num_bytes = max(num_bytes, each)
    return num_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetPart:
    """One use of a GPU's memory: the truth lies within ``spread_bytes`` of it nine times in ten.

    Some engines, boards or flags do otherwise: then it is up to ``more_bytes`` larger or up to
    ``less_bytes`` smaller.
    """

    name: str
    num_bytes: float
    spread_bytes: float = 0.0
    more_bytes: float = 0.0
    less_bytes: float = 0.0
    cause: str = ""
    """Of the latter two, for people."""
    uncounted_bytes: float = 0.0
    """What the engine holds beside this, and does not take off the cache."""

    @property
    def above_bytes(self) -> float:
        return max(self.spread_bytes, self.more_bytes)

    @property
    def below_bytes(self) -> float:
        return max(self.spread_bytes, self.less_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenPool:
    """A cache whose size a flag of the engine says, whatever is left beside the rest."""

    flag: str
    """With its value, as on the command line."""
    num_bytes: float
    """Of the whole blocks that it comes to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBudget:
    """Where the memory of the fullest GPU goes, in bytes."""

    total_bytes: float
    utilization_fraction: float
    parts: tuple[BudgetPart, ...]
    """All that the engine holds beside the cache, weights first."""
    total_spread_bytes: float = 0.0
    """By which boards of a class differ, and drivers."""
    total_more_bytes: float = 0.0
    """By which some drivers report more."""
    given_pool: GivenPool | None = None
    """None: the cache is what the rest leaves of the usable memory."""

    @property
    def usable_bytes(self) -> float:
        return self.total_bytes * self.utilization_fraction

    @property
    def unused_bytes(self) -> float:
        """What the engine leaves alone. Negative: by how much a given cache is too large."""
        uncounted_bytes = sum(part.uncounted_bytes for part in self.parts)
        if self.given_pool:
            held_bytes = self.parts_bytes + uncounted_bytes
            return self.total_bytes - held_bytes - self.given_pool.num_bytes
        return self.total_bytes - self.usable_bytes - uncounted_bytes

    @property
    def kv_pool_bytes(self) -> float:
        """What is left for the cache. Negative: by how much the rest does not fit."""
        if self.given_pool:
            return self.given_pool.num_bytes
        return self.usable_bytes - self.parts_bytes

    @property
    def kv_pool_spread_bytes(self) -> float:
        """The figures err independently of one another: their spreads add up as squares do.

        A given cache has none: the rest may be more or less, it stays as large.
        """
        return self._doubt_bytes(
            self.total_spread_bytes, (part.spread_bytes for part in self.parts)
        )

    @property
    def kv_pool_low_bytes(self) -> float:
        """The cache where parts may be larger than expected."""
        above = (part.above_bytes for part in self.parts)
        return self.kv_pool_bytes - self._doubt_bytes(self.total_spread_bytes, above)

    @property
    def kv_pool_high_bytes(self) -> float:
        """The cache where parts may be smaller than expected, and the board larger."""
        below = (part.below_bytes for part in self.parts)
        larger = max(self.total_spread_bytes, self.total_more_bytes * self.utilization_fraction)
        return self.kv_pool_bytes + self._doubt_bytes(larger, below)

    def _doubt_bytes(self, of_total: float, of_parts: Iterable[float]) -> float:
        return 0.0 if self.given_pool else math.hypot(of_total, *of_parts)

    @property
    def widest(self) -> BudgetPart | None:
        """What decides the range of the cache; None: the memory of the board, or nothing."""
        parts = [part for part in self.parts if part.above_bytes + part.below_bytes > 0]
        found = max(parts, key=lambda part: part.above_bytes + part.below_bytes, default=None)
        own = self.total_spread_bytes + max(self.total_spread_bytes, self.total_more_bytes)
        if found is None or self.given_pool or found.above_bytes + found.below_bytes < own:
            return None
        return found

    @property
    def parts_bytes(self) -> float:
        return sum(part.num_bytes for part in self.parts)

    def bytes_of(self, name: str) -> float:
        """Return one part's bytes, 0 where it is not in the budget."""
        return sum(part.num_bytes for part in self.parts if part.name == name)

    def __str__(self) -> str:
        is_given = self.given_pool is not None
        held = (
            (part.name, part.num_bytes + is_given * part.uncounted_bytes) for part in self.parts
        )
        parts = [f"{format_bytes(num_bytes)} {name}" for name, num_bytes in held if num_bytes]
        if self.given_pool:
            given = f"{format_bytes(self.given_pool.num_bytes)}, given by {self.given_pool.flag}"
            return f"{given}, beside {', '.join(parts)} in {format_bytes(self.total_bytes)}"
        usable = (
            f"{format_bytes(self.usable_bytes)} usable ({self.utilization_fraction:.0%} of "
            f"{format_bytes(self.total_bytes)})"
        )
        return " - ".join([usable, *parts])


def sequences_held(*, pool_bytes: float, bytes_per_sequence: float) -> float:
    """Return how many sequences the pool holds. Not rounded: callers floor it."""
    return max(0.0, pool_bytes) / bytes_per_sequence


def shortfall(budget: MemoryBudget, *, request_bytes: float, context_tokens: int) -> str | None:
    """Say with the whole budget in numbers why it may not do; None: it does."""
    if budget.given_pool:
        lack = _too_small(budget, request_bytes, context_tokens)
        return lack or (_too_large(budget) if budget.unused_bytes < 0 else None)
    remaining, spread = budget.kv_pool_bytes, budget.kv_pool_spread_bytes
    if remaining < request_bytes:
        left = f"leaves {format_bytes(remaining)} for the KV cache"
        if remaining < 0:
            left = f"is {format_bytes(-remaining)} short before any KV cache"
        return f"{budget} {left}; {_needs(request_bytes, context_tokens)}"
    if remaining <= spread:
        return (
            f"{budget} leaves {format_bytes(remaining)} for the KV cache, but the estimate is off "
            f"by up to {format_bytes(spread)}: there may be none"
        )
    return None


def given_shortfall(
    budget: MemoryBudget, *, request_bytes: float, context_tokens: int
) -> str | None:
    """Say why no engine runs with a given cache, whatever is estimated beside it; None: one does.

    It holds no request of the maximum length, or the GPU cannot hold it.
    """
    lack = _too_small(budget, request_bytes, context_tokens)
    can_hold = budget.kv_pool_bytes <= budget.total_bytes + budget.total_spread_bytes
    return lack if lack or can_hold else _too_large(budget)


def _too_small(budget: MemoryBudget, request_bytes: float, context_tokens: int) -> str | None:
    if budget.kv_pool_bytes >= request_bytes:
        return None
    return f"KV cache of {budget}; {_needs(request_bytes, context_tokens)}"


def _needs(request_bytes: float, context_tokens: int) -> str:
    needed = f"{format_bytes(request_bytes)} of KV cache per GPU"
    return f"one request of {context_tokens} tokens needs {needed}"


def _too_large(budget: MemoryBudget) -> str:
    return f"KV cache of {budget}: {format_bytes(-budget.unused_bytes)} too much"


GRAPHS = "CUDA graphs"

MEASURED_SIZES = 51
"""Of graphs in the logs that their estimate is taken from: 256 slots and more, up to 512 tokens."""
FIRST_SHARE = 0.5
"""Of their spread, at least, where there are few: 4 sizes took 0.11 GiB in one log."""
FLASHINFER_FP8_GENERATIONS = ("ampere", "ada", "blackwell-rtx")
FLASHINFER_BYTES, FLASHINFER_ELEMENT_BYTES = 394 * MIB, 16
SMALLEST_SIZES = (1, 2, 4)
FINE_STEP, COARSE_FROM, COARSE_STEP = 8, 256, 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """What a model runs with, beside its flags."""

    engine: KnownEngine
    gpu: Gpu | None
    """None: a board that is not known."""
    cache: CacheType = WIDE_CACHE.type
    is_eager: bool = False
    """Nothing is compiled, and no graph captured."""
    drafts_by_ngram: bool = False

    def runner_of(self, shape: ModelShape) -> SecondRunner | None:
        return self.engine.runner_of(shape, by_ngram=self.drafts_by_ngram)

    @property
    def generation(self) -> str:
        return self.gpu.generation if self.gpu else ""

    @property
    def has_flashinfer(self) -> bool:
        """Attention with grouped heads runs on FlashInfer where nobody asks for another backend.

        Sources:
            [vllm-source] platforms/cuda.py _get_backend_priorities: FlashAttention goes first but
            on data centre Blackwell, and has caches in fp8 on Hopper only.
        """
        if not self.cache.measured_as:
            return self.cache.has_flashinfer
        is_narrow = self.cache.element_bytes < WIDE_BYTES
        return self.generation == "blackwell" or (
            is_narrow and self.generation in FLASHINFER_FP8_GENERATIONS
        )


def graphs_part(shape: ModelShape, flags: Flags, server: Server) -> BudgetPart:
    """Return the estimate of CUDA graphs, which is a first one and as much again for each other.

    It is measured with as many as a server captures by default; what the first takes of it alone
    is not known. With the first one FlashInfer allocates what its kernels work in. The second
    runner estimated nothing at first: its graphs come out of what the utilization leaves free. No
    log of its own estimate is known: the first runner's is used in its place.

    Sources:
        [vllm-source] v1/worker/gpu_model_runner.py, v1/worker/gpu/model_runner.py
        profile_cudagraph_memory.
    """
    measured, rules = server.engine.memory.graphs_bytes, server.engine.constants
    runner = server.runner_of(shape)
    if not measured.value or server.is_eager:
        return BudgetPart(name=GRAPHS, num_bytes=0.0)
    largest = rules.largest_graph
    if server.generation == "blackwell":
        largest = rules.largest_graph_blackwell or largest
    share = num_graph_sizes(flags, largest) / MEASURED_SIZES
    workspace = flashinfer_workspace_bytes(shape, flags, rules) if server.has_flashinfer else 0.0
    num_bytes = measured.value * share + workspace
    if runner and not runner.estimates_graphs:
        return BudgetPart(name=GRAPHS, num_bytes=0.0, uncounted_bytes=num_bytes)
    return BudgetPart(
        name=GRAPHS, num_bytes=num_bytes, spread_bytes=measured.spread * max(FIRST_SHARE, share)
    )


def num_graph_sizes(flags: Flags, largest: int) -> float:
    """Return for how many numbers of tokens a decode step has a CUDA graph, not rounded.

    1, 2 and 4 tokens, in steps of 8 up to 256, and of 16 beyond.

    Sources:
        [vllm-source] config/vllm.py _set_cudagraph_sizes.
    """
    top = min(flags.max_num_seqs * 2, largest, flags.max_num_batched_tokens)
    smallest = sum(size <= top for size in SMALLEST_SIZES)
    if top < FINE_STEP:
        return smallest
    return smallest + min(top, COARSE_FROM) / FINE_STEP + max(0, top - COARSE_FROM) / COARSE_STEP


def flashinfer_workspace_bytes(shape: ModelShape, flags: Flags, rules: EngineVersion) -> float:
    """Return what its kernels of attention with grouped heads work in; 0: the model has none.

    Sources:
        [vllm-source] v1/attention/backends/flashinfer.py _get_workspace_buffer; envs.py.
    """
    widths = [
        attention.num_heads * attention.head_dim
        for _, attention in shape.attentions()
        if isinstance(attention, GroupedAttention)
    ]
    if not widths:
        return 0.0
    tokens, ranks = flags.max_num_batched_tokens, flags.parallelism.tensor
    wide = tokens * max(widths) / ranks * FLASHINFER_ELEMENT_BYTES
    return max(FLASHINFER_BYTES, wide if rules.widens_flashinfer else 0.0)
