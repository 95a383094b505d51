"""The compiled engine model: made of the sources beside it, and of the same digits."""

import hashlib
import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from tonnage.engine import chance, core, routing, schedule, table
from tonnage.engine.limits import EngineLimits
from tonnage.engine.step_costs import PrefillGrid, StepCosts, linear_costs
from uncompiled import ENGINE, sources_beside

COMPILED = {
    "chance": chance,
    "core": core,
    "routing": routing,
    "schedule": schedule,
    "table": table,
}
EXTENSIONS = [name for name, module in COMPILED.items() if not str(module.__file__).endswith(".py")]
COLUMNS = ["state", "emitted", "computed", "blocks", "start_step", "finish_step", "knot"]
COLUMNS += ["knot_step", "preemptions", "started_s", "first_token_s", "ended_s"]
FIGURES = ["now_s", "busy_s", "decoding_s", "context_s", "num_outstanding", "step_number"]
FIGURES += ["num_steps", "peak_running"]
NUM_REQUESTS = 400

pytestmark = pytest.mark.skipif(
    not EXTENSIONS, reason="nothing is compiled: no C compiler when Tonnage was installed?"
)


@dataclass(frozen=True, kw_only=True)
class Run:
    requests_per_s: float = 8.0
    prompt_tokens: float = 1000
    output_tokens: float = 200
    cached_share: float = 0.0
    limits: dict[str, Any] = field(default_factory=dict)
    num_engines: int = 1
    routing: str = "Service"
    has_knots: bool = False
    has_preemptions: bool = False


RUNS = {
    "dense": Run(),
    "idle between requests": Run(requests_per_s=0.05),
    "more than it can do": Run(requests_per_s=50.0),
    "one slot": Run(requests_per_s=1.0, limits={"max_num_seqs": 1}),
    "a tight cache": Run(requests_per_s=20.0, limits={"num_blocks": 600}, has_preemptions=True),
    "a tight cache, and long prompts": Run(
        requests_per_s=20.0, prompt_tokens=3000, limits={"num_blocks": 800}, has_preemptions=True
    ),
    "cached prefixes": Run(cached_share=0.7),
    "four ranks": Run(
        requests_per_s=40.0, limits={"num_ranks": 4, "num_blocks": 1500}, has_preemptions=True
    ),
    "refusals, two engines of two ranks": Run(
        requests_per_s=80.0,
        limits={"num_ranks": 2, "max_queued_tokens": 4000},
        num_engines=2,
    ),
    "prompts of many chunks": Run(
        prompt_tokens=3000, limits={"max_num_batched_tokens": 100}, has_knots=True
    ),
    "prompts of many chunks, a tight cache, two ranks": Run(
        prompt_tokens=3000,
        limits={"max_num_batched_tokens": 100, "num_blocks": 600, "num_ranks": 2},
        has_preemptions=True,
    ),
    "draft tokens": Run(limits={"num_draft_tokens": 3, "acceptance_rate": 0.7}),
    "draft tokens, a tight cache": Run(
        requests_per_s=20.0,
        limits={"num_draft_tokens": 3, "acceptance_rate": 0.7, "num_blocks": 600},
        has_preemptions=True,
    ),
    "windows": Run(has_knots=True, requests_per_s=5.0),
    "windows on two ranks": Run(has_knots=True, requests_per_s=10.0, limits={"num_ranks": 2}),
    "windows, draft tokens": Run(
        has_knots=True, limits={"num_draft_tokens": 2, "acceptance_rate": 0.6}
    ),
    "three engines by chance": Run(requests_per_s=25.0, num_engines=3),
    "three engines, the least busy": Run(
        requests_per_s=25.0, num_engines=3, routing=routing.POOLED
    ),
}


def limits_of(run):
    usual = {
        "max_num_seqs": 64,
        "max_num_batched_tokens": 2048,
        "num_blocks": 8000,
        "block_size": 16,
        "max_model_len": 9000,
    }
    return EngineLimits(**usual | run.limits)


