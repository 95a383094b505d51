"""What an answer stands on: each figure that went in, written for a person, and its origin."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum, StrEnum
from typing import Literal

from tonnage.api.schedules import Schedule
from tonnage.api.spec import Demand, KvOffload
from tonnage.catalog.engine import KnownEngine
from tonnage.catalog.engine_speed import SpeedConstants
from tonnage.catalog.gpu import Gpu
from tonnage.catalog.shape import Assumption
from tonnage.sizing.workload import Demand as Asked
from tonnage.sizing.workload import Slo, Workload
from tonnage.units import count_of, format_bytes, format_si, significant

MOST_NAMED = 3
"""Schedules that are written out."""


class Origin(StrEnum):
    """Where a figure comes from."""

    GIVEN = "given"
    LOOKED_UP = "looked up"
    GUESSED = "guessed"
    """A usual value: nobody gave one."""
    ASSUMED = "assumed"
    """A bound on the safe side: what was read is of no known kind."""
    MEASURED = "measured"


class Figure(Enum):
    """What an input is about, as a person reads it."""

    CONTEXT = "contextLength"
    SLO = "SLO"
    LENGTHS = "lengths"
    SPREAD = "spread of lengths"
    PREFIX = "prefix cache"
    ADAPTERS = "adapters"
    SPECULATION = "speculation"
    CHUNK = "max-num-batched-tokens"
    DEMAND = "demand"
    MAX_REPLICAS = "maxReplicas"
    """No input of the arithmetic: nobody gave a bound where it is guessed, and none counts."""
    ARRIVALS = "arrivals"
    ADMISSION = "admission"
    ROLE = "role"
    HOST_CACHE = "KV cache in host memory"
    NODE_LINK = "link between nodes"
    SCHEDULES = "schedules"
    GPU = "GPU"
    WEIGHTS = "weights"
    KV_CACHE = "KV cache"
    ENGINE = "vLLM"
    SPEED = "bandwidth efficiency"
    MODEL = "model"
    """What its configuration leaves open."""
    CHECKPOINT = "checkpoint"
    FLAGS = "flags"
    PRICE = "price"
    """Of a GPU, on the terms that are paid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One figure that the answer stands on. Two of one request may be about the same."""

    figure: Figure
    value: str
    origin: Origin
    which: str = ""
    """The class of a GPU, the version of an engine."""
    effect: str = ""
    """Of an assumption: what its bound makes too large, memory or time."""
    times: float = 1.0
    """Of an assumption: times the truth that it counts at most."""
    replaced_by: str = ""
    """Of an assumption: the file, the field or the report that knows better."""

    @property
    def name(self) -> str:
        return f"{self.figure.value} {self.which}".rstrip()


def without_figures(inputs: Iterable[Input], *figures: Figure) -> tuple[Input, ...]:
    """Return the inputs that are about none of these figures."""
    return tuple(each for each in inputs if each.figure not in figures)


def as_guessed(inputs: Iterable[Input], figures: frozenset[Figure]) -> tuple[Input, ...]:
    """Return the inputs, those about these figures as guesses: nobody gave them."""
    return tuple(
        replace(each, origin=Origin.GUESSED) if each.figure in figures else each for each in inputs
    )


def with_changed(inputs: Iterable[Input], *changed: Input) -> tuple[Input, ...]:
    """Return the inputs with each of those put where the one it replaces was.

    What is changed but was not there is left out: the answer does not stand on it. Assumptions
    stay: what is changed may be about the same.
    """
    changes = {each.figure: each for each in changed}
    return tuple(
        each if each.origin is Origin.ASSUMED else changes.get(each.figure, each) for each in inputs
    )


def host_cache_written(given: KvOffload) -> str:
    parts = ["Auto"] if given.is_auto else []
    if given.gib is not None:
        parts.append(f"{'up to ' if given.is_auto else ''}{given.gib} GiB")
    if given.working_set_tokens is not None:
        parts.append(f"for {count_of(given.working_set_tokens, 'token')} that come again")
    return " ".join(parts)


def assumed_inputs(assumptions: Iterable[Assumption]) -> Iterator[Input]:
    """Yield an input for each assumption, once."""
    for each in dict.fromkeys(assumptions):
        yield Input(
            figure=Figure(each.about),
            value=each.taken,
            origin=Origin.ASSUMED,
            effect=each.effect,
            times=each.times,
            replaced_by=each.replaced_by,
        )


def most_times(inputs: Iterable[Input], effect: Literal["memory", "time"]) -> float:
    """Return times the truth that assumptions count of memory, or of time, at most; 1: none does.

    That of the widest: assumptions are rarely about the same bytes.
    """
    return max((each.times for each in inputs if effect in each.effect), default=1.0)


def given_input(figure: Figure, value: str) -> Input:
    return Input(figure=figure, value=value, origin=Origin.GIVEN)


def targets_written(slo: Slo) -> str:
    targets = [f"TTFT {each}" for each in slo.ttft] + [f"TPOT {each}" for each in slo.tpot]
    return ", ".join(targets) or "none: offline"


def demand_written(demand: Demand | None, rate: Asked) -> str:
    """Write the demand in the words of the spec, where these are not a rate of requests."""
    if demand is None or demand.tokens_per_day is None:
        return str(rate)
    return f"{float(demand.tokens_per_day):,.0f} output tokens per day = {rate}"


def schedules_written(schedules: Sequence[Schedule]) -> str:
    more = len(schedules) - MOST_NAMED
    named = "; ".join(_schedule_written(each) for each in schedules[:MOST_NAMED])
    return f"{named}; and {more} more" if more > 0 else named


def _schedule_written(schedule: Schedule) -> str:
    rate, replicas = schedule.requests_per_second, schedule.min_replicas
    floors = [f"{rate} requests/s"] if rate else []
    floors += [f"minReplicas {replicas}"] if replicas else []
    when = f"{schedule.cron} {schedule.time_zone}"
    return f"{when} for {schedule.duration}: {' and '.join(floors)}"


def arrivals_input(scv: float, routing: str, origin: Origin, *, is_most: bool = False) -> Input:
    """Return how burstily requests come, and what spreads them.

    ``is_most``: they come in more bursts, and a replica bears no power of two above this.
    """
    words = "Poisson" if scv == 1 else f"bursts of squared variation {scv:g}"
    most = ", about the most that a replica bears" if is_most else ""
    value = f"{words}{most}, through a {routing}"
    return Input(figure=Figure.ARRIVALS, value=value, origin=origin)


def lengths_inputs(workload: Workload, origin: Origin) -> Iterator[Input]:
    """Yield the lengths of prompts and answers, and how they are taken to spread without a p99."""
    value = (
        f"{significant(workload.prompt.mean_tokens)} prompt ({workload.cached_fraction:.0%} "
        f"cached) + {significant(workload.output_tokens)} output tokens"
    )
    yield Input(figure=Figure.LENGTHS, value=value, origin=origin)
    assumed = []
    if workload.prompt.p99_tokens is None:
        assumed.append("every prompt of mean length")
    if workload.output_second_moment is None:
        p99 = significant(workload.output_p99_tokens)
        assumed.append(f"outputs exponential: p99 {p99} tokens")
    if assumed:
        yield Input(figure=Figure.SPREAD, value="; ".join(assumed), origin=Origin.GUESSED)


def gpu_input(gpu: Gpu, precision: str) -> Input:
    """Return what a class has and can do in products of this precision."""
    peak = format_si(gpu.flop_per_s(precision), "FLOP/s")
    value = f"{format_bytes(gpu.memory_bytes)}, {format_si(gpu.memory_bytes_per_s, 'B/s')}, {peak}"
    return Input(figure=Figure.GPU, which=gpu.name, value=value, origin=Origin.LOOKED_UP)


def engine_input(engine: KnownEngine) -> Input:
    """Return the version whose constants are used; that of an unknown version is a guess."""
    return Input(
        figure=Figure.ENGINE,
        which=engine.minor,
        value=f"memory constants since {engine.constants.since}",
        origin=Origin.GUESSED if engine.is_guess else Origin.LOOKED_UP,
    )


def speed_input(speed: SpeedConstants, origin: Origin, *, remark: str = "") -> Input:
    """Return the constant that is learned: a prior is looked up. ``remark``: how else."""
    value = significant(speed.bandwidth_efficiency)
    value = f"{value}, {remark}" if remark else value
    return Input(figure=Figure.SPEED, value=value, origin=origin)


def cache_input(tokens: float, *, remark: str) -> Input:
    """Return the cache of a rank as an engine reported it. ``remark``: which one did."""
    value = f"{tokens:,.0f} tokens of a rank, {remark}"
    return Input(figure=Figure.KV_CACHE, value=value, origin=Origin.MEASURED)


def format_input(figure: Figure, name: str, *, asked: str) -> Input:
    """Return a format of weights or cache: of the model itself where ``auto`` is asked for."""
    origin = Origin.LOOKED_UP if asked == "auto" else Origin.GIVEN
    return Input(figure=figure, value=name, origin=origin)
