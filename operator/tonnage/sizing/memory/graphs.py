"""What an engine sets aside for CUDA graphs before it sizes its cache."""

from dataclasses import dataclass

from tonnage.catalog.cache_types import CACHE_TYPES
from tonnage.catalog.engine import EngineVersion, KnownEngine, SecondRunner
from tonnage.catalog.gpu import Gpu
from tonnage.catalog.parameters import WIDE_BYTES
from tonnage.catalog.shape import GroupedAttention, ModelShape
from tonnage.sizing.memory.ceiling import BudgetPart
from tonnage.sizing.request import Flags
from tonnage.units import MIB

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
    kv_element_bytes: float
    kv_format: str = ""
    """A key of ``CACHE_TYPES``. Empty: by ``kv_element_bytes``."""
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
        if self.kv_format and not CACHE_TYPES[self.kv_format].measured_as:
            return CACHE_TYPES[self.kv_format].has_flashinfer
        is_narrow = self.kv_element_bytes < WIDE_BYTES
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
        name=GRAPHS,
        num_bytes=num_bytes,
        spread_bytes=measured.spread * max(FIRST_SHARE, share),
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
