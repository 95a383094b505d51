"""What the profile run of an engine peaks with: encoder, forward pass or sampler."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from tonnage.catalog.parameters import WIDE_BYTES
from tonnage.catalog.shape import DenseFfn, Ffn, ModelShape, MoeFfn
from tonnage.sizing.memory.ceiling import (
    BudgetPart,
    expert_workspace_bytes,
    forward_peak_bytes,
    hidden_bytes,
    logits_bytes,
)
from tonnage.sizing.memory.graphs import Server
from tonnage.sizing.request import Flags

COUNTS_PER_LOGIT = 1 + 1 / 32
"""A count of 32 bits per slot and token of the vocabulary, and a bit: v1/worker/gpu/sample."""
ENCODER_SPREAD = 0.25
"""Of the peak of an encoder: its input, positions and what its kernels hold are not counted."""
HIDDEN_COPIES = 2
"""Hidden states that the sampler's dummy run finds in memory, and that the first kernel makes."""


def activations_part(shape: ModelShape, flags: Flags, server: Server) -> BudgetPart:
    """Return the peak of the profile run: of the encoder, or of the sampler or the pass after it.

    Or of a kernel that is timed while the pass is compiled. Some samplers need few copies of the
    logits, and where images are not served their encoder is not run. The second runner counts the
    tokens of every slot, for penalties, from the start on.
    """
    memory, constants = server.engine.memory, server.engine.constants
    terms = activation_terms(shape, flags, memory.expert_workspace)
    copies, least_copies, counts = memory.sampler_factor, memory.least_sampler_copies, 0.0
    runner = server.runner_of(shape)
    if runner:
        copies = replace(copies, value=runner.sampler_copies)
        least_copies = runner.least_sampler_copies
        counts = terms.logits_bytes * COUNTS_PER_LOGIT
    are_counted = runner is None or runner.counts_buffers
    least = least_copies * terms.logits_bytes + terms.beside_sampler_bytes
    sampler = copies.value * terms.logits_bytes + terms.beside_sampler_bytes
    forward = memory.forward_factor.value * terms.forward_bytes
    is_timed = constants.benchmarks_kernels and not server.is_eager
    kernel = terms.kernel_bytes if is_timed else 0.0
    text = max(sampler, forward, kernel)
    spread = memory.forward_factor.spread * terms.forward_bytes
    if text == sampler:
        spread = copies.spread * terms.logits_bytes
    encoder, images = encoder_peak_bytes(shape, flags), encoder_output_bytes(shape, flags)
    peak = max(encoder, text + images)
    less = peak - max(least, forward)
    cause = "a sampler that needs less" if text == sampler else "kernels compiled before"
    if images and peak - text > text - max(least, forward):
        cause = "the profile run of its encoder"
    return BudgetPart(
        name="activations",
        num_bytes=peak + (counts if are_counted else 0),
        uncounted_bytes=0 if are_counted else counts,
        spread_bytes=max(spread, ENCODER_SPREAD * encoder if encoder > text + images else 0.0),
        less_bytes=less,
        cause=cause if less > spread else "",
    )


def encoder_peak_bytes(shape: ModelShape, flags: Flags) -> float:
    """Return what the encoder of images holds while it is profiled; 0: there is none.

    Sources:
        [vllm-source] multimodal/encoder_budget.py, v1/worker/gpu/model_runner.py profile_run.
    """
    split_bytes = shape.encoder_split_token_bytes / flags.parallelism.tensor
    return _encoder_tokens(shape, flags) * (shape.encoder_token_bytes + split_bytes)


def encoder_output_bytes(shape: ModelShape, flags: Flags) -> float:
    """Return what the encoder makes, which stays until the pass of the text part is over."""
    return _encoder_tokens(shape, flags) * shape.hidden_size * WIDE_BYTES


def _encoder_tokens(shape: ModelShape, flags: Flags) -> int:
    """Return the tokens of the profile run: one largest image, or as many as the budget holds."""
    if not shape.encoder_token_bytes:
        return 0
    item = max(1, shape.encoder_item_tokens)
    return item * max(1, flags.max_num_batched_tokens // item)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationTerms:
    """What the profile run of an engine may peak with."""

    logits_bytes: float
    """One copy of the logits of every slot."""
    beside_sampler_bytes: float
    """Two hidden states, and the buffers of fused experts where the engine keeps them."""
    forward_bytes: float
    """Of a pass over the whole token budget."""
    kernel_bytes: float
    """Of timing the first kernel, which looks tokens up and norms them: a copy of the rank's part
    of the table, and both results. An engine that finds its kernels compiled does without."""


def activation_terms(shape: ModelShape, flags: Flags, expert_workspace: str) -> ActivationTerms:
    """Return the peaks of sampler, forward pass and timed kernel, before any constant.

    Experts in narrow formats have kernels with small buffers of their own.
    """
    tokens = flags.max_num_batched_tokens
    workspace = 0.0
    if expert_workspace != "none":
        workspace = expert_workspace_bytes(
            shape, batched_tokens=tokens, tensor=flags.parallelism.tensor
        )
    is_wide = shape.weight_format.part_bytes_per_parameter("experts") == WIDE_BYTES
    is_kept = expert_workspace == "kept" and is_wide
    hidden = hidden_bytes(batched_tokens=tokens, hidden_size=shape.hidden_size)
    table = shape.vocab_size * shape.hidden_size * WIDE_BYTES
    return ActivationTerms(
        logits_bytes=logits_bytes(max_num_seqs=flags.max_num_seqs, vocab_size=shape.vocab_size),
        beside_sampler_bytes=HIDDEN_COPIES * hidden + (workspace if is_kept else 0),
        forward_bytes=max(
            workspace + _pass_bytes(shape, flags, _shared_width),
            _pass_bytes(shape, flags, _dense_width),
        ),
        kernel_bytes=table / flags.parallelism.tensor + HIDDEN_COPIES * hidden,
    )


def _pass_bytes(shape: ModelShape, flags: Flags, width: Callable[[Ffn | None], int]) -> float:
    return forward_peak_bytes(
        batched_tokens=flags.max_num_batched_tokens,
        intermediate_size=max(width(group.ffn) for group in shape.groups),
        hidden_size=shape.hidden_size,
        tensor=flags.parallelism.tensor,
    )


def _dense_width(ffn: Ffn | None) -> int:
    return ffn.intermediate_size if isinstance(ffn, DenseFfn) else 0


def _shared_width(ffn: Ffn | None) -> int:
    return ffn.shared_intermediate_size if isinstance(ffn, MoeFfn) else 0
