"""What of a shared prefix an engine finds again beside layers with a state: whole, long blocks."""

from dataclasses import replace

from tonnage.catalog.engine import CacheRules
from tonnage.catalog.shape import StateAttention
from tonnage.memoize import memoize
from tonnage.sizing.memory.layout import cache_layout, default_block_tokens
from tonnage.sizing.parallelism.kv import kv_shares
from tonnage.sizing.provenance import Figure, Input, Origin, lengths_inputs, without_figures
from tonnage.sizing.request import SizingRequest
from tonnage.sizing.split import Parallelism
from tonnage.sizing.switches import PREFIX_STATE_BLOCKS

PART_OF_A_TOKEN = 1e-6
"""By which a share of a prompt may miss a whole block for its digits alone."""


@memoize
def with_whole_blocks(request: SizingRequest) -> SizingRequest:
    """Return the request with the share of prompts that layers with a state let engines reuse.

    A state is kept at the ends of blocks, which are as long as holds it in a page of attention:
    784 tokens for Qwen3.6-27B. What prompts share is found in whole blocks, and not at all where
    the version caches no states by itself. Blocks of one GPU count; those of split heads are no
    longer. Engines with the role decode get their cache otherwise.

    Sources:
        [vllm-source] v1/core/sched/scheduler.py _mamba_block_aligned_split; config/model.py
        is_prefix_caching_supported: hybrids since 0.27, by default since 0.28
        (engine/arg_utils.py). vllm-project/vllm issue 36010: 369 shared tokens of 370 gain nothing.
    """
    workload, prompt = request.workload, request.workload.prompt.mean_tokens
    if not request.shape.has_kind(StateAttention) or not workload.cached_fraction:
        return request
    if request.role == "decode":
        return request
    shared = prompt * workload.cached_fraction
    rules = request.switches.rules(request.engine.constants.cache)
    if rules.state_blocks < PREFIX_STATE_BLOCKS:
        reused, why = 0.0, f"vLLM {request.engine.minor} caches no states by itself"
    else:
        block = _block_tokens(request, rules)
        reused = (shared + PART_OF_A_TOKEN) // block * block
        why = f"found in whole blocks of {block} tokens"
    text = f"{reused:,.0f} of {shared:,.0f} shared tokens of a mean prompt are reused: {why}"
    workload = replace(workload, cached_fraction=min(workload.cached_fraction, reused / prompt))
    given = [each.origin for each in request.inputs if each.figure is Figure.LENGTHS]
    found = Input(figure=Figure.PREFIX, value=text, origin=Origin.LOOKED_UP)
    lengths = (*lengths_inputs(workload, given[0] if given else Origin.GIVEN), found)
    others = without_figures(request.inputs, Figure.LENGTHS, Figure.SPREAD)
    return replace(request, workload=workload, inputs=(*lengths, *others))


def _block_tokens(request: SizingRequest, rules: CacheRules) -> int:
    shares = kv_shares(
        request.shape,
        kv_element_bytes=request.kv_element_bytes,
        parallelism=Parallelism(),
        rules=rules,
        cache=request.cache,
    )
    block_tokens = default_block_tokens(request.shape, request.switches.block_tokens)
    return cache_layout(tuple(shares), block_tokens=block_tokens, rules=rules).block_tokens
