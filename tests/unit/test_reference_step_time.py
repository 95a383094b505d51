"""The step time that the references ask for is the product's formula."""

import random

import numpy as np
import pytest
from capacity_grid import replica_of
from questions import catalog_request

from reference_engine import Batch
from reference_fast import step_s
from reference_step_time import curve, figures, formula, limits_of
from tonnage.sizing.options import Speculation
from tonnage.sizing.split import Parallelism
from tonnage.sizing.workload import Lengths, Workload

LONGEST = 8192
WORKLOAD = Workload(prompt=Lengths(mean_tokens=1000), output_tokens=200)
REPLICAS = (
    ("Llama-3.1-8B-Instruct", "H100", Parallelism()),
    ("Llama-3.3-70B-Instruct", "H100", Parallelism(tensor=4)),
    ("Mixtral-8x7B-Instruct-v0.1", "H100", Parallelism(tensor=2)),
    ("gpt-oss-120b", "H100", Parallelism()),
    ("gemma-3-27b-it", "H100", Parallelism()),
    ("Qwen3-Next-80B-A3B-Instruct", "H100", Parallelism(tensor=4)),
    ("DeepSeek-V3.2", "H200", Parallelism(tensor=8)),
    ("DeepSeek-V3", "H200", Parallelism(data=8)),
)


def a_replica(model, gpu, split, **changes):
    request = catalog_request(model, gpu, WORKLOAD, context_tokens=LONGEST)
    return replica_of(request, split, **changes)


def a_batch(contexts=(), chunks=()):
    return Batch(budget_tokens=0, contexts=list(contexts), chunks=list(chunks))


@pytest.fixture(params=REPLICAS, ids=lambda each: f"{each[0]} {each[2]}")
def replica(request):
    return a_replica(*request.param)


def test_ranks_with_sequences_alike_take_the_step_of_the_formula(replica):
    found, exact, chance = figures(replica, LONGEST), formula(replica), random.Random(1)  # noqa: S311
    for _ in range(20):
        context = chance.randint(1, LONGEST)
        batch = a_batch([context] * chance.randint(1, 60))
        batches = [batch] * replica.model.dp_size

        assert step_s(found, batches) == pytest.approx(exact(batches), rel=1e-6)


def test_prompts_beside_them_too(replica):
    found, exact, chance = figures(replica, LONGEST), formula(replica), random.Random(1)  # noqa: S311
    for _ in range(20):
        new = chance.randint(1, 2000)
        # Within the narrowest window all tokens attend to all before them.
        chunk = (0, min(new, 128))
        ranks = [a_batch([500] * 3) for _ in range(replica.model.dp_size)]
        ranks[0] = a_batch([500] * 3, [chunk])

        assert step_s(found, ranks) == pytest.approx(exact(ranks), rel=1e-6)


def test_all_that_is_read_in_proportion_is_the_same_for_sequences_of_any_length():
    replica = a_replica(*REPLICAS[0])
    found, exact, chance = figures(replica, LONGEST), formula(replica), random.Random(1)  # noqa: S311
    for _ in range(20):
        contexts = [chance.randint(1, LONGEST) for _ in range(chance.randint(1, 90))]
        batch = a_batch(contexts, [(chance.randint(0, 2000), chance.randint(1, 2000))])

        assert step_s(found, [batch]) == pytest.approx(exact([batch]), rel=1e-9)


def test_drafts_and_what_is_verified_are_part_of_the_step():
    speculation = Speculation(method="mtp", num_draft_tokens=2, acceptance_rate=0.7)
    replica = a_replica("DeepSeek-V3", "H200", Parallelism(tensor=8), speculation=speculation)
    found, exact = figures(replica, LONGEST), formula(replica)

    for batch in (a_batch([1000] * 7), a_batch([1000] * 7, [(0, 900)])):
        assert step_s(found, [batch]) == pytest.approx(exact([batch]), rel=1e-6)


def test_a_window_is_read_by_each_sequence_up_to_its_own_length():
    found = figures(a_replica(*REPLICAS[4]), LONGEST)
    slope = np.diff(found.attention_s)

    # gemma-3: 52 of 62 layers see 1024 tokens.
    assert slope[2000] / slope[500] == pytest.approx(10 / 62, rel=0.01)
    assert np.allclose(slope[:1023], slope[500])
    assert np.allclose(slope[1025:], slope[2000])


@pytest.mark.parametrize("bends", [(128,), (1, 2048), (127, 128, 129, 1000)])
def test_a_curve_is_exact_wherever_it_bends(bends):
    def of_tokens(tokens):
        return 3 + tokens + sum(min(tokens, bend) for bend in bends)

    assert np.allclose(curve(of_tokens, 5000), [of_tokens(each) for each in range(5001)])


def test_a_hybrid_holds_the_blocks_of_each_kind_of_layer():
    replica = a_replica(*REPLICAS[3])

    limits = limits_of(replica, max_num_seqs=4, max_model_len=LONGEST)

    for tokens in (1, 100, 129, 5000):
        assert limits.blocks_for(tokens) == replica.layout.blocks_held(tokens)
