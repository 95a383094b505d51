"""What of a shared prefix an engine finds again beside layers with a state: whole, long blocks."""

from dataclasses import replace

from tonnage.catalog.engine import CacheRules, parse_version
from tonnage.catalog.shape import StateAttention
from tonnage.memoize import memoize
from tonnage.sizing.memory.layout import cache_layout, default_block_tokens
from tonnage.sizing.options import PREFIX_STATE_BLOCKS
from tonnage.sizing.parallelism.kv import kv_shares
from tonnage.sizing.provenance import Figure, Input, Origin, lengths_inputs, without_figures
from tonnage.sizing.request import SizingRequest
from tonnage.sizing.split import Parallelism

PART_OF_A_TOKEN = 1e-6
"""By which a share of a prompt may miss a whole block for its digits alone."""
SINCE_LOOKAHEAD = (0, 33)


@memoize
def with_whole_blocks(request: SizingRequest) -> SizingRequest:
    """Return the request with the share of prompts that layers with a state let engines reuse.

    A state is kept at the ends of blocks, which are as long as holds it in a page of attention:
    784 tokens for Qwen3.6-27B. What prompts share is found in whole blocks, and not at all where
    the version caches no states by itself. Blocks of one GPU count; those of split heads are no
    longer. Engines with the role decode get their cache otherwise. Where draft layers read the
    token behind a block, the last block found is dropped; since 0.33 that token must be shared too,
    but where caches are moved.

    Sources:
        [vllm-source] v1/core/sched/scheduler.py _mamba_block_aligned_split; config/model.py
        is_prefix_caching_supported: hybrids since 0.27, by default since 0.28
        (engine/arg_utils.py); config/speculative.py use_eagle_block_drop, config/vllm.py
        num_hash_lookahead_tokens. vllm-project/vllm issue 36010: 369 shared of 370 gain nothing.
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
        dropped, ahead = _behind_drafts(request)
        blocks = (shared - ahead + PART_OF_A_TOKEN) // block - dropped
        reused = max(0.0, blocks) * block
        why = f"found in whole blocks of {block} tokens"
        if dropped:
            why = f"{why}, the last of which MTP drops"
    text = f"{reused:,.0f} of {shared:,.0f} shared tokens of a mean prompt are reused: {why}"
    workload = replace(workload, cached_fraction=min(workload.cached_fraction, reused / prompt))
    given = [each.origin for each in request.inputs if each.figure is Figure.LENGTHS]
    found = Input(figure=Figure.PREFIX, value=text, origin=Origin.LOOKED_UP)
    lengths = (*lengths_inputs(workload, given[0] if given else Origin.GIVEN), found)
    others = without_figures(request.inputs, Figure.LENGTHS, Figure.SPREAD)
    return replace(request, workload=workload, inputs=(*lengths, *others))


def _behind_drafts(request: SizingRequest) -> tuple[int, int]:
    """Return the blocks that are dropped for draft layers, and the tokens that these read behind.

    Sources:
        [vllm-source] config/vllm.py num_prefill_lookahead_tokens: one, but for models with several
        draft modules, where it may be as many as are drafted.
    """
    drafts = request.speculation
    if drafts is None or drafts.method != "mtp":
        return 0, 0
    is_dropped = request.is_within_node or parse_version(request.engine.minor) < SINCE_LOOKAHEAD
    return (1, 0) if is_dropped else (0, 1)


def _block_tokens(request: SizingRequest, rules: CacheRules) -> int:
    shares = kv_shares(request.shape, cache=request.cache, parallelism=Parallelism(), rules=rules)
    block_tokens = default_block_tokens(request.shape, request.switches.block_tokens)
    return cache_layout(tuple(shares), block_tokens=block_tokens, rules=rules).block_tokens
