"""The split that is chosen is the one that judging every split would choose."""

import itertools
import random
from contextlib import suppress
from dataclasses import replace

import pytest
from plan_time import request_of

from builders import a_gpu, a_sizing_request, an_slo
from tonnage.catalog.gpu import CatalogError
from tonnage.sizing.compare import best_choice
from tonnage.sizing.contender import contender_of, outline_of
from tonnage.sizing.contest import Contest
from tonnage.sizing.errors import DoesNotFitError, SizingError, SLOInfeasibleError
from tonnage.sizing.parallelism.draft import splits_for
from tonnage.sizing.plan import judged, requests_per_s_asked, size, size_with
from tonnage.sizing.speculation import Speculation
from tonnage.sizing.split import Parallelism
from tonnage.sizing.workload import Demand, Lengths, Promise, Routing, Slo, Workload
from tonnage.units import GB

MODELS = (
    "Llama-3.1-8B-Instruct",
    "Llama-3.3-70B-Instruct",
    "Mixtral-8x7B-Instruct-v0.1",
    "Qwen3-235B-A22B-FP8",
    "Qwen3-Next-80B-A3B-Instruct",
    "DeepSeek-V3",
    "DeepSeek-V4-Flash",
    "gpt-oss-20b",
    "gemma-3-27b-it",
    "Kimi-K2-Instruct",
)
GPUS = ("L4", "A100-80GB", "H100", "H200", "B200", "RTX-4090", "L40S")
NUM_QUESTIONS = 60
TWO, FOUR = Parallelism(tensor=2), Parallelism(tensor=4)


def some_request(number):
    """Return a model on a class, with lengths, promises and a demand as they fall."""
    chance = random.Random(f"contest {number}")  # noqa: S311 -- a scenario has no secrets
    while True:
        with suppress(CatalogError):  # a class without a peak for such weights
            return drawn(chance)


def drawn(chance):
    context = chance.choice((4096, 16_384))
    mean = chance.choice((300, 2000))
    prompt = Lengths(
        mean_tokens=mean, p99_tokens=chance.choice((None, 3 * mean)), longest_tokens=context
    )
    quantile = chance.choice((0.5, 0.95, 0.99))
    promises = [Promise(quantile=quantile, limit_s=chance.choice(each)) for each in LIMITS_S]
    kept = chance.choice(((1, 1), (1, 1), (1, 0), (0, 1), (0, 0)))
    return replace(
        request_of(chance.choice(MODELS), chance.choice(GPUS)),
        workload=Workload(prompt=prompt, output_tokens=chance.choice((50, 400))),
        slo=Slo(ttft=tuple(promises[:1] * kept[0]), tpot=tuple(promises[1:] * kept[1])),
        context_tokens=context,
        demand=chance.choice(DEMANDS),
        max_replicas=chance.choice((None, 1, 8, 64)),
        num_gpus=chance.choice((None, None, None, 8)),
        routing=chance.choice(list(Routing)),
        arrival_scv=chance.choice((1.0, 1.0, 4.0)),
        speculation=chance.choice((None, None, GUESSES)),
    )


GUESSES = Speculation(method="ngram", num_draft_tokens=3, acceptance_rate=0.6)
LIMITS_S = (0.5, 2.0), (0.03, 0.1)
DEMANDS = (
    Demand(),
    Demand(requests_per_s=2.0),
    Demand(requests_per_s=40.0),
    Demand(concurrency=200.0),
)


def split_answers(request, num_gpus):
    """Yield (split, answer or refusal), every split judged for itself."""
    for split in splits_for(request, num_gpus=num_gpus):
        try:
            yield split, size_with(request, split)
        except SizingError as refusal:
            yield split, refusal


def smallest_of_all(request):
    """Return what decisions/0008 asks for, with every split judged."""
    fitting, refusals = [], []
    answers = split_answers(request, request.num_gpus)
    for num_gpus, group in itertools.groupby(answers, key=lambda answer: answer[0].num_gpus):
        if fitting and num_gpus > request.gpu.gpus_per_node:
            break
        same_size = []
        for _, answer in group:
            (refusals if isinstance(answer, SizingError) else same_size).append(answer)
        if not same_size:
            continue
        fitting.append(max(same_size, key=lambda each: each.sustainable_requests_per_s))
        most = request.max_replicas
        if most is None or fitting[-1].replicas <= most:
            return fitting[-1]
    if fitting:
        return max(fitting, key=lambda each: each.sustainable_requests_per_s)
    slow = [refusal for refusal in refusals if isinstance(refusal, SLOInfeasibleError)]
    return (slow or refusals)[-1]


