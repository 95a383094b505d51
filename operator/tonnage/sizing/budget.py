"""The memory budget and the speeds of a question's GPU, from the catalogue's figures."""

from tonnage.catalog.gpu import Gpu
from tonnage.catalog.shape import DenseFfn, ModelShape
from tonnage.sizing.memory import MemoryBudget, forward_peak_bytes, sampler_peak_bytes
from tonnage.sizing.question import Flags, Question
from tonnage.sizing.shard import Shard
from tonnage.sizing.step import Speeds


def memory_budget(question: Question, shard: Shard, flags: Flags) -> MemoryBudget:
    """Return where the memory of the fullest GPU goes; textbook: nominal, weights only."""
    gpu, constants = question.gpu, question.engine.constants
    if question.is_textbook:
        return MemoryBudget(
            total_bytes=gpu.nominal_memory_bytes,
            utilization_fraction=flags.gpu_memory_utilization,
            weights_bytes=shard.weights_bytes,
            activation_bytes=0,
            non_torch_bytes=0,
            graphs_bytes=0,
        )
    tensor = flags.parallelism.tensor
    # The large buffers of spread engines are NVLink's (symmetric memory): PCIe nodes show none.
    is_spread = tensor * flags.parallelism.data > 1 and gpu.interconnect == "nvlink"
    return MemoryBudget(
        total_bytes=gpu.memory_bytes,
        utilization_fraction=flags.gpu_memory_utilization,
        weights_bytes=shard.weights_bytes,
        activation_bytes=max(
            sampler_peak_bytes(
                factor=constants.sampler_peak_factor,
                max_num_seqs=flags.max_num_seqs,
                vocab_size=question.shape.vocab_size,
            ),
            forward_peak_bytes(
                batched_tokens=flags.max_num_batched_tokens,
                intermediate_size=widest_ffn(question.shape),
                hidden_size=question.shape.hidden_size,
                tensor=tensor,
            ),
        ),
        non_torch_bytes=(
            constants.non_torch_tensor_bytes if is_spread else constants.non_torch_bytes
        ),
        graphs_bytes=constants.graph_bytes,
    )


def widest_ffn(shape: ModelShape) -> int:
    """Return the feed-forward width that one token passes, in its widest layer."""
    return max(
        group.ffn.intermediate_size
        if isinstance(group.ffn, DenseFfn)
        else group.ffn.experts_per_token * group.ffn.expert_intermediate_size
        + group.ffn.shared_intermediate_size
        for group in shape.groups
    )


def speeds(gpu: Gpu, precision: str) -> Speeds:
    """Return what a GPU class can do for weights of this precision."""
    return Speeds(
        memory_bytes_per_s=gpu.memory_bytes_per_s,
        peak_flop_per_s=gpu.flop_per_s(precision),
        interconnect_bytes_per_s=gpu.interconnect_bytes_per_s,
    )
