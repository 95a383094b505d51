"""The cases of the replay benchmark: what is served, and the traffic that it gets.

One model throughout: 8 billion parameters on H100, one GPU a replica, p99 targets. The rate of each
shape is such that the smallest constant fleet that keeps the target has 4 to 12 replicas, so that
whole replicas matter less than who scales them. A trace keeps its own rate, times a factor, and its
spec declares the mean lengths, their p99s and the mean rate of the part that is replayed: what an
owner would write who knows the day, but not its hours.
"""

import math
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from tonnage.api.objects import ModelDeployment, parse_model_deployment
from tonnage.engine.chance import Chance
from tonnage.replay.cluster import FirstPlan, StartupTime
from tonnage.replay.policies import Scenario
from tonnage.replay.simulation import SyntheticWorkload, TraceWorkload, first_plan
from tonnage.replay.traces import Trace, drawn_from, duration_of, read_trace, window_of
from tonnage.replay.traffic import SHAPES, Shape, Traffic, arrivals
from tonnage.sizing.workload import NORMAL, Workload
from tonnage.units import THOUSAND, seconds

LLMD_STAGES: Final = (
    (2, 330), (4, 360), (6, 360), (8, 360), (10, 360), (4, 360), (1, 300),
)  # fmt: skip
"""Requests/s and seconds: the profile by which llm-d scores autoscalers, as in scored-config.yml of
its guides on workload autoscaling."""
LLMD_PROMPT: Final = (300, 3500, 4500)
"""Deviation, least and most tokens; the mean lies midway."""
LLMD_OUTPUT: Final = (80, 900, 1100)
FIRST_SEED: Final = 11_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """Requests at one rate, all of one length in each stage: prompt and answer."""

    requests_per_s: float
    stage_s: float
    thousands: tuple[tuple[int, int], ...]
    """Of tokens."""

    @property
    def duration_s(self) -> float:
        return self.stage_s * len(self.thousands)

    @property
    def stages(self) -> list[tuple[int, int]]:
        """Tokens of prompt and answer."""
        return [(THOUSAND * prompt, THOUSAND * output) for prompt, output in self.thousands]

    @property
    def summary(self) -> str:
        lengths = " then ".join(f"{prompt}/{output}" for prompt, output in self.stages)
        return f"{self.requests_per_s:g} requests/s of {lengths} tokens, {self.stage_s:g} s each"


LONG_PROMPTS, LONG_ANSWERS = (6, 1), (1, 4)
SWAPS: Final[Mapping[str, Swap]] = {
    "swap": Swap(requests_per_s=6, stage_s=1100, thousands=(LONG_PROMPTS, LONG_ANSWERS)),
    "swap-back": Swap(requests_per_s=6, stage_s=1100, thousands=(LONG_ANSWERS, LONG_PROMPTS)),
    "swap-long": Swap(requests_per_s=6, stage_s=1100, thousands=((1, 6), (8, 1))),
    "swap-short": Swap(requests_per_s=4, stage_s=720, thousands=(LONG_PROMPTS, LONG_ANSWERS)),
    "swap-slow": Swap(requests_per_s=2, stage_s=720, thousands=((4, 1), LONG_ANSWERS)),
}
"""Those by which llm-scaling-manager is measured, of the same rates, lengths and times: in
ev-shindin/llm-scaler test/benchmark/scenarios, shape_6k1000_1k4000_rps6_20m.params.yaml (61065e90),
shape_1k4000_6k1000_rps6_20m (b03747cf), shape_1k6000_8k1000_rps6_20m (ad81f35d),
shape_6k1000_1k4000_rps4_12m and shape_4k1000_1k4000_rps2_12m (aa8f5798)."""


def llmd(seed: int = 0, *, factor: float = 1.0) -> Trace:
    """Return the scored profile: requests evenly apart in each stage, normal lengths cut off.

    ``factor``: of the rates.
    """
    arrival_s, begun_s = array("d"), 0.0
    for requests_per_s, stage_s in LLMD_STAGES:
        rate = factor * requests_per_s
        arrival_s.extend(begun_s + k / rate for k in range(math.ceil(rate * stage_s)))
        begun_s += stage_s
    first, number = FIRST_SEED + 2 * seed, len(arrival_s)
    return Trace(
        arrival_s=arrival_s,
        prompt_tokens=_clip(LLMD_PROMPT, Chance(first).shares(number)),
        output_tokens=_clip(LLMD_OUTPUT, Chance(first + 1).shares(number)),
    )