def frugality(request, sizing, min_replicas):
    replicas, num_gpus = max(sizing.replicas, min_replicas), sizing.parallelism.num_gpus
    most = request.max_replicas
    gpus = float(replicas * num_gpus)
    if requests_per_s_asked(sizing) is None:
        gpus = num_gpus / sizing.output_tokens_per_s
    is_beyond = most is not None and replicas > most
    return is_beyond, gpus, num_gpus, -sizing.sustainable_requests_per_s


def told(answer):
    """Return an answer as what can be compared: a plan, or the words of the refusal."""
    return f"{type(answer).__name__}: {answer}" if isinstance(answer, Exception) else answer


def asked(answer):
    try:
        return told(answer())
    except SizingError as refusal:
        return told(refusal)


@pytest.mark.parametrize("number", range(NUM_QUESTIONS))
def test_the_plan_is_that_of_judging_every_split(number):
    request = some_request(number)

    assert asked(lambda: size(request)) == told(smallest_of_all(request))


@pytest.mark.parametrize("number", range(0, NUM_QUESTIONS, 2))
def test_the_most_frugal_split_is_that_of_judging_every_split(number):
    request = replace(some_request(number), num_gpus=None)
    node = request.gpu.gpus_per_node
    served = [
        answer
        for split, answer in split_answers(request, None)
        if split.num_gpus <= node and not isinstance(answer, SizingError)
    ]
    if served:
        expected = min(served, key=lambda each: frugality(request, each, 2))
    else:
        expected = told(smallest_of_all(request))

    assert asked(lambda: best_choice(request, min_replicas=2).sizing) == expected


@pytest.mark.parametrize("number", range(0, NUM_QUESTIONS, 3))
def test_no_stage_promises_less_than_the_next_one_finds(number):
    request = some_request(number)
    for split, answer in split_answers(request, 8):
        if not isinstance(answer, SizingError):
            outline, contender = outline_of(request, split), contender_of(request, split)

            assert outline.most_requests_per_s >= contender.most_requests_per_s
            assert contender.most_requests_per_s >= judged(contender).most_requests_per_s


class TestAContest:
    def test_looks_no_closer_than_it_takes(self):
        looked = []

        def closer(value):
            looked.append(value)
            return str(value)

        values = {Parallelism(): 3, TWO: 1, FOUR: 2}
        contest = Contest(values.__getitem__, closer, str)
        for split in values:
            contest.enter(split)

        assert contest.winner(lambda known: (float(known),)) == "1"
        assert looked == [1]

    def test_goes_on_where_a_closer_look_disappoints(self):
        closer = {1: "9", 2: "2"}.__getitem__
        contest = Contest({TWO: 1, FOUR: 2}.__getitem__, closer, str)
        contest.enter(TWO)
        contest.enter(FOUR)

        assert contest.winner(lambda known: (float(known),)) == "2"

    def test_is_won_by_the_first_of_equals(self):
        values = {FOUR: 4, TWO: 2}
        contest = Contest(values.__getitem__, str, str)
        for split in values:
            contest.enter(split)

        assert contest.winner(lambda _: (0.0,)) == "4"
        assert contest.winner(lambda _: (0.0,), [TWO, FOUR]) == "2"

    def test_that_all_lose_knows_every_reason_in_order(self):
        small = a_gpu(memory_bytes=10 * GB)
        request = a_sizing_request(gpu=small, slo=an_slo(tpot_s=0.001))
        contest = Contest(
            lambda split: outline_of(request, split),
            lambda outline: contender_of(request, outline.parallelism),
            str,
        )
        for tensor in (1, 8):
            contest.enter(Parallelism(tensor=tensor))

        assert contest.winner(lambda known: (-known.most_requests_per_s,)) is None
        assert [type(each) for each in contest.refusals] == [DoesNotFitError, SLOInfeasibleError]
