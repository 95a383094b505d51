"""Whether an engine starts under its flags: what vLLM checks after it has loaded, in our figures.

Certain is what no pool of the estimated range survives. What some do is near the edge.
"""

import math
import sys
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from tonnage.catalog.engine import KnownEngine, parse_version
from tonnage.sizing.memory.ceiling import GRAPHS, MemoryBudget
from tonnage.sizing.memory.layout import CacheLayout
from tonnage.sizing.request import Flags
from tonnage.units import count_of, format_bytes

STATES_CHECKED_SINCE: Final = (0, 20)
"""Earlier versions capture fewer CUDA graphs in place of a refusal."""
GRAPHS_WITH_ADAPTERS: Final = 2
"""Times as many graphs are captured with LoRA: each with adapters and without."""
MEASURED_LAYERS: Final = 32
"""Of the models whose CUDA graphs are the figure of the catalogue, as a rule."""
PERCENT: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class StartDoubt:
    """One check that may end a start, with the one change that helps."""

    code: Literal["WillNotStart", "MayNotStart"]
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFigures:
    """What the checks of one engine are about."""

    engine: KnownEngine
    budget: MemoryBudget
    layout: CacheLayout
    flags: Flags
    pool_range_bytes: tuple[float, float]
    """Within which the cache of a rank lies nine times in ten."""
    captures_decode: bool
    """Full CUDA graphs of decode steps are captured."""
    context_tokens: int
    num_layers: int
    """Of the model."""
    has_adapters: bool = False
    are_chosen: bool = False
    """The flags are Tonnage's choice: what to change are fields of a spec."""

    @property
    def checks_states(self) -> bool:
        """Whether the engine refuses more slots than its cache has blocks for states."""
        is_checked = parse_version(self.engine.minor) >= STATES_CHECKED_SINCE
        return self.layout.has_states and self.captures_decode and is_checked

    @property
    def blocks_range(self) -> tuple[int, int]:
        low, high = (int(size // self.layout.bytes_per_block) for size in self.pool_range_bytes)
        return max(0, low), max(0, high)

    def blocks_reserved(self, tokens: int) -> int:
        batched, pipeline = self.flags.max_num_batched_tokens, self.flags.parallelism.pipeline
        in_flight = self.layout.in_flight_tokens(batched, pipeline)
        return self.layout.blocks_reserved(tokens, in_flight_tokens=in_flight)


def start_doubts(figures: StartFigures) -> Iterator[StartDoubt]:
    """Yield what may end a start, what is certain first."""
    yield from _length(figures)
    yield from _states(figures)
    yield from _graphs(figures)


def most_startable_seqs(figures: StartFigures) -> int:
    """Return the slots with which the engine starts though the cache is at its low end."""
    return max(1, figures.blocks_range[0]) if figures.checks_states else sys.maxsize


def _states(figures: StartFigures) -> Iterator[StartDoubt]:
    """Say that slots exceed the blocks for states, of which each decoding sequence needs one.

    Sources:
        [vllm-source] config/compilation.py resolve_cudagraph_mode_and_sizes, from 0.20.0 on;
        adjust_cudagraph_sizes_for_mamba_cache of 0.18.0 and 0.19.0.
    """
    least, most = figures.blocks_range
    seqs = figures.flags.max_num_seqs
    if not figures.checks_states or seqs <= least:
        return
    is_certain = seqs > most
    budget = figures.budget
    blocks = max(0, int(budget.kv_pool_bytes // figures.layout.bytes_per_block))
    expected = count_of(blocks, "state block")
    span = f" ({least} to {most})" if least < most else ""
    verbs = ("exceeds", "will not start") if is_certain else ("may exceed", "then does not start")
    cures = [f"set --max-num-seqs to at most {least}"] if least else []
    whole = figures.pool_range_bytes[1] + budget.total_bytes - budget.usable_bytes
    if not budget.given_pool and whole >= seqs * figures.layout.bytes_per_block:
        cures.append("raise --gpu-memory-utilization")
    yield StartDoubt(
        code="WillNotStart" if is_certain else "MayNotStart",
        message=f"--max-num-seqs {seqs} {verbs[0]} the {expected} of the KV cache"
        f"{span}: vLLM {figures.engine.minor} {verbs[1]}; "
        f"{', or '.join(cures) or 'raise the number of GPUs of a replica'}",
    )


def _length(figures: StartFigures) -> Iterator[StartDoubt]:
    """Say that the cache may be too small for one request of the maximum length.

    Sources:
        [vllm-source] v1/core/kv_cache_utils.py _check_enough_kv_cache_memory.
    """
    context, (least, highest) = figures.context_tokens, figures.blocks_range
    needed = figures.blocks_reserved(context)
    if least >= needed:
        return
    most = bisect_right(range(1, context), least, key=figures.blocks_reserved)
    is_certain = highest < needed
    missing = needed - (highest if is_certain else least)
    short = format_bytes(missing * figures.layout.bytes_per_block)
    verbs = ("is", "does not start") if is_certain else ("may be", "then does not start")
    flag = "contextLength" if figures.are_chosen else "--max-model-len"
    cure = f"set {flag} to at most {most}" if most else "raise the number of GPUs of a replica"
    yield StartDoubt(
        code="WillNotStart" if is_certain else "MayNotStart",
        message=f"the KV cache {verbs[0]} {short} short of one request of {context} tokens: vLLM "
        f"{figures.engine.minor} {verbs[1]}; {cure}",
    )


def _graphs(figures: StartFigures) -> Iterator[StartDoubt]:
    """Say that CUDA graphs may take more than the pool leaves: they are captured after it.

    Of graphs whose estimate the engine takes off its pool, what that may be short by; of others,
    all of them, which grow with the layers. What kernels take that are timed at the start is not
    counted: no formula for it is known.

    Sources:
        [vllm-source] v1/worker/gpu_worker.py compile_or_warm_up_model: graphs, then the sampler,
        beside the whole cache. [kv-logs] 0.40 to 1.03 GiB where 0.30 to 0.58 were estimated; 0.98
        of 32 layers and 1.87 of 64 where nothing was.
    """
    budget = figures.budget
    part = next((each for each in budget.parts if each.name == GRAPHS), None)
    uncounted_bytes = part.uncounted_bytes if part else 0.0
    outside_bytes = budget.unused_bytes + uncounted_bytes
    times = GRAPHS_WITH_ADAPTERS if figures.has_adapters else 1
    num_layers = figures.num_layers / figures.flags.parallelism.pipeline
    deeper = max(1.0, num_layers / MEASURED_LAYERS)
    graphs_bytes = times * (part.spread_bytes + deeper * uncounted_bytes) if part else 0.0
    short_bytes = graphs_bytes - outside_bytes
    if not graphs_bytes or short_bytes <= 0:
        return
    lower = budget.utilization_fraction - short_bytes / budget.total_bytes
    share = math.floor(lower * PERCENT) / PERCENT
    cure = f"set --gpu-memory-utilization to at most {share:g}, or --enforce-eager"
    if budget.given_pool:
        cure = f"give a cache that is {format_bytes(short_bytes)} smaller, or --enforce-eager"
    if figures.are_chosen:
        cure = 'add "--enforce-eager" to engine.args'
    yield StartDoubt(
        code="MayNotStart",
        message=f"{format_bytes(max(0.0, outside_bytes))} remain outside the KV cache, CUDA "
        f"graphs may take {format_bytes(graphs_bytes)}, {format_bytes(short_bytes)} too much; "
        f"{cure}",
    )
