"""One step of the product's engine, set up by hand: what its figures say that it takes."""

from builders import a_sizing_request
from tonnage.catalog.engine_speed import prior_speed
from tonnage.catalog.gpu import built_in_gpus, find_gpu
from tonnage.catalog.models import built_in_model
from tonnage.engine.core import Engine
from tonnage.engine.limits import EngineLimits
from tonnage.engine.table import RequestTable
from tonnage.sizing.parallelism.draft import rank_of
from tonnage.sizing.split import Parallelism
from tonnage.sizing.step_time.model import StepTimeModel, step_costs
from tonnage.sizing.step_time.speeds import speeds

LONGEST = 200_000
ONE_GPU = Parallelism()


def a_catalog_model(name, *, gpu="H100", split=ONE_GPU, **changes):
    """The step-time model of a built-in model, with the constants before any is learned."""
    shape, found = built_in_model(name), find_gpu(gpu, built_in_gpus())
    request = a_sizing_request(
        shape=shape,
        gpu=found,
        weights=shape.weight_format,
        kv_format=shape.kv_cache_format,
        speed=prior_speed(found, shape.weight_format),
        **changes,
    )
    return StepTimeModel(
        shard=rank_of(request, split),
        speeds=speeds(found, shape.weight_format.compute),
        constants=request.speed,
        speculation=request.speculation,
    )


def engine_step_s(model, contexts=(), *, prompts=(), budget_tokens=8192, max_num_seqs=None):
    """Return what the engine takes for sequences of these contexts, beside whole new prompts.

    The prompts are submitted one after another: each goes to the rank with the least to do.
    """
    speculation = model.speculation
    slots = max_num_seqs or len(contexts) + len(prompts)
    limits = EngineLimits(
        max_num_seqs=slots,
        max_num_batched_tokens=budget_tokens,
        num_blocks=slots * LONGEST,
        block_size=16,
        max_model_len=LONGEST,
        num_draft_tokens=speculation.num_draft_tokens if speculation else 0,
        acceptance_rate=speculation.acceptance_rate if speculation else 0.0,
        num_ranks=model.dp_size,
    )
    # A sequence has its first token when the next step begins.
    before = [context - 1 for context in contexts]
    lengths = [*before, *prompts]
    table = RequestTable(
        lengths,
        [100] * len(lengths),
        [tokens - 1 for tokens in before] + [0] * len(prompts),
        [0.0] * len(lengths),
    )
    costs = step_costs(model, max_num_seqs=slots, max_batched_tokens=budget_tokens)
    engine = Engine(limits, costs, table, 0)
    for number in range(len(contexts)):
        engine.submit(number)
    if contexts:
        engine.step()
    for number in range(len(contexts), len(lengths)):
        engine.submit(number)
    return engine.step()