def _clip(lengths: tuple[int, int, int], shares: Sequence[float]) -> "array[int]":
    deviation, least, most = lengths
    mean = (least + most) / 2
    normals = (NORMAL.inv_cdf(max(share, 1e-12)) for share in shares)
    return array("q", (min(most, max(least, round(mean + deviation * z))) for z in normals))


def _llmd(_: Workload, times: float, *, context_tokens: int, seed: int = 0) -> Traffic:
    duration_s = sum(stage_s for _, stage_s in LLMD_STAGES)
    trace = llmd(seed, factor=times)
    return drawn_from(trace, duration_s=duration_s, context_tokens=context_tokens)


def _swap(found: Swap, _: Workload, times: float, *, context_tokens: int, seed: int = 0) -> Traffic:
    requests_per_s = times * found.requests_per_s
    chance = Chance(FIRST_SEED + 2 * seed)
    arrival_s = array("d", arrivals(lambda _: requests_per_s, found.duration_s, 1.0, chance))
    stages = found.stages
    rows = [stages[int(at_s / found.stage_s)] for at_s in arrival_s]
    trace = Trace(
        arrival_s=arrival_s,
        prompt_tokens=array("q", (prompt for prompt, _ in rows)),
        output_tokens=array("q", (output for _, output in rows)),
    )
    return drawn_from(trace, duration_s=found.duration_s, context_tokens=context_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRate:
    """A shape that brings a rate of its own, of which so many times are asked for."""

    summary: str
    draw: Callable[..., Traffic]


ALL_SHAPES: Final[Mapping[str, Shape | OwnRate]] = {
    **SHAPES,
    "llmd": OwnRate(summary="llm-d's scored profile", draw=_llmd),
    **{
        name: OwnRate(summary=found.summary, draw=partial(_swap, found))
        for name, found in SWAPS.items()
    },
}


RATES = {
    "steady": 40.0,
    "step": 30.0,
    "ramp": 30.0,
    "diurnal": 20.0,
    "drift": 5.0,
    "bursts": 20.0,
}
"""Requests/s in the mean."""
TRACES = (
    "azure2023_conv.csv.gz:10:0m-60m",
    "azure2023_code.csv.gz:4:0m-60m",
    "servegen_mlarge_14d_x125.parquet:60:5040m-5100m",
    "servegen_tenant_office_c69_7d.parquet:40:1980m-2040m",
    "servegen_tenant_steady_c78_12h.parquet:10:0m-60m",
)
"""Those of the whole benchmark, as FILE:SCALE:FROM-TO: windows in which replicas come and go."""
TIMES = {"llmd": 1.5, "swap-long": 0.5, "swap-slow": 2.0}
"""Of the rates that shapes bring with them, so that 4 to 7 replicas are needed: as published
``swap-long`` takes 12 and ``swap-slow`` 2. The other swaps take 5 and 7 as they are."""
TARGET = 0.99
CONTEXT_TOKENS = 32_768
MAX_REPLICAS = 16


VLLM_FLAGS = {"max_num_seqs": 1024, "max_num_batched_tokens": 8192}
"""What a server of vLLM runs with where nobody says, on a GPU of 70 GiB or more that is no A100:
``EngineArgs.get_batch_defaults`` in vllm/engine/arg_utils.py of 0.33.0. Its share of the memory,
0.92 (``CacheConfig``), is the plan's too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Who spreads requests, and what engines run with where Tonnage does not choose it."""

    routing: str = "Service"
    has_vllm_flags: bool = False
    admission: str = "all"

    def __str__(self) -> str:
        flags = "vLLM's flags" if self.has_vllm_flags else "Tonnage's flags"
        refusals = "" if self.admission == "all" else f", {self.admission}"
        return f"{flags}, {self.routing}{refusals}"

    def of(self, scenario: Scenario) -> Scenario:
        """Return the same traffic and promises in this view; plans know who routes and refuses."""
        model, spec = scenario.model, scenario.model.spec
        if self.routing != spec.scaling.routing:
            scaling = spec.scaling.model_copy(update={"routing": self.routing})
            spec = spec.model_copy(update={"scaling": scaling})
        if spec.engine and self.admission != spec.engine.admission:
            engine = spec.engine.model_copy(update={"admission": self.admission})
            spec = spec.model_copy(update={"engine": engine})
        if spec is not model.spec:
            model = replace(model, spec=spec)
            scenario = replace(scenario, model=model, planned=first_plan(model))
        plan = scenario.planned
        if not self.has_vllm_flags:
            return scenario
        return replace(scenario, planned=replace(plan, flags=replace(plan.flags, **VLLM_FLAGS)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Tokens that a spec declares."""

    prompt_mean: float
    prompt_p99: float
    output_mean: float
    output_p99: float


CHAT = Lengths(prompt_mean=2000, prompt_p99=6000, output_mean=400, output_p99=1600)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A shape by its name, or a part of a trace; hashable, and small enough to be sent."""

    name: str
    file: Path | None = None
    """None: ``name`` is a shape."""
    times: float = 1.0
    from_s: float = 0.0
    until_s: float = math.inf

    def __str__(self) -> str:
        if self.file is None:
            return self.name if self.times == 1 else f"{self.name} x {self.times:g}"
        until = "end" if math.isinf(self.until_s) else f"{self.until_s:g} s"
        return f"{self.name} x {self.times:g}, {self.from_s:g} s to {until}"


class NoCaseError(ValueError):
    """What was given names no case."""


def shape_cases() -> list[Case]:
    return [Case(name=name, times=TIMES.get(name, 1.0)) for name in ALL_SHAPES]


def trace_case(text: str) -> Case:
    """Read FILE, FILE:SCALE or FILE:SCALE:FROM-TO.

    Raises:
        NoCaseError: the scale or the window is none.

    >>> str(trace_case("day.csv.gz:0.5:0h-2h"))
    'day x 0.5, 0 s to 7200 s'
    """
    path, _, rest = text.partition(":")
    scale, _, window = rest.partition(":")
    try:
        times = float(scale or 1)
        from_s, until_s = _window(window) if window else (0.0, math.inf)
    except ValueError as error:
        raise NoCaseError(f"{text}: not FILE[:SCALE[:FROM-TO]]: {error}") from error
    if not (0 < times < math.inf and from_s < until_s):
        raise NoCaseError(f"{text}: a scale is above 0, and a window ends after it begins")
    name = Path(path).name.partition(".")[0]
    return Case(name=name, file=Path(path), times=times, from_s=from_s, until_s=until_s)


def traces_in(folder: Path) -> list[str]:
    """Return those traces of the whole benchmark that lie in a folder.

    Raises:
        NoCaseError: there are none.
    """
    found = [f"{folder}/{each}" for each in TRACES if (folder / each.partition(":")[0]).is_file()]
    if not found:
        files = ", ".join(each.partition(":")[0] for each in TRACES)
        raise NoCaseError(f"{folder} has none of {files}")
    return found


def _window(text: str) -> tuple[float, float]:
    begin, _, end = text.partition("-")
    return (0.0 if begin in {"0", "0s", "0m", "0h"} else seconds(begin)), seconds(end)


def chosen_cases(traces: Sequence[str], only: Sequence[str]) -> list[Case]:
    """Return all shapes and the traces given, or those of them that are named.

    Raises:
        NoCaseError: a file is missing, a name is unknown, or two cases have one.
    """
    found = [*shape_cases(), *map(trace_case, traces)]
    missing = [str(case.file) for case in found if case.file and not case.file.is_file()]
    if missing:
        raise NoCaseError(f"no such trace: {', '.join(missing)}")
    twice = [text for text, number in Counter(map(str, found)).items() if number > 1]
    if twice:
        raise NoCaseError(f"two cases of one name, whose files would be one: {', '.join(twice)}")
    names = [case.name for case in found]
    unknown = [name for name in only if name not in names]
    if unknown:
        raise NoCaseError(f"no such case: {', '.join(unknown)}; there are {', '.join(names)}")
    return [case for case in found if not only or case.name in only]


@cache
def scenario_parts(
    case: Case, declared: float = 1.0
) -> tuple[ModelDeployment, TraceWorkload | SyntheticWorkload, FirstPlan]:
    """Return what all runs of a case have in common; ``declared``: of the rate, by the spec."""
    requests, lengths, rate = _of_shape(case) if case.file is None else _of_trace(case)
    model = parse_model_deployment(manifest(lengths, declared * rate))
    return model, requests, first_plan(model)


def scenario(
    case: Case, *, start_s: float, seed: int, speed: float | None, declared: float = 1.0
) -> Scenario:
    model, requests, plan = scenario_parts(case, declared)
    return Scenario(
        model=model,
        requests=requests,
        start=StartupTime(mean_s=start_s),
        planned=plan,
        target=TARGET,
        speed=speed,
        seed=seed,
    )


def _of_shape(case: Case) -> tuple[SyntheticWorkload, Lengths, float]:
    """Return the requests of a shape, their lengths and their mean rate."""
    shape, own = ALL_SHAPES[case.name], RATES.get(case.name, 1.0)
    requests = SyntheticWorkload(shape=shape, requests_per_s=case.times * own)
    if found := SWAPS.get(case.name):
        lengths, rate = _lengths(*zip(*found.stages, strict=True)), found.requests_per_s
    elif case.name == "llmd":
        number = sum(rate * stage_s for rate, stage_s in LLMD_STAGES)
        rate = number / sum(stage_s for _, stage_s in LLMD_STAGES)
        lengths = _lengths(LLMD_PROMPT[1:], LLMD_OUTPUT[1:])
    else:
        lengths, rate = CHAT, own
    return requests, lengths, case.times * rate


def _lengths(prompts: Sequence[int], outputs: Sequence[int]) -> Lengths:
    """Return the means and the largest."""
    return Lengths(
        prompt_mean=fmean(prompts),
        prompt_p99=max(prompts),
        output_mean=fmean(outputs),
        output_p99=max(outputs),
    )


def _of_trace(case: Case) -> tuple[TraceWorkload, Lengths, float]:
    trace = read_trace(Path(str(case.file)))
    part = window_of(trace, case.from_s, case.until_s)
    duration_s = duration_of(trace, case.from_s, case.until_s)
    requests = TraceWorkload(trace=part, duration_s=duration_s, times=case.times)
    return requests, lengths_of(part), case.times * len(part) / duration_s


def lengths_of(trace: Trace) -> Lengths:
    """Return means and p99s; of requests that the context holds, as others are not served."""
    rows = [
        (prompt, output)
        for prompt, output in zip(trace.prompt_tokens, trace.output_tokens, strict=True)
        if prompt + output <= CONTEXT_TOKENS
    ]
    prompts, outputs = (sorted(column) for column in zip(*rows, strict=True))
    place = math.ceil(0.99 * len(rows)) - 1
    return Lengths(
        prompt_mean=sum(prompts) / len(rows),
        prompt_p99=prompts[place],
        output_mean=sum(outputs) / len(rows),
        output_p99=outputs[place],
    )


def manifest(lengths: Lengths, requests_per_s: float, *, quantile: str = "p99") -> dict[str, Any]:
    return {
        "apiVersion": "tonnage.dev/v1alpha1",
        "kind": "ModelDeployment",
        "metadata": {"name": "served", "namespace": "serving", "uid": "uid-of-served",
                     "generation": 1},
        "spec": {
            "model": {"id": "meta-llama/Llama-3.1-8B-Instruct"},
            "hardware": {"gpu": "H100", "gpusPerReplica": 1},
            "contextLength": CONTEXT_TOKENS,
            "slo": {"timeToFirstToken": {quantile: "2s"}, "timePerOutputToken": {quantile: "50ms"}},
            "demand": {
                "requestsPerSecond": f"{requests_per_s:.4f}",
                "promptTokens": _declared(lengths.prompt_mean, lengths.prompt_p99),
                "outputTokens": _declared(lengths.output_mean, lengths.output_p99),
            },
            "scaling": {"minReplicas": 1, "maxReplicas": MAX_REPLICAS},
            "engine": {"version": "0.33"},
        },
    }  # fmt: skip


def setup_of(case: Case) -> dict[str, Any]:
    """Return what the figures of a case hang on beside its name, as data."""
    if case.file is not None:
        own: dict[str, Any] = {"traceBytes": case.file.stat().st_size}
    else:
        own = {"requestsPerSecond": RATES.get(case.name)}
    return own | {"target": TARGET, "spec": manifest(CHAT, 1.0)["spec"]}


def _declared(mean: float, p99: float) -> dict[str, int]:
    least = max(1, round(mean))
    return {"mean": least, "p99": max(least, round(p99))}