def costs_of(run, limits):
    places = limits.max_num_seqs * limits.num_ranks
    if not run.has_knots:
        return linear_costs(
            per_step_s=0.006,
            per_sequence_s=2e-5,
            kv_s_per_token=4e-8,
            prefill_s_per_token=2e-5,
            max_num_seqs=places,
        )
    counts = range(places + 1)
    return StepCosts(
        base_s=[0.002 + 1e-5 * n**0.5 for n in counts],
        memory_s=[0.003 for _ in counts],
        compute_s=[8e-5 * n for n in counts],
        context_factor=[1 + 0.3 / (1 + n) for n in counts],
        knots_tokens=(0, 128, 1024, 1100),
        memory_price_s=(1e-6, 1e-5, 5.4e-5, 5.7e-5),
        memory_slope_s=(7e-8, 5e-8, 4e-8, 1e-8),
        compute_price_s=(0.0, 2e-6, 1e-5, 1.1e-5),
        compute_slope_s=(2e-8, 1e-8, 9e-9, 0.0),
        pairs_slope_s=(3e-9, 2e-9, 1e-9, 5e-10),
        prefill=PrefillGrid(
            num_decoding=(0, 8, 40),
            prefill_tokens=(0.0, 100.0, 1500.0),
            seconds=((0.0, 0.003, 0.03), (0.0, 0.002, 0.029), (0.0, 0.0015, 0.028)),
        ),
        own_prefill_s_per_token=3e-6,
    )


def requests_of(run):
    """Return prompt, output and cached tokens, times of arrival and a router's draws."""
    chance = random.Random(7)  # noqa: S311
    arrivals_s, now_s = [], 0.0
    for _ in range(NUM_REQUESTS):
        now_s += chance.expovariate(run.requests_per_s)
        arrivals_s.append(now_s)
    numbers = range(NUM_REQUESTS)
    prompts = [2 + int(chance.gammavariate(4.0, run.prompt_tokens / 4)) % 6000 for _ in numbers]
    outputs = [1 + int(chance.expovariate(1 / run.output_tokens)) % 2500 for _ in numbers]
    cached = [int(prompt * run.cached_share) for prompt in prompts]
    return prompts, outputs, cached, arrivals_s, [chance.random() for _ in numbers]


def outcome(run, modules):
    """Return every column of the requests and every figure of the engines at the end."""
    limits = limits_of(run)
    costs = costs_of(run, limits)
    *columns, draws = requests_of(run)
    requests = modules["table"].RequestTable(*columns)
    engines = [
        modules["core"].Engine(limits, costs, requests, seed=seed)
        for seed in range(run.num_engines)
    ]
    modules["routing"].serve(engines, requests, run.routing, draws)
    return {name: list(getattr(requests, name)) for name in COLUMNS} | {
        f"{name} {index}": getattr(engine, name)
        for index, engine in enumerate(engines)
        for name in FIGURES
    }


def test_all_modules_with_c_types_are_compiled():
    assert sorted(EXTENSIONS) == sorted(path.stem for path in ENGINE.glob("*.pxd"))


@pytest.mark.parametrize("name", EXTENSIONS)
def test_a_compiled_module_is_made_of_the_sources_beside_it(name):
    sources = [path for path in ENGINE.iterdir() if path.with_suffix(".pxd").exists()]
    texts = sorted(path.read_bytes() for path in sources if path.suffix in {".py", ".pxd"})

    digest = hashlib.sha256(b"".join(texts)).hexdigest()

    assert digest == COMPILED[name].SOURCE_DIGEST, (
        "the engine's sources changed after it was compiled: install Tonnage anew"
    )


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_the_digits_are_those_of_the_sources(run):
    with sources_beside() as uncompiled:
        expected = outcome(run, uncompiled)

    assert outcome(run, COMPILED) == expected
    assert min(expected["ended_s"]) > 0
    assert any(expected["preemptions"]) == run.has_preemptions


def test_stepping_and_aborting_keep_the_digits():
    def stepped(modules):
        limits = limits_of(Run())
        prompts, outputs, cached, _, _ = requests_of(Run())
        requests = modules["table"].RequestTable(prompts, outputs, cached, [0.0] * NUM_REQUESTS)
        engine = modules["core"].Engine(limits, costs_of(Run(), limits), requests)
        for number in range(90):
            engine.submit(number)
        steps_s = [engine.step() for _ in range(60)]
        for number in (0, 3, 89):
            engine.abort(number)
        steps_s += [engine.step() for _ in range(60)]
        late = requests.late_starts(0, 90, 0.05), requests.slow_outputs(0, 90, 0.01)
        return steps_s, late, list(requests.ended_s), engine.num_outstanding

    with sources_beside() as uncompiled:
        expected = stepped(uncompiled)

    assert stepped(COMPILED) == expected
